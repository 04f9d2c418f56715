//! The first bytes of every connection may come from any process that found the port.

use crate::input::Input;
use oxccl::bootstrap::credentials::{Credentials, Maker};
use oxccl::bootstrap::handshake::{Handshake, Hello, Purpose, ROOT};
use oxccl::bootstrap::secret::{Ephemeral, Secret};
use oxccl_shared::abi::Rank;
use std::sync::LazyLock;

const SECRET: Secret = Secret::from_bytes([7; 32]);
const HELLO: Hello = Hello { purpose: Purpose::Ring, from: Rank(3), to: Rank(5), tag: 9 };

/// How each end shows which rank it is: ranks that share one id; a rank with its own before the root; two such ranks.
static CREDENTIALS: LazyLock<[[Credentials; 2]; 3]> = LazyLock::new(|| {
    let maker = Maker::new(SECRET);
    let own = |rank| Credentials::Own(maker.key_of(rank));
    let certified = |rank| {
        let hello = Hello { purpose: Purpose::Register, from: rank, to: ROOT, tag: 0 };
        let mut ends = [
            Handshake::initiator(SECRET, hello, Ephemeral::from_bytes([3; 32])).by(own(rank)),
            Handshake::acceptor(SECRET, ROOT, Ephemeral::from_bytes([4; 32])).by(Credentials::Maker(maker)),
        ];
        (0..4).for_each(|_| {
            exchange(&mut ends, |_, _| {});
        });
        ends[0].credentials()
    };
    let by_root = [own(HELLO.from), Credentials::Maker(maker)];
    [<[Credentials; 2]>::default(), by_root, [certified(HELLO.from), certified(HELLO.to)]]
});

/// Each end says what it has to say; `changes` may change the bytes of the end of this number.
fn exchange(ends: &mut [Handshake; 2], mut changes: impl FnMut(usize, &mut [u8])) {
    for from in 0..2 {
        let mut bytes = ends[from].output().to_vec();
        ends[from].sent(bytes.len());
        changes(from, &mut bytes);
        let taken = ends[1 - from].feed(&bytes);
        assert!(taken <= bytes.len());
    }
}

/// A stranger is never let in, in either role; bytes changed on the way are noticed; honest ends agree.
pub fn handshake(data: &[u8]) {
    let mut input = Input(data);
    match input.u8() % 3 {
        0 => stranger(Handshake::acceptor(SECRET, Rank(5), Ephemeral::from_bytes([1; 32])), input),
        1 => stranger(Handshake::initiator(SECRET, HELLO, Ephemeral::from_bytes([2; 32])), input),
        _ => changed_on_the_way(input),
    }
}

fn stranger(mut end: Handshake, mut input: Input<'_>) {
    while !input.is_empty() {
        let len = input.u8() as usize;
        let piece = input.piece(len);
        let wanted = end.wanted_bytes();
        let taken = end.feed(piece);
        assert!(taken <= piece.len());
        if wanted == 0 {
            assert_eq!(taken, 0, "bytes after the end belong to somebody else");
        }
        end.sent(end.output().len());
    }
    // To succeed the fuzzer would have to guess an authentication code.
    assert!(!matches!(end.outcome(), Some(Ok(_))));
}

/// Two honest ends, and a man in the middle who changes one byte (or none).
fn changed_on_the_way(mut input: Input<'_>) {
    let (victim, at, mask) = (input.u8() % 2, input.u8() as usize, input.u8());
    let [one, other] = CREDENTIALS[usize::from(input.u8()) % CREDENTIALS.len()].clone();
    let mut ends = [
        Handshake::initiator(SECRET, HELLO, Ephemeral::from_bytes([2; 32])).by(one),
        Handshake::acceptor(SECRET, Rank(5), Ephemeral::from_bytes([1; 32])).by(other),
    ];
    let mut sent = [0usize; 2];
    let mut touched = false;
    for _ in 0..4 {
        exchange(&mut ends, |from, bytes| {
            if from == usize::from(victim) && (sent[from]..sent[from] + bytes.len()).contains(&at) {
                bytes[at - sent[from]] ^= mask;
                touched = mask != 0;
            }
            sent[from] += bytes.len();
        });
    }
    let agreed = ends.each_ref().map(|end| matches!(end.outcome(), Some(Ok(hello)) if hello == HELLO));
    if touched {
        assert_ne!(agreed, [true, true], "a changed byte went unnoticed");
    } else {
        assert_eq!(agreed, [true, true]);
    }
}

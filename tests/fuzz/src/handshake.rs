//! The first bytes of every connection may come from any process that found the port.

use crate::input::Input;
use oxccl::bootstrap::handshake::{Handshake, Hello, Purpose};
use oxccl::bootstrap::secret::{Ephemeral, Secret};
use oxccl_shared::abi::Rank;

const SECRET: Secret = Secret::from_bytes([7; 32]);
const HELLO: Hello = Hello { purpose: Purpose::Ring, from: Rank(3), to: Rank(5), tag: 9 };

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
    let mut ends = [
        Handshake::initiator(SECRET, HELLO, Ephemeral::from_bytes([2; 32])),
        Handshake::acceptor(SECRET, Rank(5), Ephemeral::from_bytes([1; 32])),
    ];
    let (victim, at, mask) = (input.u8() % 2, input.u8() as usize, input.u8());
    let mut sent = [0usize; 2];
    let mut touched = false;
    for _ in 0..4 {
        for from in 0..2 {
            let mut bytes = ends[from].output().to_vec();
            ends[from].sent(bytes.len());
            if from == usize::from(victim) && (sent[from]..sent[from] + bytes.len()).contains(&at) {
                bytes[at - sent[from]] ^= mask;
                touched = mask != 0;
            }
            sent[from] += bytes.len();
            let taken = ends[1 - from].feed(&bytes);
            assert!(taken <= bytes.len());
        }
    }
    let agreed = ends.each_ref().map(|end| matches!(end.outcome(), Some(Ok(hello)) if hello == HELLO));
    if touched {
        assert_ne!(agreed, [true, true], "a changed byte went unnoticed");
    } else {
        assert_eq!(agreed, [true, true]);
    }
}

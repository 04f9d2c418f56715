//! Records without sockets: what one side seals the other opens, and nothing else.

use super::super::handshake::{Handshake, Hello, Purpose};
use super::super::secret::{Ephemeral, Secret};
use super::*;
use oxccl_shared::abi::Rank;
use proptest::prelude::*;

/// The two ends of a connection.
fn ends() -> [Session; 2] {
    let hello = Hello { purpose: Purpose::Ring, from: Rank(0), to: Rank(1), tag: 0 };
    let secret = Secret::from_seed(b"s");
    let mut a = Handshake::initiator(secret, hello, Ephemeral::from_bytes([1; 32]));
    let mut b = Handshake::acceptor(secret, Rank(1), Ephemeral::from_bytes([2; 32]));
    for _ in 0..2 {
        b.feed(a.output());
        a.feed(b.output());
    }
    [a, b].map(|mut end| end.take_session().expect("both agree"))
}

proptest! {
    #[test]
    fn what_is_sealed_opens_however_the_stream_is_cut(
        messages in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 0..6),
        cut in 1usize..400,
    ) {
        let [mut a, mut b] = ends();
        let mut sealed = Vec::new();
        messages.iter().for_each(|message| a.seal(message, &mut sealed));
        let mut opened = Vec::new();
        for piece in sealed.chunks(cut) {
            b.feed(piece).expect("as it was sealed");
            opened.extend(b.take_opened());
        }
        prop_assert_eq!(opened, messages.concat());
    }

    #[test]
    fn one_changed_bit_is_noticed_where_it_stands(at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let [mut a, mut b] = ends();
        let mut sealed = Vec::new();
        for message in [&b"first"[..], &[7; 100], b"last"] {
            a.seal(message, &mut sealed);
        }
        let at = at.index(sealed.len());
        sealed[at] ^= 1 << bit;
        // The record's part ends at most this much later, whatever its changed length says.
        let end = sealed.len().min(at + 100 + TAG_BYTES);
        prop_assert_eq!(b.feed(&sealed[..end]), Err(Altered));
        let opened = b.take_opened();
        prop_assert!([&b"first"[..], &[7; 100], b"last"].concat().starts_with(&opened));
        prop_assert_eq!(b.feed(b"more"), Err(Altered));
    }
}

#[test]
fn long_messages_take_several_records() {
    let [mut a, mut b] = ends();
    let message: Vec<u8> = (0..200_000u32).map(|i| (i % 251) as u8).collect();
    let mut sealed = Vec::new();
    a.seal(&message, &mut sealed);
    assert_eq!(sealed.len(), message.len() + 4 * (HEAD_BYTES + TAG_BYTES));
    b.feed(&sealed).expect("as it was sealed");
    assert!(b.take_opened() == message);
}

#[test]
fn records_again_in_another_order_or_back_to_their_sender_do_not_open() {
    let seal = |from: &mut Session, message: &[u8]| {
        let mut sealed = Vec::new();
        from.seal(message, &mut sealed);
        sealed
    };
    let [mut a, mut b] = ends();
    let first = seal(&mut a, b"first");
    assert_eq!((b.feed(&first), b.feed(&first)), (Ok(()), Err(Altered)));
    let [mut a, mut b] = ends();
    let (_left_out, second) = (seal(&mut a, b"first"), seal(&mut a, b"second"));
    assert_eq!((b.feed(&second), b.take_opened()), (Err(Altered), Vec::new()));
    let [mut a, _] = ends();
    let first = seal(&mut a, b"first");
    assert_eq!(a.feed(&first), Err(Altered));
}

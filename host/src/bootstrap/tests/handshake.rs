//! The handshake without sockets: honest sides succeed, all others are refused.

use super::super::credentials::Maker;
use super::super::frame::FRAME_VERSION;
use super::super::rendezvous_wire::{Introduction, ListenerAddr, Register, Reply};
use super::super::ring_wire::{BlockHead, LongWait, MeetingEnd, MembershipEvent, Note, PartHead};
use super::*;
use crate::wire::Message;
use proptest::prelude::*;

const HELLO: Hello = Hello { purpose: Purpose::Stream(9), from: Rank(3), to: Rank(5), tag: 77 };

fn initiator(secret: &[u8]) -> Handshake {
    Handshake::initiator(Secret::from_seed(secret), HELLO, Ephemeral::from_bytes([1; 32]))
}

fn acceptor(secret: &[u8], me: Rank) -> Handshake {
    Handshake::acceptor(Secret::from_seed(secret), me, Ephemeral::from_bytes([2; 32]))
}

/// Carries at most `cut` bytes at a time until nothing moves.
fn carry(a: &mut Handshake, b: &mut Handshake, cut: usize) {
    loop {
        let mut moved = 0;
        for flip in [false, true] {
            let (from, to) = if flip { (&mut *b, &mut *a) } else { (&mut *a, &mut *b) };
            let piece = from.output()[..from.output().len().min(cut)].to_vec();
            from.sent(piece.len());
            assert!(to.feed(&piece) <= piece.len());
            moved += piece.len();
        }
        if moved == 0 {
            return;
        }
    }
}

#[test]
fn sides_with_the_same_secret_meet_however_the_stream_is_cut() {
    for cut in [1, 2, 7, 31, 1000] {
        let (mut a, mut b) = (initiator(b"s"), acceptor(b"s", Rank(5)));
        carry(&mut a, &mut b, cut);
        assert_eq!((a.outcome(), b.outcome()), (Some(Ok(HELLO)), Some(Ok(HELLO))), "cut {cut}");
    }
}

#[test]
fn another_secret_is_refused_by_both() {
    let (mut a, mut b) = (initiator(b"s"), acceptor(b"t", Rank(5)));
    carry(&mut a, &mut b, 1000);
    let refused = Some(Err(HandshakeError::Auth(AuthFailure::WrongSecret)));
    assert_eq!((a.outcome(), b.outcome()), (refused, refused));
}

#[test]
fn another_rank_of_the_job_is_told_so() {
    let (mut a, mut b) = (initiator(b"s"), acceptor(b"s", Rank(6)));
    carry(&mut a, &mut b, 1000);
    let refused = Some(Err(HandshakeError::Auth(AuthFailure::WrongPeer)));
    assert_eq!((a.outcome(), b.outcome()), (refused, refused));
}

/// A rank with a key of its own, as it is after it has shown that to the root.
fn certified(maker: Maker, rank: u32) -> Credentials {
    let hello = Hello { purpose: Purpose::Register, from: Rank(rank), to: ROOT, tag: 0 };
    let mut a = Handshake::initiator(maker.shared(), hello, Ephemeral::from_bytes([3; 32]))
        .by(Credentials::Own(maker.key_of(Rank(rank))));
    let mut root = Handshake::acceptor(maker.shared(), ROOT, Ephemeral::from_bytes([4; 32]))
        .by(Credentials::Maker(maker));
    carry(&mut a, &mut root, 1000);
    assert_eq!((a.outcome(), root.outcome()), (Some(Ok(hello)), Some(Ok(hello))));
    a.credentials()
}

fn maker() -> Maker {
    Maker::new(Secret::from_seed(b"a maker"))
}

/// Rank `from` of the ids of `by` connects to rank `to` of those of `to_by`; both say so.
fn meet(
    from: (u32, Credentials),
    to: (u32, Credentials),
    cut: usize,
) -> [Option<Result<Hello, HandshakeError>>; 2] {
    let hello = Hello { purpose: Purpose::Ring, from: Rank(from.0), to: Rank(to.0), tag: 0 };
    let secret = maker().shared();
    let mut a = Handshake::initiator(secret, hello, Ephemeral::from_bytes([1; 32])).by(from.1);
    let mut b = Handshake::acceptor(secret, Rank(to.0), Ephemeral::from_bytes([2; 32])).by(to.1);
    carry(&mut a, &mut b, cut);
    [a.outcome(), b.outcome()]
}

#[test]
fn ranks_with_keys_of_their_own_meet_and_nobody_plays_another() {
    let of = |rank| certified(maker(), rank);
    for cut in [1, 7, 1000] {
        let met = meet((3, of(3)), (5, of(5)), cut);
        assert!(met.iter().all(|outcome| matches!(outcome, Some(Ok(_)))), "{met:?}");
    }
    let [not_that_rank, wrong_peer] =
        [AuthFailure::NotThatRank, AuthFailure::WrongPeer].map(HandshakeError::Auth);
    // Rank 3 calls itself 4; rank 4 answers as 5.
    assert_eq!(meet((4, of(3)), (5, of(5)), 1000), [Some(Err(not_that_rank)); 2]);
    assert_eq!(meet((3, of(3)), (5, of(4)), 1000)[0], Some(Err(wrong_peer)));
    // Ranks of another id of which the job's shared secret is known all the same.
    let other = certified(Maker::new(Secret::from_seed(b"another maker")), 3);
    assert_eq!(meet((3, other), (5, of(5)), 1000), [Some(Err(not_that_rank)); 2]);
    // Without any key of its own.
    assert!(!matches!(meet((3, Credentials::Believed), (5, of(5)), 1000)[1], Some(Ok(_))));
    assert!(!matches!(meet((3, of(3)), (5, Credentials::Believed), 1000)[0], Some(Ok(_))));
}

#[test]
fn the_root_takes_each_rank_by_its_own_key_alone() {
    for (rank, key_of) in [(0, 1), (1, 0), (7, 8)] {
        let hello = Hello { purpose: Purpose::Register, from: Rank(rank), to: ROOT, tag: 0 };
        let mut a = Handshake::initiator(maker().shared(), hello, Ephemeral::from_bytes([3; 32]))
            .by(Credentials::Own(maker().key_of(Rank(key_of))));
        let mut root = Handshake::acceptor(maker().shared(), ROOT, Ephemeral::from_bytes([4; 32]))
            .by(Credentials::Maker(maker()));
        carry(&mut a, &mut root, 1000);
        let refused = Some(Err(HandshakeError::Auth(AuthFailure::NotThatRank)));
        assert_eq!((a.outcome(), root.outcome()), (refused, refused));
    }
    // A rank that answers in the root's place.
    let hello = Hello { purpose: Purpose::Register, from: Rank(1), to: ROOT, tag: 0 };
    let mut a = Handshake::initiator(maker().shared(), hello, Ephemeral::from_bytes([3; 32]))
        .by(Credentials::Own(maker().key_of(Rank(1))));
    let mut rank = Handshake::acceptor(maker().shared(), ROOT, Ephemeral::from_bytes([4; 32]))
        .by(Credentials::Maker(Maker::new(Secret::from_seed(b"another maker"))));
    carry(&mut a, &mut rank, 1000);
    assert!(!matches!(a.outcome(), Some(Ok(_))));
}

#[test]
fn in_a_child_ranks_have_the_numbers_of_the_child() {
    // Ranks 2 and 5 are 1 and 0 of the child, whose root rank 5 is.
    let members = [Rank(5), Rank(2), Rank(4)];
    let of = |rank| certified(maker(), rank).among(&members);
    let met = meet((1, of(2)), (0, of(5)), 1000);
    assert!(met.iter().all(|outcome| matches!(outcome, Some(Ok(_)))), "{met:?}");
    let met = meet((1, of(2)), (ROOT.0, of(5)), 1000);
    assert!(met.iter().all(|outcome| matches!(outcome, Some(Ok(_)))), "{met:?}");
    // Rank 4 in the place of 2; 2 by its old number; 4 as the root; a rank that is no member.
    for (from, to) in [((1, of(4)), (0, of(5))), ((2, of(2)), (0, of(5))), ((1, of(3)), (0, of(5)))] {
        let refused = Some(Err(HandshakeError::Auth(AuthFailure::NotThatRank)));
        assert_eq!(meet(from, to, 1000), [refused; 2]);
    }
    assert!(!matches!(meet((1, of(2)), (ROOT.0, of(4)), 1000)[0], Some(Ok(_))));
    // In a child of the child.
    let of = |rank| certified(maker(), rank).among(&members).among(&[Rank(2), Rank(1)]);
    let met = meet((1, of(2)), (0, of(4)), 1000);
    assert!(met.iter().all(|outcome| matches!(outcome, Some(Ok(_)))), "{met:?}");
    assert!(!matches!(meet((1, of(5)), (0, of(4)), 1000)[1], Some(Ok(_))));
}

/// Who stands between two ranks, and is a rank itself, passes on what one shows.
#[test]
fn what_a_rank_shows_on_one_connection_is_nothing_on_another() {
    for rank in [Rank(3), Rank(5)] {
        let credentials = certified(maker(), rank.0);
        let proof = credentials.prove(&[1; 32]);
        assert!(credentials.is_proof(rank, &[1; 32], &proof));
        assert!(!credentials.is_proof(rank, &[2; 32], &proof), "of another connection");
        assert!(!credentials.is_proof(Rank(4), &[1; 32], &proof), "another rank's");
        assert!(credentials.learn((Rank(4), rank), &[1; 32], &proof).is_none(), "what connects is no answer");
        let answer = credentials.answer(Rank(4), &[1; 32]);
        assert!(credentials.learn((Rank(4), rank), &[1; 32], &answer).is_some());
        assert!(!credentials.is_proof(rank, &[1; 32], &answer), "nor is an answer what connects");
    }
}

#[test]
fn a_version_of_the_future_is_named_to_both() {
    let (next, later) = (PROTOCOL_VERSION + 1, PROTOCOL_VERSION + 2);
    let mut b = acceptor(b"s", Rank(5));
    let mut hello = initiator(b"s").output().to_vec();
    hello[4..6].copy_from_slice(&next.to_le_bytes());
    // It hears of it at once, and is believed to be of the job only if its HELLO as a whole shows it.
    assert_eq!(b.feed(&hello[..6]), 6);
    let unproved = HandshakeError::Version { theirs: next, proved: None };
    assert_eq!((b.outcome(), b.other_version()), (None, Some(unproved)));
    b.feed(&hello[6..]);
    assert_eq!(b.outcome(), Some(Err(unproved)));
    let mut a = initiator(b"s");
    let mut challenge = b.output().to_vec();
    challenge[4..6].copy_from_slice(&later.to_le_bytes());
    a.feed(&challenge);
    assert_eq!(a.outcome(), Some(Err(HandshakeError::Version { theirs: later, proved: None })));
}

#[test]
fn a_rank_of_another_version_shows_that_it_is_of_the_job() {
    for (secret, proved) in [(b"s", Some(Rank(3))), (b"t", None)] {
        let hello = Hello { purpose: Purpose::Register, from: Rank(3), to: ROOT, tag: 0 };
        let ephemeral = Ephemeral::random().expect("random bytes");
        let a = Handshake::initiator_of(PROTOCOL_VERSION + 1, Secret::from_seed(secret), hello, ephemeral);
        let mut b = acceptor(b"s", ROOT);
        b.feed(a.output());
        assert_eq!(b.outcome(), Some(Err(HandshakeError::Version { theirs: PROTOCOL_VERSION + 1, proved })));
        assert_eq!(b.output()[..6], [&b"OxBs"[..], &PROTOCOL_VERSION.to_le_bytes()].concat());
    }
}

/// Who changes one of these messages raises the version of the protocol, so that ranks of two versions hear it in their first bytes.
#[test]
fn a_version_of_the_protocol_is_one_of_its_messages() {
    let meeting = [Register::VERSION, Reply::VERSION, ListenerAddr::VERSION, Introduction::VERSION];
    let ring = [
        MembershipEvent::VERSION,
        MeetingEnd::VERSION,
        LongWait::VERSION,
        PartHead::VERSION,
        BlockHead::VERSION,
        Note::VERSION,
    ];
    assert_eq!((PROTOCOL_VERSION, FRAME_VERSION, meeting, ring), (16, 1, [5, 7, 1, 1], [2, 3, 2, 1, 2, 1]));
}

#[test]
fn a_mirror_and_a_replay_do_not_pass() {
    let mut a = initiator(b"s");
    let hello = a.output().to_vec();
    a.feed(&hello);
    assert!(!matches!(a.outcome(), Some(Ok(_))), "an echo of one's own bytes is no acceptor");

    let (mut a, mut b) = (initiator(b"s"), acceptor(b"s", Rank(5)));
    let hello = a.output().to_vec();
    b.feed(&hello);
    a.feed(b.output());
    let proof = a.output().to_vec();
    let mut again = Handshake::acceptor(Secret::from_seed(b"s"), Rank(5), Ephemeral::from_bytes([3; 32]));
    again.feed(&hello);
    again.feed(&proof);
    assert_eq!(again.outcome(), Some(Err(HandshakeError::Auth(AuthFailure::Altered))));

    // The other way: a recorded acceptor does not pass for one.
    let (mut a, mut b) = (initiator(b"s"), acceptor(b"s", Rank(5)));
    b.feed(a.output());
    let challenge = b.output().to_vec();
    a.feed(&challenge);
    b.feed(a.output());
    let verdict = b.output().to_vec();
    let mut later = Handshake::initiator(Secret::from_seed(b"s"), HELLO, Ephemeral::from_bytes([4; 32]));
    later.feed(&challenge);
    later.feed(&verdict);
    assert_eq!(later.outcome(), Some(Err(HandshakeError::Auth(AuthFailure::Altered))));
}

#[test]
fn ranks_purpose_and_tag_are_for_the_two_alone() {
    let name = Rank(0xdead_beef);
    let hello =
        Hello { purpose: Purpose::Stream(0x1234_5678), from: name, to: Rank(5), tag: 0x0102_0304_0506_0708 };
    let mut a = Handshake::initiator(Secret::from_seed(b"s"), hello, Ephemeral::from_bytes([1; 32]));
    let mut b = acceptor(b"s", Rank(5));
    let mut seen = Vec::new();
    for turn in 0..4 {
        let (from, to) = if turn % 2 == 0 { (&mut a, &mut b) } else { (&mut b, &mut a) };
        let message = from.output().to_vec();
        from.sent(message.len());
        to.feed(&message);
        seen.extend(message);
    }
    assert_eq!(b.outcome(), Some(Ok(hello)));
    for told in [&name.0.to_le_bytes()[..], &0x1234_5678u32.to_le_bytes(), &hello.tag.to_le_bytes()] {
        assert!(!seen.windows(told.len()).any(|window| window == told), "{told:x?} can be read on the way");
    }
}

#[test]
fn no_byte_past_the_handshake_is_taken() {
    let (mut a, mut b) = (initiator(b"s"), acceptor(b"s", Rank(5)));
    b.feed(a.output());
    a.feed(b.output());
    b.feed(a.output());
    let mut last = b.output().to_vec();
    let verdict_bytes = last.len();
    last.extend_from_slice(b"payload");
    assert_eq!(a.feed(&last), verdict_bytes);
    assert_eq!(a.outcome(), Some(Ok(HELLO)));
    assert_eq!(a.wanted_bytes(), 0);
}

#[test]
fn strangers_are_refused_at_the_first_byte_and_get_no_code() {
    let mut b = acceptor(b"s", Rank(5));
    b.feed(b"G");
    assert_eq!(b.outcome(), Some(Err(HandshakeError::Auth(AuthFailure::NotOxccl))));
    assert_eq!(b.output(), b"");
}

proptest! {
    #[test]
    fn whoever_lacks_the_secret_never_gets_in(
        pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..80), 0..8),
        honest_start in any::<bool>(),
    ) {
        let mut b = acceptor(b"s", Rank(5));
        if honest_start {
            let mut a = initiator(b"not s");
            carry(&mut a, &mut b, 1000);
        }
        for piece in &pieces {
            b.feed(piece);
            prop_assert!(!matches!(b.outcome(), Some(Ok(_))));
        }
        let mut a = initiator(b"s");
        for piece in &pieces {
            a.feed(piece);
            prop_assert!(!matches!(a.outcome(), Some(Ok(_))));
        }
    }

    #[test]
    fn one_flipped_bit_anywhere_spoils_it(byte in 0usize..200, bit in 0u8..8) {
        let (mut a, mut b) = (initiator(b"s"), acceptor(b"s", Rank(5)));
        let mut offset = 0;
        for turn in 0..4 {
            let (from, to) = if turn % 2 == 0 { (&mut a, &mut b) } else { (&mut b, &mut a) };
            let mut message = from.output().to_vec();
            from.sent(message.len());
            if let Some(target) = byte.checked_sub(offset).and_then(|at| message.get_mut(at)) {
                *target ^= 1 << bit;
            }
            offset += message.len();
            to.feed(&message);
        }
        prop_assume!(byte < offset);
        prop_assert!(!matches!((a.outcome(), b.outcome()), (Some(Ok(_)), Some(Ok(_)))));
    }
}

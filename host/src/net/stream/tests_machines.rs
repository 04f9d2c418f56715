//! Sender and receiver over a stream that splits, stalls, ends and lies.

use super::error::{Fault, FrameFault};
use super::frame::HEADER_BYTES;
use super::recv::Receiver;
use super::send::Sender;
use super::testing::{LAYOUT, Message, Pipe, Reader, Writer, block};
use crate::net::bypass::{BYPASS_MIN_BYTES, Expected};
use oxccl_shared::abi::Protocol;
use proptest::prelude::*;

/// Both ends of a connection and what lies between.
struct Link {
    writer: Writer,
    sender: Sender<'static>,
    pipe: Pipe,
    receiver: Receiver<'static>,
    reader: Reader,
}

impl Link {
    fn new(script: Vec<usize>) -> Self {
        let (near, far) = (block(LAYOUT), block(LAYOUT));
        Link {
            writer: Writer::new(near),
            sender: Sender::new(near),
            pipe: Pipe::new(script),
            receiver: Receiver::new(far),
            reader: Reader::new(far),
        }
    }

    /// Carries all messages. `pace` says which end moves when: bit 0 kernel, 1 sender, 2 receiver, 3 reader.
    fn carry(&mut self, messages: &[Message], pace: &[u8]) -> Vec<Message> {
        let mut received = Vec::new();
        let mut sent = 0;
        let mut pace = pace.iter().copied().chain(std::iter::repeat(15));
        for _ in 0..4_000_000 {
            let turn = pace.next().unwrap();
            if turn & 1 != 0 && sent < messages.len() {
                // As an executor does: another protocol only once the old one's slots have left.
                let is_switch = sent > 0 && messages[sent - 1].protocol != messages[sent].protocol;
                let is_idle = self.sender.step() >= self.writer.step();
                sent += usize::from((!is_switch || is_idle) && self.writer.send(&messages[sent]));
            }
            if turn & 2 != 0 && sent > 0 {
                self.sender.progress(&mut self.pipe, messages[sent - 1].protocol).unwrap();
            }
            if turn & 4 != 0 {
                self.receiver.progress(&mut self.pipe).unwrap();
            }
            if turn & 8 != 0 {
                received.extend(self.reader.recv(messages[received.len()].protocol));
            }
            if received.len() == messages.len() {
                return received;
            }
        }
        panic!("{} of {} messages arrived", received.len(), messages.len());
    }
}

fn messages() -> impl Strategy<Value = Vec<Message>> {
    let protocol = prop::sample::select(Protocol::ALL);
    let len = prop_oneof![Just(0), 1usize..64, 3000usize..5000, 0usize..=16384, Just(usize::MAX)];
    let run = (protocol, prop::collection::vec((any::<u32>(), len), 1..12));
    prop::collection::vec(run, 1..5).prop_map(|runs| {
        let run = |(protocol, list): (Protocol, Vec<(u32, usize)>)| {
            list.into_iter().map(move |(tag, len)| Message::new(protocol, tag, len, &LAYOUT))
        };
        runs.into_iter().flat_map(run).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn messages_arrive_whole_and_in_order_however_the_stream_splits(
        messages in messages(),
        script in prop::collection::vec(prop_oneof![Just(0), 1usize..40, 1usize..9000, Just(1 << 20)], 1..20),
        pace in prop::collection::vec(0u8..16, 0..400),
    ) {
        prop_assume!(script.iter().any(|n| *n > 0));
        let received = Link::new(script).carry(&messages, &pace);
        prop_assert_eq!(received, messages);
    }

    /// What is expected and comes is where it was wanted; what comes instead of it is in its slot. Whatever was read of the next
    /// frame before its header was known.
    #[test]
    fn what_is_expected_is_received_where_it_is_wanted_and_anything_else_is_not(
        frames in prop::collection::vec((0usize..=16384, 0u8..4), 1..24),
        script in prop::collection::vec(prop_oneof![Just(0), 1usize..40, 1usize..9000, Just(1 << 20)], 1..20),
    ) {
        prop_assume!(script.iter().any(|n| *n > 0));
        let mut link = Link::new(script);
        for (tag, (len, kind)) in (0..).zip(frames) {
            let protocol = if kind == 3 { Protocol::LL } else { Protocol::Simple };
            let message = Message::new(protocol, tag, len, &LAYOUT);
            let len_bytes = if kind == 1 { len / 2 + BYPASS_MIN_BYTES } else { len };
            let tag = if kind == 2 { tag + 1 } else { tag };
            let mut memory = vec![0xee; len_bytes + 64];
            let expected = Expected { first: link.reader.step(), dst: memory.as_mut_ptr(), len_bytes, tag };
            // SAFETY: the memory lives until all is forgotten below, and is looked at when its slot is full.
            unsafe { link.receiver.expect(expected) };
            while !link.writer.send(&message) {}
            let received = loop {
                link.sender.progress(&mut link.pipe, protocol).unwrap();
                link.receiver.progress(&mut link.pipe).unwrap();
                let at = link.receiver.take_arrived(link.reader.simple_slot());
                if let Some(mut received) = link.reader.recv(protocol) {
                    prop_assert_eq!(at.is_some(), kind != 3 && len == len_bytes && len >= BYPASS_MIN_BYTES && kind != 2);
                    if at.is_some() {
                        received.payload = memory[..len].to_vec();
                    }
                    break received;
                }
                prop_assert!(at.is_none());
            };
            prop_assert_eq!(received, message);
            prop_assert_eq!(&memory[len_bytes..], &[0xee; 64]);
            link.receiver.forget_arrivals();
        }
    }

    /// Lent bytes arrive as they were, whether all, some or none of them have left when their memory is wanted back.
    #[test]
    fn what_was_lent_arrives_whatever_becomes_of_its_memory(
        lens in prop::collection::vec(1usize..=16384, 1..20),
        script in prop::collection::vec(prop_oneof![Just(0), 1usize..9000, Just(1 << 20)], 1..20),
        turns in prop::collection::vec(0usize..4, 1..20),
    ) {
        prop_assume!(script.iter().any(|n| *n > 0));
        let mut link = Link::new(script);
        let mut received = Vec::new();
        let messages: Vec<_> = (0..).zip(lens).map(|(i, len)| Message::new(Protocol::Simple, i, len, &LAYOUT)).collect();
        let mut memory = vec![0; 3 * 4096 + 16384];
        let middle = 4096 + 2048 - memory.as_ptr().addr() % 4096;
        for (i, message) in messages.iter().enumerate() {
            let lent = &mut memory[middle..][..message.payload.len()];
            lent.copy_from_slice(&message.payload);
            link.writer.lend(message, lent, &mut link.sender);
            for _ in 0..turns[i % turns.len()] {
                link.sender.progress(&mut link.pipe, Protocol::Simple).unwrap();
            }
            let range = lent.as_ptr_range();
            link.sender.return_loans(range.start.addr()..range.end.addr());
            lent.fill(0xee);
            while received.len() + 4 < i {
                link.sender.progress(&mut link.pipe, Protocol::Simple).unwrap();
                link.receiver.progress(&mut link.pipe).unwrap();
                received.extend(link.reader.recv(Protocol::Simple));
            }
        }
        while received.len() < messages.len() {
            link.sender.progress(&mut link.pipe, Protocol::Simple).unwrap();
            link.receiver.progress(&mut link.pipe).unwrap();
            received.extend(link.reader.recv(Protocol::Simple));
        }
        prop_assert_eq!(received, messages);
    }

    /// Whatever a peer sends, the receiver says what is wrong or waits; it writes nowhere but into slots and publishes
    /// nothing but whole frames.
    #[test]
    fn garbage_is_an_error_and_never_a_slot(bytes in prop::collection::vec(any::<u8>(), 1..100), split in 1usize..9) {
        let mut link = Link::new(vec![split]);
        link.pipe.bytes.extend(&bytes);
        let outcome = (0..1000).try_for_each(|_| link.receiver.progress(&mut link.pipe).map(drop));
        if bytes.len() >= HEADER_BYTES && !bytes.starts_with(b"Ox\x01") {
            prop_assert!(matches!(outcome, Err(Fault::Frame(_))), "{:?}", outcome);
        }
        for protocol in Protocol::ALL {
            prop_assert_eq!(link.reader.recv(*protocol), None);
        }
    }

    /// A stream cut anywhere ends in "closed", after every whole message before the cut. (Of the cut one, a reader of flags
    /// may see all if what is missing are zeroes that are there already.)
    #[test]
    fn a_cut_stream_delivers_what_was_whole(cut in 0usize..600, protocol in prop::sample::select(Protocol::ALL)) {
        let mut link = Link::new(vec![1 << 20]);
        let message = Message::new(protocol, 5, 100, &LAYOUT);
        for _ in 0..2 {
            prop_assert!(link.writer.send(&message));
            link.sender.progress(&mut link.pipe, protocol).unwrap();
        }
        let frame_bytes = link.pipe.bytes.len() / 2;
        link.pipe.bytes.truncate(cut);
        let kept = link.pipe.bytes.len();
        link.pipe.is_closed = true;
        let fault = (0..9).find_map(|_| link.receiver.progress(&mut link.pipe).err());
        prop_assert_eq!(fault, Some(Fault::Closed { mid_frame: !kept.is_multiple_of(frame_bytes) }));
        for _ in 0..kept / frame_bytes {
            prop_assert_eq!(link.reader.recv(protocol), Some(message.clone()));
        }
        let more = link.reader.recv(protocol);
        prop_assert!(more.is_none_or(|m| kept < 2 * frame_bytes && m == message));
        prop_assert_eq!(link.reader.recv(protocol), None);
    }
}

#[test]
fn one_byte_at_a_time_with_a_refusal_before_each() {
    for protocol in Protocol::ALL {
        let messages: Vec<_> =
            (0..20).map(|i| Message::new(*protocol, i, i as usize * 41, &LAYOUT)).collect();
        assert_eq!(Link::new(vec![0, 1]).carry(&messages, &[]), messages);
    }
}

/// The sender finds out only by writing; a slot that could not leave is not given back.
#[test]
fn a_sender_whose_peer_is_gone_says_so() {
    let mut link = Link::new(vec![7]);
    let message = Message::new(Protocol::Simple, 1, 100, &LAYOUT);
    assert!(link.writer.send(&message));
    assert_eq!(link.sender.progress(&mut link.pipe, Protocol::Simple), Ok(7));
    link.pipe.is_closed = true;
    let fault = link.sender.progress(&mut link.pipe, Protocol::Simple);
    assert_eq!(fault, Err(Fault::Closed { mid_frame: true }));
    assert_eq!(link.sender.step().0, 0);
}

#[test]
fn a_receiver_without_an_empty_slot_reads_nothing() {
    let mut link = Link::new(vec![1 << 20]);
    let message = Message::new(Protocol::Simple, 1, 8192, &LAYOUT);
    for _ in 0..12 {
        assert!(link.writer.send(&message));
        link.sender.progress(&mut link.pipe, Protocol::Simple).unwrap();
    }
    while link.receiver.progress(&mut link.pipe).unwrap() > 0 {}
    assert_eq!(link.receiver.step().0, 8);
    let left = link.pipe.bytes.len();
    assert!(left >= 4 * 8192 - HEADER_BYTES, "{left}");
    link.receiver.progress(&mut link.pipe).unwrap();
    assert_eq!(link.pipe.bytes.len(), left);
    assert_eq!(link.reader.recv(Protocol::Simple), Some(message));
    link.receiver.progress(&mut link.pipe).unwrap();
    assert_eq!(link.receiver.step().0, 9);
}

#[test]
fn a_repeated_step_is_a_fault() {
    let mut link = Link::new(vec![1 << 20]);
    assert!(link.writer.send(&Message::new(Protocol::Simple, 1, 0, &LAYOUT)));
    link.sender.progress(&mut link.pipe, Protocol::Simple).unwrap();
    let frame: Vec<u8> = link.pipe.bytes.iter().copied().collect();
    link.pipe.bytes.extend(frame);
    let fault = link.receiver.progress(&mut link.pipe);
    assert_eq!(fault, Err(Fault::Frame(FrameFault::Step { expected: 1, found: 0 })));
}

/// System calls are most of a small message's cost: one at either end, and none to hear that there is nothing more.
#[test]
fn a_message_costs_one_call_at_each_end() {
    let small = |protocol: &Protocol| Message::new(*protocol, 1, 8, &LAYOUT);
    for message in Protocol::ALL.iter().map(small) {
        let mut link = Link::new(vec![1 << 20]);
        for round in 1..=20 {
            assert!(link.writer.send(&message));
            link.sender.progress(&mut link.pipe, message.protocol).unwrap();
            assert_eq!(link.pipe.calls, 2 * round - 1);
            link.receiver.progress(&mut link.pipe).unwrap();
            assert_eq!(link.pipe.calls, 2 * round);
            assert_eq!(link.reader.recv(message.protocol), Some(message.clone()));
        }
    }
}

/// A run of long messages, one at a time, costs one read each, though their lengths differ a little; and a reader that
/// expects a long one takes several short ones apart.
#[test]
fn a_run_of_long_messages_costs_one_read_each() {
    let mut link = Link::new(vec![1 << 20]);
    let message = |len| Message::new(Protocol::Simple, 1, len, &LAYOUT);
    for (reads, len) in [(2, 16384), (1, 16384), (1, 16000), (1, 9000), (1, 16384), (1, 100), (2, 16384)] {
        let before = link.pipe.calls;
        assert!(link.writer.send(&message(len)));
        link.sender.progress(&mut link.pipe, Protocol::Simple).unwrap();
        link.receiver.progress(&mut link.pipe).unwrap();
        assert_eq!(link.pipe.calls - before - 1, reads, "{len}");
        assert_eq!(link.reader.recv(Protocol::Simple), Some(message(len)));
    }
    let lens = [5000, 17, 0, 4500, 8, 3];
    lens.iter().for_each(|len| assert!(link.writer.send(&message(*len))));
    link.sender.progress(&mut link.pipe, Protocol::Simple).unwrap();
    let before = link.pipe.calls;
    link.receiver.progress(&mut link.pipe).unwrap();
    assert_eq!(link.pipe.calls - before, 1);
    lens.iter().for_each(|len| assert_eq!(link.reader.recv(Protocol::Simple), Some(message(*len))));
}

/// In a stream of full slots every read but the first brings a whole slot, and the header after it.
#[test]
fn a_stream_of_long_messages_costs_one_read_each() {
    let mut link = Link::new(vec![1 << 20]);
    let message = Message::new(Protocol::Simple, 1, usize::MAX, &LAYOUT);
    for _ in 0..6 {
        assert!(link.writer.send(&message));
    }
    link.sender.progress(&mut link.pipe, Protocol::Simple).unwrap();
    assert_eq!(link.pipe.calls, 6);
    link.receiver.progress(&mut link.pipe).unwrap();
    assert_eq!(link.receiver.step().0, 6);
    assert_eq!(link.pipe.calls - 6, 1 + 6);
}

//! A rank's outbox under loom: what two peers have not both read is not overwritten. Run with `cargo xtask loom`.
#![cfg(loom)]

use loom::thread;
use oxccl_shared::abi::{ConnControl, SlotHeader, Step};
use oxccl_shared::fifo::{self, OUTBOX_BUFFERS, Place, STEPS, StepConsumer, StepProducer};
use oxccl_shared::model::with_shared;
use oxccl_shared::sync::SharedCell;

const PEERS: usize = 2;

/// A connection to each peer, and one word of payload per slot and buffer, whose every unordered access loom reports.
#[derive(Default)]
struct Rank {
    conns: [ConnControl; PEERS],
    slots: [[SharedCell<u32>; STEPS]; PEERS],
    outbox: [SharedCell<u32>; OUTBOX_BUFFERS],
}

/// The step of each connection that each buffer was last used for.
type Used = [[Option<Step>; PEERS]; OUTBOX_BUFFERS];

/// Sends `value` to the first `to` peers, in a buffer that everybody has read, if there is one among the first so many.
fn send(
    rank: &Rank,
    producers: &mut [StepProducer<'_>; PEERS],
    used: &mut Used,
    buffers: usize,
    (to, value): (usize, u32),
) -> Place {
    assert!(producers.iter_mut().all(|producer| producer.poll_credit(STEPS)), "fewer messages than slots");
    let mut is_free = |index: usize| {
        let mut all = used[index].iter().zip(producers.iter_mut());
        all.all(|(step, producer)| step.is_none_or(|step| producer.poll_consumed(step)))
    };
    let found = (0..buffers).find(|index| is_free(*index));
    if let Some(index) = found {
        // SAFETY: all have released what was in it.
        unsafe { rank.outbox[index].write(value) };
    }
    let place = found.map_or(Place::Slot, |index| Place::Outbox(index as u8));
    for (peer, producer) in producers[..to].iter_mut().enumerate() {
        match found {
            Some(index) => used[index][peer] = Some(producer.step()),
            // SAFETY: there is a credit.
            None => unsafe { rank.slots[peer][producer.step().slot()].write(value) },
        }
        producer.publish_at(SlotHeader { tag: 7, len_bytes: value }, place);
    }
    place
}

/// The next message, if it has come.
fn receive(rank: &Rank, peer: usize, consumer: &mut StepConsumer<'_>) -> Option<u32> {
    consumer.poll_line()?;
    let cell = match consumer.place() {
        Place::Outbox(index) => &rank.outbox[usize::from(index)],
        _ => &rank.slots[peer][consumer.step().slot()],
    };
    // SAFETY: the poll acquired what lies there, and it is not released yet.
    let value = unsafe { cell.read() };
    consumer.release();
    Some(value)
}

/// Sends messages, each to so many peers, of which each checks those that have come when it looks. Nobody waits: loom follows no three threads of
/// which two spin.
fn all_get(messages: &'static [usize], buffers: usize) {
    loom::model(move || {
        with_shared(Rank::default(), move |rank: &'static Rank| {
            let peers = [0, 1].map(|peer| {
                thread::spawn(move || {
                    let (_, mut consumer) = fifo::split(&rank.conns[peer]);
                    let own = (0..).zip(messages).filter(|(_, to)| peer < **to);
                    for (value, _) in own {
                        let Some(found) = receive(rank, peer, &mut consumer) else { break };
                        assert_eq!(found, value);
                    }
                })
            });
            let mut producers = rank.conns.each_ref().map(|conn| fifo::split(conn).0);
            let mut used = Used::default();
            for (value, to) in (0..).zip(messages) {
                let place = send(rank, &mut producers, &mut used, buffers, (*to, value));
                assert!(value > 0 || place == Place::Outbox(0), "the first finds it free");
            }
            for peer in peers {
                peer.join().unwrap();
            }
        });
    });
}

#[test]
fn a_buffer_is_used_again_once_all_have_read_it() {
    all_get(&[2, 2], 1);
}

#[test]
fn a_reader_that_the_next_message_does_not_go_to_is_waited_for() {
    all_get(&[2, 1], 1);
}

#[test]
fn two_buffers_take_turns() {
    all_get(&[2, 2, 2], OUTBOX_BUFFERS);
}

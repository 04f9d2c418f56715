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

/// Sends `value` to all, in a buffer that all have read, if there is one among the first so many.
fn send(
    rank: &Rank,
    producers: &mut [StepProducer<'_>; PEERS],
    used: &mut [Option<Step>; OUTBOX_BUFFERS],
    buffers: usize,
    value: u32,
) -> Place {
    assert!(producers.iter_mut().all(|producer| producer.poll_credit(STEPS)), "fewer messages than slots");
    // One step is every connection's: all messages go to all.
    let step = producers[0].step();
    let mut is_free = |index: usize| {
        used[index].is_none_or(|step| producers.iter_mut().all(|producer| producer.poll_consumed(step)))
    };
    let place =
        (0..buffers).find(|index| is_free(*index)).map_or(Place::Slot, |index| Place::Outbox(index as u8));
    match place {
        // SAFETY: all have released what was in it.
        Place::Outbox(index) => unsafe { rank.outbox[usize::from(index)].write(value) },
        // SAFETY: there are credits.
        _ => rank.slots.iter().for_each(|slots| unsafe { slots[step.slot()].write(value) }),
    }
    if let Place::Outbox(index) = place {
        used[usize::from(index)] = Some(step);
    }
    producers
        .iter_mut()
        .for_each(|producer| producer.publish_at(SlotHeader { tag: 7, len_bytes: value }, place));
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

/// Sends so many messages to both peers, of which each checks those that have come when it looks. Nobody waits: loom follows no three threads
/// of which two spin.
fn all_get(messages: u32, buffers: usize) {
    loom::model(move || {
        with_shared(Rank::default(), move |rank: &'static Rank| {
            let peers = [0, 1].map(|peer| {
                thread::spawn(move || {
                    let (_, mut consumer) = fifo::split(&rank.conns[peer]);
                    let mut found = (0..messages).map_while(|_| receive(rank, peer, &mut consumer));
                    assert!((0..).zip(&mut found).all(|(value, found)| value == found));
                })
            });
            let mut producers = rank.conns.each_ref().map(|conn| fifo::split(conn).0);
            let mut used = [None; OUTBOX_BUFFERS];
            for value in 0..messages {
                let place = send(rank, &mut producers, &mut used, buffers, value);
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
    all_get(2, 1);
}

#[test]
fn two_buffers_take_turns() {
    all_get(3, OUTBOX_BUFFERS);
}

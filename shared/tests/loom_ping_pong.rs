//! Ping-pong buffers under loom: a rank that stores to a buffer which it has just read disturbs nobody. Run with `cargo xtask loom`.
#![cfg(loom)]

use loom::thread;
use oxccl_shared::abi::{ConnControl, SlotHeader};
use oxccl_shared::fifo::{self, BUFFERS, PingPong, Place, STEPS, StepConsumer, StepProducer};
use oxccl_shared::model::with_shared;
use oxccl_shared::sync::{SharedCell, cpu_relax};

/// A connection each way, with one word of payload per slot and buffer, whose every unordered access loom reports.
#[derive(Default)]
struct Pair {
    conns: [ConnControl; 2],
    slots: [[SharedCell<u32>; STEPS]; 2],
    buffers: [[SharedCell<u32>; BUFFERS]; 2],
}

impl Pair {
    /// What lies at `place` of the connection on which this rank sends.
    fn cell(&self, sender: usize, place: Place, slot: usize) -> &SharedCell<u32> {
        match place {
            Place::Slot => &self.slots[sender][slot],
            Place::Own(index) => &self.buffers[sender][usize::from(index)],
            Place::Opposite(index) => &self.buffers[1 - sender][usize::from(index)],
            Place::Outbox(index) => unreachable!("outbox {index}"),
        }
    }

    fn send(&self, rank: usize, hands: &PingPong, producer: &mut StepProducer<'_>, value: u32) {
        while !producer.poll_credit(STEPS) {
            cpu_relax();
        }
        let place = hands.next();
        // SAFETY: the buffer is this rank's, or the credit says that the slot is.
        unsafe { self.cell(rank, place, producer.step().slot()).write(value) };
        hands.give(place);
        producer.publish_at(SlotHeader { tag: 7, len_bytes: value }, place);
    }

    fn receive(&self, rank: usize, hands: &PingPong, consumer: &mut StepConsumer<'_>) -> u32 {
        while consumer.poll_line().is_none() {
            cpu_relax();
        }
        let place = consumer.place();
        // SAFETY: the poll acquired what lies there, which is not handed on yet.
        let value = unsafe { self.cell(1 - rank, place, consumer.step().slot()).read() };
        hands.take(place);
        consumer.release();
        value
    }
}

/// Runs `body` on either rank: its number and its ends.
fn on_both(
    body: impl Fn(&Pair, usize, &PingPong, StepProducer<'_>, StepConsumer<'_>) + Clone + Send + Sync + 'static,
) {
    loom::model(move || {
        let body = body.clone();
        with_shared(Pair::default(), move |pair: &'static Pair| {
            let run = move |rank: usize| {
                let (producer, _) = fifo::split(&pair.conns[rank]);
                let (_, consumer) = fifo::split(&pair.conns[1 - rank]);
                body(pair, rank, &PingPong::new(), producer, consumer);
            };
            let other = run.clone();
            let thread = thread::spawn(move || other(1));
            run(0);
            thread.join().unwrap();
        });
    });
}

#[test]
fn an_exchange_goes_in_what_the_one_before_has_brought() {
    on_both(|pair, rank, hands, mut producer, mut consumer| {
        for round in 0..3 {
            pair.send(rank, hands, &mut producer, 10 * round + rank as u32);
            assert_eq!(pair.receive(rank, hands, &mut consumer), 10 * round + 1 - rank as u32);
        }
    });
}

#[test]
fn who_has_no_buffer_sends_in_slots() {
    const MESSAGES: u32 = 2 * BUFFERS as u32;
    on_both(|pair, rank, hands, mut producer, mut consumer| {
        if rank == 0 {
            (0..MESSAGES).for_each(|value| pair.send(rank, hands, &mut producer, value));
            assert_eq!(hands.next(), Place::Slot);
            assert_eq!(pair.receive(rank, hands, &mut consumer), 99);
        } else {
            (0..MESSAGES).for_each(|value| assert_eq!(pair.receive(rank, hands, &mut consumer), value));
            pair.send(rank, hands, &mut producer, 99);
        }
    });
}

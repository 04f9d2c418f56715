//! Answers under loom: what a producer writes straight into the consumer's buffer is there when the consumer finds the message published, and is
//! written only when the buffer is the operation's, whether the answer or the question comes first. Run with `cargo xtask loom`.
#![cfg(loom)]

use loom::thread;
use oxccl_shared::abi::{ConnControl, SlotHeader, Step};
use oxccl_shared::fifo::split;
use oxccl_shared::model::with_shared;
use oxccl_shared::sync::{SharedCell, cpu_relax};

/// A connection, and one word of the consumer's memory, whose every unordered access loom reports.
#[derive(Default)]
struct Shared {
    control: ConnControl,
    memory: SharedCell<u32>,
}

const ADDRESS: u64 = 5 << 32 | 16;
const TAG: u32 = 9;
const EARLIER: u32 = 6;
const MESSAGE: u32 = 7;
const ARRIVED: SlotHeader = SlotHeader { tag: TAG, len_bytes: 4 };

/// The consumer answers before it looks for the question, or only then.
fn a_message_goes_where_the_answer_says(at_once: bool) {
    loom::model(move || {
        with_shared(Shared::default(), |shared| {
            let consumer = thread::spawn(move || {
                let (_, mut consumer) = split(&shared.control);
                // What its stream did before this operation.
                // SAFETY: the producer writes after the answer.
                unsafe { shared.memory.write(EARLIER) };
                let answer = || shared.control.answer.give(Step(0), TAG, ADDRESS);
                if at_once {
                    answer();
                }
                assert_eq!(polled(&mut consumer), SlotHeader::ask(TAG));
                if !at_once {
                    answer();
                }
                consumer.release();
                assert_eq!(polled(&mut consumer), ARRIVED);
                // SAFETY: the producer has published the message.
                assert_eq!(unsafe { shared.memory.read() }, MESSAGE);
                shared.control.answer.take_back();
                consumer.release();
            });
            let (mut producer, _) = split(&shared.control);
            producer.publish(SlotHeader::ask(TAG));
            let address = loop {
                if let Some(address) = shared.control.answer.get(Step(0), TAG) {
                    break address;
                }
                cpu_relax();
            };
            assert_eq!(address, ADDRESS);
            // SAFETY: the consumer says that it may be written.
            unsafe { shared.memory.write(MESSAGE) };
            producer.publish(ARRIVED);
            consumer.join().unwrap();
        });
    });
}

fn polled(consumer: &mut oxccl_shared::fifo::StepConsumer<'_>) -> SlotHeader {
    loop {
        if let Some(header) = consumer.poll() {
            return header;
        }
        cpu_relax();
    }
}

/// The consumer cannot be reached, and then its next message can: the one answer is not taken for the other.
#[test]
fn a_message_in_slots_and_the_next_one_straight() {
    loom::model(|| {
        with_shared(ConnControl::default(), |control| {
            let consumer = thread::spawn(move || {
                let (_, mut consumer) = split(control);
                assert_eq!(polled(&mut consumer), SlotHeader::ask(TAG));
                control.answer.give(Step(0), TAG, 0);
                consumer.release();
                control.answer.give(Step(1), TAG, ADDRESS);
                assert_eq!(polled(&mut consumer), SlotHeader::ask(TAG));
                control.answer.take_back();
            });
            let (mut producer, _) = split(control);
            producer.publish(SlotHeader::ask(TAG));
            // What stands there for the next step may have come already: the consumer does not wait for us here, as it does for a slot.
            let first = control.answer.get(Step(0), TAG);
            assert!(first.is_none_or(|address| address == 0));
            let second = control.answer.get(Step(1), TAG);
            assert!(second.is_none_or(|address| address == ADDRESS));
            producer.publish(SlotHeader::ask(TAG));
            consumer.join().unwrap();
            assert_eq!(control.answer.get(Step(1), TAG), None, "it was taken back");
        });
    });
}

#[test]
fn an_answer_before_the_question() {
    a_message_goes_where_the_answer_says(true);
}

#[test]
fn an_answer_to_the_question() {
    a_message_goes_where_the_answer_says(false);
}

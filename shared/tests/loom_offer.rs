//! Offers under loom: what a consumer copies from the producer's memory is the message, or it sees that the offer was withdrawn. Run with
//! `cargo xtask loom`.
#![cfg(loom)]

use loom::sync::Arc;
use loom::thread;
use oxccl_shared::abi::{Offer, OfferReply};
use oxccl_shared::sync::{Sys, Word, cpu_relax};

/// An offer, the step words of its slot, and one word of the user's memory.
#[derive(Default)]
struct Shared {
    offer: Offer,
    tail: Word<u64, Sys>,
    head: Word<u64, Sys>,
    memory: Word<u64, Sys>,
}

const MESSAGE: u64 = 7;
const LATER: u64 = 8;

fn publish(shared: &Shared) {
    shared.memory.store_relaxed(MESSAGE);
    shared.offer.len_bytes.store_relaxed(8);
    shared.offer.withdrawn.store_relaxed(0);
    // RELEASE pairs with ACQUIRE in `receive`, as in `ProducerCursor::publish`.
    shared.tail.store_release(1);
}

/// What was received, if the offer stood afterwards.
fn receive(shared: &Shared) -> Option<u64> {
    // ACQUIRE pairs with RELEASE in `publish`.
    while shared.tail.load_acquire() == 0 {
        cpu_relax();
    }
    assert_eq!(shared.offer.len_bytes.load_relaxed(), 8);
    let copied = shared.memory.load_relaxed();
    shared.offer.stands().then_some(copied)
}

#[test]
fn what_was_withdrawn_is_not_taken_for_the_message() {
    loom::model(|| {
        let shared = Arc::new(Shared::default());
        let theirs = shared.clone();
        let consumer = thread::spawn(move || {
            if let Some(copied) = receive(&theirs) {
                assert_eq!(copied, MESSAGE, "the user's later bytes");
            }
        });
        publish(&shared);
        shared.offer.withdraw();
        // The memory is the user's again.
        shared.memory.store_relaxed(LATER);
        consumer.join().unwrap();
    });
}

#[test]
fn the_answer_is_there_when_the_slot_is_released() {
    loom::model(|| {
        let shared = Arc::new(Shared::default());
        let theirs = shared.clone();
        let consumer = thread::spawn(move || {
            assert_eq!(receive(&theirs), Some(MESSAGE));
            theirs.offer.answer(OfferReply::Taken);
            // RELEASE pairs with ACQUIRE below, as in `ConsumerCursor::release`.
            theirs.head.store_release(1);
        });
        publish(&shared);
        // ACQUIRE pairs with RELEASE above.
        while shared.head.load_acquire() == 0 {
            cpu_relax();
        }
        assert_eq!(shared.offer.answered(), OfferReply::Taken);
        // Only now the memory is the user's.
        shared.memory.store_relaxed(LATER);
        consumer.join().unwrap();
    });
}

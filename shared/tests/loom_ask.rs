//! Questions under loom: what a producer writes straight into the consumer's buffer is there when the consumer finds the message published, and
//! is written only when the buffer is the operation's. Run with `cargo xtask loom`.
#![cfg(loom)]

use loom::sync::Arc;
use loom::thread;
use oxccl_shared::abi::Ask;
use oxccl_shared::sync::{Sys, Word, cpu_relax};

/// A question, the step words of its slot and the next one, and one word of the consumer's memory.
#[derive(Default)]
struct Shared {
    ask: Ask,
    tail: Word<u64, Sys>,
    head: Word<u64, Sys>,
    memory: Word<u64, Sys>,
}

const ADDRESS: u64 = 16;
const EARLIER: u64 = 6;
const MESSAGE: u64 = 7;

fn await_step(word: &Word<u64, Sys>, step: u64) {
    // ACQUIRE pairs with the RELEASE that says so, as in `ConsumerCursor::poll` and `ProducerCursor::is_drained`.
    while word.load_acquire() < step {
        cpu_relax();
    }
}

#[test]
fn a_message_goes_where_the_answer_says_and_is_there_when_it_is_published() {
    loom::model(|| {
        let shared = Arc::new(Shared::default());
        let theirs = shared.clone();
        let consumer = thread::spawn(move || {
            // What its stream did before this operation.
            theirs.memory.store_relaxed(EARLIER);
            await_step(&theirs.tail, 1);
            theirs.ask.address.store_relaxed(ADDRESS);
            // RELEASE pairs with ACQUIRE in the producer's wait, as in `ConsumerCursor::release`.
            theirs.head.store_release(1);
            await_step(&theirs.tail, 2);
            assert_eq!(theirs.memory.load_relaxed(), MESSAGE);
        });
        // RELEASE pairs with ACQUIRE in the consumer's wait, as in `ProducerCursor::publish`.
        shared.tail.store_release(1);
        await_step(&shared.head, 1);
        assert_eq!(shared.ask.address.load_relaxed(), ADDRESS);
        assert_eq!(shared.memory.load_relaxed(), EARLIER, "the consumer's earlier bytes come later");
        shared.memory.store_relaxed(MESSAGE);
        // RELEASE: as above.
        shared.tail.store_release(2);
        consumer.join().unwrap();
    });
}

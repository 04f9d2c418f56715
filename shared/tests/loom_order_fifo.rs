//! The order FIFO under loom: publish, wrap-around, full, empty, abort. Run with `cargo xtask loom`.
#![cfg(loom)]

use loom::thread;
use oxccl_shared::fifo::{OrderConsumer, OrderFifo, OrderProducer};
use oxccl_shared::model::with_shared;
use oxccl_shared::sync::{Sys, Word, cpu_relax};

type Fifo = OrderFifo<u32, 2>;

/// Lends both ends to threads that `body` joins; see `oxccl_shared::model::with_shared` for the why.
fn with_ends(body: impl FnOnce(OrderProducer<'static, u32, 2>, OrderConsumer<'static, u32, 2>)) {
    let place = Box::into_raw(Box::new(Fifo::new()));
    // SAFETY: lives until the end of this function, and `body` joins every thread that it gave an end to.
    let (producer, consumer) = unsafe { &mut *place }.split();
    body(producer, consumer);
    // SAFETY: from `into_raw` above; no end is left.
    drop(unsafe { Box::from_raw(place) });
}

fn push(producer: &mut OrderProducer<'_, u32, 2>, mut order: u32) {
    while let Err(back) = producer.push(order) {
        order = back;
        cpu_relax();
    }
}

fn pop(consumer: &mut OrderConsumer<'_, u32, 2>) -> u32 {
    loop {
        match consumer.pop() {
            Some(order) => return order,
            None => cpu_relax(),
        }
    }
}

#[test]
fn orders_arrive_whole_and_in_order_over_a_wrap() {
    loom::model(|| {
        with_ends(|mut producer, mut consumer| {
            let thread = thread::spawn(move || (1..=3).for_each(|order| push(&mut producer, order)));
            for order in 1..=3 {
                assert_eq!(pop(&mut consumer), order);
            }
            assert_eq!(consumer.pop(), None, "empty");
            thread.join().unwrap();
        });
    });
}

#[test]
fn a_full_queue_refuses_and_a_slot_is_reused_only_after_its_pop() {
    loom::model(|| {
        with_ends(|mut producer, mut consumer| {
            push(&mut producer, 1);
            push(&mut producer, 2);
            assert_eq!(producer.push(3), Err(3), "full");
            let thread = thread::spawn(move || push(&mut producer, 3));
            for order in 1..=3 {
                assert_eq!(pop(&mut consumer), order);
            }
            thread.join().unwrap();
        });
    });
}

#[test]
fn orders_given_before_an_abort_are_seen_by_who_sees_it() {
    loom::model(|| {
        let abort = loom::sync::Arc::new(Word::<u32, Sys>::new(0));
        with_ends(|mut producer, mut consumer| {
            let raise = abort.clone();
            let thread = thread::spawn(move || {
                push(&mut producer, 5);
                // RELEASE pairs with ACQUIRE in the loop below.
                raise.store_release(1);
            });
            let mut seen = None;
            // ACQUIRE pairs with RELEASE in the thread above.
            while abort.load_acquire() == 0 {
                seen = seen.or_else(|| consumer.pop());
                cpu_relax();
            }
            assert_eq!(seen.or_else(|| consumer.pop()), Some(5));
            thread.join().unwrap();
        });
    });
}

/// As between processes, where each takes its end from shared memory.
#[test]
fn a_new_producer_writes_a_slot_only_after_its_pop() {
    loom::model(|| {
        with_shared(Fifo::new(), |fifo: &'static Fifo| {
            // SAFETY: the only pushing end until it is dropped.
            let mut earlier = unsafe { fifo.producer() };
            push(&mut earlier, 1);
            push(&mut earlier, 2);
            drop(earlier);
            // SAFETY: the only popping end.
            let thread = thread::spawn(move || pop(&mut unsafe { fifo.consumer() }));
            // SAFETY: every earlier pushing end is gone.
            while unsafe { fifo.producer() }.push(3).is_err() {
                cpu_relax();
            }
            assert_eq!(thread.join().unwrap(), 1);
        });
    });
}

#[test]
fn a_new_consumer_reads_a_record_only_after_its_push() {
    loom::model(|| {
        with_shared(Fifo::new(), |fifo: &'static Fifo| {
            // SAFETY: the only pushing end.
            let thread = thread::spawn(move || push(&mut unsafe { fifo.producer() }, 7));
            let taken = loop {
                // SAFETY: every earlier popping end is gone.
                match unsafe { fifo.consumer() }.pop() {
                    Some(order) => break order,
                    None => cpu_relax(),
                }
            };
            assert_eq!(taken, 7);
            thread.join().unwrap();
        });
    });
}

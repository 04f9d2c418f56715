//! The step FIFO under loom: every interleaving, and every value that the memory model lets a load return.
//! Run with `cargo xtask loom`.
#![cfg(loom)]

use loom::thread;
use oxccl_shared::fifo::{self, ConnWords, ProducerCursor, STEPS};
use oxccl_shared::model::{Conn, with_shared};
use oxccl_shared::sync::cpu_relax;

#[test]
fn what_was_published_is_whole() {
    loom::model(|| {
        with_shared(Conn::default(), |conn: &'static Conn| {
            let (mut producer, mut consumer) = fifo::split(&conn.control);
            let thread = thread::spawn(move || {
                conn.produce(&mut producer, 10);
                conn.produce(&mut producer, 11);
            });
            assert_eq!(conn.consume(&mut consumer), 10);
            assert_eq!(conn.consume(&mut consumer), 11);
            thread.join().unwrap();
        });
    });
}

#[test]
fn a_slot_is_reused_only_after_its_release() {
    loom::model(|| {
        with_shared(Conn::default(), |conn: &'static Conn| {
            let (mut producer, mut consumer) = fifo::split(&conn.control);
            for value in 0..STEPS as u32 {
                conn.produce(&mut producer, value);
            }
            assert!(!producer.poll_credit(STEPS), "full");
            let thread = thread::spawn(move || {
                conn.produce(&mut producer, 100);
                conn.produce(&mut producer, 101);
            });
            for value in 0..STEPS as u32 {
                assert_eq!(conn.consume(&mut consumer), value);
            }
            assert_eq!(conn.consume(&mut consumer), 100);
            assert_eq!(conn.consume(&mut consumer), 101);
            assert_eq!(consumer.poll(), None, "empty");
            thread.join().unwrap();
        });
    });
}

/// The same where each slot is published in its line.
#[test]
fn a_line_is_whole_and_its_slot_reused_only_after_its_release() {
    loom::model(|| {
        with_shared(Conn::default(), |conn: &'static Conn| {
            let (mut producer, mut consumer) = fifo::split(&conn.control);
            for value in 0..STEPS as u32 {
                conn.produce_in_line(&mut producer, value);
            }
            let thread = thread::spawn(move || {
                conn.produce_in_line(&mut producer, 100);
                conn.produce_in_line(&mut producer, 101);
            });
            for value in 0..STEPS as u32 {
                assert_eq!(conn.consume_line(&mut consumer), value);
            }
            assert_eq!(conn.consume_line(&mut consumer), 100);
            assert_eq!(conn.consume_line(&mut consumer), 101);
            assert_eq!(consumer.poll_line(), None, "empty");
            thread.join().unwrap();
        });
    });
}

/// Kernels look for credits before they need them, and then use what they have seen.
#[test]
fn a_slot_seen_empty_ahead_of_time_has_been_read() {
    loom::model(|| {
        with_shared(Conn::default(), |conn: &'static Conn| {
            let (mut producer, mut consumer) = fifo::split(&conn.control);
            for value in 0..STEPS as u32 {
                conn.produce(&mut producer, value);
            }
            let step = producer.step();
            let thread = thread::spawn(move || conn.consume(&mut consumer));
            let (words, mut cursor) = (ConnWords::in_one(&conn.control), full_cursor());
            cursor.poll_credit_ahead(words, STEPS);
            while !cursor.poll_credit(words, STEPS) {
                cpu_relax();
            }
            // SAFETY: the credit says that nobody reads the slot any more. Loom reports it if not.
            unsafe { conn.payload[step.slot()].write(8) };
            assert_eq!(thread.join().unwrap(), 0);
        });
    });
}

/// Of a producer that has filled every slot of a fresh connection.
fn full_cursor() -> ProducerCursor {
    let mut cursor = ProducerCursor::default();
    (0..STEPS).for_each(|_| cursor.advance());
    cursor
}

#[test]
fn drained_means_that_the_consumer_has_read_everything() {
    loom::model(|| {
        with_shared(Conn::default(), |conn: &'static Conn| {
            let (mut producer, mut consumer) = fifo::split(&conn.control);
            conn.produce(&mut producer, 7);
            let thread = thread::spawn(move || conn.consume(&mut consumer));
            while !producer.is_drained() {
                cpu_relax();
            }
            // SAFETY: what `is_drained` promises: nobody reads the slot any more. Loom reports it if not.
            unsafe { conn.payload[0].write(8) };
            assert_eq!(thread.join().unwrap(), 7);
        });
    });
}

#[test]
fn an_abort_ends_a_wait_and_tears_no_step() {
    loom::model(|| {
        with_shared(Conn::default(), |conn: &'static Conn| {
            let (mut producer, mut consumer) = fifo::split(&conn.control);
            let thread = thread::spawn(move || {
                conn.produce(&mut producer, 1);
                // RELEASE pairs with ACQUIRE in the waiting loop below.
                conn.abort.store_release(1);
            });
            let mut taken = 0;
            loop {
                if let Some(header) = consumer.poll() {
                    taken = conn.take(&mut consumer, header);
                    continue;
                }
                // ACQUIRE pairs with RELEASE in the thread above.
                if conn.abort.load_acquire() != 0 {
                    break;
                }
                cpu_relax();
            }
            // What was published before the abort is visible to who has seen the abort.
            if taken == 0 {
                let header = consumer.poll().expect("published before the abort");
                taken = conn.take(&mut consumer, header);
            }
            assert_eq!(taken, 1);
            thread.join().unwrap();
        });
    });
}

#[test]
fn a_producer_out_of_credit_sees_the_abort() {
    loom::model(|| {
        with_shared(Conn::default(), |conn: &'static Conn| {
            let (mut producer, _consumer) = fifo::split(&conn.control);
            for value in 0..STEPS as u32 {
                conn.produce(&mut producer, value);
            }
            let thread = thread::spawn(move || conn.abort.store_release(1));
            while !producer.poll_credit(STEPS) {
                if conn.abort.load_acquire() != 0 {
                    thread.join().unwrap();
                    return;
                }
                cpu_relax();
            }
            panic!("nobody has released a slot");
        });
    });
}

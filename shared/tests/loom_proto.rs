//! The lines of LL and LL128 under loom: a reader that sees a step's flag has that step's data, all of it.
//! Run with `cargo xtask loom`.
#![cfg(loom)]

use loom::thread;
use oxccl_shared::abi::Step;
use oxccl_shared::fifo::STEPS;
use oxccl_shared::model::with_shared;
use oxccl_shared::proto::ll::{self, LlLine};
use oxccl_shared::proto::ll128::{self, Ll128Line};
use oxccl_shared::sync::{Sys, Word, cpu_relax};

const FIRST: Step = Step(0);
/// The next step that uses the same slot.
const AGAIN: Step = Step(STEPS as u64);

/// Data whose two halves differ and are related, so that a mixture shows.
fn data(step: Step) -> u64 {
    let half = step.0 + 1;
    half << 32 | (half ^ 0xffff_ffff)
}

#[derive(Default)]
struct Slot<L> {
    line: L,
    head: Word<u64, Sys>,
}

/// Both steps of one line: the second is written only when the reader has said that the first is read.
fn exchange<L: Default + 'static>(write: fn(&L, Step), read: fn(&L, Step) -> bool) {
    with_shared(Slot::<L>::default(), |slot: &'static Slot<L>| {
        let thread = thread::spawn(move || {
            write(&slot.line, FIRST);
            // ACQUIRE pairs with RELEASE below.
            while slot.head.load_acquire() == 0 {
                cpu_relax();
            }
            write(&slot.line, AGAIN);
        });
        while !read(&slot.line, FIRST) {
            cpu_relax();
        }
        // RELEASE pairs with ACQUIRE above.
        slot.head.store_release(1);
        while !read(&slot.line, AGAIN) {
            cpu_relax();
        }
        thread.join().unwrap();
    });
}

#[test]
fn an_ll_line_is_never_torn() {
    loom::model(|| {
        exchange::<LlLine>(
            |line, step| line.store(data(step), ll::flag(step)),
            |line, step| {
                let seen = line.load(ll::flag(step));
                if let Some(value) = seen {
                    assert_eq!(value, data(step));
                }
                seen.is_some()
            },
        );
    });
}

#[test]
fn an_ll128_line_is_never_torn() {
    loom::model(|| {
        exchange::<Ll128Line>(
            |line, step| line.store(&[data(step), !data(step)], ll128::flag(step)),
            |line, step| {
                let mut words = [0; 2];
                let seen = line.load(&mut words, ll128::flag(step));
                if seen {
                    assert_eq!(words, [data(step), !data(step)]);
                }
                seen
            },
        );
    });
}

/// The lines that the other rank writes, of each: as many slots, which exchanges use in turn.
struct Inboxes<const SLOTS: usize>([[LlLine; SLOTS]; 2]);

/// One rank's side of exchanges that follow each other. No slot is given back: a rank that has the peer's message of one exchange takes
/// the slots of those before for read (`device/src/prims/short.rs`).
fn exchanges<const SLOTS: usize>(inboxes: &Inboxes<SLOTS>, rank: usize) {
    for step in (0..3).map(Step) {
        let (flag, slot) = (ll::flag(step), step.0 as usize % SLOTS);
        inboxes.0[1 - rank][slot].store(data(step) ^ rank as u64, flag);
        loop {
            let halves = inboxes.0[rank][slot].peek();
            assert!(halves.iter().all(|half| (half >> 32) as u32 <= flag), "overwritten before it was read");
            if let Some(value) = LlLine::open(halves, flag) {
                assert_eq!(value, data(step) ^ (1 - rank) as u64);
                break;
            }
            cpu_relax();
        }
    }
}

fn two_ranks<const SLOTS: usize>() {
    let lines = |_| std::array::from_fn(|_| LlLine::default());
    with_shared(Inboxes::<SLOTS>(std::array::from_fn(lines)), |inboxes: &'static Inboxes<SLOTS>| {
        let thread = thread::spawn(move || exchanges(inboxes, 1));
        exchanges(inboxes, 0);
        thread.join().unwrap();
    });
}

#[test]
fn exchanges_need_no_credits() {
    loom::model(two_ranks::<2>);
}

/// The message of the same exchange does not say that the peer has read ours.
#[test]
#[should_panic(expected = "overwritten before it was read")]
fn exchanges_need_two_slots() {
    loom::model(two_ranks::<1>);
}

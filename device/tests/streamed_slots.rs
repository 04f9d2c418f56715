//! Slots that are filled past the caches, between two threads: what is published has arrived.
//!
//! Non-temporal stores are ordered with later ones by a fence alone, so that a `tail` without one may be seen before the last bytes of its
//! slot. On x86 the fence is the only thing in the library that no model checks: loom knows no non-temporal stores.

use oxccl_device::conn::{Conns, RecvConn, SendConn};
use oxccl_device::distance::{LONG_SLOT_BYTES, SlotStores};
use oxccl_device::gpu::cpu::{CpuBlock, Waiter};
use oxccl_device::gpu::{Stop, Wait};
use oxccl_device::prims::{Simple, Slice, run_slice};
use oxccl_shared::abi::{ConnLayout, DataType, Rank, RedOp, SlotHeader};
use oxccl_shared::algo::Action;
use oxccl_shared::reduce;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::{null, null_mut};

const LAYOUT: ConnLayout =
    ConnLayout { ll_slot_bytes: 256, ll128_slot_bytes: 256, simple_slot_bytes: 16 << 10 };
const STEPS: u64 = if cfg!(miri) { 20 } else { 20_000 };

struct Patient;

impl Waiter for Patient {
    fn spins(&self) -> u32 {
        64
    }

    fn wait(&self, _: Wait, _: u32) -> Result<(), Stop> {
        std::thread::yield_now();
        Ok(())
    }

    fn refuse(&self, _: Wait, expected: SlotHeader, found: SlotHeader) -> Stop {
        panic!("{found:?} instead of {expected:?}")
    }
}

/// Words of step `step`: lengths from two kilobytes to a whole slot, some of which end within a line.
fn words_of(step: u64) -> usize {
    let least = LONG_SLOT_BYTES / 8;
    least
        + (step.wrapping_mul(0x9e37_79b9) % (LAYOUT.simple_slot_bytes as u64 / 8 - least as u64 + 1)) as usize
}

fn word(step: u64, at: usize) -> u64 {
    (step << 32 | at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// One rank's part of all steps.
fn run(
    conns: Conns<'_>,
    action: Action,
    mut before: impl FnMut(u64, &mut [u64]),
    mut after: impl FnMut(u64, &[u64]),
) {
    let operator = reduce::resolve(RedOp::Sum, DataType::U64, 2, 0);
    let block = CpuBlock::new(&Patient, DataType::U64, &operator);
    let mut buffer = vec![0u64; LAYOUT.simple_slot_bytes as usize / 8];
    for step in 0..STEPS {
        let words = &mut buffer[..words_of(step)];
        before(step, words);
        let slice = Slice {
            action,
            header: SlotHeader { tag: 7, len_bytes: 8 * words.len() as u32 },
            recv: &[0],
            send: &[0],
            src_position: 0,
            src: if action.src { words.as_ptr().cast() } else { null() },
            dst: if action.dst { words.as_mut_ptr().cast() } else { null_mut() },
            stream: false,
        };
        // SAFETY: the buffer is as long as the slice, which fits a slot.
        unsafe { run_slice::<_, Simple>(&block, conns, &slice) }.unwrap();
        after(step, words);
    }
}

#[test]
fn what_is_published_has_arrived() {
    for stores in [SlotStores::Streamed, SlotStores::Measured, SlotStores::Cached] {
        let memory = Layout::from_size_align(LAYOUT.total_bytes(), 128).unwrap();
        // SAFETY: the layout has bytes.
        let base = unsafe { alloc_zeroed(memory) };
        // SAFETY: zeroed and aligned, until both threads have ended; the only producer.
        let send = [unsafe { SendConn::new(Rank(1), base, LAYOUT) }];
        send[0].set_stores(stores);
        send[0].spread();
        // SAFETY: as above; the only consumer.
        let recv = [unsafe { RecvConn::new(Rank(0), base, LAYOUT) }];
        recv[0].spread();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let fill = |step, words: &mut [u64]| {
                    (0..).zip(words).for_each(|(at, to)| *to = word(step, at));
                };
                run(Conns { send: &send, recv: &[] }, Action::SEND, fill, |_, _| ());
            });
            let check = |step, words: &[u64]| {
                let wrong = (0..).zip(words).find(|(at, found)| **found != word(step, *at));
                assert!(wrong.is_none(), "{stores:?}, step {step}: {wrong:?} of {} words", words.len());
            };
            run(Conns { send: &[], recv: &recv }, Action::RECV, |_, _| (), check);
        });
        // SAFETY: allocated with this layout; nobody uses it any more.
        unsafe { dealloc(base, memory) };
    }
}

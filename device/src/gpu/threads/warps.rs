//! Tests of the sweeps whose lanes work together, on warps of OS threads.

extern crate std;

use super::sweep::{Places, Share, alike};
use crate::gpu::{KernelMachine, NoEngine, Pack};
use std::cell::RefCell;
use std::sync::{Arc, Barrier, Mutex};
use std::vec::Vec;

const LANES: usize = 4;
const WARPS: usize = 2;

/// What the lanes of a warp share.
struct Warp {
    meet: Barrier,
    said: Mutex<[Pack; LANES]>,
}

std::thread_local! {
    static LANE: RefCell<Option<(usize, Arc<Warp>)>> = const { RefCell::new(None) };
}

/// A machine of warps of [`LANES`] threads, which only sweeps.
struct Warps;

impl KernelMachine for Warps {
    type Engine = NoEngine;
    const WARP_THREADS: u32 = LANES as u32;
    const HANDS_ON: bool = true;

    fn thread_index(&self) -> u32 {
        unreachable!("sweeps are told")
    }
    fn block_threads(&self) -> u32 {
        unreachable!("sweeps are told")
    }
    fn block_index(&self) -> u32 {
        unreachable!("sweeps are told")
    }
    fn now_ns() -> u64 {
        unreachable!("sweeps do not wait")
    }
    fn shared(&self) -> *mut u8 {
        unreachable!("sweeps have no shared memory")
    }
    fn sync_all(&self) {
        unreachable!("warps go on their own")
    }
    fn any_of_all(&self, _mine: bool) -> bool {
        unreachable!("warps go on their own")
    }
    fn any_of_workers<const POSTER: bool>(&self, _workers: u32, _mine: bool) -> bool {
        unreachable!("warps go on their own")
    }

    unsafe fn load_pack(at: usize) -> Pack {
        // SAFETY: obligation 1.
        unsafe { (at as *const Pack).read() }
    }
    unsafe fn store_pack(at: usize, value: Pack) {
        // SAFETY: obligation 1.
        unsafe { (at as *mut Pack).write(value) }
    }

    fn of_next_lane(value: Pack) -> Pack {
        LANE.with_borrow(|lane| {
            let (lane, warp) = lane.as_ref().expect("a lane of a warp");
            warp.said.lock().expect("nobody panics inside")[*lane] = value;
            warp.meet.wait();
            let next = warp.said.lock().expect("nobody panics inside")[(lane + 1) % LANES];
            warp.meet.wait();
            next
        })
    }
}

/// Runs a sweep on all threads.
fn on_warps(sweep: impl Fn(Share) + Sync) {
    let warps: Vec<Arc<Warp>> =
        (0..WARPS).map(|_| Arc::new(Warp { meet: Barrier::new(LANES), said: Mutex::default() })).collect();
    std::thread::scope(|threads| {
        for thread in 0..WARPS * LANES {
            let (warp, sweep) = (warps[thread / LANES].clone(), &sweep);
            threads.spawn(move || {
                LANE.set(Some((thread % LANES, warp)));
                sweep(Share { thread: thread as u32, threads: (WARPS * LANES) as u32 });
            });
        }
    });
}

/// Sums two operands that begin `off` bytes behind a pack's place into an output that begins `to_off` behind one.
fn sums(off: usize, to_off: usize, len_bytes: usize) {
    let operand = |seed: u8| -> Vec<u128> {
        let byte = |i: usize| (i as u8).wrapping_mul(37).wrapping_add(seed);
        // The vector ends with the pack that holds the last byte, so that miri reports a read behind it.
        let packs = (off + len_bytes).div_ceil(16);
        (0..packs).map(|pack| u128::from_ne_bytes(core::array::from_fn(|i| byte(pack * 16 + i)))).collect()
    };
    let (a, b, mut to) = (operand(3), operand(101), std::vec![0u128; 40]);
    let begin = |from: &[u128]| from.as_ptr().expose_provenance() + off;
    let places = Places {
        operands: [begin(&a), begin(&b)],
        outputs: [to.as_mut_ptr().expose_provenance() + 16 + to_off, 0],
        len_bytes,
    };
    let sum = |[a, b]: [u64; 2]| {
        u64::from_ne_bytes(core::array::from_fn(|i| a.to_ne_bytes()[i].wrapping_add(b.to_ne_bytes()[i])))
    };
    let pack = move |[a, b]: [Pack; 2]| [sum([a[0], b[0]]), sum([a[1], b[1]])];
    on_warps(|share| {
        // SAFETY: the operands lie within the packs of their vectors, and the output within its own, 16 bytes behind its begin; all are aligned to
        // bytes.
        unsafe {
            alike::<Warps, u8, 2, 2, 3, 2, 3>(share, places, pack, |[a, b]: [u8; 2]| a.wrapping_add(b))
        };
    });
    let bytes = |of: &[u128]| -> Vec<u8> { of.iter().flat_map(|pack| pack.to_ne_bytes()).collect() };
    let (a, b, to) = (bytes(&a), bytes(&b), bytes(&to));
    let (from, end) = (16 + to_off, 16 + to_off + len_bytes);
    let operands = a.iter().zip(&b).skip(off);
    let expected: Vec<u8> = operands.take(len_bytes).map(|(a, b)| a.wrapping_add(*b)).collect();
    assert_eq!(to[from..end], expected, "{len_bytes} bytes, {off} and {to_off} off");
    assert_eq!(
        copied(&a, off, to_off, len_bytes),
        a[off..off + len_bytes],
        "a copy of {len_bytes}, {off} and {to_off} off"
    );
    assert!(
        to[..from].iter().chain(&to[end..]).all(|byte| *byte == 0),
        "beside {len_bytes} bytes at {to_off}"
    );
}

/// What is copied of these bytes from `off` on, to a place that begins `to_off` behind a pack's.
fn copied(from: &[u8], off: usize, to_off: usize, len_bytes: usize) -> Vec<u8> {
    let packs = from.chunks_exact(16).map(|pack| u128::from_ne_bytes(pack.try_into().expect("16 bytes")));
    let (from, mut to): (Vec<u128>, _) = (packs.collect(), std::vec![0u128; 40]);
    let outputs = [to.as_mut_ptr().expose_provenance() + to_off, 0];
    let places = Places { operands: [from.as_ptr().expose_provenance() + off], outputs, len_bytes };
    on_warps(|share| {
        // SAFETY: as in `sums`.
        unsafe { alike::<Warps, u8, 1, 2, 3, 2, 3>(share, places, |[pack]| pack, |[byte]: [u8; 1]| byte) };
    });
    to.iter().flat_map(|pack| pack.to_ne_bytes()).skip(to_off).take(len_bytes).collect()
}

#[test]
fn packs_that_lanes_hand_on_are_joined_at_every_place_and_length() {
    let lengths: &[usize] = if cfg!(miri) {
        &[0, 200, 431]
    } else {
        &[0, 1, 15, 16, 17, 63, 64, 200, 208, 209, 303, 400, 431, 500]
    };
    for (off, to_off) in [(4, 0), (0, 4), (1, 2), (15, 0), (8, 8), (3, 14)] {
        lengths.iter().for_each(|len| sums(off, to_off, *len));
    }
}

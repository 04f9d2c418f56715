//! Layer: device / gpu / ptx, NVIDIA GPUs.
//! Takes: a thread block of an NVIDIA GPU (sm_70 or later).
//! Gives: [`Ptx`]: registers, barriers and accesses of 16 bytes as inline PTX; lines of LL128.
//! Never: unordered access to a word that another device touches; those go through `oxccl_shared::sync`.

mod arith;
mod barrier;
#[cfg(feature = "sm90")]
mod engine;
mod lines;
mod pack;
mod unit;

use crate::gpu::{KernelMachine, Pack, SHARED_BYTES};
use core::arch::asm;
use oxccl_shared::reduce::Element;

/// An NVIDIA GPU.
pub struct Ptx;

impl KernelMachine for Ptx {
    #[cfg(feature = "sm90")]
    type Engine = engine::Engine;
    #[cfg(not(feature = "sm90"))]
    type Engine = crate::gpu::NoEngine;

    const WARP_THREADS: u32 = 32;
    const HANDS_ON: bool = true;

    #[inline(always)]
    fn thread_index(&self) -> u32 {
        barrier::thread_index()
    }

    #[inline(always)]
    fn block_threads(&self) -> u32 {
        barrier::block_threads()
    }

    #[inline(always)]
    fn block_index(&self) -> u32 {
        barrier::block_index()
    }

    #[inline(always)]
    fn speaks_for() -> Option<u32> {
        barrier::is_first_here().then(barrier::block_index)
    }

    #[inline(always)]
    fn now_ns() -> u64 {
        barrier::now_ns()
    }

    #[inline(always)]
    fn shared(&self) -> *mut u8 {
        const { assert!(SHARED_BYTES == 2048) };
        let place: *mut u8;
        // SAFETY: the address of a variable of this block.
        unsafe {
            asm!(
                "{{ .shared .align 16 .b8 conns[2048]; .reg .b64 at; mov.b64 at, conns; cvta.shared.u64 {0}, at; }}",
                out(reg64) place, options(pure, nomem, nostack)
            )
        };
        place
    }

    #[inline(always)]
    fn sync_all(&self) {
        barrier::sync_all();
    }

    #[cfg(feature = "sm90")]
    #[inline(always)]
    fn await_previous(&self) {
        barrier::await_previous();
    }

    #[cfg(feature = "sm90")]
    #[inline(always)]
    fn admit_next(&self) {
        barrier::admit_next();
    }

    #[inline(always)]
    fn any_of_all(&self, mine: bool) -> bool {
        barrier::any_of_all(mine)
    }

    #[inline(always)]
    fn any_of_workers<const POSTER: bool>(&self, workers: u32, mine: bool) -> bool {
        if POSTER { barrier::any_of_first(workers, mine) } else { barrier::any_of_all(mine) }
    }

    #[inline(always)]
    unsafe fn load_pack(at: usize) -> Pack {
        // SAFETY: obligation 1.
        unsafe { pack::load(at) }
    }

    #[inline(always)]
    unsafe fn load_pack_for_two(at: usize) -> Pack {
        // SAFETY: obligation 1.
        unsafe { pack::load_for_two(at) }
    }

    #[inline(always)]
    unsafe fn store_pack(at: usize, value: Pack) {
        // SAFETY: obligation 1.
        unsafe { pack::store(at, value) }
    }

    #[inline(always)]
    fn of_next_lane([low, high]: Pack) -> Pack {
        [barrier::of_next_lane(low), barrier::of_next_lane(high)]
    }

    #[inline(always)]
    unsafe fn load_unit<T: Copy>(at: usize) -> T {
        // SAFETY: obligation 1.
        unsafe { unit::load(at) }
    }

    #[inline(always)]
    unsafe fn store_unit<T: Copy>(at: usize, value: T) {
        // SAFETY: obligation 1.
        unsafe { unit::store(at, value) }
    }

    #[inline(always)]
    fn hidden(at: usize) -> usize {
        let same;
        // SAFETY: a register's value.
        unsafe { asm!("mov.b64 {0}, {1};", out(reg64) same, in(reg64) at, options(pure, nomem, nostack)) };
        same
    }

    #[inline(always)]
    fn sum_word<T: Element>(a: u64, b: u64) -> u64 {
        arith::sum_word::<T>(a, b)
    }

    #[inline(always)]
    fn prod_word<T: Element>(a: u64, b: u64) -> u64 {
        arith::prod_word::<T>(a, b)
    }
}

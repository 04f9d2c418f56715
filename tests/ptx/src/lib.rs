//! Layer: tests.
//! Takes: nothing; it is compiled for `nvptx64-nvidia-cuda` and never run.
//! Gives: a kernel for each way in which `shared::sync` touches memory, and for each of rustc's own atomics.
//! `tests/tests/ptx_golden.rs` reads what they become.
//! Never: does two things in one kernel.
#![no_std]
#![feature(abi_ptx, asm_experimental_arch)]

use core::sync::atomic::{AtomicU64, Ordering, fence};
use oxccl_shared::sync::{Block, Gpu, Pair, Sys, Word, fence_acquire, fence_release, fence_release_kernels, fence_release_loads};

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: ends the kernel.
    unsafe { core::arch::asm!("trap;", options(noreturn)) }
}

macro_rules! words {
    ($($int:ty, $scope:ty, $name:literal;)+) => { $( const _: () = {
        #[unsafe(export_name = concat!("probe_word_", $name, "_load_relaxed"))]
        extern "ptx-kernel" fn load_relaxed(word: &Word<$int, $scope>, out: &mut $int) {
            *out = word.load_relaxed();
        }
        #[unsafe(export_name = concat!("probe_word_", $name, "_load_acquire"))]
        extern "ptx-kernel" fn load_acquire(word: &Word<$int, $scope>, out: &mut $int) {
            *out = word.load_acquire();
        }
        #[unsafe(export_name = concat!("probe_word_", $name, "_store_relaxed"))]
        extern "ptx-kernel" fn store_relaxed(word: &Word<$int, $scope>, value: $int) {
            word.store_relaxed(value);
        }
        #[unsafe(export_name = concat!("probe_word_", $name, "_store_release"))]
        extern "ptx-kernel" fn store_release(word: &Word<$int, $scope>, value: $int) {
            word.store_release(value);
        }
    }; )+ };
}
words! {
    u32, Block, "u32_block";
    u32, Gpu, "u32_gpu";
    u32, Sys, "u32_sys";
    u64, Block, "u64_block";
    u64, Gpu, "u64_gpu";
    u64, Sys, "u64_sys";
}

macro_rules! pairs {
    ($($scope:ty, $name:literal;)+) => { $( const _: () = {
        #[unsafe(export_name = concat!("probe_pair_", $name, "_load_relaxed"))]
        extern "ptx-kernel" fn load_relaxed(pair: &Pair<$scope>, out: &mut [u64; 2]) {
            *out = pair.load_relaxed();
        }
        #[unsafe(export_name = concat!("probe_pair_", $name, "_load_acquire"))]
        extern "ptx-kernel" fn load_acquire(pair: &Pair<$scope>, out: &mut [u64; 2]) {
            *out = pair.load_acquire();
        }
        #[unsafe(export_name = concat!("probe_pair_", $name, "_store_relaxed"))]
        extern "ptx-kernel" fn store_relaxed(pair: &Pair<$scope>, low: u64, high: u64) {
            pair.store_relaxed([low, high]);
        }
    }; )+ };
}
pairs! {
    Block, "block";
    Gpu, "gpu";
    Sys, "sys";
}

macro_rules! kernels {
    ($($name:ident($($arg:ident: $type:ty),*) $body:block)+) => { $(
        #[unsafe(no_mangle)]
        extern "ptx-kernel" fn $name($($arg: $type),*) $body
    )+ };
}

// Orders what stands around it: a message published and awaited, as the FIFOs do.
kernels! {
    probe_fence_acquire() { fence_acquire() }
    probe_fence_release() { fence_release() }
    probe_fence_release_kernels() { fence_release_kernels() }
    probe_fence_release_loads() { fence_release_loads() }

    probe_publish(data: *mut u64, flag: &Word<u64, Sys>, value: u64) {
        // SAFETY: never run.
        unsafe { *data = value };
        flag.store_release(1);
    }
    probe_await(data: *const u64, flag: &Word<u64, Sys>, out: *mut u64) {
        if flag.load_acquire() == 1 {
            // SAFETY: never run.
            unsafe { *out = *data };
        }
    }
    probe_await_behind_a_reference(data: &u64, flag: &Word<u64, Sys>, out: *mut u64) {
        if flag.load_acquire() == 1 {
            // SAFETY: never run.
            unsafe { *out = *data };
        }
    }
    probe_two_loads(word: &Word<u64, Sys>, out: &mut [u64; 2]) {
        *out = [word.load_relaxed(), word.load_relaxed()];
    }
}

// rustc's own, which kernels do not use.
kernels! {
    probe_core_load_relaxed(word: &AtomicU64, out: &mut u64) { *out = word.load(Ordering::Relaxed) }
    probe_core_load_acquire(word: &AtomicU64, out: &mut u64) { *out = word.load(Ordering::Acquire) }
    probe_core_store_relaxed(word: &AtomicU64, value: u64) { word.store(value, Ordering::Relaxed) }
    probe_core_store_release(word: &AtomicU64, value: u64) { word.store(value, Ordering::Release) }
    probe_core_fence_acq_rel() { fence(Ordering::AcqRel) }
    probe_core_fence_seq_cst() { fence(Ordering::SeqCst) }
    probe_core_compare_exchange(word: &AtomicU64, out: &mut u64, value: u64) {
        *out = word.compare_exchange(0, value, Ordering::AcqRel, Ordering::Acquire).unwrap_or_else(|seen| seen);
    }
    probe_core_fetch_add_relaxed(word: &AtomicU64, out: &mut u64) { *out = word.fetch_add(1, Ordering::Relaxed) }
    probe_core_fetch_add_acq_rel(word: &AtomicU64, out: &mut u64) { *out = word.fetch_add(1, Ordering::AcqRel) }
    probe_core_fetch_add_seq_cst(word: &AtomicU64, out: &mut u64) { *out = word.fetch_add(1, Ordering::SeqCst) }
    probe_core_swap_acq_rel(word: &AtomicU64, out: &mut u64) { *out = word.swap(1, Ordering::AcqRel) }
}

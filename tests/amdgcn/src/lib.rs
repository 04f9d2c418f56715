//! Layer: tests.
//! Takes: nothing; it is compiled for `amdgcn-amd-amdhsa` and never run.
//! Gives: a kernel for each way in which the library's kernels touch memory or wait for each other.
//! `tests/tests/amdgcn_golden.rs` reads what they become.
//! Never: does two things in one kernel.
#![no_std]
#![feature(abi_gpu_kernel, core_intrinsics)]
#![allow(internal_features, reason = "how a kernel ends")]

use oxccl_device::gpu::amdgcn::Amdgcn;
use oxccl_device::gpu::{KernelMachine, SHARED_BYTES};
use oxccl_shared::sync::{Block, Gpu, Sys, Word, fence_acquire, fence_release};

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    core::intrinsics::abort()
}

macro_rules! words {
    ($($int:ty, $scope:ty, $name:literal;)+) => { $( const _: () = {
        #[unsafe(export_name = concat!("probe_word_", $name, "_load_relaxed"))]
        extern "gpu-kernel" fn load_relaxed(word: *const Word<$int, $scope>, out: *mut $int) {
            // SAFETY: never run.
            unsafe { *out = (*word).load_relaxed() };
        }
        #[unsafe(export_name = concat!("probe_word_", $name, "_load_acquire"))]
        extern "gpu-kernel" fn load_acquire(word: *const Word<$int, $scope>, out: *mut $int) {
            // SAFETY: never run.
            unsafe { *out = (*word).load_acquire() };
        }
        #[unsafe(export_name = concat!("probe_word_", $name, "_store_relaxed"))]
        extern "gpu-kernel" fn store_relaxed(word: *const Word<$int, $scope>, value: $int) {
            // SAFETY: never run.
            unsafe { (*word).store_relaxed(value) };
        }
        #[unsafe(export_name = concat!("probe_word_", $name, "_store_release"))]
        extern "gpu-kernel" fn store_release(word: *const Word<$int, $scope>, value: $int) {
            // SAFETY: never run.
            unsafe { (*word).store_release(value) };
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

macro_rules! kernels {
    ($($name:ident($($arg:ident: $type:ty),*) $body:block)+) => { $(
        #[unsafe(no_mangle)]
        #[allow(unused_unsafe, reason = "some bodies need none")]
        // SAFETY: never run.
        extern "gpu-kernel" fn $name($($arg: $type),*) { unsafe { $body } }
    )+ };
}

kernels! {
    probe_fence_acquire() { fence_acquire() }
    probe_fence_release() { fence_release() }

    // A message published and awaited, as the FIFOs do.
    probe_publish(data: *mut u64, flag: *const Word<u64, Sys>, value: u64) {
        *data = value;
        (*flag).store_release(1);
    }
    probe_await(data: *const u64, flag: *const Word<u64, Sys>, out: *mut u64) {
        if (*flag).load_acquire() == 1 {
            *out = *data;
        }
    }
    // After a barrier the compiler knows of no access under way; the write-back of the cache must be awaited all the same.
    probe_publish_after_barrier(data: *mut u64, flag: *const Word<u64, Sys>, value: u64) {
        let machine = Amdgcn::new();
        *data = value;
        machine.sync_all();
        if machine.thread_index() == 0 {
            (*flag).store_release(1);
        }
    }
    probe_two_loads(word: *const Word<u64, Sys>, out: *mut u64) {
        *out = (*word).load_relaxed();
        *out.add(1) = (*word).load_relaxed();
    }

    probe_barrier(data: *mut u64) {
        let machine = Amdgcn::new();
        *data = 1;
        machine.sync_all();
        *data = 2;
    }
    probe_vote(mine: u32, out: *mut u32) {
        let machine = Amdgcn::new();
        *out = u32::from(machine.any_of_all(machine.thread_index() == mine));
    }
    probe_lds(value: u64, at: u32, out: *mut u64) {
        let machine = Amdgcn::new();
        let shared = machine.shared().cast::<u64>();
        *shared.add(machine.thread_index() as usize % (SHARED_BYTES / 8)) = value;
        machine.sync_all();
        *out = *shared.add(at as usize % (SHARED_BYTES / 8));
    }
    probe_pack(from: *const u64, to: *mut u64) {
        Amdgcn::store_pack(to.addr(), Amdgcn::load_pack(from.addr()));
    }
    probe_indices(out: *mut u32) {
        let machine = Amdgcn::new();
        *out = machine.thread_index();
        *out.add(1) = machine.block_index();
        *out.add(2) = machine.block_threads();
    }
    probe_clock(out: *mut u64) {
        *out = Amdgcn::now_ns();
    }
}

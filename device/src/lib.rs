//! Layer: device, above `shared`, below the host library.
//! Takes: a work descriptor and connections that the host has made.
//! Gives: the primitives and algorithms that move and reduce data, written once over a small kernel DSL.
//! Never: makes connections, chooses algorithms, allocates.
#![cfg_attr(not(feature = "cpu"), no_std)]
#![cfg_attr(target_arch = "nvptx64", feature(abi_ptx, asm_experimental_arch))]
#![cfg_attr(all(target_arch = "amdgpu", feature = "entries"), feature(abi_gpu_kernel))]
#![cfg_attr(
    target_arch = "amdgpu",
    feature(core_intrinsics, gpu_intrinsics, gpu_launch_sized_workgroup_mem, stdarch_amdgpu),
    feature(abi_unadjusted, link_llvm_intrinsics),
    allow(internal_features, reason = "the dispatch packet, LDS and waits have no other name yet")
)]

pub mod custom;
pub mod kernel;
pub mod coll;
pub mod prims;
pub mod conn;
#[cfg(feature = "cpu")]
pub mod traffic;
#[cfg(feature = "cpu")]
pub mod remote;
pub mod distance;
pub mod gpu;

#[doc(hidden)]
pub use oxccl_shared::abi::{CollArgs, Func};

/// A kernel has nobody to tell: it stops.
#[cfg(all(target_arch = "nvptx64", feature = "entries"))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: ends the kernel with an error that the host sees.
    unsafe { core::arch::asm!("trap;", options(noreturn)) }
}

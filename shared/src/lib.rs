//! Layer: the ground floor, below everything.
//! Takes: nothing but `core` (and loom under `cfg(loom)`).
//! Gives: what two sides of a connection must agree on, whichever machine each runs on: layouts (`abi`), how shared
//! words are touched (`sync`), the step FIFO (`fifo`), line formats (`proto`), schedules (`algo`), arithmetic (`reduce`).
//! Never: allocates, blocks without a bound, knows an operating system or a driver.
//!
//! The same source is compiled for CPUs and, by `cargo xtask build-ptx` and `build-amdgcn`, for GPUs.
#![no_std]
#![cfg_attr(target_arch = "nvptx64", feature(asm_experimental_arch))]
#![cfg_attr(
    target_arch = "amdgpu",
    feature(abi_unadjusted, link_llvm_intrinsics),
    allow(internal_features, reason = "a wait has no other name yet")
)]
#![warn(missing_docs)]

pub mod abi;
pub mod sync;
pub mod fifo;
pub mod proto;
pub mod algo;
pub mod reduce;
#[cfg(loom)]
pub mod model;

//! Layer: outside; above the library, in a workspace of its own.
//! Takes: the public DSL: `oxccl_shared::algo`, `oxccl_device::custom`, `oxccl::CustomAlgorithm`.
//! Gives: all-reduce and broadcast along a binomial tree, for CPUs and GPUs.
//! Never: needs a change to the library.
#![no_std]
#![cfg_attr(target_arch = "nvptx64", feature(abi_ptx, asm_experimental_arch))]

#[cfg(not(loom))]
mod walk;
#[cfg(target_arch = "nvptx64")]
mod kernels;
pub mod schedule;

#[cfg(not(loom))]
pub use walk::Binomial;

use oxccl_shared::abi::{Func, Protocol};
use oxccl_shared::algo::custom::CustomSpec;
use oxccl_shared::algo::spec::{Offered, Protocols};

const SHORT_AND_LONG: Protocols = Protocols::of(&[Protocol::LL, Protocol::Simple]);

/// What the library must know.
pub static SPEC: CustomSpec = CustomSpec {
    name: "binomial",
    version: 1,
    offered: &[Offered::new(Func::AllReduce, SHORT_AND_LONG), Offered::new(Func::Broadcast, SHORT_AND_LONG)],
    serves: |nranks| nranks > 1,
};

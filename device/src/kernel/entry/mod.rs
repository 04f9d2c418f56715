//! Layer: device / kernel / entry.
//! Takes: the list of kernels that `cargo xtask` writes from the registry (`oxccl_shared::algo::kernels`).
//! Gives: one entry point of a GPU for each row.
//! Never: what kernels do: that is [`super::run`].
//!
//! A row states the most threads of a block and names its walk in [`super::run`] by the algorithm's name, so an algorithm without one does
//! not compile:
//!
//! ```text
//! collective! { oxccl_all_reduce_ring_ll_f32 of 384 = ring[f32, crate::prims::Ll<1>, false](AllReduce) }
//! messages! { oxccl_send_recv_simple of 384 = [crate::prims::Simple, POSTER] }
//! symmetric! { oxccl_all_reduce_symmetric_f32 of 512 = [f32](AllReduce) }
//! ```
//!
//! A machine says what becomes of a row: the calling convention, how arguments arrive and whether blocks have posters.

#[cfg(target_arch = "nvptx64")]
#[macro_use]
mod ptx;

#[cfg(target_arch = "nvptx64")]
use ptx::POSTER;

#[cfg(target_arch = "amdgpu")]
use crate::gpu::amdgcn::entry::{POSTER, collective, messages};

use super::run;

include!(env!("OXCCL_KERNELS", "the list of kernels: build them by `cargo xtask build-ptx`"));

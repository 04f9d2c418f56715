//! Copies within a GPU: messages of a rank to itself, and what a rank keeps of a collective by copy engines.
//!
//! The driver's copy takes every multiprocessor that it finds: those of a message's blocks, which are then as slow as if it had gone before
//! them, and those of a computation. So a long copy beside other work is a kernel of few blocks.

use super::beside::BESIDE_MIN_BYTES;
use super::driver::{CudaError, Function, StreamRef};
use super::parts::CudaParts;
use super::state::Cuda;
use super::tiles::Tiles;
use crate::launch::{Message, OwnCopy, RawCall, RunError};
use crate::machine::{ConnKind, collective_args};
use crate::plan::copying_kernel;
use oxccl_shared::abi::{KernelLaunch, Protocol, Rank, RankBuffers, SymmetricArgs};
use oxccl_shared::algo::symmetric::RANKS_MAX;
use std::ffi::c_void;

impl Cuda {
    /// Enqueues messages to other ranks and to ourselves.
    ///
    /// # Safety
    /// 1. As [`Machine::messages`](crate::launch::Machine::messages).
    pub(super) unsafe fn all_messages(
        &mut self,
        messages: &[(Message, u32)],
        own: &[OwnCopy],
        stream: StreamRef<'_>,
    ) -> Result<(), RunError> {
        let own = || own.iter().filter(|own| own.moves());
        let is_long = own().any(|own| own.len_bytes as u64 >= BESIDE_MIN_BYTES);
        if messages.is_empty() || !is_long {
            for own in own() {
                // SAFETY: (1) obligation 1.
                unsafe { copy(own, stream)? };
            }
            // SAFETY: (1) obligation 1.
            return unsafe { self.launch_messages(messages, stream) };
        }
        self.beside.fork(stream)?;
        // SAFETY: (1) obligation 1.
        unsafe { self.launch_messages(messages, stream)? };
        let beside = self.beside.stream()?;
        for own in own() {
            // SAFETY: (1) obligation 1.
            unsafe { copy_beside(&self.parts, beside, own)? };
        }
        Ok(self.beside.join(stream)?)
    }
}

/// Copies beside other work of the GPU.
///
/// # Safety
/// 1. As [`copy`].
pub(super) unsafe fn copy_beside(
    parts: &CudaParts,
    stream: StreamRef<'_>,
    own: &OwnCopy,
) -> Result<(), CudaError> {
    match parts.kernels.if_loaded(copying_kernel()) {
        // SAFETY: (1) obligation 1.
        Some(copier) if is_aligned(own) && own.moves() => unsafe {
            copy_by_kernel(parts, &copier, own, stream)
        },
        // SAFETY: (1) obligation 1.
        _ => unsafe { copy(own, stream) },
    }
}

/// Copies by a kernel: an all-gather of one rank.
///
/// # Safety
/// 1. As [`copy`].
unsafe fn copy_by_kernel(
    parts: &CudaParts,
    copier: &Function,
    own: &OwnCopy,
    stream: StreamRef<'_>,
) -> Result<(), CudaError> {
    let OwnCopy { from, to, len_bytes } = *own;
    let plan = parts.facts.plan_own_copy(len_bytes as u64);
    let raw = RawCall { call: plan.call(), send: from, recv: to, scalar_bits: 0, forced: None };
    let coll = collective_args(&raw, &plan.as_collective(), &parts.operator(&raw.call, 0), 0);
    // It has no connections: these are of any kind.
    let lists = parts.tables.of(ConnKind::Mesh, Protocol::LL);
    let alone = KernelLaunch { nconns: 0, rank: Rank(0), nranks: 1, ..parts.launch(lists, plan.channels) };
    let mut ranks = [RankBuffers::NONE; RANKS_MAX];
    ranks[0] = RankBuffers { src: from, dst: to };
    let mut args = SymmetricArgs { launch: alone, coll, ranks, own_blocks: 0 };
    let mut params = [(&raw mut args).cast::<c_void>()];
    let shape = parts.clusters.shape(copier.sm(), plan.channels, plan.threads, Tiles::default());
    // SAFETY: the entry takes one `SymmetricArgs`; the buffers are valid by obligation 1, the monitor as for every kernel.
    let launched = unsafe { copier.launch(shape, stream, &mut params) };
    launched.map_err(|error| error.in_kernel(copier.name()))
}

/// Whether both places are aligned to 16 bytes alike. How long so few blocks take for others was not measured since they shift packs.
fn is_aligned(own: &OwnCopy) -> bool {
    (own.from.addr() | own.to.addr()).is_multiple_of(16)
}

/// Copies by the driver, as fast as the GPU can.
///
/// # Safety
/// 1. Both places are valid for the length, until the stream has completed the copy; they are apart or the same.
pub(super) unsafe fn copy(own: &OwnCopy, stream: StreamRef<'_>) -> Result<(), CudaError> {
    if !own.moves() {
        return Ok(());
    }
    let OwnCopy { from, to, len_bytes } = *own;
    // SAFETY: (1, 2) obligation 1.
    unsafe { stream.copy_on_device(to.addr() as u64, from.addr() as u64, len_bytes) }
}

//! Messages of a rank to itself: copies within the GPU, long ones beside the messages to others.
//!
//! The driver's copy takes every multiprocessor that it finds, those of the messages' blocks too, and these are then as slow as if it had
//! gone before them. So a long copy is a kernel of few blocks.

use super::beside::BESIDE_MIN_BYTES;
use super::driver::{CudaError, Function, StreamRef};
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
        let copier = self.parts.kernels.if_loaded(copying_kernel());
        let beside = self.beside.stream()?;
        for own in own() {
            match &copier {
                // SAFETY: (1) obligation 1.
                Some(copier) if is_aligned(own) => unsafe { self.copy_by_kernel(copier, own, beside)? },
                // SAFETY: (1) obligation 1.
                _ => unsafe { copy(own, beside)? },
            }
        }
        Ok(self.beside.join(stream)?)
    }

    /// Copies by a kernel: an all-gather of one rank.
    ///
    /// # Safety
    /// 1. As [`copy`].
    unsafe fn copy_by_kernel(
        &self,
        copier: &Function,
        own: &OwnCopy,
        stream: StreamRef<'_>,
    ) -> Result<(), CudaError> {
        let OwnCopy { from, to, len_bytes } = *own;
        let plan = self.parts.facts.plan_own_copy(len_bytes as u64);
        let raw = RawCall { call: plan.call(), send: from, recv: to, scalar_bits: 0, forced: None };
        let coll = collective_args(&raw, &plan.as_collective(), &self.operator(&raw.call, 0), 0);
        // It has no connections: these are of any kind.
        let lists = self.parts.tables.of(ConnKind::Mesh, Protocol::LL);
        let alone = self.launch(lists, plan.channels);
        let alone = KernelLaunch { nconns: 0, rank: Rank(0), nranks: 1, ..alone };
        let mut ranks = [RankBuffers::NONE; RANKS_MAX];
        ranks[0] = RankBuffers { src: from, dst: to };
        let mut args = SymmetricArgs { launch: alone, coll, ranks, own_blocks: 0 };
        let mut params = [(&raw mut args).cast::<c_void>()];
        let shape = self.parts.clusters.shape(copier.sm(), plan.channels, plan.threads, Tiles::default());
        // SAFETY: the entry takes one `SymmetricArgs`; the buffers are valid by obligation 1, the monitor as for every kernel.
        let launched = unsafe { copier.launch(shape, stream, &mut params) };
        launched.map_err(|error| error.in_kernel(copier.name()))
    }
}

/// Whether the kernel's threads copy 16 bytes at a time. Else so few blocks take longer than the messages.
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

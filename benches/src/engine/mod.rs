//! Layer: perf / engine.
//! Takes: calls on raw memory.
//! Gives: the same interface to every library that can run them.
//! Never: measures or checks; an engine does not know that it is compared.

mod oxccl;
mod mpi;
mod mpi_requests;
mod memcpy;
mod tcp_stream;

pub use self::mpi::MpiEngine;
pub use memcpy::MemcpyEngine;
pub use oxccl::{LaunchedTeam, OxcclEngine, SetupError, agree_on_id, func, untyped};
pub use tcp_stream::TcpStreamEngine;

use crate::collective::Collective;
use crate::gpu::GpuError;
use crate::gpu::nccl::NcclError;
use crate::mpi::MpiError;
use oxccl_shared::abi::{DataType, RedOp};

/// One call of one rank. Counts are NCCL's.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    pub collective: Collective,
    pub send: *mut u8,
    pub recv: *mut u8,
    /// Elements, as the collective counts them.
    pub count: usize,
    pub dtype: DataType,
    /// Ignored where nothing is reduced.
    pub op: RedOp,
    /// This rank's scalar of a pre-multiplied sum, in the low bytes.
    pub scalar_bits: u64,
    pub root: u32,
    pub in_place: bool,
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error(transparent)]
    Oxccl(#[from] ::oxccl::Error),
    #[error(transparent)]
    Mpi(#[from] MpiError),
    #[error(transparent)]
    Nccl(#[from] NcclError),
    #[error(transparent)]
    Gpu(#[from] GpuError),
    #[error("a plain stream: {0}")]
    Stream(#[from] std::io::Error),
    #[error(transparent)]
    Cuda(#[from] ::oxccl::cuda::CudaError),
}

/// A library on one rank.
pub trait Engine {
    /// The name in tables.
    fn name(&self) -> &'static str;
    /// Version, and what was chosen for this run.
    fn describe(&self) -> String;
    /// What it reserves, where it says so.
    fn memory(&self) -> Option<Memory> {
        None
    }
    /// Why it cannot run a call, if it cannot. The same on every rank.
    fn refuses(&self, call: &Call) -> Option<&'static str>;
    /// Whether its results mean anything.
    fn checkable(&self) -> bool {
        true
    }
    /// Runs calls, as one group where they are several, and returns when this rank's part is done.
    ///
    /// # Safety
    /// 1. Buffers are valid for the shapes of each call ([`crate::collective`]), do not overlap but as `in_place` says, and are
    ///    nobody else's meanwhile.
    unsafe fn run(&mut self, calls: &[Call]) -> Result<(), EngineError>;
    /// Its non-blocking calls, if it has any.
    fn in_flight(&mut self) -> Option<&mut dyn InFlight> {
        None
    }
}

/// A library whose operations can be in flight while their rank computes.
pub trait InFlight {
    /// Why a call cannot be started without waiting for it, if it cannot. The same on every rank.
    fn refuses(&self, call: &Call) -> Option<&'static str>;
    /// Starts a call, runs `work` until that says that nothing is left, tests the request after each piece, and then waits.
    ///
    /// # Safety
    /// 1. As [`Engine::run`].
    unsafe fn run_beside(&mut self, call: &Call, work: &mut dyn FnMut() -> bool) -> Result<(), EngineError>;
}

/// Bytes that a library reserves.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Memory {
    /// For the whole communicator, on this rank.
    pub communicator_bytes: usize,
    /// For each peer.
    pub peers: Vec<PeerMemory>,
}

/// One peer's share.
#[derive(Clone, Debug, serde::Serialize)]
pub struct PeerMemory {
    pub rank: u32,
    pub transport: String,
    pub bytes: usize,
}

//! Layer: perf / gpu / engine.
//! Takes: calls on device memory.
//! Gives: the same interface to every library that can put them on streams.
//! Never: waits for a stream, measures or checks.

use crate::engine::{Call, EngineError};
use oxccl::cuda::{ContextGuard, CudaError, Device, Stream, StreamRef};

/// One rank of this thread: its number among all, its GPU and the stream that its operations go to.
pub struct Seat {
    pub rank: u32,
    stream: Stream,
}

impl Seat {
    /// A stream on a GPU for a rank.
    pub fn new(rank: u32, device: u32) -> Result<Seat, CudaError> {
        Ok(Seat { rank, stream: Stream::new(&Device::open(device)?)? })
    }

    /// Its GPU.
    pub fn device(&self) -> &Device {
        self.stream().device()
    }

    /// Where its operations go.
    pub fn stream(&self) -> StreamRef<'_> {
        self.stream.by_ref()
    }

    /// What this thread calls next concerns its GPU.
    pub fn bind(&self) -> Result<ContextGuard<'_>, CudaError> {
        self.device().bind()
    }
}

/// A call of one of the thread's ranks. Pointers are device addresses.
#[derive(Clone, Copy, Debug)]
pub struct SeatCall {
    /// Index among the thread's seats.
    pub seat: usize,
    pub call: Call,
}

/// What is said of buffers beforehand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Registration {
    /// Each rank for itself.
    Local,
    /// All ranks together, at the same places.
    Symmetric,
}

/// An allocation: its address and its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    pub address: u64,
    pub bytes: usize,
}

/// A library that has a communicator for every rank of this thread.
pub trait GpuEngine {
    /// The name in tables.
    fn name(&self) -> String;
    /// Version, and what was chosen for this run.
    fn describe(&self) -> String;
    /// Registers the allocations of each seat. Every thread of the team calls it at the same time.
    ///
    /// # Safety
    /// 1. They live as long as the engine.
    unsafe fn register(
        &mut self,
        seats: &[Seat],
        buffers: &[[Extent; 2]],
        kind: Registration,
    ) -> Result<(), EngineError>;
    /// Why it cannot run a call, if it cannot. The same on every rank.
    fn refuses(&self, call: &Call) -> Option<&'static str>;
    /// Puts calls on the streams of their seats, in order, as one group where they are several. Streams may be capturing.
    ///
    /// # Safety
    /// 1. Buffers are device memory, valid for the shapes of each call ([`crate::collective`]), do not overlap but as `in_place`
    ///    says, and are nobody else's until the streams have done the work.
    /// 2. `seats` are those that the engine was made for.
    unsafe fn enqueue(&mut self, seats: &[Seat], calls: &[SeatCall]) -> Result<(), EngineError>;
    /// An error that has come up since.
    fn health(&mut self) -> Result<(), EngineError>;
    /// Ends what it has put on streams, as far as it can: another rank has failed, or this one has waited too long.
    fn abort(&mut self);
}

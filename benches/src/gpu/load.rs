//! What computes beside a collective: kernels on a stream of their own, one after the other, as a training step has them.

use super::driver::GpuError;
use oxccl::cuda::{Device, DeviceMemory, Event, Function, Module, Shape, Stream};
use std::ffi::c_void;

/// Both kernels; the driver compiles them.
const PTX: &str = include_str!("load.ptx");
const THREADS: u32 = 256;
/// Blocks that fill a multiprocessor, which has room for 2048 threads.
const PER_MULTIPROCESSOR: u32 = 8;
/// Of arithmetic, some 50 us at a clock of 1.7 GHz.
const ARITHMETIC_ROUNDS: u32 = 160;
/// More than caches hold, and as much is written: some 100 us.
const MEMORY_BYTES: usize = 128 << 20;
const MEMORY_ROUNDS: u32 = 4;
/// What a block copies: in each round, four times 16 bytes for each thread.
const PART_BYTES: usize = THREADS as usize * 4 * 16 * MEMORY_ROUNDS as usize;

/// What the computation is bound by.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Kind {
    /// Fused multiply-adds of registers.
    Arithmetic,
    /// Copies within the GPU's memory.
    Memory,
}

impl Kind {
    /// Both.
    pub const ALL: [Kind; 2] = [Kind::Arithmetic, Kind::Memory];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Arithmetic => "arithmetic",
            Kind::Memory => "memory",
        }
    }
}

/// A GPU's.
pub struct Load {
    /// Gone before the memory that its kernels use.
    stream: Stream,
    kernels: [Function; 2],
    to: DeviceMemory,
    from: DeviceMemory,
    begin: Event,
    end: Event,
}

impl Load {
    /// Takes [`MEMORY_BYTES`] twice.
    pub fn new(device: &Device) -> Result<Load, GpuError> {
        let module = Module::load(device, PTX.as_bytes())?;
        let kernels = [module.function("oxccl_load_arithmetic")?, module.function("oxccl_load_memory")?];
        let memory = || DeviceMemory::zeroed(device, MEMORY_BYTES);
        let (to, from) = (memory()?, memory()?);
        let (begin, end) = (Event::timed(device)?, Event::timed(device)?);
        Ok(Load { stream: Stream::new(device)?, kernels, to, from, begin, end })
    }

    /// What is put on the stream from now on begins after `event`, and its time is counted from there.
    pub fn begin_after(&self, event: &Event) -> Result<(), GpuError> {
        let stream = self.stream.by_ref();
        stream.wait(event)?;
        Ok(stream.record(&self.begin)?)
    }

    /// What is put on the stream from now on is timed.
    pub fn begin(&self) -> Result<(), GpuError> {
        Ok(self.stream.by_ref().record(&self.begin)?)
    }

    /// Puts so many kernels on the stream.
    pub fn launch(&self, kind: Kind, times: u32) -> Result<(), GpuError> {
        let (blocks, mut rounds) = match kind {
            Kind::Arithmetic => (self.to.device().sm_count() * PER_MULTIPROCESSOR, ARITHMETIC_ROUNDS),
            Kind::Memory => ((MEMORY_BYTES / PART_BYTES) as u32, MEMORY_ROUNDS),
        };
        let (mut to, mut from) = (self.to.address(), self.from.address());
        for _ in 0..times {
            let mut params: [*mut c_void; 3] =
                [(&raw mut to).cast(), (&raw mut from).cast(), (&raw mut rounds).cast()];
            let shape = Shape::new(blocks, THREADS);
            // SAFETY: (1) two addresses and a number of rounds, as both kernels have them; (2) the memory lives as long as the stream, and has
            // room for what all blocks copy in so many rounds.
            unsafe {
                self.kernels[kind as usize].launch(shape, self.stream.by_ref(), &mut params)?;
            }
        }
        Ok(())
    }

    /// Ends what is timed.
    pub fn end(&self) -> Result<(), GpuError> {
        Ok(self.stream.by_ref().record(&self.end)?)
    }

    /// Whether all of it is done.
    pub fn is_done(&self) -> Result<bool, GpuError> {
        Ok(self.stream.by_ref().is_done()?)
    }

    /// Seconds from the begin to the end, which are done.
    pub fn seconds(&self) -> Result<f64, GpuError> {
        Ok(self.end.elapsed_us(&self.begin)? / 1e6)
    }
}

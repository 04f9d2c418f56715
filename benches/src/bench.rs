//! Layer: perf / bench.
//! Takes: one case: a collective, a size, a type, an operator, a root, one buffer or two.
//! Gives: the interface by which a run measures it, on CPUs and on GPUs alike, and where its parts lie in memory.
//! Never: decides what is measured, or prints.

use crate::collective::{Collective, Shape};
use crate::engine::EngineError;
use crate::gpu::GpuError;
use crate::team::TeamError;
use oxccl_shared::abi::{DataType, RedOp};
use std::ops::{Range, RangeInclusive};

/// Fewest and most operations of a measurement whose number is not given.
const ITERS_AUTO: RangeInclusive<u32> = 4..=20_000;

/// What is measured, but for the engine.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub collective: Collective,
    pub shape: Shape,
    pub dtype: DataType,
    pub op: RedOp,
    pub root: u32,
    pub in_place: bool,
}

impl Case {
    /// Bytes of the larger buffer.
    pub fn bytes(&self) -> usize {
        self.shape.larger() * self.dtype.size_bytes()
    }

    /// Byte ranges of `rank`'s send and receive part, each in its buffer; in place both are in the receive buffer.
    pub fn parts(&self, rank: u32) -> (Range<usize>, Range<usize>) {
        let bytes = self.dtype.size_bytes();
        let offsets = self.collective.in_place_offsets(self.shape, rank as usize);
        let (send, recv) = if self.in_place { offsets } else { (0, 0) };
        let Shape { send: send_elems, recv: recv_elems, .. } = self.shape;
        (send * bytes..(send + send_elems) * bytes, recv * bytes..(recv + recv_elems) * bytes)
    }

    /// Bytes between the guards of the send and the receive buffer.
    pub fn extents(&self) -> (usize, usize) {
        let bytes = self.dtype.size_bytes();
        let Shape { send, recv, .. } = self.shape;
        if self.in_place { (0, self.bytes()) } else { (send * bytes, recv * bytes) }
    }
}

/// Why a measurement ended early.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    #[error("{engine}: {error}")]
    Engine { engine: String, error: EngineError },
    #[error(transparent)]
    Gpu(#[from] GpuError),
    #[error(transparent)]
    Cuda(#[from] oxccl::cuda::CudaError),
    #[error(transparent)]
    Team(#[from] TeamError),
}

/// What a check found, over all ranks.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Verdict {
    /// Elements that are not what the oracle says, and bytes that the call had no right to change.
    pub wrong: u64,
    /// Guard bytes around the buffers that changed.
    pub out_of_bounds: u64,
}

/// What a few operations before the measurements showed. The same on every rank.
#[derive(Clone, Copy, Debug)]
pub struct WarmUp {
    /// Operations (or groups of `--agg_iters`) of each measurement.
    pub iters: u32,
    /// Seconds that a measurement will take, roughly.
    pub seconds: f64,
}

impl WarmUp {
    /// As many operations as last `min_time_ms`, unless their number is given.
    pub fn plan(slowest: f64, iters: Option<u32>, min_time_ms: u32, agg_iters: u32) -> WarmUp {
        let wanted = f64::from(min_time_ms) / 1e3 / slowest.max(1e-9);
        let auto = (wanted.ceil() as u32).clamp(*ITERS_AUTO.start(), *ITERS_AUTO.end());
        let iters = iters.unwrap_or(auto.div_ceil(agg_iters));
        WarmUp { iters, seconds: slowest * f64::from(iters) * f64::from(agg_iters) }
    }
}

/// Engines and memory of the ranks of one thread, ready to be measured. Every thread of a run makes the same calls in the same
/// order.
pub trait Bench {
    /// Ranks of the run.
    fn ranks(&self) -> u32;
    /// Engines; the others' `engine` is below it.
    fn engines(&self) -> usize;
    /// Whether its results mean anything.
    fn checkable(&self, engine: usize) -> bool;
    /// Why it cannot run a case, if it cannot. The same on every rank.
    fn refuses(&mut self, engine: usize, case: &Case) -> Option<&'static str>;
    /// A few operations, from which the number of operations of a measurement follows.
    fn warm_up(&mut self, engine: usize, case: &Case) -> Result<WarmUp, MeasureError> {
        self.warm_up_at_most(engine, case, u32::MAX)
    }
    /// The same with no more operations than these.
    fn warm_up_at_most(&mut self, engine: usize, case: &Case, most: u32) -> Result<WarmUp, MeasureError>;
    /// Blocks of threads of an operation's kernels on a GPU of rank 0's thread; `None` on processors, and where it cannot be seen.
    fn blocks(&mut self, _engine: usize, _case: &Case) -> Result<Option<u32>, MeasureError> {
        Ok(None)
    }
    /// Seconds per operation.
    fn time(&mut self, engine: usize, case: &Case, iters: u32) -> Result<f64, MeasureError>;
    /// Runs the operation `--check` times on fresh data and compares everything it may have touched.
    fn check(&mut self, engine: usize, case: &Case) -> Result<Verdict, MeasureError>;
    /// `mine` as rank 0 has it: for decisions that depend on a clock.
    fn agree(&mut self, mine: f64) -> Result<f64, MeasureError>;
}

/// One number out of every rank's: `--average`.
pub fn combine(average: u32, all: &[f64]) -> f64 {
    match average {
        0 => all[0],
        1 => all.iter().sum::<f64>() / all.len() as f64,
        2 => all.iter().copied().fold(f64::INFINITY, f64::min),
        _ => all.iter().copied().fold(0.0, f64::max),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_operations_as_last_the_time_asked_for() {
        assert_eq!(WarmUp::plan(1e-3, None, 20, 1).iters, 20);
        assert_eq!(WarmUp::plan(1.0, None, 20, 1).iters, 4);
        assert_eq!(WarmUp::plan(1e-9, None, 20, 1).iters, 20_000);
        assert_eq!(WarmUp::plan(1e-3, None, 20, 3).iters, 7);
        let given = WarmUp::plan(1e-3, Some(10), 20, 2);
        assert_eq!(given.iters, 10);
        assert!((given.seconds - 20e-3).abs() < 1e-9);
    }

    #[test]
    fn averages_of_nccl_tests() {
        let all = [2.0, 1.0, 6.0];
        assert_eq!([0, 1, 2, 3].map(|average| combine(average, &all)), [2.0, 3.0, 1.0, 6.0]);
    }
}

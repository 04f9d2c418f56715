//! What was measured on a machine, ready to be asked.

use super::candidate::{Candidate, Candidates};
use super::constants::Architecture;
use oxccl_shared::abi::Func;
use oxccl_shared::algo::spec::Processor;
use serde::{Deserialize, Serialize};

/// The functions that a table may have rows of.
pub const TUNED: [Func; 5] =
    [Func::AllReduce, Func::AllGather, Func::ReduceScatter, Func::Broadcast, Func::Reduce];

/// The most rows of a function: one for every other size of `oxccl tune`, of which neighbours mostly agree.
const ROWS_MAX: usize = 16;

/// On what a table was measured.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Backend {
    /// Ranks are threads of processors, some of which share memory.
    #[serde(rename = "cpu")]
    Cpu,
    /// Ranks are threads of processors, and all connections are streams.
    #[serde(rename = "cpu-streams")]
    CpuStreams,
    /// Ranks are GPUs.
    #[serde(rename = "cuda")]
    Gpu,
}

impl Backend {
    /// That of ranks of a kind.
    pub fn of(architecture: Architecture) -> Backend {
        match architecture {
            Architecture::Cpu => Backend::Cpu,
            Architecture::CpuStreams => Backend::CpuStreams,
            _ => Backend::Gpu,
        }
    }

    /// What its ranks run on, as far as algorithms differ.
    pub fn processor(self) -> Processor {
        match self {
            Backend::Cpu | Backend::CpuStreams => Processor::Cpu,
            Backend::Gpu => Processor::Gpu,
        }
    }

    /// As files have it.
    pub fn name(self) -> &'static str {
        match self {
            Backend::Cpu => "cpu",
            Backend::CpuStreams => "cpu-streams",
            Backend::Gpu => "cuda",
        }
    }
}

/// Up to a size, this.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct TuneRow {
    /// The largest call that the row is for, in bytes of its larger buffer.
    pub max_bytes: u64,
    /// What was best.
    pub candidate: Candidate,
    /// With so many channels; as the plan says if none.
    pub channels: Option<u16>,
}

/// Rows by function. A fixed size, because plans are made from copies of it and nothing allocates after init.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct TuneTable {
    rows: [[Option<TuneRow>; ROWS_MAX]; TUNED.len()],
}

impl TuneTable {
    /// Adds a function's next row. Nothing if it has no place, or does not begin where the row before it ends.
    #[must_use]
    pub fn with(mut self, func: Func, row: TuneRow) -> Option<TuneTable> {
        let rows = &mut self.rows[TUNED.iter().position(|known| *known == func)?];
        let free = rows.iter().position(Option::is_none)?;
        let before = free.checked_sub(1).and_then(|last| rows[last]);
        if before.is_some_and(|before| before.max_bytes >= row.max_bytes) {
            return None;
        }
        rows[free] = Some(row);
        Some(self)
    }

    /// The row for a call of so many bytes, and its number from 0.
    pub fn row(&self, func: Func, bytes: u64) -> Option<(usize, TuneRow)> {
        self.rows(func).enumerate().find(|(_, row)| bytes <= row.max_bytes)
    }

    /// A function's rows, in order.
    pub fn rows(&self, func: Func) -> impl Iterator<Item = TuneRow> {
        let rows = TUNED.iter().position(|known| *known == func).map(|at| self.rows[at]);
        rows.into_iter().flatten().flatten()
    }

    /// Whether a row takes any of these.
    pub fn uses(&self, candidates: Candidates) -> bool {
        self.rows.iter().flatten().flatten().any(|row| candidates.has(row.candidate))
    }
}

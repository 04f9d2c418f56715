//! Layer: perf / row.
//! Takes: what was measured of one case.
//! Gives: a line of a report, with its times and findings.
//! Never: measures, or formats.

use crate::bench::Verdict;
use oxccl_shared::abi::{DataType, RedOp};

/// What stands in cells of a place that `--place` leaves out.
pub const NOT_ASKED: &str = "not asked for";

/// Why a case was not measured though the engine has it.
pub const NO_TIME: &str = "left out: the time budget is used up";

/// One line of the table.
#[derive(Clone, Debug)]
pub struct Row {
    /// Bytes of the larger buffer.
    pub bytes: usize,
    /// The count argument.
    pub count: usize,
    pub dtype: DataType,
    /// `None` where nothing is reduced.
    pub op: Option<RedOp>,
    /// `None` where no rank is special.
    pub root: Option<u32>,
    /// Engine by engine, out of place and in place.
    pub cells: Vec<[Cell; 2]>,
}

/// One engine's part of a line.
#[derive(Clone, Debug)]
pub enum Cell {
    Measured(Measured),
    /// The engine has no such call.
    Refused(&'static str),
}

/// Times and findings.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Operations per measurement.
    pub iters: u32,
    /// Seconds per operation, round by round.
    pub seconds: Vec<f64>,
    /// Nothing where results were not checked.
    pub verdict: Option<Verdict>,
    /// Blocks of threads of an operation's kernels on one GPU, where they were asked for and can be seen.
    pub blocks: Option<u32>,
}

impl Measured {
    pub fn median(&self) -> f64 {
        median(&self.seconds)
    }

    pub fn min(&self) -> f64 {
        self.seconds.iter().copied().fold(f64::INFINITY, f64::min)
    }

    pub fn max(&self) -> f64 {
        self.seconds.iter().copied().fold(0.0, f64::max)
    }
}

/// The one in the middle, or between the two in the middle.
pub fn median(seconds: &[f64]) -> f64 {
    let mut sorted = seconds.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len().is_multiple_of(2) { (sorted[middle - 1] + sorted[middle]) / 2.0 } else { sorted[middle] }
}

/// Measurements whose results were wrong or reached outside their buffers.
pub fn errors(rows: &[Row]) -> usize {
    let cells = rows.iter().flat_map(|row| row.cells.iter().flatten());
    cells
        .filter(|cell| match cell {
            Cell::Measured(Measured { verdict: Some(verdict), .. }) => *verdict != Default::default(),
            _ => false,
        })
        .count()
}

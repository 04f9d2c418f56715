//! Layer: perf / run.
//! Takes: one rank's team and engines.
//! Gives: the whole run: every size, type, operator, root, place and engine, in the order in which all ranks go through them.
//! Never: starts ranks.

use crate::cli::{Choice, PerfArgs};
use crate::collective::Collective;
use crate::engine::Engine;
use crate::measure::{Bench, Case, MeasureError, Verdict};
use crate::report::Report;
use crate::team::Team;
use oxccl_shared::abi::{DataType, RedOp};

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
}

impl Measured {
    pub fn median(&self) -> f64 {
        let mut sorted = self.seconds.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        if sorted.len().is_multiple_of(2) {
            (sorted[middle - 1] + sorted[middle]) / 2.0
        } else {
            sorted[middle]
        }
    }

    pub fn min(&self) -> f64 {
        self.seconds.iter().copied().fold(f64::INFINITY, f64::min)
    }

    pub fn max(&self) -> f64 {
        self.seconds.iter().copied().fold(0.0, f64::max)
    }
}

/// Goes through all cases. Every rank calls it; rank 0's report is shown.
pub fn sweep(
    team: &mut dyn Team,
    engines: &mut [Box<dyn Engine>],
    args: &PerfArgs,
    report: &mut Report,
) -> Result<(), MeasureError> {
    let ranks = team.size();
    let cases = cases(args, ranks);
    report.begin(cases.len());
    let mut bench = Bench::new(team, args);
    for case in cases {
        let cells =
            engines.iter().map(|_| [Cell::Refused("not there"), Cell::Refused("not there")]).collect();
        let mut row = Row {
            bytes: case.shape.larger() * case.dtype.size_bytes(),
            count: case.shape.count,
            dtype: case.dtype,
            op: args.collective.reduces().then_some(case.op),
            root: args.collective.rooted().then_some(case.root),
            cells,
        };
        for in_place in [false, true] {
            let case = Case { in_place, ..case };
            for (cells, cell) in row.cells.iter_mut().zip(place(&mut bench, engines, args, &case)?) {
                cells[usize::from(in_place)] = cell;
            }
        }
        report.row(row);
    }
    Ok(())
}

/// Measures one case on every engine, in turns: each round begins with another engine, so that none always runs in the wake of the
/// same one.
fn place(
    bench: &mut Bench<'_>,
    engines: &mut [Box<dyn Engine>],
    args: &PerfArgs,
    case: &Case,
) -> Result<Vec<Cell>, MeasureError> {
    if case.in_place && !args.collective.in_place() {
        return Ok(engines.iter().map(|_| Cell::Refused("two buffers only")).collect());
    }
    let call = bench.call(case);
    let mut cells: Vec<Cell> = Vec::with_capacity(engines.len());
    for engine in engines.iter_mut() {
        cells.push(match engine.refuses(&call) {
            Some(reason) => Cell::Refused(reason),
            None => {
                let iters = bench.warm_up(engine.as_mut(), case)?;
                Cell::Measured(Measured { iters, seconds: Vec::new(), verdict: None })
            }
        });
    }
    for round in 0..args.rounds() as usize {
        for turn in 0..engines.len() {
            let at = (round + turn) % engines.len();
            if let Cell::Measured(measured) = &mut cells[at] {
                measured.seconds.push(bench.time(engines[at].as_mut(), case, measured.iters)?);
            }
        }
    }
    for (engine, cell) in engines.iter_mut().zip(&mut cells) {
        if let Cell::Measured(measured) = cell
            && args.check > 0
            && engine.checkable()
        {
            measured.verdict = Some(bench.check(engine.as_mut(), case)?);
        }
    }
    Ok(cells)
}

fn cases(args: &PerfArgs, ranks: u32) -> Vec<Case> {
    let collective = args.collective;
    let dtypes = match args.datatype {
        _ if collective == Collective::Barrier => vec![DataType::U8],
        Choice::One(dtype) => vec![dtype],
        Choice::All => DataType::ALL.to_vec(),
    };
    let ops = match args.op {
        _ if !collective.reduces() => vec![RedOp::Sum],
        Choice::One(op) => vec![op],
        Choice::All => RedOp::ALL.to_vec(),
    };
    let roots = match args.root {
        _ if !collective.rooted() => vec![0],
        Choice::One(root) => vec![root],
        Choice::All => (0..ranks).collect(),
    };
    let mut cases = Vec::new();
    for &dtype in &dtypes {
        for &op in &ops {
            for &root in &roots {
                for size in args.sizes() {
                    let shape = collective.shape(size / dtype.size_bytes(), ranks as usize);
                    cases.push(Case { collective, shape, dtype, op, root, in_place: false });
                }
            }
        }
    }
    cases
}

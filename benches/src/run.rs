//! Layer: perf / run.
//! Takes: a bench and a collective.
//! Gives: the whole run: every size, type, operator, root, place and engine, in the order in which all ranks go through them.
//! Never: starts ranks.

use crate::bench::{Bench, Case, MeasureError, WarmUp};
use crate::budget::{Budget, iters_that_fit, rounds};
use crate::cli::{Choice, PerfArgs, Places};
use crate::collective::{Collective, Shape};
use crate::report::{Report, ReportError};
use crate::row::{Cell, Measured, NO_TIME, NOT_ASKED, Row};
use oxccl_shared::abi::{DataType, RedOp};
use std::time::Instant;

/// Why a run ended early.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    #[error(transparent)]
    Measure(#[from] MeasureError),
    #[error(transparent)]
    Report(#[from] ReportError),
}

/// Goes through all cases of a collective. Every rank calls it; rank 0's report is shown.
pub fn sweep(
    bench: &mut dyn Bench,
    collective: Collective,
    args: &PerfArgs,
    budget: &Budget,
    report: &mut Report<'_>,
) -> Result<(), SweepError> {
    let cases = cases(collective, args, bench.ranks());
    report.begin(collective, cases.len())?;
    for line in too_small(collective, args, bench.ranks()) {
        report.remark(&line)?;
    }
    for (at, case) in cases.iter().enumerate() {
        let cells = (0..bench.engines()).map(|_| [false, true].map(|_| Cell::Refused(NOT_ASKED)));
        let mut row = Row {
            bytes: case.bytes(),
            count: case.shape.count,
            dtype: case.dtype,
            op: collective.reduces().then_some(case.op),
            root: collective.rooted().then_some(case.root),
            cells: cells.collect(),
        };
        let budget = budget.part(cases.len() - at);
        for in_place in [false, true].into_iter().filter(|in_place| args.place.has(*in_place)) {
            let case = Case { in_place, ..*case };
            let places = if in_place || args.place != Places::Both { 1 } else { 2 };
            let seconds = bench.agree(budget.part(places).left())?;
            let began = Instant::now();
            let found = place(bench, args, &case, seconds)?;
            report.place(case.bytes(), &found, began.elapsed().as_secs_f64());
            for (cells, cell) in row.cells.iter_mut().zip(found) {
                cells[usize::from(in_place)] = cell;
            }
        }
        report.row(row)?;
    }
    Ok(())
}

/// Measures one case on every engine, in turns: each round begins with another engine, so that none always runs in the wake of the
/// same one.
fn place(
    bench: &mut dyn Bench,
    args: &PerfArgs,
    case: &Case,
    seconds: f64,
) -> Result<Vec<Cell>, MeasureError> {
    let engines = bench.engines();
    let all = |reason| Ok((0..engines).map(|_| Cell::Refused(reason)).collect());
    if case.in_place && !case.collective.in_place() {
        return all("two buffers only");
    }
    if seconds <= 0.0 {
        return all(NO_TIME);
    }
    let mut cells: Vec<Cell> = Vec::with_capacity(engines);
    let mut round_seconds = 0.0;
    for engine in 0..engines {
        cells.push(match bench.refuses(engine, case) {
            Some(reason) => Cell::Refused(reason),
            None => {
                let warm_up = warm_up(bench, args, (engine, case), seconds / engines as f64)?;
                round_seconds += warm_up.seconds;
                let blocks = if args.blocks { bench.blocks(engine, case)? } else { None };
                Cell::Measured(Measured { iters: warm_up.iters, seconds: Vec::new(), verdict: None, blocks })
            }
        });
    }
    let Some(rounds) = rounds(seconds, round_seconds, args.rounds()) else { return all(NO_TIME) };
    if args.iters.is_some() {
        for cell in &mut cells {
            if let Cell::Measured(measured) = cell {
                measured.iters = iters_that_fit(measured.iters, args.graph, seconds, round_seconds);
            }
        }
    }
    for round in 0..rounds as usize {
        for turn in 0..engines {
            let at = (round + turn) % engines;
            if let Cell::Measured(measured) = &mut cells[at] {
                measured.seconds.push(bench.time(at, case, measured.iters)?);
            }
        }
    }
    for (engine, cell) in cells.iter_mut().enumerate() {
        if let Cell::Measured(measured) = cell
            && args.check > 0
            && bench.checkable(engine)
        {
            measured.verdict = Some(bench.check(engine, case)?);
        }
    }
    Ok(cells)
}

/// Warms up an engine for a case, in a fifth of the seconds that it has.
fn warm_up(
    bench: &mut dyn Bench,
    args: &PerfArgs,
    (engine, case): (usize, &Case),
    seconds: f64,
) -> Result<WarmUp, MeasureError> {
    if seconds.is_infinite() {
        return bench.warm_up(engine, case);
    }
    // How many fit is known once one has run.
    let first = bench.warm_up_at_most(engine, case, 1)?;
    let all = first.seconds / f64::from(first.iters.max(1)) * f64::from(args.warmup_iters);
    let fit = iters_that_fit(args.warmup_iters, args.graph, 0.2 * seconds, all);
    bench.warm_up_at_most(engine, case, fit.max(1))
}

/// The sizes, types, operators and roots asked for, but for sizes that are [too small](too_small).
pub fn cases(collective: Collective, args: &PerfArgs, ranks: u32) -> Vec<Case> {
    let dtypes = dtypes(collective, args);
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
                for size in args.sizes(collective) {
                    let shape = collective.shape(size / dtype.size_bytes(), ranks as usize);
                    if !is_too_small(size, shape) {
                        cases.push(Case { collective, shape, dtype, op, root, in_place: false });
                    }
                }
            }
        }
    }
    cases
}

fn dtypes(collective: Collective, args: &PerfArgs) -> Vec<DataType> {
    match args.datatype {
        _ if collective == Collective::Barrier => vec![DataType::U8],
        Choice::One(dtype) => vec![dtype],
        Choice::All => DataType::ALL.to_vec(),
    }
}

/// Whether the size rounds down to none, and is not none itself: the row would show a size that nobody asked for, once for each.
fn is_too_small(size: usize, shape: Shape) -> bool {
    size > 0 && shape.larger() == 0
}

/// For each type, what is said of sizes that hold not one element for each block.
pub fn too_small(collective: Collective, args: &PerfArgs, ranks: u32) -> Vec<String> {
    let shape = |elems| collective.shape(elems, ranks as usize);
    let mut lines = Vec::new();
    for dtype in dtypes(collective, args) {
        let bytes = dtype.size_bytes();
        let sizes =
            args.sizes(collective).into_iter().filter(|size| is_too_small(*size, shape(size / bytes)));
        let sizes: Vec<String> = sizes.map(|size| size.to_string()).collect();
        if !sizes.is_empty() {
            let least = bytes * (1..).find(|elems| shape(*elems).larger() > 0).unwrap_or(1);
            lines.push(format!(
                "# left out: {} bytes: with {ranks} ranks, the smallest {} of {dtype} has {least}",
                sizes.join(", "),
                collective.name()
            ));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::PerfLine;
    use clap::Parser;

    fn measured(line: &str, ranks: u32) -> (Vec<usize>, Vec<String>) {
        let args =
            PerfLine::try_parse_from(["perf"].into_iter().chain(line.split_whitespace())).unwrap().perf;
        let collective = args.target.collectives()[0];
        let cases = cases(collective, &args, ranks);
        (cases.iter().map(Case::bytes).collect(), too_small(collective, &args, ranks))
    }

    /// They were rows of size 0.
    #[test]
    fn sizes_below_one_block_for_each_rank_are_left_out_and_said() {
        for name in ["scatter", "gather", "all-gather", "reduce-scatter", "all-to-all"] {
            let (rows, said) = measured(&format!("{name} -b 4 -e 32 -f 2"), 4);
            assert_eq!(rows, [16, 32], "{name}");
            let [line] = said.as_slice() else { panic!("{name}: {said:?}") };
            assert!(line.starts_with("# left out: 4, 8 bytes: with 4 ranks, "), "{line}");
            assert!(line.ends_with(" has 16"), "{line}");
        }
        let (rows, said) = measured("all-gather-v --sizes 20,24", 3);
        assert!(rows == [24] && said[0].ends_with("all_gather_v of float has 24"), "{rows:?} {said:?}");
        assert_eq!(measured("all-reduce --sizes 3,4", 3).0, [4]);
    }

    #[test]
    fn nothing_is_measured_where_nothing_was_asked_for() {
        assert_eq!(measured("scatter --sizes 0,64", 4), (vec![0, 64], Vec::new()));
        assert_eq!(measured("barrier", 4), (vec![0], Vec::new()));
    }
}

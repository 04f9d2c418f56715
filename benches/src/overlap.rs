//! Layer: perf / overlap.
//! Takes: ranks on CPUs, and engines with non-blocking calls.
//! Gives: for each size how long the operation takes alone, the computation alone, and both at once.
//! Never: lets the computation touch memory: what is lost to shared caches is not what is asked here.
//!
//! The method is that of the OSU micro-benchmarks' non-blocking collectives: the computation lasts as long as the operation does alone,
//! and the overlap is the part of the operation that it hides.

use crate::bench::{Bench, Case, MeasureError, Verdict};
use crate::beside::{Beside, Outcome};
use crate::budget::Budget;
use crate::cli::PerfArgs;
use crate::collective::Collective;
use crate::measure::CpuBench;
use crate::report::{ReportError, microseconds};
use crate::row::median;
use crate::run::{SweepError, cases, too_small};
use crate::work::{Work, compute, rounds_per_second};
use std::io::Write;
use std::time::Instant;

/// What was found of one case and engine: medians of seconds.
#[derive(Clone, Copy, Debug)]
struct Found {
    /// Operations of a round.
    iters: u32,
    alone: f64,
    computation: f64,
    together: f64,
}

impl Found {
    /// Percent of the shorter one that the longer hides.
    fn overlap(self) -> f64 {
        let hidden = self.alone + self.computation - self.together;
        (100.0 * hidden / self.alone.min(self.computation).max(1e-12)).clamp(0.0, 100.0)
    }
}

/// Goes through all cases of a collective, out of place, and adds what it found. Returns whether all results were right, the same on every rank.
///
/// # Errors
/// An engine or a rank fails, or the table cannot be written.
pub fn sweep(
    bench: &mut CpuBench<'_>,
    collective: Collective,
    args: &PerfArgs,
    budget: &Budget,
    found: &mut Vec<Beside>,
) -> Result<bool, SweepError> {
    let tests = args.nonblocking.unwrap_or_default();
    let speed = rounds_per_second();
    let mut wrong = 0;
    print(bench, || {
        format!(
            "#\n# {}: started, then as much computation as it lasts alone, with {tests} tests of the request, then waited for\n\
             #{:>11}  {:>12}  {:>8}  {:>6}  {:>10}  {:>10}  {:>10}  {:>8}  {:>6}  engine\n\
             #{:>11}  {:>12}  {:>8}  {:>6}  {:>10}  {:>10}  {:>10}  {:>8}",
            collective.name(),
            "size",
            "count",
            "type",
            "redop",
            "alone",
            "compute",
            "together",
            "overlap",
            "#wrong",
            "(B)",
            "(elements)",
            "",
            "",
            "(us)",
            "(us)",
            "(us)",
            "(%)"
        )
    })?;
    for line in too_small(collective, args, bench.ranks()) {
        print(bench, || line)?;
    }
    for case in cases(collective, args, bench.ranks()) {
        if bench.agree(budget.left())? <= 0.0 {
            print(bench, || format!("# {} bytes: left out: the time budget is used up", case.bytes()))?;
            continue;
        }
        for engine in 0..bench.engines() {
            let outcome = row(bench, engine, &case, args, Work { rounds: 0, tests }, speed)?;
            if let Outcome::Hidden { verdict: Some(Verdict { wrong: elements, out_of_bounds }), .. } =
                &outcome
            {
                wrong += elements + out_of_bounds;
            }
            found.push(Beside::new(bench.name(engine), &case, outcome));
        }
    }
    Ok(wrong == 0)
}

/// One engine's line.
fn row(
    bench: &mut CpuBench<'_>,
    engine: usize,
    case: &Case,
    args: &PerfArgs,
    nothing: Work,
    speed: f64,
) -> Result<Outcome, SweepError> {
    let op = if case.collective.reduces() { case.op.name() } else { "none" };
    let Case { dtype, shape, .. } = case;
    let head = format!("{:>12}  {:>12}  {dtype:>8}  {op:>6}", case.bytes(), shape.count);
    let name = bench.name(engine);
    bench.runs_beside(Some(nothing));
    if let Some(reason) = bench.refuses(engine, case) {
        print(bench, || format!("{head}  {reason}  {name}"))?;
        return Ok(Outcome::Refused { refused: reason.to_string() });
    }
    let found = measure(bench, engine, case, args, nothing, speed)?;
    let is_checked = args.check > 0 && bench.checkable(engine);
    let verdict = is_checked.then(|| bench.check(engine, case)).transpose()?;
    let wrong = verdict.map(|verdict| verdict.wrong + verdict.out_of_bounds);
    let [alone, computation, together] = [found.alone, found.computation, found.together].map(microseconds);
    let shown = wrong.map_or_else(|| "N/A".into(), |wrong| wrong.to_string());
    print(bench, || {
        format!(
            "{head}  {alone:>10}  {computation:>10}  {together:>10}  {:>8.1}  {shown:>6}  {name}",
            found.overlap()
        )
    })?;
    Ok(Outcome::Hidden {
        tests: nothing.tests,
        iters: found.iters,
        alone_us: found.alone * 1e6,
        computation_us: found.computation * 1e6,
        together_us: found.together * 1e6,
        overlap_percent: found.overlap(),
        verdict,
    })
}

/// Rounds of: alone, the computation, together. The check that follows runs with the last computation.
fn measure(
    bench: &mut CpuBench<'_>,
    engine: usize,
    case: &Case,
    args: &PerfArgs,
    nothing: Work,
    speed: f64,
) -> Result<Found, MeasureError> {
    let iters = bench.warm_up(engine, case)?.iters;
    let mut seconds: [Vec<f64>; 3] = Default::default();
    for _ in 0..args.rounds() {
        bench.runs_beside(Some(nothing));
        let alone = bench.time(engine, case, iters)?;
        let alone = bench.agree(alone)?;
        let work = Work { rounds: (alone * speed) as u64, ..nothing };
        let start = Instant::now();
        (0..iters).for_each(|_| compute(work.rounds));
        let computation = start.elapsed().as_secs_f64() / f64::from(iters);
        let computation = bench.combine(args.average, computation)?;
        bench.runs_beside(Some(work));
        let together = bench.time(engine, case, iters)?;
        for (all, one) in seconds.iter_mut().zip([alone, computation, together]) {
            all.push(one);
        }
    }
    let [alone, computation, together] = seconds.map(|all| median(&all));
    Ok(Found { iters, alone, computation, together })
}

fn print(bench: &CpuBench<'_>, line: impl FnOnce() -> String) -> Result<(), SweepError> {
    if bench.is_first() {
        writeln!(std::io::stdout().lock(), "{}", line()).map_err(ReportError::from)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_done_in_one_piece_more_than_there_are_tests() {
        let pieces = |rounds, tests| {
            let mut work = Work { rounds, tests }.pieces();
            // The request is tested after each piece but the last, which is followed by the wait.
            std::iter::from_fn(|| work().then_some(())).count()
        };
        assert_eq!([pieces(0, 16), pieces(1000, 0), pieces(1000, 16)], [0, 0, 16]);
    }

    #[test]
    fn overlap_is_the_hidden_part_of_the_operation() {
        let overlap =
            |alone, computation, together| Found { iters: 1, alone, computation, together }.overlap().round();
        assert_eq!(
            [overlap(2.0, 2.0, 2.0), overlap(2.0, 2.0, 3.0), overlap(2.0, 2.0, 4.5)],
            [100.0, 50.0, 0.0]
        );
    }
}

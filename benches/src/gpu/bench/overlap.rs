//! Collectives beside a computation on the same GPUs: what both lose.
//!
//! The computation lasts twice as long as the operations do alone, so that they always run beside it. Both streams begin together and are
//! fed in turns; kernels of the computation fill the GPU, and each lasts some 50 to 100 us. What it takes longer than alone is what the
//! operations have cost: `lost`, divided by their number. A library that needs half of the multiprocessors for as long as an operation
//! runs loses half of that time.

use super::super::load::{Kind, Load};
use super::GpuBench;
use crate::bench::{Bench, Case, MeasureError, combine};
use crate::beside::{Beside, Outcome};
use crate::budget::Budget;
use crate::cli::PerfArgs;
use crate::collective::Collective;
use crate::report::{ReportError, microseconds};
use crate::row::median;
use crate::run::{SweepError, cases, too_small};
use std::io::Write;

/// How much longer than the operations the computation lasts.
const LASTS: f64 = 2.0;
/// Turns in which both streams are fed: a queue holds a thousand or so.
const TURNS: u32 = 16;
/// Kernels from whose time that of one is known.
const CALIBRATION: u32 = 50;
/// Of a time measured: what a driver that runs nothing says is no reason to launch for ever.
const LAUNCHES_MAX: f64 = 10_000.0;

/// What was found: medians of seconds, of operations for one.
#[derive(Clone, Copy, Debug)]
struct Found {
    alone: f64,
    beside: f64,
    load: f64,
    load_beside: f64,
    operations: f64,
}

impl Found {
    /// Seconds of the computation that an operation has cost.
    fn lost(&self) -> f64 {
        ((self.load_beside - self.load) / self.operations).max(0.0)
    }
}

/// Goes through all cases of a collective, out of place, beside each kind of computation, and adds what it found. Returns whether all results were right, the same on
/// every rank.
///
/// # Errors
/// An engine or a rank fails, or the table cannot be written.
pub fn sweep(
    bench: &mut GpuBench<'_>,
    collective: Collective,
    kinds: &[Kind],
    args: &PerfArgs,
    budget: &Budget,
    found: &mut Vec<Beside>,
) -> Result<bool, SweepError> {
    head(bench, collective)?;
    let mut step = [0.0; 2];
    for kind in kinds {
        step[*kind as usize] = bench.time_load(*kind, CALIBRATION)? / f64::from(CALIBRATION);
    }
    let mut wrong = 0;
    for line in too_small(collective, args, bench.ranks()) {
        print(bench, || line)?;
    }
    for case in cases(collective, args, bench.ranks()) {
        if bench.agree(budget.left())? <= 0.0 {
            print(bench, || format!("# {} bytes: left out: the time budget is used up", case.bytes()))?;
            continue;
        }
        for engine in 0..bench.engines() {
            for outcome in rows(bench, engine, &case, kinds, step, args)? {
                if let Outcome::Shared { verdict: Some(verdict), .. } = &outcome {
                    wrong += verdict.wrong + verdict.out_of_bounds;
                }
                found.push(Beside::new(&bench.engines[engine].name(), &case, outcome));
            }
        }
    }
    Ok(wrong == 0)
}

fn head(bench: &GpuBench<'_>, collective: Collective) -> Result<(), SweepError> {
    print(bench, || {
        format!(
            "#\n# {}: beside a computation that lasts {LASTS} times as long as the operations do alone\n\
             #{:>11}  {:>12}  {:>8}  {:>6}  {:>10}  {:>9}  {:>9}  {:>9}  {:>10}  {:>9}  {:>6}  {:>6}  engine\n\
             #{:>11}  {:>12}  {:>8}  {:>6}  {:>10}  {:>9}  {:>9}  {:>9}  {:>10}  {:>9}",
            collective.name(),
            "size",
            "count",
            "type",
            "redop",
            "computes",
            "alone",
            "beside",
            "load",
            "beside",
            "lost",
            "blocks",
            "#wrong",
            "(B)",
            "(elements)",
            "",
            "",
            "",
            "(us)",
            "(us)",
            "(ms)",
            "(ms)",
            "(us/op)",
        )
    })
}

/// One engine's lines.
fn rows(
    bench: &mut GpuBench<'_>,
    engine: usize,
    case: &Case,
    kinds: &[Kind],
    step: [f64; 2],
    args: &PerfArgs,
) -> Result<Vec<Outcome>, SweepError> {
    let op = if case.collective.reduces() { case.op.name() } else { "none" };
    let Case { dtype, shape, .. } = case;
    let head = format!("{:>12}  {:>12}  {dtype:>8}  {op:>6}", case.bytes(), shape.count);
    let name = bench.engines[engine].name();
    if let Some(reason) = bench.refuses(engine, case) {
        print(bench, || format!("{head}  {reason}  {name}"))?;
        return Ok(vec![Outcome::Refused { refused: reason.to_string() }]);
    }
    let iters = bench.warm_up(engine, case)?.iters;
    let blocks = bench.blocks(engine, case)?;
    let shown_blocks = blocks.map_or_else(|| "?".into(), |blocks| blocks.to_string());
    let mut outcomes = Vec::new();
    for kind in kinds {
        let found = measure(bench, engine, case, *kind, step[*kind as usize], iters)?;
        let verdict = if args.check > 0 {
            // Beside the computation, too.
            bench.launch_loads(*kind, CALIBRATION)?;
            Some(bench.check(engine, case)?)
        } else {
            None
        };
        let wrong = verdict.map(|verdict| verdict.wrong + verdict.out_of_bounds);
        let wrong = wrong.map_or_else(|| "N/A".into(), |wrong| wrong.to_string());
        let [alone, beside, lost] = [found.alone, found.beside, found.lost()].map(microseconds);
        let [load, load_beside] = [found.load, found.load_beside].map(|seconds| seconds * 1e3);
        let kind = kind.name();
        print(bench, || {
            format!(
                "{head}  {kind:>10}  {alone:>9}  {beside:>9}  {load:>9.3}  {load_beside:>10.3}  {lost:>9}  {shown_blocks:>6}  {wrong:>6}  {name}"
            )
        })?;
        outcomes.push(Outcome::Shared {
            computation: kind,
            operations: found.operations as u64,
            alone_us: found.alone * 1e6,
            beside_us: found.beside * 1e6,
            computation_us: found.load * 1e6,
            computation_beside_us: found.load_beside * 1e6,
            lost_us: found.lost() * 1e6,
            blocks,
            verdict,
        });
    }
    Ok(outcomes)
}

fn measure(
    bench: &mut GpuBench<'_>,
    engine: usize,
    case: &Case,
    kind: Kind,
    step: f64,
    iters: u32,
) -> Result<Found, MeasureError> {
    let mut seconds: [Vec<f64>; 4] = Default::default();
    let operations = f64::from(bench.whole(iters)) * f64::from(bench.args.agg_iters);
    for _ in 0..bench.args.rounds() {
        let alone = bench.time(engine, case, iters)?;
        let wanted = LASTS * bench.agree(alone)? * operations / step.max(1e-9);
        let launches = wanted.ceil().clamp(1.0, LAUNCHES_MAX) as u32;
        let load = bench.time_load(kind, launches)?;
        let [beside, load_beside] = bench.time_beside(engine, case, iters, kind, launches)?;
        for (all, one) in seconds.iter_mut().zip([alone, beside, load, load_beside]) {
            all.push(one);
        }
    }
    let [alone, beside, load, load_beside] = seconds.map(|all| median(&all));
    Ok(Found { alone, beside, load, load_beside, operations })
}

impl GpuBench<'_> {
    /// Takes what a computation needs on every GPU of this thread.
    pub fn prepare_loads(&mut self) -> Result<(), MeasureError> {
        let make = |seat: &super::Seat| Load::new(seat.device());
        self.loads = self.seats.iter().map(make).collect::<Result<_, _>>()?;
        Ok(())
    }

    /// `iters`, in whole graphs.
    fn whole(&self, iters: u32) -> u32 {
        if self.args.graph > 0 { iters.next_multiple_of(self.args.graph) } else { iters }
    }

    /// So many kernels more on every GPU.
    fn launch_loads(&self, kind: Kind, times: u32) -> Result<(), MeasureError> {
        Ok(self.loads.iter().try_for_each(|load| load.launch(kind, times))?)
    }

    /// Seconds of so many kernels of the computation alone: of all GPUs the longest, the same on every rank.
    fn time_load(&mut self, kind: Kind, launches: u32) -> Result<f64, MeasureError> {
        self.team.barrier()?;
        for load in &self.loads {
            load.begin()?;
            load.launch(kind, launches)?;
            load.end()?;
        }
        self.wait_for_loads()?;
        let mine = self.loads.iter().map(Load::seconds).collect::<Result<Vec<f64>, _>>()?;
        Ok(combine(3, &self.gather(&mine)?))
    }

    /// Seconds of an operation (`--average`), and of the computation beside all of them.
    fn time_beside(
        &mut self,
        engine: usize,
        case: &Case,
        iters: u32,
        kind: Kind,
        launches: u32,
    ) -> Result<[f64; 2], MeasureError> {
        let unit = self.args.graph.max(1);
        let units = iters.div_ceil(unit);
        let share = |all: u32, turn: u32| {
            let until = |turn: u32| (u64::from(all) * u64::from(turn) / u64::from(TURNS)) as u32;
            until(turn + 1) - until(turn)
        };
        self.team.barrier()?;
        for ((seat, memory), load) in self.seats.iter().zip(&self.memories).zip(&self.loads) {
            seat.stream().record(&memory.begin)?;
            load.begin_after(&memory.begin)?;
        }
        for turn in 0..TURNS {
            self.launch_loads(kind, share(launches, turn))?;
            self.launch(engine, case, share(units, turn) * unit)?;
        }
        for ((seat, memory), load) in self.seats.iter().zip(&self.memories).zip(&self.loads) {
            seat.stream().record(&memory.end)?;
            load.end()?;
        }
        self.wait(engine, case)?;
        self.wait_for_loads()?;
        let operations = f64::from(units * unit) * f64::from(self.args.agg_iters);
        let mut mine = [Vec::new(), Vec::new()];
        for (memory, load) in self.memories.iter().zip(&self.loads) {
            mine[0].push(memory.end.elapsed_us(&memory.begin)? / 1e6 / operations);
            mine[1].push(load.seconds()?);
        }
        let [operations, loads] = [self.gather(&mine[0])?, self.gather(&mine[1])?];
        Ok([combine(self.args.average, &operations), combine(3, &loads)])
    }

    /// The computation needs nobody, so it ends.
    fn wait_for_loads(&mut self) -> Result<(), MeasureError> {
        for load in &self.loads {
            while !load.is_done()? {
                self.team.poll()?;
            }
        }
        Ok(())
    }
}

fn print(bench: &GpuBench<'_>, line: impl FnOnce() -> String) -> Result<(), SweepError> {
    if bench.team.rank() == 0 {
        writeln!(std::io::stdout().lock(), "{}", line()).map_err(ReportError::from)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_is_divided_by_operations_and_never_negative() {
        let found = |load, load_beside| Found { alone: 1.0, beside: 1.0, load, load_beside, operations: 4.0 };
        assert_eq!([found(1.0, 3.0).lost(), found(3.0, 1.0).lost()], [0.5, 0.0]);
    }
}

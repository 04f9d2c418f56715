//! Layer: tune.
//! Takes: a bench whose engines are the ways to carry out collectives.
//! Gives: times of each way at each size, in the order in which all ranks go through them.
//! Never: starts ranks, or decides what is best.

use super::args::TuneArgs;
use super::pick::{Row, Times, Way};
use crate::bench::{Bench, Case, MeasureError, WarmUp};
use crate::budget::{Budget, rounds};
use crate::collective::Collective;
use crate::complain::complain;
use crate::row::Measured;
use indicatif::{HumanBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};
use oxccl_shared::abi::{DataType, RedOp};
use std::cell::Cell;

/// A way that is this much slower than the fastest in its first operations is not looked at again.
const HOPELESS: f64 = 3.0;

/// On standard error: a bar where that is a terminal, elsewhere a line for each size. Between measurements only.
pub struct Progress(Option<Shown>);

struct Shown {
    bar: ProgressBar,
    steps: usize,
    done: Cell<usize>,
}

impl Progress {
    /// Only one rank shows it.
    pub fn new(is_shown: bool, steps: usize) -> Progress {
        Progress(is_shown.then(|| {
            let bar = ProgressBar::with_draw_target(Some(steps as u64), ProgressDrawTarget::stderr());
            let done = Cell::new(0);
            let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} ({elapsed}, {eta} left)");
            style.into_iter().for_each(|style| bar.set_style(style));
            Shown { bar, steps, done }
        }))
    }

    /// Says what is measured next: the first size may take seconds.
    fn begin(&self, collective: Collective, bytes: usize) {
        let Some(Shown { bar, steps, done }) = &self.0 else { return };
        let what = format!("{} {}", collective.name(), HumanBytes(bytes as u64));
        if bar.is_hidden() {
            complain("tune", format_args!("{what}, {} of {steps}", done.get() + 1));
        }
        bar.set_message(what);
        bar.tick();
    }

    fn step(&self) {
        if let Some(Shown { bar, done, .. }) = &self.0 {
            done.set(done.get() + 1);
            bar.inc(1);
        }
    }

    pub fn end(&self) {
        self.0.iter().for_each(|shown| shown.bar.finish_and_clear());
    }
}

/// Measures a collective over all sizes. `possible` are the ways it has; the others' times stay empty. Every rank calls it.
pub fn sweep(
    bench: &mut dyn Bench,
    collective: Collective,
    possible: &[(usize, Way)],
    args: &TuneArgs,
    budget: &Budget,
    progress: &Progress,
) -> Result<Vec<Row>, MeasureError> {
    let mut rows = Vec::new();
    for (at, bytes) in args.sizes.iter().enumerate() {
        let dtype = DataType::F32;
        let shape = collective.shape(bytes / dtype.size_bytes(), bench.ranks() as usize);
        let case = Case { collective, shape, dtype, op: RedOp::Sum, root: 0, in_place: false };
        progress.begin(collective, *bytes);
        let seconds = bench.agree(budget.part(args.sizes.len() - at).left())?;
        let times =
            if seconds > 0.0 { size(bench, possible, &case, seconds, args.rounds)? } else { Vec::new() };
        let mut row = Row { bytes: *bytes as u64, times: vec![None; bench.engines()] };
        for ((way, _), times) in possible.iter().zip(times) {
            row.times[*way] = Some(times);
        }
        rows.push(row);
        progress.step();
    }
    Ok(rows)
}

/// Measures all ways at one size, in turns: each round begins with another one.
fn size(
    bench: &mut dyn Bench,
    possible: &[(usize, Way)],
    case: &Case,
    seconds: f64,
    wanted: u32,
) -> Result<Vec<Times>, MeasureError> {
    let mut warm = Vec::new();
    for (way, _) in possible {
        warm.push(bench.warm_up(*way, case)?);
    }
    let each = |warm: &WarmUp| warm.seconds / f64::from(warm.iters);
    let fastest = |warm: &[WarmUp]| warm.iter().map(each).fold(f64::INFINITY, f64::min);
    // A candidate that seems slow may have been interrupted. What a warm-up says is the same on every rank, so all look again at the same
    // ways, and give up the same.
    let limit = HOPELESS * fastest(&warm);
    for (at, (way, _)) in possible.iter().enumerate() {
        if each(&warm[at]) > limit {
            let again = bench.warm_up(*way, case)?;
            warm[at] = if each(&again) < each(&warm[at]) { again } else { warm[at] };
        }
    }
    let first: Vec<f64> = warm.iter().map(each).collect();
    let fastest = fastest(&warm);
    let hopeful: Vec<usize> = (0..possible.len()).filter(|at| first[*at] <= HOPELESS * fastest).collect();
    let round_seconds: f64 = hopeful.iter().map(|at| warm[*at].seconds).sum();
    let rounds = rounds(seconds, round_seconds, wanted).unwrap_or(1);
    let mut measured: Vec<Vec<f64>> = vec![Vec::new(); possible.len()];
    for round in 0..rounds as usize {
        for turn in 0..hopeful.len() {
            let at = hopeful[(round + turn) % hopeful.len()];
            measured[at].push(bench.time(possible[at].0, case, warm[at].iters)?);
        }
    }
    let times = |at: usize| match measured[at].as_slice() {
        [] => Times {
            median: first[at] * 1e6,
            least: first[at] * 1e6,
            greatest: first[at] * 1e6,
            is_rough: true,
        },
        seconds => {
            let of =
                Measured { iters: warm[at].iters, seconds: seconds.to_vec(), verdict: None, blocks: None };
            let [median, least, greatest] = [of.median(), of.min(), of.max()].map(|seconds| seconds * 1e6);
            Times { median, least, greatest, is_rough: false }
        }
    };
    Ok((0..possible.len()).map(times).collect())
}

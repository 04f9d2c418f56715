//! The first engine against each other one: ratios of median times, size by size, and their geometric mean. The ratio of the least
//! times stands beside it: other work on the machine lengthens some rounds and never shortens one.

use super::facts::Run;
use crate::row::{Measured, Row};
use std::io::{self, Write};

/// Prints nothing where there is only one engine.
pub fn print(out: &mut dyn Write, run: &Run<'_>, rows: &[Row]) -> io::Result<()> {
    for other in 1..run.engines.len() {
        for in_place in [false, true] {
            print_pair(out, run, rows, other, in_place)?;
        }
    }
    Ok(())
}

fn print_pair(
    out: &mut dyn Write,
    run: &Run<'_>,
    rows: &[Row],
    other: usize,
    in_place: bool,
) -> io::Result<()> {
    let pairs: Vec<(&Row, &Measured, &Measured)> = rows
        .iter()
        .filter_map(|row| Some((row, row.measured(0, in_place)?, row.measured(other, in_place)?)))
        .collect();
    if pairs.is_empty() {
        return Ok(());
    }
    let (ours, theirs) = (&run.engines[0].name, &run.engines[other].name);
    let place = if in_place { "in-place" } else { "out-of-place" };
    writeln!(
        out,
        "#\n# {ours} against {theirs}, {place}: median (min to max) of at most {} rounds, us",
        run.args.rounds()
    )?;
    writeln!(out, "# {:>10}  {:>32}  {:>32}  {:>6}  {:>8}", "size (B)", ours, theirs, "ratio", "of least")?;
    for (row, mine, their) in &pairs {
        writeln!(
            out,
            "# {:>10}  {:>32}  {:>32}  {:>6.2}  {:>8.2}",
            row.bytes,
            spread(mine),
            spread(their),
            their.median() / mine.median(),
            their.min() / mine.min()
        )?;
    }
    writeln!(
        out,
        "# {theirs} time / {ours} time, geometric mean over {} rows: {:.2} of medians, {:.2} of least times",
        pairs.len(),
        mean(&pairs, Measured::median),
        mean(&pairs, Measured::min)
    )
}

fn spread(measured: &Measured) -> String {
    let us = |seconds: f64| seconds * 1e6;
    format!("{:.2} ({:.2} to {:.2})", us(measured.median()), us(measured.min()), us(measured.max()))
}

fn mean(pairs: &[(&Row, &Measured, &Measured)], of: impl Fn(&Measured) -> f64) -> f64 {
    let logs: f64 = pairs.iter().map(|(_, mine, their)| (of(their) / of(mine)).ln()).sum();
    (logs / pairs.len() as f64).exp()
}

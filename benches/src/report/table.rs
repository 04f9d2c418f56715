//! nccl-tests' table: columns, widths and comment lines as its users' scripts expect them.

use super::facts::{Run, Who};
use crate::row::{Cell, Row};
use crate::target::Target;
use std::fmt::Write as _;
use std::io::{self, Write};

/// The parameters, who takes part, what each engine is.
pub fn print_head(out: &mut dyn Write, run: &Run<'_>, all: &[Who]) -> io::Result<()> {
    let args = run.args;
    let (step, unit) =
        if args.stepfactor > 1 { (args.stepfactor, "factor") } else { (args.stepbytes, "bytes") };
    let iters = args.iters.map_or_else(|| format!("{}ms", args.min_time), |n| n.to_string());
    match args.target {
        Target::One(collective) => writeln!(out, "# Collective test starting: {}_perf", collective.name())?,
        Target::Suite => writeln!(out, "# Collective tests starting: suite")?,
    }
    writeln!(
        out,
        "# nThread {} nGpus {} minBytes {} maxBytes {} step: {step}({unit}) warmup iters: {} iters: {iters} \
         agg iters: {} validation: {} graph: {}",
        args.threads.unwrap_or(1),
        if run.machine.gpu.is_some() { args.per_thread() } else { 0 },
        args.minbytes,
        args.maxbytes,
        args.warmup_iters,
        args.agg_iters,
        args.check,
        args.graph
    )?;
    if args.blocking == 1 {
        writeln!(out, "# Blocking Enabled: barrier after each collective")?;
    }
    writeln!(out, "#\n# Using devices")?;
    let kind = if run.machine.gpu.is_some() { "gpu" } else { "cpu" };
    let seats = all.iter().flat_map(|who| who.devices.iter().map(move |device| (who, device)));
    for (rank, (Who { host, pid, .. }, gpu)) in seats.enumerate() {
        let device = if run.machine.gpu.is_some() { usize::from(*gpu) } else { rank };
        writeln!(
            out,
            "#  Rank {rank:>2} Group  0 Pid {pid:>6} on {host:>10} device {device:>2} [{kind}] {}",
            run.machine.device_or_processor()
        )?;
    }
    writeln!(out, "#")?;
    for engine in &run.engines {
        writeln!(out, "# Engine {}: {}", engine.name, engine.description)?;
        for line in engine.costs() {
            writeln!(out, "# Memory and start of {}: {line}", engine.name)?;
        }
    }
    Ok(())
}

/// The head of the table.
pub fn print_columns(out: &mut dyn Write, run: &Run<'_>) -> io::Result<()> {
    writeln!(out, "#")?;
    let last = if run.engines.len() > 1 { "  engine" } else { "" };
    writeln!(
        out,
        "# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}           out-of-place                       in-place          ",
        "", "", "", "", ""
    )?;
    writeln!(
        out,
        "# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}  {:>7}  {:>6}  {:>6} {:>6}  {:>7}  {:>6}  {:>6} {:>6}{last}",
        "size",
        "count",
        "type",
        "redop",
        "root",
        "time",
        "algbw",
        "busbw",
        "#wrong",
        "time",
        "algbw",
        "busbw",
        "#wrong"
    )?;
    writeln!(
        out,
        "# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}  {:>7}  {:>6}  {:>6}  {:>5}  {:>7}  {:>6}  {:>6}  {:>5}",
        "(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(GB/s)", "(GB/s)", ""
    )
}

/// One line for each engine.
pub fn print_row(out: &mut dyn Write, run: &Run<'_>, row: &Row) -> io::Result<()> {
    for (engine, cells) in run.engines.iter().zip(&row.cells) {
        let mut line = format!(
            "{:>12}  {:>12}  {:>8}  {:>6}  {:>6}",
            row.bytes,
            row.count,
            row.dtype,
            row.op.map_or("none", |op| op.name()),
            row.root.map_or(-1, i64::from)
        );
        for cell in cells {
            line.push_str(&columns(run, row, cell));
        }
        if run.engines.len() > 1 {
            // Writing to a string cannot fail.
            let _ = write!(line, "  {:>6}", engine.name);
        }
        writeln!(out, "{line}")?;
    }
    Ok(())
}

fn columns(run: &Run<'_>, row: &Row, cell: &Cell) -> String {
    let Cell::Measured(measured) = cell else {
        return format!("  {:>7}  {:>6}  {:>6}  {:>5}", "N/A", "N/A", "N/A", "N/A");
    };
    let seconds = measured.median();
    let (algorithm, bus) = row.bandwidths(run, seconds);
    let wrong = measured.verdict.map_or_else(|| "N/A".into(), |verdict| verdict.wrong.to_string());
    format!("  {:>7}  {algorithm:>6.2}  {bus:>6.2}  {wrong:>5}", microseconds(seconds))
}

/// Five significant digits at most, as in nccl-tests.
pub fn microseconds(seconds: f64) -> String {
    match seconds * 1e6 {
        us if us >= 10_000.0 => format!("{us:.0}"),
        us if us >= 100.0 => format!("{us:.1}"),
        us => format!("{us:.2}"),
    }
}

/// The summary below the table.
pub fn print_foot(out: &mut dyn Write, run: &Run<'_>, rows: &[Row], errors: usize) -> io::Result<()> {
    let stray: u64 = rows
        .iter()
        .flat_map(|row| row.cells.iter().flatten())
        .filter_map(|cell| match cell {
            Cell::Measured(measured) => measured.verdict.map(|verdict| verdict.out_of_bounds),
            Cell::Refused(_) => None,
        })
        .sum();
    if stray > 0 {
        writeln!(out, "# {stray} guard bytes around buffers were overwritten")?;
    }
    writeln!(out, "# Out of bounds values : {errors} {}", if errors == 0 { "OK" } else { "FAILED" })?;
    print_blocks(out, run, rows)?;
    for (at, engine) in run.engines.iter().enumerate() {
        let buses: Vec<f64> = rows
            .iter()
            .flat_map(|row| [row.measured(at, false), row.measured(at, true)].map(|m| (row, m)))
            .filter_map(|(row, measured)| Some(row.bandwidths(run, measured?.median()).1))
            .collect();
        let mean = if buses.is_empty() { 0.0 } else { buses.iter().sum::<f64>() / buses.len() as f64 };
        let of = if run.engines.len() > 1 { format!("({})", engine.name) } else { String::new() };
        writeln!(out, "# Avg bus bandwidth    : {} {of}", six_digits(mean))?;
    }
    writeln!(out, "#\n# Collective test concluded: {}_perf", run.collective.name())
}

/// For each engine the sizes from which on its kernels have so many blocks.
fn print_blocks(out: &mut dyn Write, run: &Run<'_>, rows: &[Row]) -> io::Result<()> {
    for (at, engine) in run.engines.iter().enumerate() {
        let of = |row: &Row| {
            let places = [false, true].into_iter().find_map(|in_place| row.measured(at, in_place));
            places.and_then(|measured| measured.blocks).map(|blocks| (row.bytes, blocks))
        };
        let mut found: Vec<(usize, u32)> = rows.iter().filter_map(of).collect();
        found.dedup_by_key(|(_, blocks)| *blocks);
        if !found.is_empty() {
            let parts: Vec<String> =
                found.iter().map(|(bytes, blocks)| format!("{blocks} from {bytes} bytes on")).collect();
            writeln!(out, "# Blocks of {:<11} : {}", engine.name, parts.join(", "))?;
        }
    }
    Ok(())
}

/// C's `%g` for ordinary magnitudes.
fn six_digits(value: f64) -> String {
    if value == 0.0 {
        return "0".into();
    }
    let decimals = (5 - value.abs().log10().floor() as i32).max(0) as usize;
    let text = format!("{value:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').into() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_as_c_prints_them() {
        assert_eq!(six_digits(12.5), "12.5");
        assert_eq!(six_digits(0.012345678), "0.0123457");
        assert_eq!(six_digits(1234567.0), "1234567");
        assert_eq!(microseconds(1.234e-6), "1.23");
        assert_eq!(microseconds(123.44e-6), "123.4");
        assert_eq!(microseconds(0.0123456), "12346");
    }
}

//! One line per size and place: every engine's time with its spread, its bus bandwidth, and the others' time over the first one's.
//! The same cells become lines of a terminal and lines of Markdown.

use super::facts::Run;
use crate::row::{Cell, Measured, Row, errors};
use std::fmt::Write as _;
use std::io::{self, Write};

/// Prints which collective it is, and the head of its table.
pub fn print_head(out: &mut dyn Write, run: &Run<'_>) -> io::Result<()> {
    writeln!(out, "#\n# {}", run.collective.name())?;
    writeln!(out, "{}", aligned(&head(run)))
}

/// Prints a row's lines.
pub fn print_row(out: &mut dyn Write, run: &Run<'_>, row: &Row) -> io::Result<()> {
    lines(run, row).iter().try_for_each(|line| writeln!(out, "{}", aligned(line)))
}

/// The head of a collective's table.
pub fn head(run: &Run<'_>) -> Vec<String> {
    let mut cells = vec!["bytes".to_string()];
    for engine in &run.engines {
        cells.push(format!("{} us", engine.name));
        cells.push("spread".into());
        cells.push("GB/s".into());
    }
    let first = &run.engines[0].name;
    cells.extend(run.engines[1..].iter().map(|other| format!("{}/{first}", other.name)));
    cells
}

/// A row's lines: out of place, in place, or both.
pub fn lines(run: &Run<'_>, row: &Row) -> Vec<Vec<String>> {
    let places = [false, true].into_iter().filter(|in_place| run.args.place.has(*in_place));
    places.filter(|in_place| !*in_place || run.collective.in_place()).map(|p| line(run, row, p)).collect()
}

fn line(run: &Run<'_>, row: &Row, in_place: bool) -> Vec<String> {
    let mut cells = vec![format!("{}{}", row.bytes, if in_place { " (in place)" } else { "" })];
    for engine in &row.cells {
        match &engine[usize::from(in_place)] {
            Cell::Measured(measured) => {
                let us = |seconds: f64| microseconds(seconds * 1e6);
                let wrong = measured.verdict.is_some_and(|verdict| verdict != Default::default());
                cells.push(format!("{}{}", us(measured.median()), if wrong { " WRONG" } else { "" }));
                cells.push(format!("{} to {}", us(measured.min()), us(measured.max())));
                cells.push(format!("{:.2}", row.bandwidths(run, measured.median()).1));
            }
            Cell::Refused(_) => cells.extend(["-", "-", "-"].map(String::from)),
        }
    }
    let first = row.measured(0, in_place);
    for other in 1..row.cells.len() {
        let ratio = row.measured(other, in_place).zip(first).map(|(theirs, mine)| ratio(theirs, mine));
        cells.push(ratio.map_or("-".into(), |ratio| format!("{ratio:.2}")));
    }
    cells
}

/// The sentence below a table: geometric means of the ratios, and what is missing or wrong.
pub fn foot(run: &Run<'_>, rows: &[Row]) -> String {
    let mut text = String::new();
    for (other, engine) in run.engines.iter().enumerate().skip(1) {
        let places = |row| [false, true].map(|in_place| pair(row, other, in_place));
        let logs: Vec<f64> = rows.iter().flat_map(places).flatten().map(f64::ln).collect();
        if !logs.is_empty() {
            let mean = (logs.iter().sum::<f64>() / logs.len() as f64).exp();
            let first = &run.engines[0].name;
            // Writing to a string cannot fail.
            let _ = write!(text, "{} time / {first} time, geometric mean: {mean:.2}. ", engine.name);
        }
    }
    let unchecked = rows
        .iter()
        .flat_map(|row| row.cells.iter().flatten())
        .any(|cell| matches!(cell, Cell::Measured(measured) if measured.verdict.is_none()));
    text += if errors(rows) > 0 {
        "SOME RESULTS ARE WRONG."
    } else if unchecked {
        "Not all results were checked."
    } else {
        "All results were right."
    };
    for reason in reasons(rows) {
        let _ = write!(text, " \"-\": {reason}.");
    }
    text
}

/// Why cells are empty, each reason once.
fn reasons(rows: &[Row]) -> Vec<&'static str> {
    let mut reasons: Vec<&'static str> = Vec::new();
    for cell in rows.iter().flat_map(|row| row.cells.iter().flatten()) {
        if let Cell::Refused(reason) = cell
            && *reason != crate::row::NOT_ASKED
            && !reasons.contains(reason)
        {
            reasons.push(reason);
        }
    }
    reasons
}

fn pair(row: &Row, other: usize, in_place: bool) -> Option<f64> {
    Some(ratio(row.measured(other, in_place)?, row.measured(0, in_place)?))
}

fn ratio(theirs: &Measured, mine: &Measured) -> f64 {
    theirs.median() / mine.median()
}

/// Three or four significant digits.
fn microseconds(us: f64) -> String {
    match us {
        us if us >= 1000.0 => format!("{us:.0}"),
        us if us >= 100.0 => format!("{us:.1}"),
        us => format!("{us:.2}"),
    }
}

/// What a table shows.
pub fn title(run: &Run<'_>, rows: &[Row]) -> String {
    let row = rows.first();
    let what = row.map_or(String::new(), |row| format!(", {}", row.dtype));
    let op = row.and_then(|row| row.op).map_or(String::new(), |op| format!(" {op}"));
    format!("{}{what}{op}, {} ranks", run.collective.name(), run.ranks)
}

/// A line of a terminal: the first cell and numbers to the right of columns.
fn aligned(cells: &[String]) -> String {
    let width = |at: usize| match at {
        0 => 12,
        at if at % 3 == 2 => 20,
        _ => 11,
    };
    let padded = cells.iter().enumerate().map(|(at, cell)| format!("{cell:>width$}", width = width(at)));
    padded.collect::<Vec<String>>().join(" ")
}

/// A line of a Markdown table.
pub fn markdown(cells: &[String]) -> String {
    format!("| {} |\n", cells.join(" | "))
}

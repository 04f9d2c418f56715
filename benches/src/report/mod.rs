//! Layer: perf / report.
//! Takes: rows, one after the other, on every rank.
//! Gives: on rank 0 the table, a progress indicator, the comparison, JSON and a plot; on every rank whether all was right.
//! Never: talks to other ranks once the run has begun.

mod machine;
mod table;
mod compare;
mod progress;
mod json;
mod plot;

use crate::cli::PerfArgs;
use crate::engine::{Engine, Memory};
use crate::run::{Cell, Measured, Row};
use crate::team::{Card, Team, TeamError, bytes_of_card, card_of_bytes};
use machine::Machine;
use progress::Progress;
use std::path::PathBuf;

/// Why a report could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    #[error(transparent)]
    Team(#[from] TeamError),
    #[error("writing {}: {reason}", .path.display())]
    Write { path: PathBuf, reason: String },
}

/// What is known before the first measurement.
pub struct Run<'a> {
    pub args: &'a PerfArgs,
    pub ranks: u32,
    pub machine: Machine,
    pub engines: Vec<EngineFacts>,
}

/// An engine as reports show it.
#[derive(serde::Serialize)]
pub struct EngineFacts {
    pub name: &'static str,
    pub description: String,
    pub memory: Option<Memory>,
}

/// The report of one rank; only rank 0's is shown.
pub struct Report<'a> {
    run: Run<'a>,
    /// Only on rank 0.
    shown: Option<Progress>,
    rows: Vec<Row>,
}

impl<'a> Report<'a> {
    /// Gathers who takes part and begins the table.
    pub fn new(
        team: &mut dyn Team,
        engines: &[Box<dyn Engine>],
        args: &'a PerfArgs,
    ) -> Result<Report<'a>, ReportError> {
        let facts = engines.iter().map(|engine| EngineFacts {
            name: engine.name(),
            description: engine.describe(),
            memory: engine.memory(),
        });
        let run = Run { args, ranks: team.size(), machine: Machine::here(), engines: facts.collect() };
        let mut card: Card = card_of_bytes(&run.machine.host.as_bytes()[..run.machine.host.len().min(100)]);
        card[15] = u64::from(std::process::id());
        let cards = team.exchange(&card)?;
        let shown = (team.rank() == 0).then(Progress::new);
        if shown.is_some() {
            let places: Vec<(String, u64)> = cards.iter().map(place).collect();
            table::print_head(&run, &places);
        }
        Ok(Report { run, shown, rows: Vec::new() })
    }

    /// The number of rows to come.
    pub fn begin(&mut self, rows: usize) {
        if let Some(progress) = &self.shown {
            progress.begin(rows);
        }
    }

    /// One more row.
    pub fn row(&mut self, row: Row) {
        if let Some(progress) = &self.shown {
            progress.print(|| table::print_row(&self.run, &row));
            progress.advance(&row);
        }
        self.rows.push(row);
    }

    /// Ends the table and writes the files. Whether every result was right.
    pub fn end(self) -> Result<bool, ReportError> {
        let errors = errors(&self.rows);
        if let Some(progress) = self.shown {
            progress.end();
            table::print_foot(&self.run, &self.rows, errors);
            compare::print(&self.run, &self.rows);
            if let Some(path) = &self.run.args.json {
                json::write(path, &self.run, &self.rows)?;
            }
            if let Some(path) = &self.run.args.plot {
                plot::write(path, &self.run, &self.rows)?;
            }
        }
        Ok(errors == 0)
    }
}

impl Row {
    /// Bytes per second over the larger buffer, and as a ring's link would see it, in GB/s.
    fn bandwidths(&self, run: &Run<'_>, seconds: f64) -> (f64, f64) {
        // A barrier has no bytes; a clock that did not move has no bandwidth to show.
        let algorithm = if seconds > 0.0 { self.bytes as f64 / 1e9 / seconds } else { 0.0 };
        (algorithm, algorithm * run.args.collective.bus_factor(run.ranks as usize))
    }

    fn measured(&self, engine: usize, in_place: bool) -> Option<&Measured> {
        match &self.cells[engine][usize::from(in_place)] {
            Cell::Measured(measured) => Some(measured),
            Cell::Refused(_) => None,
        }
    }
}

fn place(card: &Card) -> (String, u64) {
    let mut host = *card;
    host[15] = 0;
    let bytes = bytes_of_card(&host);
    (String::from_utf8_lossy(&bytes).trim_end_matches('\0').to_string(), card[15])
}

/// Measurements whose results were wrong or reached outside their buffers.
fn errors(rows: &[Row]) -> usize {
    let cells = rows.iter().flat_map(|row| row.cells.iter().flatten());
    cells
        .filter(|cell| match cell {
            Cell::Measured(Measured { verdict: Some(verdict), .. }) => *verdict != Default::default(),
            _ => false,
        })
        .count()
}

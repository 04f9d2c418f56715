//! Layer: perf / report.
//! Takes: collectives and their rows, one after the other, on every rank.
//! Gives: on rank 0 tables, a progress indicator, comparisons, JSON, Markdown and plots; on every rank whether all was right.
//! Never: talks to other ranks once the run has begun.

pub mod machine;
mod facts;
mod left_out;
mod files;
mod table;
mod compare;
mod compact;
mod markdown;
mod progress;
mod json;
mod plot;

pub use facts::{EngineFacts, ReportError, StartCost};
pub use table::microseconds;

use crate::beside::Beside;
use crate::cli::PerfArgs;
use crate::collective::Collective;
use crate::out::Outputs;
use crate::row::{Cell, Measured, Row, errors};
use crate::target::Target;
use crate::team::Team;
use facts::{Run, Who};
use left_out::LeftOut;
use machine::Machine;
use markdown::Page;
use progress::Progress;
use std::io::Write;

/// The report of one rank; only rank 0's is shown.
pub struct Report<'a> {
    run: Run<'a>,
    /// Only on rank 0.
    shown: Option<Shown>,
    rows: Vec<Row>,
    /// Wrong measurements of earlier collectives.
    errors: usize,
    left_out: LeftOut,
}

struct Shown {
    progress: Progress,
    page: Page,
    outputs: Outputs,
}

impl<'a> Report<'a> {
    /// Gathers who takes part and begins the table. `gpus` are those of this thread's ranks, all of the model `gpu`; none where
    /// ranks are threads of processors.
    pub fn new(
        team: &mut dyn Team,
        engines: Vec<EngineFacts>,
        gpu: Option<String>,
        gpus: &[u8],
        args: &'a PerfArgs,
    ) -> Result<Report<'a>, ReportError> {
        let ranks = team.size() * gpus.len().max(1) as u32;
        let collective = args.target.collectives()[0];
        let run = Run { args, collective, ranks, machine: Machine::here(gpu), engines };
        let devices = if gpus.is_empty() { vec![0] } else { gpus.to_vec() };
        let me = Who { host: run.machine.host.clone(), pid: std::process::id(), devices };
        let records = team.exchange(&me.record())?;
        let mut shown = None;
        if team.rank() == 0 {
            let outputs = files::probe(args)?;
            let all: Vec<Who> = records.iter().map(Who::of_record).collect();
            table::print_head(&mut std::io::stdout().lock(), &run, &all)?;
            shown = Some(Shown { progress: Progress::new(), page: Page::new(&run), outputs });
        }
        Ok(Report { run, shown, rows: Vec::new(), errors: 0, left_out: LeftOut::default() })
    }

    /// What is measured next, and the number of its rows.
    pub fn begin(&mut self, collective: Collective, rows: usize) -> Result<(), ReportError> {
        self.run.collective = collective;
        if let Some(shown) = &self.shown {
            shown.progress.begin(rows);
            let mut out = std::io::stdout().lock();
            match self.run.args.target {
                Target::One(_) => table::print_columns(&mut out, &self.run)?,
                Target::Suite => compact::print_head(&mut out, &self.run)?,
            }
        }
        Ok(())
    }

    /// A line about the rows of this collective.
    pub fn remark(&mut self, line: &str) -> Result<(), ReportError> {
        let Some(shown) = &self.shown else { return Ok(()) };
        Ok(shown.progress.print(|| writeln!(std::io::stdout().lock(), "{line}"))?)
    }

    /// What was found at a place of a case, engine by engine, and how long that took.
    pub fn place(&mut self, bytes: usize, cells: &[Cell], seconds: f64) {
        self.left_out.note(self.run.collective, bytes, cells, seconds);
    }

    /// One more row.
    pub fn row(&mut self, row: Row) -> Result<(), ReportError> {
        if let Some(shown) = &self.shown {
            shown.progress.print(|| {
                let mut out = std::io::stdout().lock();
                match self.run.args.target {
                    Target::One(_) => table::print_row(&mut out, &self.run, &row),
                    Target::Suite => compact::print_row(&mut out, &self.run, &row),
                }
            })?;
            shown.progress.advance(&row);
        }
        self.rows.push(row);
        Ok(())
    }

    /// Ends a collective's table and writes the files.
    pub fn conclude(&mut self) -> Result<(), ReportError> {
        let (run, rows) = (&self.run, std::mem::take(&mut self.rows));
        let errors = errors(&rows);
        self.errors += errors;
        let Some(shown) = &mut self.shown else { return Ok(()) };
        shown.progress.end();
        let mut out = std::io::stdout().lock();
        match run.args.target {
            Target::One(_) => {
                table::print_foot(&mut out, run, &rows, errors)?;
                compare::print(&mut out, run, &rows)?;
            }
            Target::Suite => writeln!(out, "# {}", compact::foot(run, &rows))?,
        }
        if let Some(path) = files::json(run) {
            json::write(&mut shown.outputs, &path, run, &rows)?;
        }
        if let Some(path) = files::plot(run) {
            plot::write(&mut shown.outputs, &path, run, &rows)?;
        }
        shown.page.add(run, &rows);
        if let Some(path) = files::markdown(run) {
            shown.page.write(&mut shown.outputs, &path)?;
        }
        Ok(())
    }

    /// Writes what was found of a collective beside a computation, where a file is asked for.
    pub fn beside(&mut self, collective: Collective, found: &[Beside]) -> Result<(), ReportError> {
        self.run.collective = collective;
        match (files::json(&self.run), &mut self.shown) {
            (Some(path), Some(shown)) => json::write_beside(&mut shown.outputs, &path, &self.run, found),
            _ => Ok(()),
        }
    }

    /// Says what was left out of a run that has taken so many seconds. Whether every result was right.
    pub fn end(self, seconds: f64) -> Result<bool, ReportError> {
        if let (Some(_), Some(line)) = (&self.shown, self.left_out.line(seconds)) {
            writeln!(std::io::stdout().lock(), "# {line}")?;
        }
        Ok(self.errors == 0)
    }
}

impl Row {
    /// Bytes per second over the larger buffer, and as a ring's link would see it, in GB/s.
    fn bandwidths(&self, run: &Run<'_>, seconds: f64) -> (f64, f64) {
        // A barrier has no bytes; a clock that did not move has no bandwidth to show.
        let algorithm = if seconds > 0.0 { self.bytes as f64 / 1e9 / seconds } else { 0.0 };
        (algorithm, algorithm * run.collective.bus_factor(run.ranks as usize))
    }

    fn measured(&self, engine: usize, in_place: bool) -> Option<&Measured> {
        match &self.cells[engine][usize::from(in_place)] {
            Cell::Measured(measured) => Some(measured),
            Cell::Refused(_) => None,
        }
    }
}

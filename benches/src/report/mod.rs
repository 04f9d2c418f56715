//! Layer: perf / report.
//! Takes: collectives and their rows, one after the other, on every rank.
//! Gives: on rank 0 tables, a progress indicator, comparisons, JSON, Markdown and plots; on every rank whether all was right.
//! Never: talks to other ranks once the run has begun.

pub mod machine;
mod table;
mod compare;
mod compact;
mod markdown;
mod progress;
mod json;
mod plot;
mod files;

use crate::cli::PerfArgs;
use crate::collective::Collective;
use crate::engine::Memory;
use crate::run::{Cell, Measured, Row};
use crate::target::Target;
use crate::team::{Card, Team, TeamError, bytes_of_card, card_of_bytes};
use machine::Machine;
use markdown::Page;
use progress::Progress;
use std::io::Write;
use std::path::PathBuf;

/// Why a report could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    #[error(transparent)]
    Team(#[from] TeamError),
    #[error("printing the table: {0}")]
    Print(#[from] std::io::Error),
    #[error("writing {}: {reason}", .path.display())]
    Write { path: PathBuf, reason: String },
}

/// What is known before the first measurement.
pub struct Run<'a> {
    pub args: &'a PerfArgs,
    /// What is being measured now.
    pub collective: Collective,
    pub ranks: u32,
    pub machine: Machine,
    pub engines: Vec<EngineFacts>,
}

/// An engine as reports show it.
#[derive(serde::Serialize)]
pub struct EngineFacts {
    pub name: String,
    pub description: String,
    /// What the engine says that it reserves.
    pub memory: Option<Memory>,
    /// What beginning to use it cost. Only measured on GPUs.
    pub start: Option<StartCost>,
}

/// What it costs to begin: the greatest of all ranks.
#[derive(Clone, Copy, Default, PartialEq, Debug, serde::Serialize)]
pub struct StartCost {
    /// Milliseconds from the first call until every rank had its communicator.
    pub create_ms: f64,
    /// Milliseconds from the first call to the end of the first all-reduce.
    pub first_all_reduce_ms: f64,
    /// Bytes of device memory that were no longer free after the creation.
    pub created_bytes: u64,
    /// The same after the first all-reduce.
    pub used_bytes: u64,
}

impl EngineFacts {
    /// Sentences about memory and time.
    pub fn costs(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(memory) = &self.memory {
            let peers = memory.peers.iter().map(|peer| peer.bytes);
            lines.push(format!(
                "{} bytes per communicator on rank 0, {} to {} bytes per peer",
                memory.communicator_bytes,
                peers.clone().min().unwrap_or(0),
                peers.max().unwrap_or(0)
            ));
        }
        if let Some(start) = &self.start {
            lines.push(format!(
                "communicator {:.1} ms, to the end of the first all-reduce {:.1} ms; device memory {:.1} MiB, then {:.1} MiB",
                start.create_ms,
                start.first_all_reduce_ms,
                start.created_bytes as f64 / f64::from(1 << 20),
                start.used_bytes as f64 / f64::from(1 << 20),
            ));
        }
        lines
    }
}

/// The ranks of one thread, as the table's head shows them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Who {
    pub host: String,
    pub pid: u32,
    /// The GPU of each rank; zero where a rank is a thread of a processor.
    pub devices: Vec<u8>,
}

/// The report of one rank; only rank 0's is shown.
pub struct Report<'a> {
    run: Run<'a>,
    /// Only on rank 0.
    shown: Option<Shown>,
    rows: Vec<Row>,
    /// Wrong measurements of earlier collectives.
    errors: usize,
}

struct Shown {
    progress: Progress,
    page: Page,
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
        let cards = team.exchange(&me.card())?;
        let shown = (team.rank() == 0).then(|| Shown { progress: Progress::new(), page: Page::new(&run) });
        if shown.is_some() {
            // An hour's measurements are not to end at a file that cannot be written.
            let files = [files::json(&run)?, files::plot(&run), files::markdown(&run)];
            files.iter().flatten().try_for_each(|path| files::try_write(path))?;
            let all: Vec<Who> = cards.iter().map(Who::of_card).collect();
            table::print_head(&mut std::io::stdout().lock(), &run, &all)?;
        }
        Ok(Report { run, shown, rows: Vec::new(), errors: 0 })
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
        if let Some(path) = files::json(run)? {
            json::write(&path, run, &rows)?;
        }
        if let Some(path) = files::plot(run) {
            plot::write(&path, run, &rows)?;
        }
        shown.page.add(run, &rows);
        if let Some(path) = files::markdown(run) {
            shown.page.write(&path)?;
        }
        Ok(())
    }

    /// Whether every result was right.
    pub fn end(self) -> bool {
        self.errors == 0
    }
}

impl Who {
    /// A host's name of at most 80 bytes, then the process, then up to sixteen devices and their number.
    fn card(&self) -> Card {
        let host = self.host.as_bytes();
        let mut bytes = [0u8; 128];
        let len = host.len().min(80);
        bytes[..len].copy_from_slice(&host[..len]);
        bytes[80..84].copy_from_slice(&self.pid.to_le_bytes());
        bytes[84] = self.devices.len().min(16) as u8;
        for (byte, device) in bytes[85..101].iter_mut().zip(&self.devices) {
            *byte = *device;
        }
        card_of_bytes(&bytes)
    }

    fn of_card(card: &Card) -> Who {
        let bytes = bytes_of_card(card);
        let host = String::from_utf8_lossy(&bytes[..80]).trim_end_matches('\0').to_string();
        let pid = u32::from_le_bytes(std::array::from_fn(|i| bytes[80 + i]));
        Who { host, pid, devices: bytes[85..][..usize::from(bytes[84]).min(16)].to_vec() }
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

//! Everything measured, for other programs. docs/measurements/README.md states the schema; its name changes when a field changes meaning.

use super::facts::{EngineFacts, ReportError, Run};
use super::files;
use super::machine::Machine;
use crate::bench::Verdict;
use crate::beside::Beside;
use crate::cli::{Backend, Timer, command_line};
use crate::out::Outputs;
use crate::row::{Cell, Row};
use serde::Serialize;
use std::path::Path;
use std::time::SystemTime;

const SCHEMA: &str = "oxccl-perf/1";
const BESIDE_SCHEMA: &str = "oxccl-perf-overlap/1";

#[derive(Serialize)]
struct Document<'a, T> {
    schema: &'static str,
    /// UTC, RFC 3339.
    date: String,
    command: Vec<String>,
    machine: &'a Machine,
    collective: &'static str,
    ranks: u32,
    /// "cpu" or "cuda".
    backend: &'static str,
    /// Threads of each process.
    threads: u32,
    /// Ranks of each thread.
    gpus_per_thread: u32,
    /// Operations captured into a graph; 0 without one.
    graph: u32,
    /// 0, or how buffers were registered.
    register: u32,
    /// "events" or "host".
    timer: &'static str,
    rounds: u32,
    average: u32,
    rotate: bool,
    engines: &'a [EngineFacts],
    results: T,
}

/// One engine on one case.
#[derive(Serialize)]
struct Entry {
    engine: String,
    size_bytes: usize,
    count: usize,
    dtype: &'static str,
    op: Option<&'static str>,
    root: Option<u32>,
    in_place: bool,
    #[serde(flatten)]
    outcome: Outcome,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Outcome {
    Measured {
        /// Operations per measurement.
        iters: u32,
        /// Microseconds per operation, round by round.
        times_us: Vec<f64>,
        median_us: f64,
        min_us: f64,
        max_us: f64,
        /// GB/s of the median.
        algbw: f64,
        busbw: f64,
        /// Null where results were not checked.
        verdict: Option<Verdict>,
        /// Left out where they were not asked for, or cannot be seen.
        #[serde(skip_serializing_if = "Option::is_none")]
        blocks: Option<u32>,
    },
    Refused {
        refused: &'static str,
    },
}

/// Writes one collective's rows.
pub fn write(outputs: &mut Outputs, path: &Path, run: &Run<'_>, rows: &[Row]) -> Result<(), ReportError> {
    let results: Vec<Entry> = rows.iter().flat_map(|row| entries(run, row)).collect();
    write_document(outputs, path, &document(SCHEMA, run, results))
}

/// Writes what was found of one collective beside a computation.
pub fn write_beside(
    outputs: &mut Outputs,
    path: &Path,
    run: &Run<'_>,
    found: &[Beside],
) -> Result<(), ReportError> {
    write_document(outputs, path, &document(BESIDE_SCHEMA, run, found))
}

fn write_document<T: Serialize>(
    outputs: &mut Outputs,
    path: &Path,
    document: &Document<'_, T>,
) -> Result<(), ReportError> {
    let text = serde_json::to_string_pretty(document).map_err(|error| ReportError::Write {
        path: path.into(),
        error: std::io::Error::from(error).into(),
    })?;
    files::write(outputs, path, &(text + "\n"))
}

fn document<'a, T>(schema: &'static str, run: &'a Run<'_>, results: T) -> Document<'a, T> {
    Document {
        schema,
        date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        command: command_line(),
        machine: &run.machine,
        collective: run.collective.name(),
        ranks: run.ranks,
        backend: match run.args.backend {
            Backend::Cpu => "cpu",
            Backend::Cuda => "cuda",
        },
        threads: run.args.threads.unwrap_or(1),
        gpus_per_thread: run.args.per_thread(),
        graph: run.args.graph,
        register: run.args.register,
        timer: match (run.args.backend, run.args.timer) {
            (Backend::Cuda, Timer::Events) => "events",
            _ => "host",
        },
        rounds: run.args.rounds(),
        average: run.args.average,
        rotate: run.args.rotate,
        engines: &run.engines,
        results,
    }
}

fn entries(run: &Run<'_>, row: &Row) -> Vec<Entry> {
    let mut entries = Vec::new();
    for (engine, cells) in run.engines.iter().zip(&row.cells) {
        for (in_place, cell) in [false, true].into_iter().zip(cells) {
            entries.push(Entry {
                engine: engine.name.clone(),
                size_bytes: row.bytes,
                count: row.count,
                dtype: row.dtype.name(),
                op: row.op.map(|op| op.name()),
                root: row.root,
                in_place,
                outcome: outcome(run, row, cell),
            });
        }
    }
    entries
}

fn outcome(run: &Run<'_>, row: &Row, cell: &Cell) -> Outcome {
    let measured = match cell {
        Cell::Refused(refused) => return Outcome::Refused { refused },
        Cell::Measured(measured) => measured,
    };
    let us = |seconds: f64| seconds * 1e6;
    let (algbw, busbw) = row.bandwidths(run, measured.median());
    Outcome::Measured {
        iters: measured.iters,
        times_us: measured.seconds.iter().copied().map(us).collect(),
        median_us: us(measured.median()),
        min_us: us(measured.min()),
        max_us: us(measured.max()),
        algbw,
        busbw,
        verdict: measured.verdict,
        blocks: measured.blocks,
    }
}

//! Layer: tune.
//! Takes: `oxccl tune`'s command line.
//! Gives: a file that says, for this machine and so many ranks, which algorithm and protocol is fastest at each size.
//! Never: changes what a communicator does by itself: only who names the file in OXCCL_TUNE_FILE uses it.

mod args;
mod pick;
mod found;
mod keep;
mod sweep;
mod show;

pub use args::TuneArgs;

use crate::bench::{Bench, MeasureError};
use crate::budget::Budget;
use crate::cli::Backend as Where;
use crate::collective::Collective;
use crate::complain::complain;
use crate::engine::{Engine, EngineError, LaunchedTeam, OxcclEngine, SetupError, func};
use crate::gpu::engine::GpuEngine;
use crate::gpu::{self, GpuBench, GpuError, OxcclGpuEngine};
use crate::measure::{CpuBench, NoMemory};
use crate::out::{self, OutError, Outputs};
use crate::report::machine::Machine;
use crate::say::say;
use crate::spawn::{self, Seat};
use crate::team::{LocalTeam, Team};
use found::Found;
use oxccl::Protocol;
use oxccl::api::tune_file::{self, TuneError};
use oxccl::os::describe;
use oxccl::plan::offered;
use oxccl::plan::tuning::{
    Architecture, Backend, Candidate, Explanation, TUNED, TuneFile, TuneHead, TuneSection,
};
use oxccl_shared::algo::registry::spec_of;
use oxccl_shared::algo::spec::Connections;
use pick::{Row, Way};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use sweep::Progress;

/// Why a rank ended without a table.
#[derive(Debug, thiserror::Error)]
pub enum TuneRunError {
    #[error(transparent)]
    Setup(#[from] SetupError),
    #[error(transparent)]
    Measure(#[from] MeasureError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Gpu(#[from] GpuError),
    #[error(transparent)]
    Oxccl(#[from] oxccl::Error),
    #[error(transparent)]
    Launcher(#[from] oxccl::api::launcher::LaunchError),
    #[error("memory shared by the ranks: {0}")]
    Memory(#[from] std::io::Error),
    #[error("starting the ranks: {0}")]
    Start(std::io::Error),
    #[error("printing: {}", describe(.0))]
    Print(std::io::Error),
    #[error(transparent)]
    Buffers(#[from] NoMemory),
    #[error("one rank has no choices: at least 2 are needed (--ranks)")]
    Alone,
    #[error("--sizes: 1 to 16 ascending sizes were expected")]
    Sizes,
    #[error(
        "--collectives: all-reduce, all-gather, reduce-scatter, broadcast and reduce have choices, {0} has none"
    )]
    Collective(&'static str),
    #[error("--out: {0}; give another file, or remove this one")]
    Old(TuneError),
    #[error("--out {}: {error}", .path.display())]
    Write { path: PathBuf, error: OutError },
    #[error(
        "--time-budget: {} s were over before anything was measured, and {} is as it was; allow more",
        .budget.as_secs_f64(), .path.display()
    )]
    Nothing { budget: Duration, path: PathBuf },
    #[error("--channels: rings of ranks on processors have one; --backend cuda has more")]
    Channels,
}

/// How much longer than its budget a run may last before its processes are killed: time for communicators and the last measurement.
const OVERTIME: Duration = Duration::from_secs(120);

/// `oxccl tune`.
pub fn tune(args: &TuneArgs) -> ExitCode {
    if args.backend == Where::Cuda {
        // SAFETY: this is the first thing that the program does after reading its command line, and it has one thread.
        unsafe { gpu::prepare_environment() };
    }
    let done = match spawn::seat() {
        Some(seat) => seated(&seat, args),
        None => unseated(args),
    };
    match done {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            complain("tune", error);
            ExitCode::FAILURE
        }
    }
}

/// The process that a person or a launcher has started.
fn unseated(args: &TuneArgs) -> Result<u8, TuneRunError> {
    // Open until the end: rank 0 writes the file, in this process or another.
    let _outputs = check(args)?;
    let launched = if args.ranks.is_none() { spawn::launched()? } else { None };
    if let Some((local, locals)) = launched {
        let mut team = LaunchedTeam::from_env()?;
        return rank(&mut team, (local, locals), args);
    }
    let ranks = match (args.ranks, args.backend) {
        (Some(ranks), _) => ranks,
        (None, Where::Cuda) => gpu::device_count()?,
        (None, Where::Cpu) => std::thread::available_parallelism()?.get() as u32,
    };
    if ranks < 2 {
        return Err(TuneRunError::Alone);
    }
    let limit = args.time_budget.saturating_add(OVERTIME);
    spawn::supervise("tune", ranks, 1, Some(limit), None).map_err(TuneRunError::Start)
}

/// What can be known to be wrong before ranks are started.
fn check(args: &TuneArgs) -> Result<Outputs, TuneRunError> {
    if !(1..=16).contains(&args.sizes.len()) || !args.sizes.is_sorted_by(|a, b| a < b) {
        return Err(TuneRunError::Sizes);
    }
    if let Some(other) = args.collectives.iter().find(|collective| !TUNED.contains(&func(**collective))) {
        return Err(TuneRunError::Collective(other.name()));
    }
    if args.backend == Where::Cpu && !args.channels.is_empty() {
        return Err(TuneRunError::Channels);
    }
    old_file(args)?;
    let mut outputs = Outputs::default();
    let tried = outputs.probe(&args.out);
    tried.map_err(|error| TuneRunError::Write { path: args.out.clone(), error })?;
    Ok(outputs)
}

/// The file at `--out`, whose other tables stay. A pipe has none.
fn old_file(args: &TuneArgs) -> Result<TuneFile, TuneRunError> {
    match args.out.try_exists() {
        Ok(true) if out::is_special(&args.out) => Ok(TuneFile::default()),
        Ok(false) => Ok(TuneFile::default()),
        _ => tune_file::read(&args.out).map_err(TuneRunError::Old),
    }
}

/// A process that another `oxccl tune` has started.
fn seated(seat: &Seat, args: &TuneArgs) -> Result<u8, TuneRunError> {
    let region = spawn::take_seat(seat, seat.processes, false)?;
    let mut team = LocalTeam::new(Arc::new(region), seat.process);
    rank(&mut team, (seat.process, seat.processes), args)
}

/// One rank's run and exit status. `place` is its number among those of this machine, and how many those are.
fn rank(team: &mut dyn Team, place: (u32, u32), args: &TuneArgs) -> Result<u8, TuneRunError> {
    let is_first = team.rank() == 0;
    let done = match args.backend {
        Where::Cpu => on_cpus(team, args),
        Where::Cuda => on_gpus(team, place, args),
    };
    match done {
        Ok(found) if is_first => conclude(&found, args).map(|()| 0),
        Ok(_) => Ok(0),
        Err(error) => {
            // Said here, while the others still run: what they say next is a consequence.
            complain("tune", format_args!("rank {}: {error}", team.rank()));
            team.give_up();
            Ok(1)
        }
    }
}

/// The ways to measure on a backend.
fn ways(backend: Backend, args: &TuneArgs) -> Vec<Way> {
    let funcs = || args.collectives.iter().map(|collective| func(*collective));
    // What goes between hosts only is not there: all ranks are on this one.
    let is_here = |candidate: &Candidate| {
        let connections = spec_of(candidate.algorithm).connections;
        !connections.has_network() && connections != Connections::Levels
    };
    let has = |candidate: &Candidate| {
        is_here(candidate) && funcs().any(|func| offered(backend, func).has(*candidate))
    };
    let mut ways: Vec<Way> =
        Candidate::ALL.into_iter().filter(has).map(|candidate| Way { candidate, channels: None }).collect();
    if backend == Backend::Gpu {
        let ring = Candidate::new(oxccl::Algorithm::Ring, Protocol::Simple);
        ways.extend(args.channels.iter().map(|channels| Way { candidate: ring, channels: Some(*channels) }));
    }
    ways
}

fn on_cpus(team: &mut dyn Team, args: &TuneArgs) -> Result<Found, TuneRunError> {
    let budget = Budget::new(Some(args.time_budget));
    let plain = OxcclEngine::new(team, &args.perf(None, None))?;
    let explain = |collective: Collective, count: u64| {
        let explained = plain.communicator().explain(func(collective), oxccl::DataType::F32, count);
        explained.ok().flatten()
    };
    let (untuned, architecture) = untuned(team.size(), args, explain);
    let backend = match architecture {
        Some(Architecture::CpuStreams) => Backend::CpuStreams,
        _ => Backend::Cpu,
    };
    let ways = ways(backend, args);
    let mut engines: Vec<Box<dyn Engine>> = Vec::new();
    for way in &ways {
        engines.push(Box::new(OxcclEngine::new(team, &args.perf(Some(way.candidate), None))?));
    }
    let (ranks, is_first, perf) = (team.size(), team.rank() == 0, args.perf(None, None));
    let mut bench = CpuBench::new(team, engines, &perf)?;
    let collectives = measure(&mut bench, backend, &ways, args, &budget, is_first)?;
    Ok(Found { backend, ranks, machine: Machine::here(None), ways, collectives, untuned })
}

fn on_gpus(
    team: &mut dyn Team,
    (thread, threads): (u32, u32),
    args: &TuneArgs,
) -> Result<Found, TuneRunError> {
    let budget = Budget::new(Some(args.time_budget));
    let perf = args.perf(None, None);
    let seats = gpu::seats(team, thread, threads, &perf)?;
    let (model, _) = gpu::facts(&seats);
    let plain = OxcclGpuEngine::new("oxccl".into(), team, &seats, &perf)?;
    let explain = |collective: Collective, count: u64| {
        let explained = plain.communicator().explain(func(collective), oxccl::DataType::F32, count);
        explained.ok().flatten()
    };
    let (untuned, _) = untuned(team.size(), args, explain);
    // Its memory may be needed.
    drop(plain);
    let ways = ways(Backend::Gpu, args);
    let mut engines: Vec<Box<dyn GpuEngine>> = Vec::new();
    for way in &ways {
        let name = way.candidate.to_string();
        let perf = args.perf(Some(way.candidate), way.channels);
        engines.push(Box::new(OxcclGpuEngine::new(name, team, &seats, &perf)?));
    }
    let (ranks, is_first) = (team.size(), team.rank() == 0);
    let mut bench = GpuBench::new(team, seats, engines, 1, &perf)?;
    let measured = measure(&mut bench, Backend::Gpu, &ways, args, &budget, is_first);
    if measured.is_err() {
        bench.abort();
        // To give memory back would be to wait for streams that may never be done. The process ends anyway.
        std::mem::forget(bench);
    }
    Ok(Found {
        backend: Backend::Gpu,
        ranks,
        machine: Machine::here(Some(model)),
        ways,
        collectives: measured?,
        untuned,
    })
}

/// What the library chooses by itself at each size, and what it knows the ranks as.
fn untuned(
    ranks: u32,
    args: &TuneArgs,
    explain: impl Fn(Collective, u64) -> Option<Explanation>,
) -> (Vec<Vec<Option<Candidate>>>, Option<Architecture>) {
    let mut architecture = None;
    let mut of = |collective: Collective, bytes: usize| {
        let count = collective.shape(bytes / size_of::<f32>(), ranks as usize).count as u64;
        let explained = explain(collective, count)?;
        architecture = Some(explained.machine.architecture);
        Some(explained.choice.candidate)
    };
    let choices = args
        .collectives
        .iter()
        .map(|collective| args.sizes.iter().map(|bytes| of(*collective, *bytes)).collect());
    (choices.collect(), architecture)
}

fn measure(
    bench: &mut dyn Bench,
    backend: Backend,
    ways: &[Way],
    args: &TuneArgs,
    budget: &Budget,
    is_first: bool,
) -> Result<Vec<(Collective, Vec<Row>)>, MeasureError> {
    let progress = Progress::new(is_first, args.collectives.len() * args.sizes.len());
    let mut all = Vec::new();
    for (at, collective) in args.collectives.iter().enumerate() {
        let has = offered(backend, func(*collective));
        let possible: Vec<(usize, Way)> =
            ways.iter().copied().enumerate().filter(|(_, way)| has.has(way.candidate)).collect();
        let share = budget.part(args.collectives.len() - at);
        all.push((*collective, sweep::sweep(bench, *collective, &possible, args, &share, &progress)?));
    }
    progress.end();
    Ok(all)
}

/// Shows what was found, and writes the file.
fn conclude(found: &Found, args: &TuneArgs) -> Result<(), TuneRunError> {
    let say = |text: &str| say(text).map_err(TuneRunError::Print);
    let shown = say(&show::table(found));
    let mut file = old_file(args)?;
    let Some((section, has_old)) = section(found, &file) else {
        return Err(TuneRunError::Nothing { budget: args.time_budget, path: args.out.clone() });
    };
    file.replace(section);
    let text = file.to_text();
    if let Err(error) = out::replace(&args.out, &text) {
        // It took minutes to measure: the user may save it elsewhere.
        say(&format!("\n{text}"))?;
        return Err(TuneRunError::Write { path: args.out.clone(), error });
    }
    shown?;
    let kept = if has_old { ", where what was not measured now is as it was" } else { "" };
    say(&format!("\nwrote {0}{kept}; use it with OXCCL_TUNE_FILE={0} on all ranks\n", args.out.display()))
}

/// The table to write, and whether it has rows of the one before. Nothing where nothing was measured. Rows of another machine do not stay:
/// a table names one.
fn section(found: &Found, file: &TuneFile) -> Option<(TuneSection, bool)> {
    let head = TuneHead {
        backend: found.backend,
        ranks: found.ranks,
        machine: format!("{}, {}", found.machine.device_or_processor(), found.machine.host),
        date: today(),
        oxccl: env!("CARGO_PKG_VERSION").into(),
    };
    let key = |head: &TuneHead| (head.backend, head.ranks, head.machine.clone());
    let before = file.sections.iter().find(|section| key(&section.head) == key(&head));
    let mut section = TuneSection::new(head);
    let (mut has_new, mut has_old) = (false, false);
    for func in TUNED {
        let old = before.iter().flat_map(|section| &section.records);
        let old = old.filter(|record| record.func == func).cloned().collect();
        let measured =
            found.collectives.iter().find(|(collective, _)| crate::engine::func(*collective) == func);
        let (new, rows) = match measured {
            Some((collective, rows)) => {
                section.notes.extend(show::notes(*collective, &found.ways, rows));
                (pick::records(func, &found.ways, rows), rows.as_slice())
            }
            None => (Vec::new(), [].as_slice()),
        };
        has_new |= !new.is_empty();
        let (records, is_kept) = keep::rows(new, rows, old);
        has_old |= is_kept;
        for record in records {
            // Sizes ascend and are at most as many as rows may be.
            let pushed = section.push(record);
            debug_assert_eq!(pushed, Ok(()));
        }
    }
    has_new.then_some((section, has_old))
}

/// The date in UTC, as ISO 8601 has it.
fn today() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string().chars().take(10).collect()
}

//! Layer: perf / setup.
//! Takes: the command line and the environment.
//! Gives: the ranks of the run, each with a team and engines, and the exit status.
//! Never: measures.

use crate::bench::Bench;
use crate::budget::Budget;
use crate::cli::{Backend, Choice, EngineChoice, PerfArgs};
use crate::complain::complain;
use crate::engine::{
    Engine, EngineError, LaunchedTeam, MemcpyEngine, MpiEngine, OxcclEngine, SetupError, TcpStreamEngine,
};
use crate::gpu::{self, GpuBench, GpuError, LoadKind};
use crate::measure::{CpuBench, NoMemory};
use crate::mpi::{Mpi, MpiError};
use crate::overlap;
use crate::report::{EngineFacts, Report, ReportError};
use crate::run::{SweepError, sweep};
use crate::spawn::{self, Seat};
use crate::team::{LocalTeam, MpiTeam, Region, Team};
use std::io::Write;
use std::process::ExitCode;
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Why a rank ended without a complete report.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Setup(#[from] SetupError),
    #[error(transparent)]
    Sweep(#[from] SweepError),
    #[error(transparent)]
    Gpu(#[from] GpuError),
    #[error(transparent)]
    Mpi(#[from] MpiError),
    #[error(transparent)]
    Report(#[from] ReportError),
    #[error("memory shared by the ranks: {0}")]
    Memory(#[from] std::io::Error),
    #[error("starting the ranks: {0}")]
    Start(std::io::Error),
    #[error("joining the ranks that a launcher started: {0}")]
    Launch(#[from] oxccl::Error),
    #[error(transparent)]
    Buffers(#[from] NoMemory),
    #[error("--root {root}: ranks are 0 to {last}")]
    Root { root: u32, last: u32 },
    #[error("a minimum of {min} bytes is more than the maximum of {max}")]
    Sizes { min: usize, max: usize },
    #[error(
        "--ngpus, --one-thread, --devices, --graph, --register, --channels, --overlap, --blocks and --init-time need --backend cuda"
    )]
    OnlyCuda,
    #[error(
        "--nonblocking needs --backend cpu: on GPUs every operation is enqueued, and --overlap measures what runs beside it"
    )]
    OnlyCpu,
    #[error(transparent)]
    Launcher(#[from] oxccl::api::launcher::LaunchError),
    #[error("a thread of this process panicked")]
    Panicked,
}

/// How much longer than its time budget a run may last before its processes are killed: a check of the largest size, and a stream
/// that is given up.
const OVERTIME: Duration = Duration::from_secs(75);

/// A thread's place among those that this machine runs.
#[derive(Clone, Copy)]
struct Place {
    thread: u32,
    threads: u32,
}

/// `oxccl perf`.
pub fn perf(args: &PerfArgs) -> ExitCode {
    if args.backend == Backend::Cuda {
        // SAFETY: this is the first thing that the program does after reading its command line, and it has one thread.
        unsafe { gpu::prepare_environment() };
    }
    let result = match spawn::seat() {
        Some(seat) => seated(&seat, args),
        None => unseated(args),
    };
    match result {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            complain("perf", error);
            ExitCode::FAILURE
        }
    }
}

/// A process that another `oxccl perf` has started.
fn seated(seat: &Seat, args: &PerfArgs) -> Result<u8, RunError> {
    let mut args = args.clone();
    if let Some(engine) = spawn::only_engine() {
        args.engines = args.engines.drain(..).skip(engine).take(1).collect();
    }
    let args = &args;
    let threads = args.threads.unwrap_or(1);
    let region = spawn::take_seat(seat, seat.processes * threads, args.bind)?;
    local(Arc::new(region), seat.process * threads, threads, seat.processes * threads, args)
}

/// The process that a person or a launcher has started.
fn unseated(args: &PerfArgs) -> Result<u8, RunError> {
    if args.minbytes > args.maxbytes {
        return Err(RunError::Sizes { min: args.minbytes, max: args.maxbytes });
    }
    let cuda = args.backend == Backend::Cuda;
    if !cuda
        && (args.init_time
            || args.ngpus.is_some()
            || args.graph > 0
            || args.register > 0
            || !args.devices.is_empty()
            || args.overlap.is_some()
            || args.blocks
            || args.channels.is_some())
    {
        return Err(RunError::OnlyCuda);
    }
    if cuda && args.nonblocking.is_some() {
        return Err(RunError::OnlyCpu);
    }
    let mpi = args.engines.iter().find_map(|engine| match engine {
        EngineChoice::Mpi { library } => Some(library),
        _ => None,
    });
    let here = args.ranks.is_some() || args.threads.is_some() || args.ngpus.is_some();
    let threads = args.threads.unwrap_or(1);
    match (here, mpi) {
        (true, Some(_)) => Err(MpiError::NotLaunched.into()),
        (true, None) => match args.ranks {
            Some(ranks) => supervise(ranks, args),
            None => local(Arc::new(Region::create(threads)?), 0, threads, threads, args),
        },
        (false, Some(library)) => {
            let mpi = Mpi::init(library)?;
            let mut team = MpiTeam::new(mpi.clone());
            let place = Place { thread: mpi.rank(), threads: mpi.size() };
            rank(&mut team, Some(&mpi), place, args)
        }
        (false, None) => match spawn::launched()? {
            Some(place) => {
                let place = Place { thread: place.0, threads: place.1 };
                rank(&mut LaunchedTeam::from_env()?, None, place, args)
            }
            None if cuda => supervise(gpu::device_count()?.max(1), args),
            None => local(Arc::new(Region::create(1)?), 0, 1, 1, args),
        },
    }
}

fn supervise(processes: u32, args: &PerfArgs) -> Result<u8, RunError> {
    if args.backend == Backend::Cuda {
        // Said once, here, and not by every rank.
        gpu::device_count()?;
    }
    let limit = args.time_budget.map(|budget| budget.saturating_add(OVERTIME));
    let threads = args.threads.unwrap_or(1);
    if !args.init_time {
        return spawn::supervise("perf", processes, threads, limit, None).map_err(RunError::Start);
    }
    for round in 0..args.rounds() as usize {
        for turn in 0..args.engines.len() {
            let engine = (round + turn) % args.engines.len();
            let status =
                spawn::supervise("perf", processes, threads, limit, Some(engine)).map_err(RunError::Start)?;
            if status != 0 {
                return Ok(status);
            }
        }
    }
    Ok(0)
}

/// Threads `first..first + threads` of `all`, in this process.
fn local(region: Arc<Region>, first: u32, threads: u32, all: u32, args: &PerfArgs) -> Result<u8, RunError> {
    std::thread::scope(|scope| {
        let run = |index: u32| {
            let mut team = LocalTeam::new(region.clone(), first + index);
            rank(&mut team, None, Place { thread: first + index, threads: all }, args)
        };
        let mut others = Vec::new();
        for index in 1..threads {
            // None begins before all are there: who began would wait for the one that is missing.
            let (go, all_here) = mpsc::channel();
            let begin = move || all_here.recv().is_ok().then(|| run(index));
            let thread = std::thread::Builder::new()
                .name(format!("rank-{}", first + index))
                .spawn_scoped(scope, begin);
            others.push((go, thread.map_err(|error| RunError::Start(spawn::no_thread(error)))?));
        }
        for (go, _) in &others {
            // The thread waits for it.
            let _ = go.send(());
        }
        let mut result = run(0);
        for (_, other) in others {
            let other = other.join().ok().flatten().unwrap_or(Err(RunError::Panicked));
            result = match (result, other) {
                (Ok(mine), Ok(theirs)) => Ok(mine.max(theirs)),
                (Err(error), _) | (_, Err(error)) => Err(error),
            };
        }
        result
    })
}

/// One thread's run and exit status.
fn rank(team: &mut dyn Team, mpi: Option<&Mpi>, place: Place, args: &PerfArgs) -> Result<u8, RunError> {
    let result = match args.backend {
        Backend::Cpu => run_on_cpus(team, mpi, args),
        Backend::Cuda => run_on_gpus(team, place, args),
    };
    if let Err(error) = &result {
        // Said here, while the others still run: what they say next is a consequence.
        complain("perf", format_args!("rank {}: {error}", team.rank() * args.per_thread()));
        team.give_up();
        return Ok(1);
    }
    result
}

fn run_on_cpus(team: &mut dyn Team, mpi: Option<&Mpi>, args: &PerfArgs) -> Result<u8, RunError> {
    let budget = Budget::new(args.time_budget);
    check_root(team.size(), args)?;
    let engines = engines(team, mpi, args)?;
    let facts = engines.iter().map(|engine| EngineFacts {
        name: engine.name().into(),
        description: engine.describe(),
        memory: engine.memory(),
        start: None,
    });
    let report = Report::new(team, facts.collect(), None, &[], args)?;
    let mut bench = CpuBench::new(team, engines, args)?;
    if args.nonblocking.is_some() {
        return all_overlaps(&mut bench, args, &budget, report);
    }
    all_collectives(&mut bench, args, &budget, report)
}

fn run_on_gpus(team: &mut dyn Team, place: Place, args: &PerfArgs) -> Result<u8, RunError> {
    let budget = Budget::new(args.time_budget);
    check_root(team.size() * args.per_thread(), args)?;
    let seats = gpu::seats(team, place.thread, place.threads, args)?;
    let (engines, facts) = gpu::start_engines(team, &seats, args)?;
    if args.init_time {
        for engine in facts.iter().filter(|_| team.rank() == 0) {
            let mut out = std::io::stdout().lock();
            writeln!(out, "{}: {}", engine.name, engine.costs().join("; ")).map_err(ReportError::from)?;
        }
        return Ok(0);
    }
    let (model, devices) = gpu::facts(&seats);
    let report = Report::new(team, facts, Some(model), &devices, args)?;
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let checkers = processors / place.threads.max(1) as usize;
    let mut bench = GpuBench::new(team, seats, engines, checkers, args)?;
    bench.register_buffers().map_err(SetupError::from)?;
    let result = match args.overlap {
        Some(kind) => all_gpu_overlaps(&mut bench, kind, args, &budget, report),
        None => all_collectives(&mut bench, args, &budget, report),
    };
    if result.is_err() {
        bench.abort();
        // To give memory back would be to wait for streams that may never be done. The process ends anyway.
        std::mem::forget(bench);
    }
    result
}

fn all_overlaps(
    bench: &mut CpuBench<'_>,
    args: &PerfArgs,
    budget: &Budget,
    mut report: Report<'_>,
) -> Result<u8, RunError> {
    let mut is_right = true;
    let collectives = args.target.collectives();
    for (at, collective) in collectives.iter().enumerate() {
        let mut found = Vec::new();
        let share = budget.part(collectives.len() - at);
        is_right &= overlap::sweep(bench, *collective, args, &share, &mut found)?;
        report.beside(*collective, &found)?;
    }
    Ok(if is_right { 0 } else { spawn::WRONG_RESULTS })
}

fn all_gpu_overlaps(
    bench: &mut GpuBench<'_>,
    kind: Option<LoadKind>,
    args: &PerfArgs,
    budget: &Budget,
    mut report: Report<'_>,
) -> Result<u8, RunError> {
    bench.prepare_loads().map_err(SweepError::from)?;
    let kinds = kind.map_or(LoadKind::ALL.to_vec(), |kind| vec![kind]);
    let mut is_right = true;
    let collectives = args.target.collectives();
    for (at, collective) in collectives.iter().enumerate() {
        let share = budget.part(collectives.len() - at);
        let mut found = Vec::new();
        is_right &= gpu::overlap_sweep(bench, *collective, &kinds, args, &share, &mut found)?;
        report.beside(*collective, &found)?;
    }
    Ok(if is_right { 0 } else { spawn::WRONG_RESULTS })
}

fn all_collectives(
    bench: &mut dyn Bench,
    args: &PerfArgs,
    budget: &Budget,
    mut report: Report<'_>,
) -> Result<u8, RunError> {
    let collectives = args.target.collectives();
    for (at, collective) in collectives.iter().enumerate() {
        let share = budget.part(collectives.len() - at);
        sweep(bench, *collective, args, &share, &mut report)?;
        report.conclude()?;
    }
    let is_right = report.end(budget.spent()).map_err(SweepError::from)?;
    Ok(if is_right { 0 } else { spawn::WRONG_RESULTS })
}

fn check_root(ranks: u32, args: &PerfArgs) -> Result<(), RunError> {
    match args.root {
        Choice::One(root) if root >= ranks => Err(RunError::Root { root, last: ranks - 1 }),
        _ => Ok(()),
    }
}

fn engines(
    team: &mut dyn Team,
    mpi: Option<&Mpi>,
    args: &PerfArgs,
) -> Result<Vec<Box<dyn Engine>>, SetupError> {
    args.engines
        .iter()
        .map(|choice| -> Result<Box<dyn Engine>, SetupError> {
            Ok(match choice {
                EngineChoice::Oxccl => Box::new(OxcclEngine::new(team, args)?),
                EngineChoice::Memcpy => Box::new(MemcpyEngine),
                EngineChoice::TcpStream => Box::new(TcpStreamEngine::new(team)?),
                EngineChoice::Mpi { .. } => {
                    let mpi = mpi.ok_or(MpiError::NotLaunched).map_err(EngineError::from)?;
                    Box::new(MpiEngine::new(mpi.clone()))
                }
                EngineChoice::Nccl { .. } => {
                    let engines = "oxccl, mpi[=/path/to/libmpi.so.40], mpich[=/path/to/libmpi.so.12], memcpy and tcp-stream";
                    return Err(SetupError::Backend { engine: "nccl", backend: "cpu", engines });
                }
            })
        })
        .collect()
}

//! Layer: perf / setup.
//! Takes: the command line and the environment.
//! Gives: the ranks of the run, each with a team and engines, and the exit status.
//! Never: measures.

use crate::cli::{EngineChoice, PerfArgs};
use crate::engine::{Engine, EngineError, LaunchedTeam, MemcpyEngine, MpiEngine, OxcclEngine, SetupError};
use crate::measure::MeasureError;
use crate::mpi::{Mpi, MpiError};
use crate::report::{Report, ReportError};
use crate::run::sweep;
use crate::spawn::{self, Seat};
use crate::team::{LocalTeam, MpiTeam, Region, Team};
use std::process::ExitCode;
use std::sync::Arc;

/// Why a rank ended without a complete report.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Setup(#[from] SetupError),
    #[error(transparent)]
    Measure(#[from] MeasureError),
    #[error(transparent)]
    Mpi(#[from] MpiError),
    #[error(transparent)]
    Report(#[from] ReportError),
    #[error("memory shared by the ranks: {0}")]
    Memory(#[from] std::io::Error),
    #[error("joining the ranks that a launcher started: {0}")]
    Launch(#[from] oxccl::Error),
    #[error("--root {root}: ranks are 0 to {last}")]
    Root { root: u32, last: u32 },
    #[error("a minimum of {min} bytes is more than the maximum of {max}")]
    Sizes { min: usize, max: usize },
    #[error("a thread of this process panicked")]
    Panicked,
}

/// `oxccl perf`.
pub fn perf(args: &PerfArgs) -> ExitCode {
    let result = match spawn::seat() {
        Some(seat) => seated(&seat, args),
        None => unseated(args),
    };
    match result {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("oxccl perf: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A process that another `oxccl perf` has started.
fn seated(seat: &Seat, args: &PerfArgs) -> Result<u8, RunError> {
    let threads = args.threads.unwrap_or(1);
    let region = spawn::take_seat(seat, args.ranks.unwrap_or(1) * threads, args.bind)?;
    local(Arc::new(region), seat.process * threads, threads, args)
}

/// The process that a person or a launcher has started.
fn unseated(args: &PerfArgs) -> Result<u8, RunError> {
    if args.minbytes > args.maxbytes {
        return Err(RunError::Sizes { min: args.minbytes, max: args.maxbytes });
    }
    let mpi = args.engines.iter().find_map(|engine| match engine {
        EngineChoice::Mpi { library } => Some(library),
        _ => None,
    });
    let here = args.ranks.is_some() || args.threads.is_some();
    match (here, mpi) {
        (true, Some(_)) => Err(MpiError::NotLaunched.into()),
        (true, None) => match args.ranks {
            Some(ranks) => Ok(spawn::supervise(ranks, args.threads.unwrap_or(1))?),
            None => {
                let threads = args.threads.unwrap_or(1);
                local(Arc::new(Region::create(threads)?), 0, threads, args)
            }
        },
        (false, Some(library)) => {
            let mpi = Mpi::init(library)?;
            rank(&mut MpiTeam::new(mpi.clone()), Some(&mpi), args)
        }
        (false, None) if spawn::launched() => rank(&mut LaunchedTeam::from_env()?, None, args),
        (false, None) => local(Arc::new(Region::create(1)?), 0, 1, args),
    }
}

/// Ranks `first..first + threads` as threads of this process.
fn local(region: Arc<Region>, first: u32, threads: u32, args: &PerfArgs) -> Result<u8, RunError> {
    std::thread::scope(|scope| {
        let run = |index: u32| {
            let mut team = LocalTeam::new(region.clone(), first + index);
            rank(&mut team, None, args)
        };
        let others: Vec<_> = (1..threads).map(|index| scope.spawn(move || run(index))).collect();
        let mut result = run(0);
        for other in others {
            let other = other.join().unwrap_or(Err(RunError::Panicked));
            result = match (result, other) {
                (Ok(mine), Ok(theirs)) => Ok(mine.max(theirs)),
                (Err(error), _) | (_, Err(error)) => Err(error),
            };
        }
        result
    })
}

/// One rank's run and exit status.
fn rank(team: &mut dyn Team, mpi: Option<&Mpi>, args: &PerfArgs) -> Result<u8, RunError> {
    let result = run(team, mpi, args);
    if let Err(error) = &result {
        // Said here, while the others still run: what they say next is a consequence.
        eprintln!("oxccl perf: rank {}: {error}", team.rank());
        team.give_up();
        return Ok(1);
    }
    result
}

fn run(team: &mut dyn Team, mpi: Option<&Mpi>, args: &PerfArgs) -> Result<u8, RunError> {
    if let crate::cli::Choice::One(root) = args.root
        && root >= team.size()
    {
        return Err(RunError::Root { root, last: team.size() - 1 });
    }
    let mut engines = engines(team, mpi, args)?;
    let mut report = Report::new(team, &engines, args)?;
    sweep(team, &mut engines, args, &mut report)?;
    Ok(if report.end()? { 0 } else { spawn::WRONG_RESULTS })
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
                EngineChoice::Mpi { .. } => {
                    let mpi = mpi.ok_or(MpiError::NotLaunched).map_err(EngineError::from)?;
                    Box::new(MpiEngine::new(mpi.clone()))
                }
            })
        })
        .collect()
}

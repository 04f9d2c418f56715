//! Layer: status.
//! Takes: `oxccl status`'s command line, and what the processes of this host answer.
//! Gives: their communicators, as a table, JSON or metrics, once or again and again; their flight records as files.
//! Never: changes anything in a process that it asks.

mod args;
mod metrics;
mod prometheus;
mod otlp;
mod table;

pub use args::StatusArgs;

use crate::complain::complain;
use crate::out;
use crate::say::{has_reader, say};
use oxccl::os::describe;
use oxccl::status::ask::{AskError, Process, Remote, processes};
use oxccl::status::{FlightFile, ProcessReport};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How long a process has to answer, beside what it gives other ranks.
const PATIENCE: Duration = Duration::from_secs(2);

/// Processes that are asked at the same time.
const ASKED_MAX: usize = 256;

/// Why there is nothing to show.
#[derive(Debug, thiserror::Error)]
enum StatusError {
    #[error("printing: {}", describe(.0))]
    Print(#[from] std::io::Error),
    #[error("writing the metrics: {0}")]
    Format(#[from] std::fmt::Error),
    #[error(transparent)]
    Push(#[from] otlp::PushError),
    #[error(transparent)]
    Ask(#[from] AskError),
    #[error(
        "no process on this host that this user may ask has a communicator (OXCCL_STATUS=0 forbids asking)"
    )]
    Nobody,
    #[error(
        "process {0} has no communicator that can be asked: it has none, this user may not ask it, or it has OXCCL_STATUS=0"
    )]
    NotThere(u32),
    #[error("there is no process {0}, or there is none any more")]
    Gone(u32),
    #[error("{}: {}", path.display(), describe(source))]
    File { path: PathBuf, source: std::io::Error },
    #[error("none of {0} processes answers")]
    Silent(usize),
}

impl StatusError {
    /// Whether asking again is of no use.
    fn is_last(&self) -> bool {
        matches!(self, StatusError::Print(_) | StatusError::Gone(_))
    }
}

/// What was found.
#[derive(Default, serde::Serialize)]
struct Found {
    processes: Vec<ProcessReport>,
    errors: Vec<Unanswered>,
}

/// A process that did not answer.
#[derive(serde::Serialize)]
struct Unanswered {
    pid: u32,
    error: String,
}

/// `oxccl status`.
pub fn status(args: &StatusArgs) -> ExitCode {
    loop {
        let done = match &args.dump {
            Some(folder) => dump(args, folder),
            None => show(args),
        };
        if let Err(error) = &done {
            complain("status", error);
        }
        match args.watch {
            // Processes come and go while they are watched.
            Some(every) if !done.as_ref().is_err_and(StatusError::is_last) && has_reader() => {
                std::thread::sleep(every);
            }
            _ => return if done.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE },
        }
    }
}

fn asked(args: &StatusArgs) -> Result<Vec<Process>, StatusError> {
    let mut found = processes()?;
    if let Some(pid) = args.pid {
        found.retain(|process| process.pid == pid);
        return match found.is_empty() {
            true if !Path::new("/proc").join(pid.to_string()).exists() => Err(StatusError::Gone(pid)),
            true => Err(StatusError::NotThere(pid)),
            false => Ok(found),
        };
    }
    if found.is_empty() { Err(StatusError::Nobody) } else { Ok(found) }
}

/// Asks all of them at the same time, as far as there are threads.
fn ask_all<T: Send>(
    processes: &[Process],
    ask: impl Fn(&Process) -> Result<T, AskError> + Sync,
) -> (Vec<T>, Vec<Unanswered>) {
    let next = Mutex::new(processes.iter());
    let take = || next.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || std::iter::from_fn(take).map(|process| (process, ask(process))).collect::<Vec<_>>();
    let mut answers: Vec<(&Process, Result<T, AskError>)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..processes.len().min(ASKED_MAX)).map(|_| scope.spawn(work)).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).flatten().collect()
    });
    answers.sort_by_key(|(process, _)| process.pid);
    let (mut answered, mut silent) = (Vec::new(), Vec::new());
    for (process, answer) in answers {
        match answer {
            Ok(answer) => answered.push(answer),
            Err(error) => silent.push(Unanswered { pid: process.pid, error: error.to_string() }),
        }
    }
    (answered, silent)
}

fn find(args: &StatusArgs) -> Result<Found, StatusError> {
    if let Some(address) = &args.address {
        let report = Remote::new(address).status(args.last(), args.timeout(), PATIENCE)?;
        return Ok(Found { processes: vec![report], errors: Vec::new() });
    }
    let (processes, errors) =
        ask_all(&asked(args)?, |process| process.status(args.last(), args.timeout(), PATIENCE));
    Ok(Found { processes, errors })
}

fn show(args: &StatusArgs) -> Result<(), StatusError> {
    let answer = find(args)?;
    let silent = answer.processes.is_empty().then_some(answer.errors.len());
    if let Some(endpoint) = &args.otlp {
        let points = endpoint.push(&answer.processes)?;
        say(&format!("{points} values of {} processes are at {endpoint}\n", answer.processes.len()))?;
        return silent.map_or(Ok(()), |count| Err(StatusError::Silent(count)));
    }
    match args.json {
        _ if args.prometheus => say(&prometheus::text(&answer.processes)?)?,
        // Numbers and text only: it has a JSON form.
        true => say(&format!("{}\n", serde_json::to_string_pretty(&answer).unwrap_or_default()))?,
        false => {
            for Unanswered { error, .. } in &answer.errors {
                complain("status", error);
            }
            say(&table::table(&answer.processes))?;
        }
    }
    silent.map_or(Ok(()), |count| Err(StatusError::Silent(count)))
}

fn dump(args: &StatusArgs, folder: &Path) -> Result<(), StatusError> {
    let found = asked(args)?;
    let (records, errors) =
        ask_all(&found, |process| process.flight(PATIENCE).map(|files| (process.pid, files)));
    errors.iter().for_each(|Unanswered { error, .. }| complain("status", error));
    if records.is_empty() {
        return Err(StatusError::Silent(found.len()));
    }
    let made = std::fs::create_dir_all(folder);
    made.map_err(|source| StatusError::File { path: folder.to_owned(), source })?;
    let mut taken = BTreeSet::new();
    for (pid, files) in records {
        for FlightFile { rank, record } in files {
            // Ranks of several jobs may have one number.
            let name = match taken.insert(rank) {
                true => format!("oxccl_flight_rank_{rank}"),
                false => format!("oxccl_flight_pid_{pid}_rank_{rank}"),
            };
            let path = folder.join(name);
            let written = out::replace_private(&path, &record.to_string());
            written.map_err(|source| StatusError::File { path: path.clone(), source })?;
            say(&format!("{}\n", path.display()))?;
        }
    }
    Ok(())
}

//! Layer: perf / spawn.
//! Takes: a number of processes.
//! Gives: this program started that many times; their end, whatever it is, said and turned into an exit status.
//! Never: is a rank itself, so that it can watch all of them.

use crate::complain::complain;
use crate::team::Region;
use oxccl::api::launcher::{LaunchEnv, LaunchError};
use rustix::process::{Pid, Signal};
use rustix::thread::CpuSet;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How a process knows that it is one of several: "parent's pid, its descriptor of the shared memory, number of the
/// process, processes".
const SEAT: &str = "OXCCL_PERF_SEAT";
/// The number of the only engine of this process's run, where the run is for one.
const ONLY: &str = "OXCCL_PERF_ENGINE";
/// Exit status of a complete run with wrong results; that of an incomplete one is 1.
pub const WRONG_RESULTS: u8 = 3;
/// How long the others may take to end by themselves after one has failed.
const GRACE: Duration = Duration::from_secs(10);

/// The position of one process in a run.
pub struct Seat {
    parent: u32,
    fd: i32,
    /// Number of the process.
    pub process: u32,
    /// Processes.
    pub processes: u32,
}

/// This process's seat, if another `oxccl perf` has started it.
pub fn seat() -> Option<Seat> {
    let text = std::env::var(SEAT).ok()?;
    let mut numbers = text.split(',');
    let mut next = || numbers.next()?.parse::<u32>().ok();
    Some(Seat { parent: next()?, fd: next()? as i32, process: next()?, processes: next()? })
}

/// The engine that this process's run is for, if it is for one.
pub fn only_engine() -> Option<usize> {
    std::env::var(ONLY).ok()?.parse().ok()
}

/// Opens the shared memory, and sees to it that this process does not outlive its parent.
pub fn take_seat(seat: &Seat, ranks: u32, bind: bool) -> io::Result<Region> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // The parent may have died before that call.
    if rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get() as u32) != Some(seat.parent) {
        return Err(io::Error::other("the process that started the ranks is gone"));
    }
    if bind {
        rustix::thread::sched_setaffinity(None, &processor_of(seat.process)?)?;
    }
    Region::open(seat.parent, seat.fd, ranks)
}

/// The processor of a process: those that it may use, in turn.
fn processor_of(process: u32) -> io::Result<CpuSet> {
    let allowed = rustix::thread::sched_getaffinity(None)?;
    let all: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|processor| allowed.is_set(*processor)).collect();
    let mut set = CpuSet::new();
    let own = all.get(process as usize % all.len().max(1)).copied();
    set.set(own.ok_or_else(|| io::Error::other("this process may use no processor"))?);
    Ok(set)
}

/// This process's number among those that a launcher started on this machine, and how many those are. None where no launcher's
/// variables are there. A launcher that does not say is taken to use one machine.
pub fn launched() -> Result<Option<(u32, u32)>, LaunchError> {
    // The others hear of what cannot be used.
    let found = LaunchEnv::detect(&|name| std::env::var(name).ok()).inspect_err(LaunchEnv::decline)?;
    Ok(found.map(|env| (env.local_rank.unwrap_or(env.rank), env.local_nranks.unwrap_or(env.nranks))))
}

/// Starts `processes` of this program with the same arguments and waits for them. The exit status of the first that failed.
///
/// Those that have not ended after `limit` are killed. With `only`, the run is for that engine alone. `tool` says how they end.
pub fn supervise(
    tool: &str,
    processes: u32,
    threads: u32,
    limit: Option<Duration>,
    only: Option<usize>,
) -> io::Result<u8> {
    let region = Region::create(processes * threads)
        .map_err(|error| io::Error::new(error.kind(), format!("memory shared by the ranks: {error}")))?;
    let (ended, ends) = mpsc::channel();
    let mut pids = Vec::new();
    for process in 0..processes {
        let started = start(&region, process, processes, only).and_then(|child| {
            pids.push((process, child.id()));
            watch(process, child, ended.clone())
        });
        if let Err(error) = started {
            region.stop();
            kill(&pids);
            return Err(error);
        }
    }
    let begin = Instant::now();
    let mut failed_at: Option<Instant> = None;
    let mut result = 0;
    let mut killed = false;
    while !pids.is_empty() {
        let allowed = limit.map_or(Duration::MAX, |limit| limit.saturating_sub(begin.elapsed()));
        let patience = failed_at.map_or(allowed, |at| GRACE.saturating_sub(at.elapsed()).min(allowed));
        match ends.recv_timeout(if killed { Duration::MAX } else { patience }) {
            Ok((process, status)) => {
                let pid = pids.iter().find(|(p, _)| *p == process).map_or(0, |(_, pid)| *pid);
                pids.retain(|(p, _)| *p != process);
                if !status.as_ref().is_ok_and(ExitStatus::success) {
                    if !killed && !said_so_itself(&status, failed_at.is_some()) {
                        complain(tool, describe(process, threads, pid, &status));
                    }
                    region.stop();
                    if failed_at.is_none() {
                        failed_at = Some(Instant::now());
                        result = status.ok().and_then(|status| status.code()).map_or(1, |code| code as u8);
                    }
                }
            }
            Err(_) => {
                complain(
                    tool,
                    format_args!("{} processes did not end by themselves and are killed", pids.len()),
                );
                kill(&pids);
                killed = true;
                result = if result == 0 { 1 } else { result };
            }
        }
    }
    Ok(result)
}

/// Wrong results stand in the table, and a status of 1 after another failure has that failure as its reason.
fn said_so_itself(status: &io::Result<ExitStatus>, after_another: bool) -> bool {
    let code = status.as_ref().ok().and_then(ExitStatus::code);
    code == Some(i32::from(WRONG_RESULTS)) || (after_another && code == Some(1))
}

fn start(region: &Region, process: u32, processes: u32, only: Option<usize>) -> io::Result<Child> {
    let only = only.map(|engine| (ONLY, engine.to_string()));
    Command::new(std::env::current_exe()?)
        .envs(only)
        .args(std::env::args_os().skip(1))
        .env(SEAT, format!("{},{},{process},{processes}", std::process::id(), region.fd()))
        .spawn()
        .map_err(|error| {
            io::Error::new(error.kind(), format!("process {process} did not start: {error} (see ulimit -u)"))
        })
}

fn watch(
    process: u32,
    mut child: Child,
    ended: mpsc::Sender<(u32, io::Result<ExitStatus>)>,
) -> io::Result<()> {
    let wait = move || {
        let status = child.wait();
        // Nobody listens any more only when the run is over.
        let _ = ended.send((process, status));
    };
    std::thread::Builder::new().name("oxccl-watch".into()).spawn(wait).map(drop).map_err(no_thread)
}

/// The operating system started no thread, in words.
pub fn no_thread(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("no thread could be started: {error} (see ulimit -u and ulimit -v)"))
}

fn kill(pids: &[(u32, u32)]) {
    for pid in pids.iter().filter_map(|(_, pid)| Pid::from_raw(*pid as i32)) {
        // One that has just ended by itself is no error.
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
}

fn describe(process: u32, threads: u32, pid: u32, status: &io::Result<ExitStatus>) -> String {
    let first = process * threads;
    let who = match threads {
        1 => format!("rank {first} (process {pid})"),
        _ => format!("ranks {first} to {} (process {pid})", first + threads - 1),
    };
    match status {
        Err(error) => format!("{who} cannot be waited for: {error}"),
        Ok(status) => match (status.signal(), status.code()) {
            (Some(signal), _) => format!("{who} was killed by signal {signal}"),
            (None, Some(code)) => format!("{who} ended with status {code}"),
            (None, None) => format!("{who} ended with {status}"),
        },
    }
}

//! The communicators of this process, and the thread that answers for them: it is there while one of them is.

use super::server::Server;
use super::settings::Settings;
use super::signal;
use super::{Subject, flight};
use rustix::event::{EventfdFlags, eventfd};
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Where they are written for a signal if nobody said.
const FLIGHT_FILE: &str = "/tmp/oxccl_flight_rank_";
/// How long the last communicator waits for the end of the thread, and one that has failed for its file.
const END_WAITS: Duration = Duration::from_millis(500);
const FILE_WAITS: Duration = Duration::from_secs(2);
/// A child forked while another thread held the lock never gets it.
const LOCK_WAITS: Duration = Duration::from_secs(1);

struct Registry {
    /// The process that this is about: in a forked child there is no thread, and what is listed is its parent's.
    process: u32,
    subjects: Vec<(u64, Arc<dyn Subject>)>,
    next_id: u64,
    settings: Settings,
    running: Option<Running>,
    /// Threads that have ended, to be joined.
    ended: Vec<JoinHandle<()>>,
    /// Those whose failure has not been written yet.
    due: BTreeSet<u64>,
}

struct Running {
    wake: Arc<OwnedFd>,
    thread: JoinHandle<()>,
}

static REGISTRY: Mutex<Registry> = Mutex::new(Registry::empty());
static CHANGED: Condvar = Condvar::new();

/// A communicator that is listed, until this is dropped.
#[derive(Debug)]
pub struct Ticket {
    id: u64,
    process: u32,
}

/// By which a communicator's failure is told.
#[derive(Clone, Copy, Debug)]
pub struct Teller {
    id: u64,
    process: u32,
}

impl Ticket {
    /// By which its failure is told.
    pub fn teller(&self) -> Teller {
        Teller { id: self.id, process: self.process }
    }
}

/// What the thread has to do.
pub(super) struct Work {
    pub subjects: Vec<Arc<dyn Subject>>,
    pub settings: Settings,
    /// Failures to be written.
    pub due: BTreeSet<u64>,
}

impl Registry {
    const fn empty() -> Registry {
        Registry {
            process: 0,
            subjects: Vec::new(),
            next_id: 0,
            settings: Settings::NOTHING,
            running: None,
            ended: Vec::new(),
            due: BTreeSet::new(),
        }
    }

    /// Starts the thread, unless there is one.
    fn start(&mut self) -> std::io::Result<()> {
        if self.running.is_some() {
            return Ok(());
        }
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let its = wake.clone();
        let thread = std::thread::Builder::new().name("oxccl-status".to_owned()).spawn(move || run(its))?;
        self.running = Some(Running { wake, thread });
        Ok(())
    }

    fn wake(&self) {
        if let Some(running) = &self.running {
            wake(&running.wake);
        }
    }
}

fn wake(fd: &OwnedFd) {
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}

/// The registry, as this process's own.
fn lock() -> Option<MutexGuard<'static, Registry>> {
    let start = Instant::now();
    let mut registry = loop {
        match REGISTRY.try_lock() {
            Ok(registry) => break registry,
            Err(TryLockError::Poisoned(poisoned)) => break poisoned.into_inner(),
            Err(TryLockError::WouldBlock) if start.elapsed() > LOCK_WAITS => return None,
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
        }
    };
    let process = std::process::id();
    if registry.process != process {
        // The parent's threads are not here.
        std::mem::forget(std::mem::replace(&mut *registry, Registry::empty()));
        registry.process = process;
    }
    Some(registry)
}

/// How long a program's `exit` waits for files that are due.
const EXIT_WAITS: Duration = Duration::from_millis(200);

/// A program that ends at its first error would end before the file is there. The thread still runs when this is called.
extern "C" fn at_exit() {
    let start = Instant::now();
    let left = || EXIT_WAITS.saturating_sub(start.elapsed());
    while !left().is_zero() {
        // The thread that ends the process may be the one that has the lock.
        let Ok(registry) = REGISTRY.try_lock() else {
            std::thread::yield_now();
            continue;
        };
        // In a forked child nobody writes.
        if registry.process != std::process::id() {
            return;
        }
        let is_due = |registry: &mut Registry| registry.running.is_some() && !registry.due.is_empty();
        drop(CHANGED.wait_timeout_while(registry, left(), is_due));
        return;
    }
}

/// Has `exit` wait for files, once per process.
fn wait_at_exit() {
    static ASKED: Once = Once::new();
    ASKED.call_once(|| {
        // Without it files may be late.
        // SAFETY: a function of this library, which the system calls at the library's end if that comes first.
        let _ = unsafe { libc::atexit(at_exit) };
    });
}

/// Lists a communicator, and starts the thread if there is none. `None`: nothing is wanted, or it cannot be had, which is logged.
pub fn register(subject: Arc<dyn Subject>, settings: &Settings) -> Option<Ticket> {
    if !settings.wants_anything() {
        return None;
    }
    let mut registry = lock()?;
    if let Err(error) = registry.start() {
        tracing::info!(%error, "no thread answers oxccl status");
        return None;
    }
    let id = registry.next_id;
    registry.next_id += 1;
    registry.subjects.push((id, subject));
    registry.settings.join(settings);
    if settings.flight_file.is_some() {
        wait_at_exit();
    }
    let wake = registry.running.as_ref().map(|running| running.wake.clone());
    drop(registry);
    if settings.on_signal
        && let Some(wake) = wake
    {
        signal::install();
        self::wake(&wake);
    }
    wake_thread();
    Some(Ticket { id, process: std::process::id() })
}

fn wake_thread() {
    if let Some(registry) = lock() {
        registry.wake();
    }
}

/// A communicator has failed: its flight record is written, if it is to be. May be called with locks held that its
/// [`Subject`] takes.
pub fn told(teller: Teller) {
    if teller.process != std::process::id() {
        return;
    }
    let Some(mut registry) = lock() else { return };
    if registry.settings.flight_file.is_some() && registry.subjects.iter().any(|(id, _)| *id == teller.id) {
        registry.due.insert(teller.id);
        registry.wake();
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // A forked child has neither the thread nor the communicator.
        if self.process != std::process::id() {
            return;
        }
        let Some(registry) = lock() else { return };
        let wait = |registry, time, is_pending: &dyn Fn(&mut Registry) -> bool| {
            let waited = CHANGED.wait_timeout_while(registry, time, |registry| is_pending(registry));
            waited.unwrap_or_else(PoisonError::into_inner).0
        };
        let mut registry = wait(registry, FILE_WAITS, &|registry| {
            registry.running.is_some() && registry.due.contains(&self.id)
        });
        registry.subjects.retain(|(id, _)| *id != self.id);
        if registry.subjects.is_empty() {
            registry.wake();
            registry = wait(registry, END_WAITS, &|registry| {
                registry.running.is_some() && registry.subjects.is_empty()
            });
        }
        let ended = std::mem::take(&mut registry.ended);
        drop(registry);
        // They have nothing left to do.
        ended.into_iter().for_each(|thread| drop(thread.join()));
    }
}

/// The thread.
fn run(wake: Arc<OwnedFd>) {
    let mut server = Server::new(wake);
    let mut done = BTreeSet::new();
    loop {
        let Some(work) = next_work(&mut server, &done) else { return };
        done = work.due;
        let is_asked = signal::take();
        if is_asked || !done.is_empty() {
            let prefix = work.settings.flight_file.as_deref().unwrap_or(FLIGHT_FILE);
            flight::write_files(&work.subjects, prefix);
            // Who waits for its file goes on.
            continue;
        }
        server.serve(&work.subjects, &work.settings);
    }
}

/// What to do next, when this is done. `None`: no communicator is left, and the thread is to end.
fn next_work(server: &mut Server, done: &BTreeSet<u64>) -> Option<Work> {
    let mut registry = lock()?;
    registry.due.retain(|id| !done.contains(id));
    if !done.is_empty() {
        CHANGED.notify_all();
    }
    if registry.subjects.is_empty() {
        // Within the lock: the next thread may want the same addresses.
        server.close();
        registry.settings = Settings::NOTHING;
        let thread = registry.running.take().map(|running| running.thread);
        registry.ended.extend(thread);
        CHANGED.notify_all();
        return None;
    }
    let subjects = registry.subjects.iter().map(|(_, subject)| subject.clone()).collect();
    Some(Work { subjects, settings: registry.settings.clone(), due: registry.due.clone() })
}

#[cfg(test)]
mod tests {
    use super::super::flight::flight_files;
    use super::super::{CommunicatorReport, Records};
    use super::*;
    use crate::launch::Recorder;
    use crate::plan::{Call, CallRecord};
    use crate::status::ask::processes;
    use oxccl_shared::abi::{DataType, Func, Rank, RedOp};

    /// Rank `rank` of two, of a communicator of this number.
    struct Fake {
        id: &'static str,
        rank: u32,
        recorder: Recorder,
    }

    fn fake(id: &'static str, rank: u32) -> Arc<dyn Subject> {
        let recorder = Recorder::new(2);
        for (seq, func) in [(0, Func::AllReduce), (1, Func::ReduceScatter), (2, Func::Send)] {
            let call = Call { func, dtype: DataType::BF16, op: RedOp::Sum, root: Rank(1), count: 12 };
            let index = recorder.begin(&CallRecord { seq, call });
            if seq < 2 {
                recorder.end(index);
            }
        }
        Arc::new(Fake { id, rank, recorder })
    }

    impl Subject for Fake {
        fn report(&self, _: usize, _: bool) -> CommunicatorReport {
            let mut report = CommunicatorReport::new(self.rank, 2);
            self.id.clone_into(&mut report.id);
            report
        }
        fn records(&self) -> Records {
            Records { list: self.recorder.latest(usize::MAX), done: 2, is_stream: false }
        }
        fn timeout(&self) -> Duration {
            Duration::from_secs(600)
        }
        fn world_rank(&self) -> u32 {
            self.rank
        }
        fn inquire(&self, _: u64) {}
        fn has_heard(&self, _: u64) -> bool {
            true
        }
    }

    #[test]
    fn whoever_is_listed_is_found_and_answers() {
        let settings = Settings { enabled: true, ..Settings::NOTHING };
        let ticket = register(fake("found", 1), &settings).unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        let patience = Duration::from_secs(10);
        let me = loop {
            let found = processes().unwrap().into_iter().find(|process| process.pid == std::process::id());
            match found {
                Some(me) => break me,
                None => assert!(Instant::now() < deadline, "it does not listen"),
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let report = me.status(4, Duration::from_millis(1), patience).unwrap();
        assert!(report.communicators.iter().any(|comm| comm.id == "found" && comm.rank == 1), "{report:?}");
        assert!(!me.flight(patience).unwrap().is_empty());
        drop(ticket);
        assert!(register(fake("never", 0), &Settings::NOTHING).is_none());
    }

    #[test]
    fn the_fields_of_a_flight_record_are_those_that_pytorch_reads() {
        let files = flight_files(&[fake("a", 1)]);
        let [file] = &files[..] else { panic!("{files:?}") };
        let record = &file.record;
        assert_eq!((file.rank, record["version"].as_str()), (1, Some("2.5")));
        assert_eq!(record["pg_config"]["a"]["ranks"], "[0, 1]");
        let entries = record["entries"].as_array().unwrap();
        assert_eq!(entries.len(), 3);
        let names: Vec<_> = entries.iter().map(|entry| entry["profiling_name"].as_str().unwrap()).collect();
        assert_eq!(names, ["nccl:all_reduce", "nccl:_reduce_scatter_base", "nccl:send 0->0"]);
        let groups: Vec<_> =
            entries.iter().map(|entry| entry["process_group"][0].as_str().unwrap()).collect();
        assert_eq!(groups, ["a", "a", "a:1->1"]);
        assert_eq!(record["pg_config"]["a:1->1"]["ranks"], "[1]");
        assert_eq!(entries[1]["input_sizes"][0][0].as_u64(), Some(24));
        assert_eq!(
            (&entries[1]["output_sizes"][0][0], &entries[1]["input_dtypes"][0]),
            (&12.into(), &"BFloat16".into())
        );
        assert_eq!((&entries[0]["state"], &entries[2]["state"]), (&"completed".into(), &"started".into()));
        assert_eq!((&entries[0]["collective_seq_id"], &entries[2]["is_p2p"]), (&1.into(), &true.into()));
        assert!(
            entries[0]["time_created_ns"].as_u64() <= entries[0]["time_discovered_completed_ns"].as_u64()
        );
        assert!(entries[2]["time_discovered_completed_ns"].is_null());
    }

    #[test]
    fn ranks_that_share_a_process_have_a_file_each() {
        let both = [fake("a", 0), fake("a", 1)];
        let files = flight_files(&both);
        assert_eq!(files.iter().map(|file| file.rank).collect::<Vec<_>>(), [0, 1]);
        assert!(
            files.iter().all(|file| file.record["entries"].as_array().is_some_and(|list| list.len() == 3))
        );
    }
}

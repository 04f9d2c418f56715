//! The sockets of the thread that answers, and who is connected.

use super::name::{listen, may_ask, peer};
use super::question::Question;
use super::registry::Settings;
use super::report::{ProcessReport, REPORT_FORMAT};
use super::session::{Session, Stage, Step};
use super::{Subject, flight, signal};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The most connections at a time; further ones wait.
const SESSIONS_MAX: usize = 16;
/// The most connections accepted at once.
const ACCEPTED_MAX: usize = 64;
/// How often the answers of other ranks are counted while somebody waits for them.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Questions within this time are one to the other ranks.
const SHARED_FOR: Duration = Duration::from_millis(100);
/// A socket that cannot be had is tried again after so long.
const RETRY: Duration = Duration::from_secs(5);

/// All of it.
pub(super) struct Server {
    wake: Arc<OwnedFd>,
    listener: Option<UnixListener>,
    retry_at: Option<Instant>,
    sessions: Vec<Session<UnixStream>>,
    /// The latest inquiry of other ranks, and when it began.
    inquiry: (u64, Option<Instant>),
}

impl Server {
    pub fn new(wake: Arc<OwnedFd>) -> Server {
        // So that inquiries of two processes seldom have one number.
        let inquiry = (u64::from(std::process::id()) << 32, None);
        Server { wake, listener: None, retry_at: None, sessions: Vec::new(), inquiry }
    }

    /// Closes all sockets.
    pub fn close(&mut self) {
        self.sessions.clear();
        self.listener = None;
    }

    /// Waits until something happens, and does what it asks for.
    pub fn serve(&mut self, subjects: &[Arc<dyn Subject>], settings: &Settings) {
        self.open(settings);
        self.wait();
        let now = Instant::now();
        self.accept(now);
        for at in 0..self.sessions.len() {
            if let Step::Answer(question) = self.sessions[at].advance(now) {
                self.take(at, question, subjects, now);
            }
            self.gather(at, subjects, now);
        }
        self.sessions.retain(|session| !matches!(session.stage, Stage::Over));
    }

    fn open(&mut self, settings: &Settings) {
        let now = Instant::now();
        if !settings.enabled || self.listener.is_some() || self.retry_at.is_some_and(|at| now < at) {
            return;
        }
        match listen() {
            Ok(listener) => (self.listener, self.retry_at) = (Some(listener), None),
            Err(error) => {
                tracing::info!(%error, "oxccl status cannot ask this process");
                self.retry_at = Some(now + RETRY);
            }
        }
    }

    fn wait(&self) {
        let mut fds = vec![PollFd::from_borrowed_fd(std::os::fd::AsFd::as_fd(&*self.wake), PollFlags::IN)];
        if let Some(bell) = signal::fd() {
            fds.push(PollFd::from_borrowed_fd(bell, PollFlags::IN));
        }
        if let Some(listener) = self.listener.as_ref().filter(|_| self.sessions.len() < SESSIONS_MAX) {
            fds.push(PollFd::new(listener, PollFlags::IN));
        }
        for session in &self.sessions {
            let (reads, writes) = session.wants();
            let read = if reads { PollFlags::IN } else { PollFlags::empty() };
            let write = if writes { PollFlags::OUT } else { PollFlags::empty() };
            fds.push(PollFd::new(&session.stream, read | write));
        }
        let is_gathering =
            self.sessions.iter().any(|session| matches!(session.stage, Stage::Gathering { .. }));
        let now = Instant::now();
        let times = self.sessions.iter().map(|session| session.until).chain(self.retry_at);
        let left = times.min().map(|at| at.saturating_duration_since(now));
        let left =
            if is_gathering { Some(left.map_or(LOOK_EVERY, |left| left.min(LOOK_EVERY))) } else { left };
        let left = left.and_then(|left| Timespec::try_from(left + Duration::from_millis(1)).ok());
        // A signal ends the wait early; whoever called looks again.
        let _ = rustix::event::poll(&mut fds, left.as_ref());
        let _ = rustix::io::read(&*self.wake, &mut [0u8; 8]);
    }

    fn accept(&mut self, now: Instant) {
        for _ in 0..ACCEPTED_MAX {
            let Some(listener) = self.listener.as_ref().filter(|_| self.sessions.len() < SESSIONS_MAX) else {
                return;
            };
            let Ok((stream, _)) = listener.accept() else { return };
            match peer(&stream) {
                Ok(peer) if may_ask(peer.uid) => {
                    if stream.set_nonblocking(true).is_ok() {
                        self.sessions.push(Session::new(stream, now));
                    }
                }
                Ok(peer) => tracing::info!(uid = peer.uid, pid = peer.pid, "refused to answer another user"),
                Err(_) => {}
            }
        }
    }

    /// Answers, or asks the other ranks first.
    fn take(&mut self, at: usize, question: Question, subjects: &[Arc<dyn Subject>], now: Instant) {
        match question {
            Question::Status { timeout, .. } if !timeout.is_zero() => {
                let number = self.inquire(subjects, now);
                self.sessions[at].gather(question, number, timeout, now);
            }
            Question::Status { recent_max, .. } => {
                let report = process_report(subjects, recent_max, None);
                self.sessions[at].answer(json(&report), now);
            }
            Question::Flight => self.sessions[at].answer(json(&flight::flight_files(subjects)), now),
        }
    }

    /// Asks the other ranks; who asks again soon has the same answers.
    fn inquire(&mut self, subjects: &[Arc<dyn Subject>], now: Instant) -> u64 {
        let (number, since) = self.inquiry;
        if since.is_some_and(|since| now < since + SHARED_FOR) {
            return number;
        }
        self.inquiry = (number + 1, Some(now));
        subjects.iter().for_each(|subject| subject.inquire(number + 1));
        number + 1
    }

    /// Answers once the other ranks have, or the time is over.
    fn gather(&mut self, at: usize, subjects: &[Arc<dyn Subject>], now: Instant) {
        let Stage::Gathering { question, number, since, until } = &self.sessions[at].stage else { return };
        if now < *until && !subjects.iter().all(|subject| subject.has_heard(*number)) {
            return;
        }
        let Question::Status { recent_max, .. } = *question else { return };
        let report = process_report(subjects, recent_max, Some(now.saturating_duration_since(*since)));
        self.sessions[at].answer(json(&report), now);
    }
}

fn json<T: serde::Serialize>(what: &T) -> Vec<u8> {
    // Maps have text for keys, and no number is infinite.
    serde_json::to_vec(what).unwrap_or_default()
}

/// What this process answers.
pub(super) fn process_report(
    subjects: &[Arc<dyn Subject>],
    recent_max: usize,
    asked: Option<Duration>,
) -> ProcessReport {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    ProcessReport {
        format: REPORT_FORMAT,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        host: host_name(),
        pid: std::process::id(),
        program: program(),
        time_ns: time.as_nanos() as u64,
        asked_ms: asked.map(|asked| asked.as_millis() as u64),
        communicators: subjects.iter().map(|subject| subject.report(recent_max, asked.is_some())).collect(),
    }
}

pub(super) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

fn program() -> String {
    let path = std::fs::read_link("/proc/self/exe").unwrap_or_default();
    path.file_name().map(Path::new).map(|name| name.display().to_string()).unwrap_or_default()
}

/// The error of who cannot be asked.
pub(super) fn would_block(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

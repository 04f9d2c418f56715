//! The sockets of the thread that answers, and who is connected.

use super::name::{listen, may_ask, peer};
use super::question::{LINE_BYTES_MAX, Question};
use super::ras::{RAS_LINE_BYTES_MAX, RasClient, RasReply};
use super::report::{ProcessReport, REPORT_FORMAT};
use super::session::{Dialect, Said, Session, Stage};
use super::settings::{RAS_ADDRESS, Settings};
use super::{Subject, flight, ras_port, signal};
use crate::log;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The most connections of one socket at a time; further ones wait.
const SESSIONS_MAX: usize = 16;
/// The most connections accepted at once.
const ACCEPTED_MAX: usize = 64;
/// How often the answers of other ranks are counted while somebody waits for them.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Questions within this time are one to the other ranks.
const SHARED_FOR: Duration = Duration::from_millis(100);
/// After somebody could not be accepted, nobody is for so long.
const REST: Duration = Duration::from_millis(100);
/// A socket that cannot be had is tried again after so long.
const RETRY: Duration = Duration::from_secs(5);

/// All of it.
pub(super) struct Server {
    wake: Arc<OwnedFd>,
    retry_at: Option<Instant>,
    /// The address of the RAS port that was refused, and said to be.
    refused: Option<String>,
    plain: Service<UnixListener, Plain>,
    ras: Service<TcpListener, RasClient>,
    /// The latest inquiry of other ranks, and when it began.
    inquiry: (u64, Option<Instant>),
}

/// A socket, and who is connected to it.
struct Service<L: Listen, D: Answers> {
    listener: Option<L>,
    /// Until when nobody is accepted: the latest one could not be.
    rests_until: Option<Instant>,
    sessions: Vec<Session<L::Stream, D>>,
}

/// What can be listened at.
trait Listen: AsFd {
    type Stream: Read + Write + AsFd;

    /// A connection, or none: who came may not ask.
    fn take(&self) -> io::Result<Option<Self::Stream>>;
}

/// What can be answered.
trait Answers: Dialect + Default {
    /// How long other ranks have to answer; they are not asked if it is zero.
    fn timeout(&self, ask: &Self::Ask) -> Duration;

    /// The answer. The other ranks were asked for so long.
    fn answer(&self, ask: &Self::Ask, subjects: &[Arc<dyn Subject>], asked: Option<Duration>) -> Vec<u8>;
}

/// The questions of `oxccl status`.
#[derive(Default)]
pub(super) struct Plain;

/// The communicators, and the latest inquiry.
struct Desk<'a> {
    subjects: &'a [Arc<dyn Subject>],
    inquiry: &'a mut (u64, Option<Instant>),
    now: Instant,
}

impl Listen for UnixListener {
    type Stream = UnixStream;

    fn take(&self) -> io::Result<Option<UnixStream>> {
        let (stream, _) = self.accept()?;
        let peer = peer(&stream)?;
        if !may_ask(peer.uid) {
            tracing::info!(uid = peer.uid, pid = peer.pid, "refused to answer another user");
            return Ok(None);
        }
        stream.set_nonblocking(true)?;
        Ok(Some(stream))
    }
}

impl Listen for TcpListener {
    type Stream = TcpStream;

    fn take(&self) -> io::Result<Option<TcpStream>> {
        let (stream, _) = self.accept()?;
        stream.set_nonblocking(true)?;
        Ok(Some(stream))
    }
}

impl Dialect for Plain {
    type Ask = Question;
    const LINE_BYTES_MAX: usize = LINE_BYTES_MAX;

    /// Neither a question nor the beginning of one: not a word.
    fn line(&mut self, line: &[u8]) -> Said<Question> {
        Question::parse(line).map_or(Said::End, Said::Ask)
    }
}

impl Answers for Plain {
    fn timeout(&self, ask: &Question) -> Duration {
        match ask {
            Question::Status { timeout, .. } => *timeout,
            Question::Flight => Duration::ZERO,
        }
    }

    fn answer(&self, ask: &Question, subjects: &[Arc<dyn Subject>], asked: Option<Duration>) -> Vec<u8> {
        match ask {
            Question::Status { recent_max, .. } => json(&process_report(subjects, *recent_max, asked)),
            Question::Flight => json(&flight::flight_files(subjects)),
        }
    }
}

impl Dialect for RasClient {
    type Ask = ();
    const LINE_BYTES_MAX: usize = RAS_LINE_BYTES_MAX;

    fn line(&mut self, line: &[u8]) -> Said<()> {
        match self.command(line) {
            RasReply::Line(words) => Said::Say(words),
            RasReply::Status => Said::Ask(()),
        }
    }
}

impl Answers for RasClient {
    fn timeout(&self, (): &()) -> Duration {
        self.timeout
    }

    fn answer(&self, (): &(), subjects: &[Arc<dyn Subject>], asked: Option<Duration>) -> Vec<u8> {
        self.report(&process_report(subjects, self.recent_max.unwrap_or(0), asked)).into_bytes()
    }
}

impl Desk<'_> {
    /// Asks the other ranks; who asks again soon has the same answers.
    fn inquire(&mut self) -> u64 {
        let (number, since) = *self.inquiry;
        if since.is_some_and(|since| self.now < since + SHARED_FOR) {
            return number;
        }
        *self.inquiry = (number + 1, Some(self.now));
        self.subjects.iter().for_each(|subject| subject.inquire(number + 1));
        number + 1
    }
}

impl<L: Listen, D: Answers> Service<L, D> {
    const NONE: Service<L, D> = Service { listener: None, rests_until: None, sessions: Vec::new() };

    /// The socket, if somebody may come.
    fn open_to(&self) -> Option<&L> {
        self.listener.as_ref().filter(|_| self.rests_until.is_none() && self.sessions.len() < SESSIONS_MAX)
    }

    fn poll_fds<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        if let Some(listener) = self.open_to() {
            fds.push(PollFd::new(listener, PollFlags::IN));
        }
        for session in &self.sessions {
            let (reads, writes) = session.wants();
            let read = if reads { PollFlags::IN } else { PollFlags::empty() };
            let write = if writes { PollFlags::OUT } else { PollFlags::empty() };
            fds.push(PollFd::new(&session.stream, read | write));
        }
    }

    /// When to look again, if nothing happens.
    fn deadline(&self, now: Instant) -> Option<Instant> {
        let is_gathering = |session: &Session<_, D>| matches!(session.stage, Stage::Gathering { .. });
        let soon = self.sessions.iter().any(is_gathering).then(|| now + LOOK_EVERY);
        self.sessions.iter().map(|session| session.until).chain(soon).chain(self.rests_until).min()
    }

    fn serve(&mut self, desk: &mut Desk<'_>) {
        self.rests_until = self.rests_until.filter(|until| desk.now < *until);
        for _ in 0..ACCEPTED_MAX {
            let Some(listener) = self.open_to() else { break };
            match listener.take() {
                Ok(Some(stream)) => self.sessions.push(Session::new(stream, D::default(), desk.now)),
                Ok(None) => {}
                Err(error) => {
                    // No descriptor is left, say: who waits would wake this thread again at once.
                    self.rests_until = (!would_block(&error)).then(|| desk.now + REST);
                    break;
                }
            }
        }
        for session in &mut self.sessions {
            if let Some(ask) = session.advance(desk.now) {
                let timeout = session.dialect.timeout(&ask);
                if timeout.is_zero() {
                    let answer = session.dialect.answer(&ask, desk.subjects, None);
                    session.answer(answer, desk.now);
                } else {
                    let number = desk.inquire();
                    session.gather(ask, number, timeout, desk.now);
                }
            }
            let Stage::Gathering { ask, number, since, until } = &session.stage else { continue };
            if desk.now >= *until || desk.subjects.iter().all(|subject| subject.has_heard(*number)) {
                let took = desk.now.saturating_duration_since(*since);
                let answer = session.dialect.answer(ask, desk.subjects, Some(took));
                session.answer(answer, desk.now);
            }
        }
        self.sessions.retain(|session| !matches!(session.stage, Stage::Over));
    }
}

impl Server {
    pub fn new(wake: Arc<OwnedFd>) -> Server {
        // So that inquiries of two processes seldom have one number.
        let inquiry = (u64::from(std::process::id()) << 32, None);
        Server { wake, retry_at: None, refused: None, plain: Service::NONE, ras: Service::NONE, inquiry }
    }

    /// Closes all sockets.
    pub fn close(&mut self) {
        (self.plain, self.ras) = (Service::NONE, Service::NONE);
    }

    /// Waits until something happens, and does what it asks for.
    pub fn serve(&mut self, subjects: &[Arc<dyn Subject>], settings: &Settings) {
        self.open(settings);
        self.wait();
        let mut desk = Desk { subjects, inquiry: &mut self.inquiry, now: Instant::now() };
        self.plain.serve(&mut desk);
        self.ras.serve(&mut desk);
    }

    /// Opens what is wanted and not open.
    fn open(&mut self, settings: &Settings) {
        let now = Instant::now();
        if self.retry_at.is_some_and(|at| now < at) {
            return;
        }
        self.retry_at = None;
        if settings.enabled && self.plain.listener.is_none() {
            match listen() {
                Ok(listener) => self.plain.listener = Some(listener),
                Err(error) => {
                    tracing::info!(%error, "oxccl status cannot ask this process");
                    self.retry_at = Some(now + RETRY);
                }
            }
        }
        let Some(address) = settings.ras.as_ref().filter(|_| self.ras.listener.is_none()) else { return };
        match ras_port::listen(address) {
            Ok(listener) => self.ras.listener = Some(listener),
            Err(error) => {
                // Another user may have the default port; an address that somebody chose is wrong.
                match address == RAS_ADDRESS || self.refused.as_ref() == Some(address) {
                    true => tracing::debug!(%error, "RAS cannot be asked at {address} of this process"),
                    false => tracing::warn!(
                        "NCCL_RAS_ADDR={address}: {error}; this process cannot be asked there: an address of this host and a free port were expected"
                    ),
                }
                self.refused = Some(address.clone());
                self.retry_at = Some(now + RETRY);
            }
        }
    }

    fn wait(&self) {
        let mut fds = vec![PollFd::from_borrowed_fd((*self.wake).as_fd(), PollFlags::IN)];
        if let Some(bell) = signal::fd() {
            fds.push(PollFd::from_borrowed_fd(bell, PollFlags::IN));
        }
        self.plain.poll_fds(&mut fds);
        self.ras.poll_fds(&mut fds);
        let now = Instant::now();
        let times = [self.plain.deadline(now), self.ras.deadline(now), self.retry_at];
        let left = times.into_iter().flatten().min().map(|at| at.saturating_duration_since(now));
        let left = left.and_then(|left| Timespec::try_from(left + Duration::from_millis(1)).ok());
        // A signal ends the wait early; whoever called looks again.
        let _ = rustix::event::poll(&mut fds, left.as_ref());
        let _ = rustix::io::read(&*self.wake, &mut [0u8; 8]);
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
        host: log::host_name(),
        pid: std::process::id(),
        program: program(),
        time_ns: time.as_nanos() as u64,
        asked_ms: asked.map(|asked| asked.as_millis() as u64),
        communicators: subjects.iter().map(|subject| subject.report(recent_max, asked.is_some())).collect(),
    }
}

fn program() -> String {
    let path = std::fs::read_link("/proc/self/exe").unwrap_or_default();
    path.file_name().map(Path::new).map(|name| name.display().to_string()).unwrap_or_default()
}

/// The error of who cannot be asked.
pub(super) fn would_block(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

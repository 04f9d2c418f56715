//! Layer: host / bootstrap.
//! Takes: addresses, streams, deadlines.
//! Gives: listening, connecting, reading and writing with a deadline; the handshake driven over a socket.
//! Never: blocks without a deadline, or interprets the bytes.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::cancel::Cancel;
use super::handshake::{Handshake, HandshakeError, Hello};
use crate::os::with_room;

/// Backlog of listeners: a whole large job may connect at once. The kernel lowers it to `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// The kernel counts keep-alive in seconds, and one probe may be lost.
const DEAD_AFTER_MIN: Duration = Duration::from_secs(2);
/// Half of it is the longest idle time before the first probe, 32,767 s (MAX_TCP_KEEPIDLE of Linux's tcp.h).
const DEAD_AFTER_MAX: Duration = Duration::from_secs(2 * 32_767);
/// When a connection on which nothing arrives is probed, and then again: so that silence counts from when it began.
const PROBED_AFTER: Duration = Duration::from_secs(1);
/// The kernel's most is 127.
const PROBES_MAX: u64 = 100;

/// How long a wait for a socket takes at most to see that it is cancelled.
const CANCEL_SEEN_AFTER: Duration = Duration::from_millis(20);

/// A deadline, its start, and who may end it early.
#[derive(Clone)]
pub(crate) struct Deadline {
    since: Instant,
    /// The longest wait, as it was set.
    limit: Duration,
    at: Instant,
    cancel: Option<Cancel>,
    outlasts_abort: bool,
}

impl Deadline {
    pub fn after(duration: Duration) -> Deadline {
        let since = Instant::now();
        // A duration beyond the clock's range means "very long": use a year.
        let at = since.checked_add(duration).unwrap_or(since + Duration::from_secs(365 * 86_400));
        Deadline { since, limit: duration, at, cancel: None, outlasts_abort: false }
    }

    /// The same, over as soon as `cancel` is called.
    pub fn or_cancelled(self, cancel: &Cancel) -> Deadline {
        Deadline { cancel: Some(cancel.clone()), ..self }
    }

    /// The same, for waits that have nothing to do with why this rank has aborted.
    pub fn outlasting_abort(self) -> Deadline {
        Deadline { outlasts_abort: true, ..self }
    }

    /// Whether this rank's own abort does not end it.
    pub fn outlasts_abort(&self) -> bool {
        self.outlasts_abort
    }

    /// Until when a socket may be waited for before the deadline is looked at again.
    pub fn next_look(&self) -> Instant {
        match self.cancel {
            Some(_) => self.at.min(Instant::now() + CANCEL_SEEN_AFTER),
            None => self.at,
        }
    }

    pub fn waited(&self) -> Duration {
        self.since.elapsed()
    }

    /// How long it allows: what an error says of it. The time that was measured at its end is longer by whatever else the machine did.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// The time left, or `None` when it is over.
    pub fn left(&self) -> Option<Duration> {
        if self.cancel.as_ref().is_some_and(Cancel::is_called) {
            return None;
        }
        self.at.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
    }

    /// The same start, but an end at `duration` from now if that is earlier.
    pub fn at_most(&self, duration: Duration) -> Deadline {
        let earlier = Deadline::after(duration).at;
        match earlier < self.at {
            true => Deadline { at: earlier, limit: earlier - self.since, ..self.clone() },
            false => self.clone(),
        }
    }
}

/// Waits for events until `until`; signals end the wait early, as a timeout would.
pub(crate) fn poll(fds: &mut [PollFd<'_>], until: Option<Instant>) -> io::Result<usize> {
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    let timeout = left.map(|left| Timespec {
        tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: left.subsec_nanos().into(),
    });
    match rustix::event::poll(fds, timeout.as_ref()) {
        Err(Errno::INTR) => Ok(0),
        other => other.map_err(Into::into),
    }
}

/// Listens at `ip`, without blocking; port 0 is an ephemeral port.
pub(crate) fn listen(ip: IpAddr, port: u16) -> io::Result<TcpListener> {
    let listener = with_room(|| TcpListener::bind((ip, port)))?;
    listener.set_nonblocking(true)?;
    // `std` listens with a backlog of 128, too small for a job that starts at once; listening again only raises it.
    rustix::net::listen(&listener, BACKLOG)?;
    Ok(listener)
}

/// Connects within the deadline. The stream does not block.
pub(crate) fn connect(addr: SocketAddr, deadline: &Deadline) -> io::Result<TcpStream> {
    let stream = with_room(|| start_connecting(addr))?;
    while !is_connected(&stream)? {
        wait(&stream, PollFlags::OUT, deadline)?;
    }
    // Repeated connects to a free port of one's own host can end connected to oneself: no listener is there.
    if stream.local_addr()? == stream.peer_addr()? {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A stream on its way to `addr`. It does not block.
fn start_connecting(addr: SocketAddr) -> io::Result<TcpStream> {
    let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &addr) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(TcpStream::from(socket)),
        Err(error) => Err(error.into()),
    }
}

/// Whether a stream has arrived.
fn is_connected(stream: &TcpStream) -> io::Result<bool> {
    if let Some(error) = stream.take_error()? {
        return Err(error);
    }
    match stream.peer_addr() {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
        Err(error) => Err(error),
    }
}

/// Advances a handshake as far as the socket allows; `None` while it is incomplete.
pub(crate) fn advance(
    mut stream: &TcpStream,
    handshake: &mut Handshake,
) -> io::Result<Option<Result<Hello, HandshakeError>>> {
    let mut buffer = [0; 128];
    loop {
        while !handshake.output().is_empty() {
            match retry_interrupted(|| stream.write(handshake.output())) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => handshake.sent(sent),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        if let Some(outcome) = handshake.outcome() {
            return Ok(Some(outcome));
        }
        let wanted = handshake.wanted_bytes().min(buffer.len());
        match retry_interrupted(|| stream.read(&mut buffer[..wanted])) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(got) => handshake.feed(&buffer[..got]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        };
    }
}

/// Writes everything within the deadline.
pub(crate) fn write_all(mut stream: &TcpStream, mut bytes: &[u8], deadline: &Deadline) -> io::Result<()> {
    while !bytes.is_empty() {
        match retry_interrupted(|| stream.write(bytes)) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(sent) => bytes = &bytes[sent..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                wait(stream, PollFlags::OUT, deadline)?
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads available bytes into `buffer`: `Some(0)` at the end of the stream, `None` if there are none yet.
pub(crate) fn read_some(mut stream: &TcpStream, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    would_block_is_none(retry_interrupted(|| stream.read(buffer)))
}

/// Writes what the socket accepts; `None` if it accepts nothing now.
pub(crate) fn write_some(mut stream: &TcpStream, bytes: &[u8]) -> io::Result<Option<usize>> {
    would_block_is_none(retry_interrupted(|| stream.write(bytes)))
}

/// Makes the kernel detect that the other host has vanished, also when nothing is sent: not before it has been silent for `dead_after`,
/// and at most [`PROBED_AFTER`] and a probe later. The other side must read within that time.
pub(crate) fn watch_for_vanished_host(stream: &TcpStream, dead_after: Duration) -> io::Result<()> {
    keep_alive(stream, dead_after)?;
    // On an idle connection the kernel counts this time from the last segment that arrived, which may be that much older than the silence.
    let at_most = dead_after.clamp(DEAD_AFTER_MIN, DEAD_AFTER_MAX) + PROBED_AFTER;
    sockopt::set_tcp_user_timeout(stream, u32::try_from(at_most.as_millis()).unwrap_or(u32::MAX))?;
    Ok(())
}

/// The same only for idle times: a peer that does not read for long, which would end a connection with a user
/// timeout, is tolerated.
pub(crate) fn keep_alive(stream: &TcpStream, dead_after: Duration) -> io::Result<()> {
    let dead_after_s = dead_after.clamp(DEAD_AFTER_MIN, DEAD_AFTER_MAX).as_secs();
    let interval_s = dead_after_s.div_ceil(PROBES_MAX);
    let probes = u32::try_from(dead_after_s.div_ceil(interval_s)).unwrap_or(u32::MAX);
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, PROBED_AFTER)?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(interval_s))?;
    sockopt::set_tcp_keepcnt(stream, probes)?;
    Ok(())
}

/// Waits for `flags` within the deadline.
pub(crate) fn wait(stream: &TcpStream, flags: PollFlags, deadline: &Deadline) -> io::Result<()> {
    if deadline.left().is_none() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    poll(&mut [PollFd::new(stream, flags)], Some(deadline.next_look())).map(drop)
}

/// Whether the other side ended the connection, in any way.
pub(crate) fn is_end(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), UnexpectedEof | ConnectionReset | BrokenPipe)
}

fn would_block_is_none(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(moved) => Ok(Some(moved)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

fn retry_interrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watched_connection_is_given_up_within_the_bound() {
        let listener = listen(std::net::Ipv4Addr::LOCALHOST.into(), 0).expect("a port");
        let addr = listener.local_addr().expect("an address");
        let stream = connect(addr, &Deadline::after(Duration::from_secs(5))).expect("connected");
        for (dead_after_secs, bound_secs) in [(0, 2), (2, 2), (5, 5), (60, 60), (150, 150), (3000, 3000)] {
            watch_for_vanished_host(&stream, Duration::from_secs(dead_after_secs)).expect("options of TCP");
            let probes = sockopt::tcp_keepcnt(&stream).expect("an option");
            let idle = sockopt::tcp_keepidle(&stream).expect("an option");
            let interval = sockopt::tcp_keepintvl(&stream).expect("an option");
            assert!(sockopt::socket_keepalive(&stream).expect("an option"));
            // From the first probe that is not answered on: an idle connection has answered one a moment before.
            assert_eq!((idle, interval * probes), (PROBED_AFTER, Duration::from_secs(bound_secs)));
            let at_most = Duration::from_secs(bound_secs) + PROBED_AFTER;
            assert_eq!(
                u128::from(sockopt::tcp_user_timeout(&stream).expect("an option")),
                at_most.as_millis()
            );
        }
    }
}

//! The connecting side's socket: a non-blocking connect, then the handshake over the listener's token.

use super::invitation::Invitation;
use crate::bootstrap::attempts::Attempts;
use crate::bootstrap::channel::{Channel, DataStream};
use crate::bootstrap::handshake::{Handshake, Hello};
use crate::bootstrap::secret::Ephemeral;
use crate::bootstrap::sock;
use crate::os::with_room;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

/// A socket during connect and handshake.
pub(super) struct Dial {
    wanted: Wanted,
    attempts: Attempts,
    stage: Stage,
}

enum Stage {
    Trying(Box<Attempt>),
    /// The next attempt begins then.
    Resting(Instant),
}

/// To whom, from which address, as what.
struct Wanted {
    invitation: Invitation,
    source: Option<IpAddr>,
    hello: Hello,
    dead_after: Duration,
}

struct Attempt {
    stream: TcpStream,
    handshake: Handshake,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Connecting,
    Proving,
    Ready,
}

impl Dial {
    /// Starts to connect to the listener of an invitation, with `hello` for the handshake; from this address, if it
    /// is of the peer's family. A network may be silent for less than `dead_after`.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn new(
        invitation: &Invitation,
        source: Option<IpAddr>,
        hello: Hello,
        dead_after: Duration,
    ) -> io::Result<Dial> {
        let wanted = Wanted { invitation: *invitation, source, hello, dead_after };
        let now = Instant::now();
        let attempts = Attempts::begin(invitation.addr, now, dead_after);
        let mut dial = Dial { wanted, attempts, stage: Stage::Resting(now) };
        dial.begin(now)?;
        Ok(dial)
    }

    /// Advances it; returns whether both sides are authenticated. Who waits bounds the time: a listener that lets go again and again is
    /// no error.
    ///
    /// # Errors
    /// No listener answers, or it is not authentic.
    pub(super) fn advance(&mut self) -> io::Result<bool> {
        let now = Instant::now();
        match &mut self.stage {
            Stage::Resting(until) if now < *until => Ok(false),
            Stage::Resting(_) => self.begin(now).map(|()| false),
            Stage::Trying(attempt) => match attempt.advance() {
                Ok(is_ready) => Ok(is_ready),
                Err(error) => self.rest(now, error).map(|()| false),
            },
        }
    }

    fn begin(&mut self, now: Instant) -> io::Result<()> {
        match Attempt::begin(&self.wanted) {
            Ok(attempt) => self.stage = Stage::Trying(Box::new(attempt)),
            Err(error) => self.rest(now, error)?,
        }
        Ok(())
    }

    /// An attempt has ended: another comes, or this is the error.
    fn rest(&mut self, now: Instant, error: io::Error) -> io::Result<()> {
        let pause = self.attempts.again(now, &error).ok_or(error)?;
        self.stage = Stage::Resting(now + pause);
        Ok(())
    }

    /// The connection with its keys, after the handshake.
    pub(super) fn into_channel(self) -> io::Result<Channel> {
        match self.stage {
            Stage::Trying(attempt) => {
                let Attempt { stream, mut handshake, .. } = *attempt;
                Channel::new(stream, &mut handshake)
            }
            Stage::Resting(_) => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// The bare socket, after the handshake, with keys to encrypt by what it carries.
    pub(super) fn into_data_stream(self) -> io::Result<DataStream> {
        self.into_channel().map(Channel::into_stream)
    }
}

impl Attempt {
    fn begin(wanted: &Wanted) -> io::Result<Attempt> {
        let Wanted { invitation, source, hello, dead_after } = wanted;
        let family = if invitation.addr.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = with_room(|| rustix::net::socket_with(family, SocketType::STREAM, flags, None))?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        if let Some(source) = source.filter(|source| source.is_ipv6() == invitation.addr.is_ipv6()) {
            bind(&socket, source)?;
        }
        let ephemeral = Ephemeral::random().map_err(io::Error::other)?;
        let handshake = Handshake::initiator(invitation.token, *hello, ephemeral);
        let state = match rustix::net::connect(&socket, &invitation.addr) {
            Ok(()) => State::Proving,
            Err(Errno::INPROGRESS | Errno::INTR) => State::Connecting,
            Err(errno) => return Err(errno.into()),
        };
        let stream = TcpStream::from(socket);
        sock::keep_alive(&stream, *dead_after)?;
        Ok(Attempt { stream, handshake, state })
    }

    fn advance(&mut self) -> io::Result<bool> {
        if self.state == State::Connecting && self.is_connected()? {
            self.state = State::Proving;
        }
        if self.state == State::Proving {
            match sock::advance(&self.stream, &mut self.handshake)? {
                None => {}
                Some(Ok(_)) => self.state = State::Ready,
                Some(Err(error)) => return Err(io::Error::other(error)),
            }
        }
        Ok(self.state == State::Ready)
    }

    fn is_connected(&self) -> io::Result<bool> {
        let mut fds = [PollFd::new(&self.stream, PollFlags::OUT)];
        if rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))? == 0 {
            return Ok(false);
        }
        sockopt::socket_error(&self.stream)?.map(|()| true).map_err(io::Error::from)
    }
}

/// Binds a socket to an address, but leaves the port to the connect: ports bound here would be unavailable for other
/// peers too.
fn bind(socket: &impl AsFd, source: IpAddr) -> io::Result<()> {
    let (fd, on) = (socket.as_fd().as_raw_fd(), 1i32);
    let len = size_of_val(&on) as libc::socklen_t;
    // SAFETY: the descriptor is open, the option's value is an int that lives through the call. A kernel without the
    // option chooses the port at once, which is as good while there are few.
    unsafe {
        libc::setsockopt(fd, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, (&raw const on).cast(), len)
    };
    Ok(rustix::net::bind(socket, &SocketAddr::new(source, 0))?)
}

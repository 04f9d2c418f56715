//! The connecting side of a connection.

use super::config::{DATA_SOCKETS_MAX, SocketConfig};
use super::devices::Device;
use super::handle::SocketHandle;
use super::purpose::Lane;
use crate::bootstrap::handshake::Handshake;
use crate::bootstrap::secret::Nonce;
use crate::bootstrap::sock;
use crate::net::message::{Ends, Sender};
use crate::net::{Connector, NetError, SendComm};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// A connection whose sockets are being connected and prove that they were told of the listener.
pub(super) struct SocketConnector {
    device: String,
    peer: SocketAddr,
    timeout: Duration,
    deadline: Instant,
    dials: Vec<Dial>,
    failed: Option<NetError>,
}

/// One socket.
struct Dial {
    stream: TcpStream,
    handshake: Handshake,
    state: DialState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum DialState {
    Connecting,
    Proving,
    Ready,
}

impl SocketConnector {
    pub(super) fn new(
        device: &Device,
        handle: &SocketHandle,
        config: &SocketConfig,
    ) -> Result<SocketConnector, NetError> {
        let connection = getrandom::u64()
            .map_err(|error| NetError::of_call(&device.name, "getrandom", error.to_string()))?;
        let total = 1 + config.data_sockets.min(DATA_SOCKETS_MAX);
        let dial = |index| Dial::new(handle, Lane { index, total, connection }, config.peer_dead_after);
        let dials = (0..total).map(dial).collect::<io::Result<Vec<Dial>>>().map_err(|error| {
            NetError::of_io(&device.name, Some(handle.addr.to_string()), "connect", &error)
        })?;
        Ok(SocketConnector {
            device: device.name.clone(),
            peer: handle.addr,
            timeout: config.connect_timeout,
            deadline: Instant::now() + config.connect_timeout,
            dials,
            failed: None,
        })
    }

    fn advance(&mut self) -> Result<bool, NetError> {
        let peer = Some(self.peer.to_string());
        let failed = |reason: String| NetError::Call {
            device: self.device.clone(),
            peer: peer.clone(),
            call: "connect",
            reason,
        };
        for dial in &mut self.dials {
            dial.advance().map_err(failed)?;
        }
        let is_ready = self.dials.iter().all(|dial| dial.state == DialState::Ready);
        if !is_ready && Instant::now() >= self.deadline {
            return Err(failed(format!("no answer within {:?}", self.timeout)));
        }
        Ok(is_ready)
    }
}

impl Connector for SocketConnector {
    fn poll_connect(&mut self) -> Result<Option<Box<dyn SendComm>>, NetError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        match self.advance() {
            Ok(false) => Ok(None),
            Ok(true) => {
                let ends = Ends { device: self.device.clone(), peer: self.peer.to_string() };
                let gone =
                    NetError::of_call(&self.device, "poll_connect", "it has already connected".to_owned());
                self.failed = Some(gone);
                let lanes = self.dials.drain(..).map(|dial| dial.stream).collect();
                Ok(Some(Box::new(Sender::new(ends, lanes))))
            }
            Err(error) => {
                self.dials.clear();
                Err(self.failed.insert(error).clone())
            }
        }
    }
}

impl Dial {
    fn new(handle: &SocketHandle, lane: Lane, dead_after: Duration) -> io::Result<Dial> {
        let family = if handle.addr.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        let nonce = Nonce::random().map_err(io::Error::other)?;
        let handshake = Handshake::initiator(handle.token, lane.hello(), nonce);
        let state = match rustix::net::connect(&socket, &handle.addr) {
            Ok(()) => DialState::Proving,
            Err(Errno::INPROGRESS | Errno::INTR) => DialState::Connecting,
            Err(errno) => return Err(errno.into()),
        };
        let stream = TcpStream::from(socket);
        sock::keep_alive(&stream, dead_after)?;
        Ok(Dial { stream, handshake, state })
    }

    fn advance(&mut self) -> Result<(), String> {
        if self.state == DialState::Connecting && self.is_connected().map_err(|error| error.to_string())? {
            self.state = DialState::Proving;
        }
        if self.state != DialState::Proving {
            return Ok(());
        }
        match sock::advance(&self.stream, &mut self.handshake) {
            Ok(None) => Ok(()),
            Ok(Some(Ok(_))) => {
                self.state = DialState::Ready;
                Ok(())
            }
            Ok(Some(Err(error))) => Err(error.to_string()),
            Err(error) => Err(error.to_string()),
        }
    }

    fn is_connected(&self) -> io::Result<bool> {
        let mut fds = [PollFd::new(&self.stream, PollFlags::OUT)];
        if rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))? == 0 {
            return Ok(false);
        }
        sockopt::socket_error(&self.stream)?.map(|()| true).map_err(io::Error::from)
    }
}

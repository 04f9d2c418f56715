//! The accepting side of a connection.

use super::config::SocketConfig;
use super::devices::Device;
use super::over::receiver;
use super::purpose::{NO_RANK, SocketIndex};
use crate::bootstrap::acceptor::{Accepted, Acceptor};
use crate::bootstrap::channel::DataStream;
use crate::bootstrap::secret::Secret;
use crate::bootstrap::sock;
use crate::net::message::Ends;
use crate::net::{Listener, NetError, RecvComm};
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// A listener for the sockets of one connection.
pub(super) struct SocketListener {
    device: String,
    acceptor: Acceptor,
    peer_dead_after: Duration,
    encrypt: bool,
    /// The connection being accepted, once one has started.
    coming: Option<Coming>,
}

struct Coming {
    connection: u64,
    remote: SocketAddr,
    streams: Vec<Option<DataStream>>,
}

impl SocketListener {
    /// Creates a listener on an ephemeral port, and returns its address.
    pub(super) fn new(
        device: &Device,
        token: Secret,
        config: &SocketConfig,
    ) -> Result<(SocketAddr, SocketListener), NetError> {
        let failed = |error: io::Error| NetError::of_io(&device.interface.name, None, "listen", &error);
        let listener = sock::listen(device.interface.addr, 0).map_err(failed)?;
        let addr = listener.local_addr().map_err(failed)?;
        let acceptor = Acceptor::new(listener, token, NO_RANK, config.handshake_timeout);
        let (device, peer_dead_after) = (device.interface.name.clone(), config.peer_dead_after);
        let encrypt = config.encrypt;
        Ok((addr, SocketListener { device, acceptor, peer_dead_after, encrypt, coming: None }))
    }

    /// Adds an authenticated socket. Its index may still be invalid, if another version sent it.
    fn take(&mut self, accepted: Accepted) {
        let Accepted { channel, remote, hello } = accepted;
        let stream = channel.into_stream();
        let Some(index) = SocketIndex::of(&hello) else {
            return self.acceptor.refuse(remote, &"it says that it is a socket that no connection has");
        };
        let coming = self.coming.get_or_insert_with(|| Coming {
            connection: index.connection,
            remote,
            streams: (0..index.total).map(|_| None).collect(),
        });
        if coming.connection != index.connection || coming.streams.len() != index.total as usize {
            return self.acceptor.refuse(remote, &"another connection came first to this listener");
        }
        if let Err(error) = sock::keep_alive(&stream.socket, self.peer_dead_after) {
            return self.acceptor.refuse(remote, &error);
        }
        match &mut coming.streams[index.index as usize] {
            Some(_) => self.acceptor.refuse(remote, &"it came twice"),
            empty => *empty = Some(stream),
        }
    }
}

impl Listener for SocketListener {
    fn poll_accept(&mut self) -> Result<Option<Box<dyn RecvComm>>, NetError> {
        let now = Instant::now();
        let mut fds = Vec::with_capacity(self.acceptor.poll_len());
        self.acceptor.poll_fds(&mut fds);
        sock::poll(&mut fds, Some(now))
            .map_err(|error| NetError::of_io(&self.device, None, "poll", &error))?;
        let ready: Vec<_> = fds.iter().map(|fd| fd.revents()).collect();
        let mut accepted = Vec::new();
        self.acceptor.drive(now, &ready, &mut accepted);
        accepted.into_iter().for_each(|accepted| self.take(accepted));
        if let Some(none_left) = self.acceptor.starved(now) {
            return Err(NetError::of_call(&self.device, "accept", none_left.to_string()));
        }
        let Some(coming) = self.coming.take_if(|coming| coming.streams.iter().all(Option::is_some)) else {
            return Ok(None);
        };
        let ends = Ends { device: self.device.clone(), peer: coming.remote.to_string() };
        Ok(Some(receiver(ends, coming.streams.into_iter().flatten().collect(), self.encrypt)))
    }
}

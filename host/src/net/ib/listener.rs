//! The listening side of a connection's setup, which becomes the receiver. [`super::connector`] shows the order of
//! messages.

use super::connector::{read_metadata, table};
use super::link::{Link, QueuePairs};
use super::metadata::{METADATA_BYTES, Metadata, READY};
use super::metadata_exchange::MetadataExchange;
use super::port::Port;
use super::recv::{IbReceiver, RemoteTable};
use super::setup::{NO_RANK, Settings};
use crate::bootstrap::acceptor::{Accepted, Acceptor};
use crate::bootstrap::secret::Secret;
use crate::bootstrap::sock;
use crate::net::{Listener, NetError, RecvComm};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

/// A listener for one connection.
pub(super) struct IbListener {
    port: Arc<Port>,
    settings: Settings,
    acceptor: Acceptor,
    setup: Option<Setup>,
}

/// A setup in progress with an authenticated peer.
struct Setup {
    remote: SocketAddr,
    deadline: Instant,
    state: State,
}

enum State {
    /// Awaits the peer's metadata.
    Metadata(MetadataExchange),
    /// Sends our metadata and awaits READY.
    Ready(MetadataExchange, Box<(Link, Metadata)>),
}

impl IbListener {
    /// Creates a listener on an ephemeral port, and returns its address.
    pub(super) fn new(
        port: &Arc<Port>,
        settings: &Settings,
        token: Secret,
    ) -> Result<(SocketAddr, IbListener), NetError> {
        let failed = |error: io::Error| NetError::of_io(&port.name(), None, "listen", &error);
        let listener = sock::listen(settings.addr, 0).map_err(failed)?;
        let addr = listener.local_addr().map_err(failed)?;
        let acceptor = Acceptor::new(listener, token, NO_RANK, settings.socket.handshake_timeout);
        Ok((addr, IbListener { port: port.clone(), settings: settings.clone(), acceptor, setup: None }))
    }

    /// Runs the handshakes and accepts the first authenticated peer.
    fn admit(&mut self) -> io::Result<()> {
        let now = Instant::now();
        let mut fds = Vec::with_capacity(self.acceptor.poll_len());
        self.acceptor.poll_fds(&mut fds);
        sock::poll(&mut fds, Some(now))?;
        let ready: Vec<_> = fds.iter().map(|fd| fd.revents()).collect();
        let mut accepted = Vec::new();
        self.acceptor.drive(now, &ready, &mut accepted);
        for Accepted { channel, remote, .. } in accepted {
            if self.setup.is_some() {
                self.acceptor.refuse(remote, &"another connection came first to this listener");
            } else if let Err(error) = sock::keep_alive(&channel.stream, self.settings.socket.peer_dead_after)
            {
                self.acceptor.refuse(remote, &error);
            } else {
                let state = State::Metadata(MetadataExchange::new(channel, &[], METADATA_BYTES));
                self.setup =
                    Some(Setup { remote, deadline: now + self.settings.socket.connect_timeout, state });
            }
        }
        Ok(())
    }

    /// Advances the setup. A [`Fault::Peer`] drops the peer; a [`Fault::Own`] breaks the listener.
    fn advance(&mut self, mut setup: Setup) -> Result<Option<Box<dyn RecvComm>>, Fault> {
        let (moved, input) = match &mut setup.state {
            State::Metadata(exchange) | State::Ready(exchange, ..) => {
                match exchange.advance().map_err(Fault::Peer)? {
                    None => (false, Vec::new()),
                    Some(bytes) => (true, bytes.to_vec()),
                }
            }
        };
        if !moved {
            if Instant::now() >= setup.deadline {
                return Err(Fault::Peer(io::ErrorKind::TimedOut.into()));
            }
            self.setup = Some(setup);
            return Ok(None);
        }
        match setup.state {
            State::Metadata(exchange) => {
                let bytes: &[u8; METADATA_BYTES] =
                    input.as_slice().try_into().expect("the exchange reads exactly so many bytes");
                let metadata = read_metadata(bytes, &self.port, setup.remote).map_err(Fault::other)?;
                let (exchange, link) = self.answer(exchange, &metadata)?;
                self.advance(Setup { state: State::Ready(exchange, Box::new((link, metadata))), ..setup })
            }
            State::Ready(..) if input != READY => Err(Fault::Peer(io::ErrorKind::InvalidData.into())),
            State::Ready(_, ends) => {
                let (link, metadata) = *ends;
                Ok(Some(self.receiver(link, &metadata)?))
            }
        }
    }

    /// Creates and connects as many queue pairs as the peer has, and answers with their metadata.
    fn answer(
        &self,
        exchange: MetadataExchange,
        metadata: &Metadata,
    ) -> Result<(MetadataExchange, Link), Fault> {
        let qps = QueuePairs::new(&self.port, metadata.qp_nums.len()).map_err(Fault::Own)?;
        let ours = qps.metadata(&self.settings.ib, metadata.psn);
        let stream = exchange.channel.stream.try_clone().map_err(Fault::Peer)?;
        let link = qps.connect(&self.settings.ib, metadata, metadata.psn, stream).map_err(Fault::Own)?;
        Ok((MetadataExchange::new(exchange.channel, &ours.to_bytes(), READY.len()), link))
    }

    fn receiver(&self, link: Link, metadata: &Metadata) -> Result<Box<dyn RecvComm>, Fault> {
        let (table, region) = table(&self.port).map_err(Fault::Own)?;
        let remote = RemoteTable { address: metadata.table_address, key: metadata.table_key };
        let config = self.settings.ib.clone();
        Ok(Box::new(IbReceiver::new(link, table, region, remote, metadata.split_data, config)))
    }
}

/// The cause of a failed setup.
enum Fault {
    Peer(io::Error),
    Own(NetError),
}

impl Fault {
    fn other(error: NetError) -> Fault {
        Fault::Peer(io::Error::other(error))
    }
}

impl Listener for IbListener {
    fn poll_accept(&mut self) -> Result<Option<Box<dyn RecvComm>>, NetError> {
        self.admit().map_err(|error| NetError::of_io(&self.port.name(), None, "poll", &error))?;
        if let Some(none_left) = self.acceptor.starved(Instant::now()) {
            return Err(NetError::of_call(&self.port.name(), "accept", none_left.to_string()));
        }
        let Some(setup) = self.setup.take() else { return Ok(None) };
        let remote = setup.remote;
        match self.advance(setup) {
            Ok(receiver) => Ok(receiver),
            Err(Fault::Own(error)) => Err(error),
            Err(Fault::Peer(error)) => {
                self.acceptor.refuse(remote, &error);
                Ok(None)
            }
        }
    }
}

//! The listening side of a set-up, which becomes the receiver; the order of messages is in [`super::connector`].

use super::card::{CARD_BYTES, Card, READY};
use super::connector::{read_card, table};
use super::exchange::Exchange;
use super::link::{Lanes, Link};
use super::port::Port;
use super::recv::{IbReceiver, RemoteTable};
use super::{NOBODY, Settings};
use crate::bootstrap::acceptor::{Accepted, Acceptor};
use crate::bootstrap::secret::Secret;
use crate::bootstrap::sock;
use crate::net::{Listener, NetError, RecvComm};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

/// A port that waits for one connection.
pub(super) struct IbListener {
    port: Arc<Port>,
    settings: Settings,
    acceptor: Acceptor,
    coming: Option<Coming>,
}

/// A peer that has proved to know the token.
struct Coming {
    remote: SocketAddr,
    deadline: Instant,
    state: State,
}

enum State {
    /// Its card is awaited.
    Card(Exchange),
    /// Ours is on its way, and word that its queue pairs work is awaited.
    Ready(Exchange, Box<(Link, Card)>),
}

impl IbListener {
    /// A listener at a port of the kernel's choice, and its address.
    pub(super) fn new(
        port: &Arc<Port>,
        settings: &Settings,
        token: Secret,
    ) -> Result<(SocketAddr, IbListener), NetError> {
        let failed = |error: io::Error| NetError::of_io(&port.name(), None, "listen", &error);
        let listener = sock::listen(settings.addr, 0).map_err(failed)?;
        let addr = listener.local_addr().map_err(failed)?;
        let acceptor = Acceptor::new(listener, token, NOBODY, settings.socket.handshake_timeout);
        Ok((addr, IbListener { port: port.clone(), settings: settings.clone(), acceptor, coming: None }))
    }

    /// Serves strangers and the one who proves itself.
    fn admit(&mut self) -> io::Result<()> {
        let now = Instant::now();
        let mut fds = Vec::with_capacity(self.acceptor.poll_len());
        self.acceptor.poll_fds(&mut fds);
        sock::poll(&mut fds, Some(now))?;
        let ready: Vec<_> = fds.iter().map(|fd| fd.revents()).collect();
        let mut accepted = Vec::new();
        self.acceptor.drive(now, &ready, &mut accepted);
        for Accepted { stream, remote, .. } in accepted {
            if self.coming.is_some() {
                self.acceptor.refuse(remote, &"another connection came first to this listener");
            } else if let Err(error) = sock::keep_alive(&stream, self.settings.socket.peer_dead_after) {
                self.acceptor.refuse(remote, &error);
            } else {
                let state = State::Card(Exchange::new(stream, &[], CARD_BYTES));
                self.coming =
                    Some(Coming { remote, deadline: now + self.settings.socket.connect_timeout, state });
            }
        }
        Ok(())
    }

    /// Moves the set-up on. `Err` with the peer's fault forgets the peer; what is this end's fault breaks the listener.
    fn advance(&mut self, mut coming: Coming) -> Result<Option<Box<dyn RecvComm>>, Fault> {
        let (moved, input) = match &mut coming.state {
            State::Card(exchange) | State::Ready(exchange, ..) => {
                match exchange.advance().map_err(Fault::Peer)? {
                    None => (false, Vec::new()),
                    Some(bytes) => (true, bytes.to_vec()),
                }
            }
        };
        if !moved {
            if Instant::now() >= coming.deadline {
                return Err(Fault::Peer(io::ErrorKind::TimedOut.into()));
            }
            self.coming = Some(coming);
            return Ok(None);
        }
        match coming.state {
            State::Card(exchange) => {
                let bytes: &[u8; CARD_BYTES] =
                    input.as_slice().try_into().expect("an exchange reads what it was told to");
                let card = read_card(bytes, &self.port, coming.remote).map_err(Fault::other)?;
                let (exchange, link) = self.answer(exchange, &card)?;
                self.advance(Coming { state: State::Ready(exchange, Box::new((link, card))), ..coming })
            }
            State::Ready(..) if input != READY => Err(Fault::Peer(io::ErrorKind::InvalidData.into())),
            State::Ready(_, ends) => {
                let (link, card) = *ends;
                Ok(Some(self.receiver(link, &card)?))
            }
        }
    }

    /// Makes queue pairs for those of the card, connects them, and tells of them.
    fn answer(&self, exchange: Exchange, card: &Card) -> Result<(Exchange, Link), Fault> {
        let lanes = Lanes::new(&self.port, card.qp_nums.len()).map_err(Fault::Own)?;
        let ours = lanes.card(&self.settings.ib, card.psn);
        let stream = exchange.stream.try_clone().map_err(Fault::Peer)?;
        let link = lanes.connect(&self.settings.ib, card, card.psn, stream).map_err(Fault::Own)?;
        Ok((Exchange::new(exchange.stream, &ours.to_bytes(), READY.len()), link))
    }

    fn receiver(&self, link: Link, card: &Card) -> Result<Box<dyn RecvComm>, Fault> {
        let (table, region) = table(&self.port).map_err(Fault::Own)?;
        let remote = RemoteTable { address: card.table_address, key: card.table_key };
        let config = self.settings.ib.clone();
        Ok(Box::new(IbReceiver::new(link, table, region, remote, card.split_data, config)))
    }
}

/// Whose fault it is that a connection does not come about.
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
        let Some(coming) = self.coming.take() else { return Ok(None) };
        let remote = coming.remote;
        match self.advance(coming) {
            Ok(receiver) => Ok(receiver),
            Err(Fault::Own(error)) => Err(error),
            Err(Fault::Peer(error)) => {
                self.acceptor.refuse(remote, &error);
                Ok(None)
            }
        }
    }
}

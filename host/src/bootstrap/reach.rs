//! Layer: host / bootstrap.
//! Takes: a communicator's state, and the other ranks' listeners that it knows.
//! Gives: [`Reach`]: messages and authenticated streams between two ranks, waited for or polled, from any thread.
//! Never: keeps the bootstrap alive, or waits for what the other rank's owner does when it connects.

use super::channel::{Channel, DataStream};
use super::error::BootstrapError;
use super::frame;
use super::gather::GATHER_BYTES_MAX;
use super::handshake::{Hello, Purpose};
use super::join;
use super::links::Links;
use super::rank_list::RankList;
use super::sock::{self, Deadline};
use super::state::{Awaits, Shared, State};
use oxccl_shared::abi::Rank;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

const KIND_MESSAGE: u8 = 1;

/// How long what a rank says of its end may take to come around the ring, when a connection to it has ended already.
const EVENTS_TAKE: Duration = Duration::from_millis(500);

/// How a rank reaches another rank alone. It works as long as the bootstrap does.
///
/// Who connects waits for the other rank's bootstrap thread, not for its owner, who accepts whenever it comes to that.
#[derive(Clone)]
pub struct Reach {
    shared: Arc<Shared>,
}

impl Reach {
    pub(super) fn new(shared: &Arc<Shared>) -> Reach {
        Reach { shared: shared.clone() }
    }

    /// As [`Bootstrap::links`](super::Bootstrap::links).
    pub fn links(&self) -> &Arc<Links> {
        &self.shared.links
    }

    /// As [`Bootstrap::send`](super::Bootstrap::send).
    ///
    /// # Errors
    /// As there.
    pub fn send(&self, peer: Rank, tag: u64, message: &[u8]) -> Result<(), BootstrapError> {
        if message.len() > GATHER_BYTES_MAX {
            return Err(BootstrapError::TooLarge { len_bytes: message.len(), max_bytes: GATHER_BYTES_MAX });
        }
        let deadline = self.deadline();
        let mut channel = self.dial(peer, Purpose::Message, tag, &deadline)?;
        self.write_message(peer, &mut channel, message, &deadline)
    }

    /// As [`Bootstrap::recv`](super::Bootstrap::recv).
    ///
    /// # Errors
    /// As there.
    pub fn recv(&self, peer: Rank, tag: u64) -> Result<Vec<u8>, BootstrapError> {
        let deadline = self.deadline();
        let channel = self.accept(peer, Purpose::Message, tag, &deadline)?;
        self.read_message(peer, channel, &deadline)
    }

    /// The next message that `peer` sent with `tag`, if it has connected by now. That it is gone is no error of this.
    ///
    /// # Errors
    /// The connection failed, or this rank cannot accept any.
    pub fn poll_message(&self, peer: Rank, tag: u64) -> Result<Option<Vec<u8>>, BootstrapError> {
        let Some(channel) = self.poll_accept(peer, Purpose::Message, tag)? else { return Ok(None) };
        self.read_message(peer, channel, &self.deadline()).map(Some)
    }

    /// As [`Bootstrap::connect_stream`](super::Bootstrap::connect_stream).
    ///
    /// # Errors
    /// As there.
    pub fn connect_stream(&self, peer: Rank, purpose: u32, tag: u64) -> Result<DataStream, BootstrapError> {
        blocking(self.dial(peer, Purpose::Stream(purpose), tag, &self.deadline())?)
    }

    /// As [`Bootstrap::accept_stream`](super::Bootstrap::accept_stream).
    ///
    /// # Errors
    /// As there.
    pub fn accept_stream(&self, peer: Rank, purpose: u32, tag: u64) -> Result<DataStream, BootstrapError> {
        blocking(self.accept(peer, Purpose::Stream(purpose), tag, &self.deadline())?)
    }

    /// The stream that `peer` opens with the same purpose and tag, if it has by now. That it is gone is no error of this: the stream
    /// may have come before.
    ///
    /// # Errors
    /// This rank cannot accept any.
    pub fn poll_stream(
        &self,
        peer: Rank,
        purpose: u32,
        tag: u64,
    ) -> Result<Option<DataStream>, BootstrapError> {
        self.poll_accept(peer, Purpose::Stream(purpose), tag)?.map(blocking).transpose()
    }

    /// Why the communicator is broken, if an event arrives soon. For a caller whose connection has failed.
    pub(super) fn why_broken(&self) -> Option<BootstrapError> {
        self.shared.wait_for(&Deadline::after(EVENTS_TAKE), |state| state.ring.broken())
    }

    pub(super) fn deadline(&self) -> Deadline {
        Deadline::after(self.shared.config.timeout).or_cancelled(&self.shared.cancel)
    }

    /// The address at which `peer` listens.
    pub(super) fn listener_addr(&self, peer: Rank) -> Result<SocketAddr, BootstrapError> {
        let out_of_range = BootstrapError::RankOutOfRange { rank: peer, nranks: self.shared.nranks };
        self.shared.lock().addrs.get(peer.index()).copied().ok_or(out_of_range)
    }

    fn dial(
        &self,
        peer: Rank,
        purpose: Purpose,
        tag: u64,
        deadline: &Deadline,
    ) -> Result<Channel, BootstrapError> {
        let addr = self.listener_addr(peer)?;
        if let Some(error) = self.shared.lock().why_lost(peer) {
            return Err(error);
        }
        let hello = Hello { purpose, from: self.shared.me, to: peer, tag };
        let _wait = self.shared.begin_wait(Awaits::Peer(peer));
        self.dial_at(hello, addr, deadline).map_err(|error| self.known_better(error))
    }

    /// As [`join::dial_peer`].
    pub(super) fn dial_at(
        &self,
        hello: Hello,
        addr: SocketAddr,
        deadline: &Deadline,
    ) -> Result<Channel, BootstrapError> {
        join::dial_peer(self.shared.key(), hello, addr, deadline, self.shared.config.peer_dead_after)
    }

    fn accept(
        &self,
        peer: Rank,
        purpose: Purpose,
        tag: u64,
        deadline: &Deadline,
    ) -> Result<Channel, BootstrapError> {
        self.listener_addr(peer)?;
        let wanted = Hello { purpose, from: peer, to: self.shared.me, tag };
        self.accept_unless(&[wanted], deadline, |state| state.why_lost(peer)).map(|(_, channel)| channel)
    }

    /// Accepts one of some connections, unless there is a reason why none can come. Names the last in a timeout.
    pub(super) fn accept_unless(
        &self,
        wanted: &[Hello],
        deadline: &Deadline,
        why_not: impl Fn(&State) -> Option<BootstrapError>,
    ) -> Result<(Rank, Channel), BootstrapError> {
        let me = self.shared.me;
        let last = wanted.last().map(|wanted| wanted.from);
        let _wait = last.map(|peer| self.shared.begin_wait(Awaits::Peer(peer)));
        let found = self.shared.wait_for(deadline, |state| {
            let parked = wanted
                .iter()
                .find_map(|wanted| take_parked(state, *wanted).map(|channel| Ok((wanted.from, channel))));
            parked.or_else(|| why_not(state).or_else(|| state.starved(me)).map(Err))
        });
        found.unwrap_or_else(|| {
            Err(BootstrapError::Timeout {
                calls: None,
                by: None,
                what: "waiting for a peer to connect",
                ranks: self.shared.lock().ring.guilty(last.into_iter().collect()),
                limit: deadline.limit(),
            })
        })
    }

    fn poll_accept(&self, peer: Rank, purpose: Purpose, tag: u64) -> Result<Option<Channel>, BootstrapError> {
        let me = self.shared.me;
        let wanted = Hello { purpose, from: peer, to: me, tag };
        let mut state = self.shared.lock();
        let parked = take_parked(&mut state, wanted).map(Ok);
        parked.or_else(|| state.starved(me).map(Err)).transpose()
    }

    pub(super) fn write_message(
        &self,
        peer: Rank,
        channel: &mut Channel,
        message: &[u8],
        deadline: &Deadline,
    ) -> Result<(), BootstrapError> {
        let mut bytes = Vec::new();
        frame::push(&mut bytes, KIND_MESSAGE, &[message]);
        channel.write_all(&bytes, deadline).map_err(|error| self.stream_error(peer, &error, deadline))
    }

    fn read_message(
        &self,
        peer: Rank,
        channel: Channel,
        deadline: &Deadline,
    ) -> Result<Vec<u8>, BootstrapError> {
        let message = self.read_unless_ended(peer, channel, deadline)?;
        message.ok_or_else(|| self.known_better(BootstrapError::PeerLost { rank: peer }))
    }

    /// The message of this connection. `None`: it ended before it brought one.
    pub(super) fn read_unless_ended(
        &self,
        peer: Rank,
        mut channel: Channel,
        deadline: &Deadline,
    ) -> Result<Option<Vec<u8>>, BootstrapError> {
        match channel.read_frame(GATHER_BYTES_MAX, deadline) {
            Ok(frame) if frame.kind == KIND_MESSAGE => Ok(Some(frame.payload)),
            Ok(_) => Err(BootstrapError::Protocol { rank: peer, what: "a message of unknown kind" }),
            Err(error) if sock::is_end(&error) => Ok(None),
            Err(error) => Err(self.stream_error(peer, &error, deadline)),
        }
    }

    /// Prefers a better error: a rank whose connection ended may have reported why, by another path.
    pub(super) fn known_better(&self, error: BootstrapError) -> BootstrapError {
        let BootstrapError::PeerLost { rank } = error else { return error };
        self.shared.wait_for(&Deadline::after(EVENTS_TAKE), |state| state.why_lost(rank)).unwrap_or(error)
    }

    fn stream_error(&self, peer: Rank, error: &std::io::Error, deadline: &Deadline) -> BootstrapError {
        match error.kind() {
            std::io::ErrorKind::TimedOut => BootstrapError::Timeout {
                calls: None,
                by: None,
                what: "a message of the bootstrap",
                ranks: RankList::from_iter([peer]),
                limit: deadline.limit(),
            },
            std::io::ErrorKind::InvalidData => BootstrapError::Altered { rank: peer },
            std::io::ErrorKind::Other => {
                BootstrapError::Protocol { rank: peer, what: "bytes that are no message" }
            }
            _ => self.known_better(BootstrapError::PeerLost { rank: peer }),
        }
    }
}

/// The first connection with this hello that has come and was not accepted yet.
fn take_parked(state: &mut State, wanted: Hello) -> Option<Channel> {
    let at = state.parked.iter().position(|accepted| accepted.hello == wanted)?;
    Some(state.parked.remove(at).channel)
}

fn blocking(channel: Channel) -> Result<DataStream, BootstrapError> {
    let stream = channel.into_stream();
    stream
        .socket
        .set_nonblocking(false)
        .map_err(|error| BootstrapError::io("make a stream block", &error))?;
    Ok(stream)
}

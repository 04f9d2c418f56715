//! One end of a connection, of whichever kind.

use super::coll::Reduced;
use super::coll_lane::CollLane;
use super::counters::{Counters, SubOp};
use super::error::{EndError, EndId, Outstanding};
use super::opening::OpeningEnd;
use super::recv::RecvEnd;
use super::send::SendEnd;
use oxccl_shared::abi::{ChannelId, Protocol, Rank};
use oxccl_shared::proto;
use std::sync::Arc;

/// One end of a connection.
pub enum ProxyEnd {
    /// The sending end.
    Send(SendEnd),
    /// The receiving end.
    Recv(RecvEnd),
    /// Either, before it can move anything.
    Opening(Box<OpeningEnd<ProxyEnd>>),
    /// Both, of a head, to and from a network that reduces.
    Coll(Box<CollLane>),
}

/// Its channel, its peer, and whether it sends.
pub(super) type EndKey = (ChannelId, Rank, bool);

impl ProxyEnd {
    /// Which connection it is.
    pub fn place(&self) -> EndId {
        match self {
            ProxyEnd::Send(end) => end.place(),
            ProxyEnd::Recv(end) => end.place(),
            ProxyEnd::Opening(end) => end.place(),
            ProxyEnd::Coll(end) => end.place(),
        }
    }

    pub(super) fn key(&self) -> EndKey {
        let EndId { peer, channel, is_send } = self.place();
        (channel, peer, is_send)
    }

    pub(super) fn begin(&mut self, sub: SubOp, reduced: Reduced) {
        match self {
            ProxyEnd::Send(end) => end.begin(sub),
            ProxyEnd::Recv(end) => end.begin(sub),
            ProxyEnd::Opening(end) => end.begin(sub, reduced),
            ProxyEnd::Coll(end) => end.begin(sub, reduced),
        }
    }

    #[inline]
    pub(super) fn progress(&mut self) -> Result<usize, Arc<EndError>> {
        match self {
            ProxyEnd::Send(end) => end.progress(),
            ProxyEnd::Recv(end) => end.progress(),
            ProxyEnd::Opening(_) => self.open(),
            ProxyEnd::Coll(end) => end.progress(),
        }
    }

    #[cold]
    fn open(&mut self) -> Result<usize, Arc<EndError>> {
        let ProxyEnd::Opening(opening) = self else { return Ok(0) };
        let Some((mut end, waiting)) = opening.poll()? else { return Ok(0) };
        waiting.into_iter().for_each(|(sub, reduced)| end.begin(sub, reduced));
        *self = end;
        Ok(1)
    }

    pub(super) fn is_idle(&self) -> bool {
        match self {
            ProxyEnd::Send(end) => end.is_idle(),
            ProxyEnd::Recv(end) => end.is_idle(),
            ProxyEnd::Opening(end) => end.is_idle(),
            ProxyEnd::Coll(end) => end.is_idle(),
        }
    }

    pub(super) fn outstanding(&self) -> Option<Outstanding> {
        match self {
            ProxyEnd::Send(end) => end.outstanding(),
            ProxyEnd::Recv(end) => end.outstanding(),
            ProxyEnd::Opening(end) => end.outstanding(),
            ProxyEnd::Coll(end) => end.outstanding(),
        }
    }

    /// Slots of a message.
    pub(super) fn message_steps(&self, protocol: Protocol, len_bytes: u64) -> u64 {
        let layout = match self {
            ProxyEnd::Send(end) => end.layout(),
            ProxyEnd::Recv(end) => end.layout(),
            ProxyEnd::Opening(end) => end.layout(),
            ProxyEnd::Coll(end) => end.layout(),
        };
        len_bytes.div_ceil(proto::payload_bytes(protocol, layout) as u64).max(1)
    }
}

/// Whether a connection with an operation in progress waits for the other end, and not for this rank's kernel.
pub(super) fn waits_for_peer(end: &ProxyEnd, counters: &Counters) -> bool {
    match end {
        ProxyEnd::Opening(end) => end.waits_for_peer(),
        // The network waits for all heads; once it has a slot of this one's, this one waits for it.
        ProxyEnd::Coll(_) | ProxyEnd::Send(_) => counters.received > counters.done,
        ProxyEnd::Recv(_) => {
            let has_begun = counters.received > 0;
            // The network performs the flush too.
            has_begun && counters.posted > counters.received || counters.received > counters.flushed
        }
    }
}

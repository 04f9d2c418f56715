//! Per-peer values that are constant during an exchange.
//!
//! On a GPU the time of a short exchange is that of its instructions, which all warps of a block issue in turn. So
//! values that do not change from word to word are computed once, into registers; and where a block always has the
//! same number of peers, no code checks it.

use super::span::Span;
use crate::conn::{RecvConn, SendConn};
use oxccl_shared::abi::{Protocol, Rank, Step};

/// The slot of a connection's current step.
#[derive(Clone, Copy)]
pub(super) struct CurrentSlot {
    pub slot: *mut u8,
    pub step: Step,
}

impl CurrentSlot {
    const NONE: CurrentSlot = CurrentSlot { slot: core::ptr::null_mut(), step: Step(0) };
}

/// More peers than this do not fit the registers of a GPU's thread, and are looked up each time.
pub(super) const HELD_MAX: usize = 3;

/// Slots and lengths by connection. Connections are in rank order, without our own rank.
pub(super) struct Peers<'a, const PEERS: usize> {
    protocol: Protocol,
    send: &'a [SendConn],
    recv: &'a [RecvConn],
    to: [CurrentSlot; PEERS],
    from: [CurrentSlot; PEERS],
    lengths: Lengths,
    to_bytes: [u32; PEERS],
    from_bytes: [u32; PEERS],
}

/// Lengths of messages.
#[derive(Clone, Copy)]
pub(super) struct Lengths {
    /// To each peer.
    pub to: Span,
    /// From each peer.
    pub from: Span,
    /// Set if all messages to us have the length of this rank's.
    pub from_all_as: Option<Rank>,
}

impl Lengths {
    #[inline(always)]
    fn to(&self, peer: Rank) -> u32 {
        self.to.len_of(peer) as u32
    }

    #[inline(always)]
    fn from(&self, peer: Rank) -> u32 {
        self.from.len_of(self.from_all_as.unwrap_or(peer)) as u32
    }
}

impl<'a, const PEERS: usize> Peers<'a, PEERS> {
    /// Computes them for these lengths.
    #[inline(always)]
    pub fn of(protocol: Protocol, send: &'a [SendConn], recv: &'a [RecvConn], lengths: Lengths) -> Self {
        let (to, from) = ([CurrentSlot::NONE; PEERS], [CurrentSlot::NONE; PEERS]);
        let (to_bytes, from_bytes) = ([0; PEERS], [0; PEERS]);
        let mut peers = Peers { protocol, send, recv, to, from, lengths, to_bytes, from_bytes };
        let (nsend, nrecv) = (send.len(), recv.len());
        for_peers!(nsend, i => {
            peers.to[i] = peers.find_to(i);
            peers.to_bytes[i] = lengths.to(send[i].peer());
        });
        for_peers!(nrecv, i => {
            peers.from[i] = peers.find_from(i);
            peers.from_bytes[i] = lengths.from(recv[i].peer());
        });
        peers
    }

    /// The slot to write for peer `i`.
    #[inline(always)]
    pub fn lane_to(&self, i: usize) -> CurrentSlot {
        if PEERS > HELD_MAX { self.find_to(i) } else { self.to[i] }
    }

    /// The slot to read from peer `i`.
    #[inline(always)]
    pub fn lane_from(&self, i: usize) -> CurrentSlot {
        if PEERS > HELD_MAX { self.find_from(i) } else { self.from[i] }
    }

    /// Bytes of the message to peer `i`.
    #[inline(always)]
    pub fn bytes_to(&self, i: usize) -> usize {
        (if PEERS > HELD_MAX { self.lengths.to(self.send[i].peer()) } else { self.to_bytes[i] }) as usize
    }

    /// Bytes of the message from peer `i`.
    #[inline(always)]
    pub fn bytes_from(&self, i: usize) -> usize {
        (if PEERS > HELD_MAX { self.lengths.from(self.recv[i].peer()) } else { self.from_bytes[i] }) as usize
    }

    #[inline(always)]
    fn find_to(&self, i: usize) -> CurrentSlot {
        let conn = &self.send[i];
        CurrentSlot { slot: conn.slot(self.protocol), step: conn.step() }
    }

    #[inline(always)]
    fn find_from(&self, i: usize) -> CurrentSlot {
        let conn = &self.recv[i];
        CurrentSlot { slot: conn.slot(self.protocol), step: conn.step() }
    }
}

/// The rank of peer `i`, if all are connected.
#[inline(always)]
pub(crate) fn rank_of(rank: Rank, i: usize) -> Rank {
    Rank(i as u32 + u32::from(i as u32 >= rank.0))
}

/// Repeats a body for every peer, with its number as a constant: what it indexes stays in registers.
macro_rules! for_peers {
    ($peers:ident, $i:ident => $body:block) => {
        for_peers!(@ $peers, $i, $body, 0 1 2 3 4 5 6)
    };
    (@ $peers:ident, $i:ident, $body:block, $($n:literal)+) => {{
        const { assert!(PEERS <= 7) };
        $(
            if $n < PEERS && $n < $peers {
                let $i: usize = $n;
                $body
            }
        )+
    }};
}

pub(crate) use for_peers;

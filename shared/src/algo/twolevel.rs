//! Two-level all-reduce: a reduce-scatter inside each host, an all-reduce between the ranks of the same number, an all-gather inside.
//! Hosts have equally many ranks, which follow each other. Each byte leaves a host as often as in a ring, in two message times inside
//! hosts and two between them, however many ranks there are.
//!
//! A loop has a block for each rank: block `(i, h)` is rank `i` of host `h`'s. A *turn* is about one host's blocks:
//!
//! ```text
//! scatter, for each host g, this one (h) last:
//!     send block (j, g) to every rank j of the host
//!     reduce block (i, g) of the host's ranks, and send it to rank i of host g      this host's block: of the hosts too; finish it, keep
//!                                                                                  it, send it to all, here and in other hosts
//! gather, for each host g, this one first:
//!     receive block (i, g) from rank i of host g, keep it, send it to the host      this host's block: nothing
//!     receive block (j, g) from every rank j of the host
//! ```
//!
//! A partial sum goes from slots straight into a slot, so that no memory is needed for it. Operands are reduced by rank inside a host,
//! then by host, a block's own host first: each block by one rank, so that all ranks have the same bits.
//!
//! # Why it cannot deadlock
//! A hop carries one slice. Number the steps of a rank in program order, which is the same on every rank as the turns go: the sends of a
//! scattering turn, its reduction, then, in a gathering turn, what comes from the other host, and what comes from this one.
//! - Every receive waits for a send of an earlier step. Inside a host, ranks take the hosts in one order, so that a message is received
//!   in the step after it is sent. A partial sum that host `g` sends for block `(i, h)` is of one of the first scattering turns, and is
//!   received in the last. A finished block is sent in the last scattering turn, and received in a gathering one.
//! - Every send waits for the credit of the message before it on the same connection by as many as the protocol has slots. Inside a host that
//!   was received one step after it was sent, before the next was sent. Between hosts a connection carries two messages in a loop, of
//!   which both are received in it, so that the credit is of an earlier loop.
//!
//! So every wait looks back, there is no cycle of waits, and no bound on ranks or hosts.

use super::mesh::place_from;
use super::spec::{Connections, Offered, Protocols, Proxied, ReductionOrder, Spec, Terms};
use super::{Action, wrap};
use crate::abi::{Algorithm, Func, Protocol, Rank};
use core::ops::Range;

/// The most peers of both levels together that a rank has room for.
pub const PEERS_MAX: usize = 64;

/// The algorithm's row.
pub const SPEC: Spec = Spec {
    algorithm: Algorithm::TwoLevel,
    aliases: &[],
    on_gpus: &[Offered::new(Func::AllReduce, Protocols::of(&[Protocol::Simple]))],
    on_cpus: &[Offered::new(Func::AllReduce, Protocols::ALL)],
    kernels: Algorithm::TwoLevel,
    connections: Connections::Levels,
    halved: Protocols::NONE,
    proxied: Proxied::Any(&[Func::AllReduce]),
    order: ReductionOrder::Levels,
    at_once: None,
    peers_max: Some(7),
    terms: Terms::Levels,
};

/// Where a rank is among hosts of equally many ranks.
///
/// Its peers have *places*: those on its host in rank order, then those of its number on other hosts in host order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Seat {
    /// Ranks of each host.
    pub each: u32,
    /// Hosts.
    pub hosts: u32,
    /// This rank's number on its host.
    pub number: u32,
    /// The number of its host.
    pub host: u32,
}

impl Seat {
    /// That of `rank` among `nranks`, of which each host has `host_ranks`: all, if 0.
    #[inline(always)]
    pub const fn new(rank: Rank, nranks: u32, host_ranks: u32) -> Seat {
        let each = if host_ranks == 0 { nranks } else { host_ranks };
        Seat { each, hosts: nranks / each, number: rank.0 % each, host: rank.0 / each }
    }

    /// The rank at this place.
    pub const fn peer(&self, place: usize) -> Rank {
        let (place, near) = (place as u32, self.each - 1);
        if place < near {
            let number = place + (place >= self.number) as u32;
            return Rank(self.host * self.each + number);
        }
        let host = place - near;
        Rank((host + (host >= self.host) as u32) * self.each + self.number)
    }

    /// The places of all peers.
    #[inline(always)]
    pub const fn all(&self) -> Range<usize> {
        0..(self.each + self.hosts) as usize - 2
    }

    /// The places of those on its host.
    #[inline(always)]
    const fn near(&self) -> Range<usize> {
        0..self.each as usize - 1
    }

    /// The place of the rank with this number on its host.
    #[inline(always)]
    const fn of_number(&self, number: u32) -> Range<usize> {
        let place = place_from(Rank(self.number), Rank(number));
        place..place + 1
    }

    /// The place of the rank of its number on this host.
    #[inline(always)]
    const fn of_host(&self, host: u32) -> Range<usize> {
        let place = self.each as usize - 1 + place_from(Rank(self.host), Rank(host));
        place..place + 1
    }

    /// The block of this number and host.
    #[inline(always)]
    const fn block(&self, number: u32, host: u32) -> u32 {
        number * self.hosts + host
    }
}

/// One action on one block. Own input stands at this rank's number in the order of reduction.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LevelHop {
    /// What to do.
    pub action: Action,
    /// The places received from, in the order of reduction.
    pub from: Range<usize>,
    /// The places sent to.
    pub to: Range<usize>,
    /// The block.
    pub block: u32,
}

/// The hops of a loop.
#[inline(always)]
pub const fn all_reduce(seat: Seat) -> Hops {
    Hops { seat, gathers: false, turn: 0, at: 0 }
}

/// The iterator of [`all_reduce`].
#[derive(Clone, Debug)]
pub struct Hops {
    seat: Seat,
    gathers: bool,
    /// The turn, and the hop in it.
    turn: u32,
    at: u32,
}

impl Hops {
    /// Hop `at` of a scattering turn: sends to the host's ranks, then a reduction.
    #[inline(always)]
    fn scatter(&self) -> LevelHop {
        let Seat { each, hosts, number, host } = self.seat;
        let about = wrap(host + 1 + self.turn, hosts);
        if self.at + 1 < each {
            let peer = wrap(number + 1 + self.at, each);
            let to = self.seat.of_number(peer);
            return LevelHop { action: Action::SEND, from: 0..0, to, block: self.seat.block(peer, about) };
        }
        let is_own = about == host;
        let (from, to) = match is_own {
            true => (self.seat.all(), self.seat.all()),
            false => (self.seat.near(), self.seat.of_host(about)),
        };
        let (recv, send) = (!from.is_empty(), !to.is_empty());
        let action = Action { recv, src: true, send, dst: is_own, finish: is_own };
        LevelHop { action, from, to, block: self.seat.block(number, about) }
    }

    /// Hop `at` of a gathering turn: what another host's rank sends, then what the host's ranks do.
    #[inline(always)]
    fn gather(&self) -> LevelHop {
        let Seat { each, hosts, number, host } = self.seat;
        let about = wrap(host + self.turn, hosts);
        if self.at == 0 {
            let (from, to) = (self.seat.of_host(about), self.seat.near());
            let action = Action { send: !to.is_empty(), ..Action::RECV };
            return LevelHop { action, from, to, block: self.seat.block(number, about) };
        }
        let peer = wrap(number + each - self.at, each);
        let from = self.seat.of_number(peer);
        LevelHop { action: Action::RECV, from, to: 0..0, block: self.seat.block(peer, about) }
    }
}

impl Iterator for Hops {
    type Item = LevelHop;

    #[inline(always)]
    fn next(&mut self) -> Option<LevelHop> {
        if self.at == self.seat.each {
            (self.at, self.turn) = (0, self.turn + 1);
        }
        if !self.gathers && self.turn == self.seat.hosts {
            // Of this host's own block, which comes first, nothing comes from another host.
            (self.gathers, self.turn, self.at) = (true, 0, 1);
            if self.seat.each == 1 {
                (self.turn, self.at) = (1, 0);
            }
        }
        if self.gathers && self.turn == self.seat.hosts {
            return None;
        }
        let hop = if self.gathers { self.gather() } else { self.scatter() };
        self.at += 1;
        Some(hop)
    }
}

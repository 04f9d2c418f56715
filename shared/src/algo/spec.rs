//! What an algorithm is, apart from its schedule: the type of a row of [`super::registry`].
//!
//! A row is a constant beside the schedule that it describes. Everything that depends on which algorithms exist is derived from the
//! rows: what a plan may choose, kernels and their names, tables of connections, what a proxy carries, the syntax of options.

use crate::abi::{Algorithm, ConnLayout, Func, Protocol};
use crate::proto;

/// One algorithm.
#[derive(Debug)]
pub struct Spec {
    /// Its number and its name in kernels, tables and `NCCL_ALGO`.
    pub algorithm: Algorithm,
    /// Other names that options and tuning files accept. Several algorithms may share one.
    pub aliases: &'static [&'static str],
    /// What it does on GPUs: each function and protocol is a kernel.
    pub on_gpus: &'static [Offered],
    /// What it does on CPUs.
    pub on_cpus: &'static [Offered],
    /// Whose kernels GPUs run: its own, or those of another that differs by its connections alone.
    pub kernels: Algorithm,
    /// The connections that it needs.
    pub connections: Connections,
    /// The protocols by which a slot holds two messages, so that a slice takes half of one.
    pub halved: Protocols,
    /// What may go through a proxy.
    pub proxied: Proxied,
    /// In which order operands are reduced.
    pub order: ReductionOrder,
    /// How kernels that exchange words with all peers at once are compiled; none if no walk does that.
    pub at_once: Option<PeersAtOnce>,
    /// The most peers that a GPU kernel has room for; none if their number does not matter.
    pub peers_max: Option<u32>,
    /// How the model computes its time.
    pub terms: Terms,
}

/// A function and the protocols that it has.
#[derive(Clone, Copy, Debug)]
pub struct Offered {
    /// The function.
    pub func: Func,
    /// By what.
    pub protocols: Protocols,
}

/// What ranks run on, as far as algorithms differ.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Processor {
    /// Threads of processors.
    Cpu,
    /// GPUs.
    Gpu,
}

/// A kind of connections.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Connections {
    /// From the predecessor and to the successor.
    Ring,
    /// To and from parent and children.
    Tree,
    /// To and from every other rank.
    Mesh,
    /// To and from the neighbours in a host's chain, the head's to a network that reduces: on CPUs connections of a mesh.
    Chain,
    /// To and from the head of a host, the head's to a network that reduces: on CPUs connections of a mesh.
    Star,
    /// To and from the other ranks of the host and those of the same number in other hosts: connections of a mesh.
    Levels,
}

impl Connections {
    /// Whether they are connections between pairs, which a mesh has all of.
    pub const fn is_of_pairs(self) -> bool {
        matches!(self, Connections::Mesh | Connections::Chain | Connections::Star | Connections::Levels)
    }

    /// Whether heads of hosts have a network that reduces among them.
    pub const fn has_network(self) -> bool {
        matches!(self, Connections::Chain | Connections::Star)
    }
}

/// What may go through a proxy, which sends a slot once all of it is there.
#[derive(Clone, Copy, Debug)]
pub enum Proxied {
    /// Nothing.
    Nothing,
    /// These functions.
    Any(&'static [Func]),
    /// By how ranks meet.
    OneTrip {
        /// These functions where words are exchanged with all peers at once, and only one trip: a thread waits for its peers' words before
        /// it writes the next ones into the slot.
        at_once: &'static [Func],
        /// These where ranks meet one after the other, as ranks on CPUs do.
        in_turn: &'static [Func],
    },
}

/// In which order operands are reduced: equal orders give equal bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ReductionOrder {
    /// Along the ring; each block begins at another rank.
    Ring,
    /// From the leaves to the root.
    Tree,
    /// By rank.
    Rank,
    /// Neighbours, then neighbouring pairs, and so on.
    Pairs,
    /// By rank inside a host, then by host; each block begins at another host.
    Levels,
    /// Inside a host by its chain or at its head, and as the network likes between hosts.
    Network,
}

impl ReductionOrder {
    /// Whether a reduction of so many ranks' elements has the bits of one by rank, from left to right. Two operands may be swapped; more
    /// may only be regrouped if the operator is [associative](crate::reduce::is_associative). A network computes as it likes.
    pub const fn is_as_by_rank(self, nranks: u32, is_associative: bool) -> bool {
        match self {
            ReductionOrder::Rank => true,
            ReductionOrder::Ring | ReductionOrder::Tree | ReductionOrder::Pairs | ReductionOrder::Levels => {
                nranks <= 2 || is_associative
            }
            ReductionOrder::Network => false,
        }
    }
}

/// Kernels that exchange words with all peers at once.
#[derive(Clone, Copy, Debug)]
pub struct PeersAtOnce {
    /// The protocols by which the walk does so.
    pub protocols: Protocols,
    /// Numbers of ranks that have kernels of their own: what is known about peers is not looked up there, and half of the
    /// instructions go.
    pub own_ranks: &'static [u32],
}

/// How the model computes an algorithm's time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Terms {
    /// Depth of a tree, twice.
    Tree,
    /// A step for each rank.
    Ring,
    /// So many hops to all peers at once.
    Hops(u8),
    /// A host's chain, and a network once.
    Chain,
    /// A hop to the head of a host, and a network once.
    Star,
    /// Two hops inside hosts and two between them, a block of each rank in each.
    Levels,
    /// An exchange of the whole buffer for each bit of the number of ranks.
    Doubling,
}

impl Terms {
    /// Whether they differ by numbers at most.
    pub const fn are_like(self, other: Terms) -> bool {
        self.kind() == other.kind()
    }

    const fn kind(self) -> u8 {
        match self {
            Terms::Tree => 0,
            Terms::Ring => 1,
            Terms::Hops(_) => 2,
            Terms::Chain => 3,
            Terms::Levels => 4,
            Terms::Star => 5,
            Terms::Doubling => 6,
        }
    }
}

/// A set of protocols.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Protocols(u8);

impl Protocols {
    /// None.
    pub const NONE: Protocols = Protocols(0);
    /// Every protocol.
    pub const ALL: Protocols = Protocols::of(Protocol::ALL);
    /// The line protocols.
    pub const LINES: Protocols = Protocols::of(&[Protocol::LL, Protocol::LL128]);

    /// Those of a list.
    pub const fn of(list: &[Protocol]) -> Protocols {
        let (mut bits, mut at) = (0, 0);
        while at < list.len() {
            bits |= 1 << list[at] as u8;
            at += 1;
        }
        Protocols(bits)
    }

    /// A bit for each, by its number.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Whether it is among them.
    pub const fn has(self, protocol: Protocol) -> bool {
        self.0 >> protocol as u8 & 1 == 1
    }

    /// In numeric order.
    pub fn iter(self) -> impl Iterator<Item = Protocol> + Clone {
        Protocol::ALL.iter().copied().filter(move |protocol| self.has(*protocol))
    }
}

impl Offered {
    /// A function by these protocols.
    pub const fn new(func: Func, protocols: Protocols) -> Offered {
        Offered { func, protocols }
    }
}

impl Terms {
    /// How many kinds of terms there are.
    pub const KINDS: usize = 4;

    /// The kind's place in tables.
    pub const fn index(self) -> usize {
        match self {
            Terms::Tree => 0,
            Terms::Ring => 1,
            Terms::Hops(_) => 2,
            Terms::Chain | Terms::Star => 3,
            // A hop takes what it takes.
            Terms::Levels | Terms::Doubling => 2,
        }
    }
}

impl Spec {
    /// Its name.
    pub const fn name(&self) -> &'static str {
        self.algorithm.name()
    }

    /// Whether `name` is its name or an alias, letter case ignored.
    pub fn is_named(&self, name: &str) -> bool {
        let is_same = |known: &&str| known.eq_ignore_ascii_case(name);
        is_same(&self.name()) || self.aliases.iter().any(is_same)
    }

    /// What it does.
    pub const fn offered(&self, on: Processor) -> &'static [Offered] {
        match on {
            Processor::Cpu => self.on_cpus,
            Processor::Gpu => self.on_gpus,
        }
    }

    /// The protocols that it has a function in.
    pub const fn protocols(&self, func: Func, on: Processor) -> Protocols {
        let offered = self.offered(on);
        let mut at = 0;
        while at < offered.len() {
            if offered[at].func as u8 == func as u8 {
                return offered[at].protocols;
            }
            at += 1;
        }
        Protocols::NONE
    }

    /// Payload bytes that one message may take of a slot.
    pub const fn payload_bytes(&self, protocol: Protocol, layout: &ConnLayout) -> usize {
        match protocol {
            Protocol::LL128 if self.halved.has(protocol) => {
                proto::ll128::half_payload_bytes(layout.ll128_slot_bytes as usize)
            }
            _ => proto::payload_bytes(protocol, layout),
        }
    }

    /// Whether a proxy carries a function at all.
    pub fn is_proxied(&self, func: Func) -> bool {
        match self.proxied {
            Proxied::Nothing => false,
            Proxied::Any(funcs) => funcs.contains(&func),
            Proxied::OneTrip { at_once, in_turn } => at_once.contains(&func) || in_turn.contains(&func),
        }
    }

    /// Whether the walk exchanges words with all peers at once.
    pub fn is_at_once(&self, protocol: Protocol) -> bool {
        self.at_once.is_some_and(|at_once| at_once.protocols.has(protocol))
    }

    /// The number of ranks in the name of a GPU kernel for `nranks`: none for the kernel that serves any number.
    pub fn own_ranks(&self, protocol: Protocol, nranks: u32) -> Option<u32> {
        let at_once = self.at_once.filter(|at_once| at_once.protocols.has(protocol))?;
        at_once.own_ranks.contains(&nranks).then_some(nranks)
    }

    /// Whether a GPU kernel has room for the peers of one of `nranks` ranks.
    pub fn has_room(&self, nranks: u32) -> bool {
        self.peers_max.is_none_or(|most| nranks <= most + 1)
    }
}

//! Addresses of a rank's connections in its device's memory, and what makes those that are needed later.

use crate::bootstrap::Bootstrap;
use crate::gpu::GpuMemory;
use crate::launch::Fault;
use crate::plan::{CallRecord, Facts, message_kernels};
use crate::proxy::{Keep, ProxyEnd};
use oxccl_shared::abi::{KernelLaunch, Protocol, Rank};
use oxccl_shared::algo::spec::Connections;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Purpose of a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum ConnKind {
    /// From a rank to the next of a ring.
    Ring,
    /// Between any two ranks, for collectives.
    Mesh,
    /// Between neighbours in a tree.
    Tree,
    /// Between any two ranks, for messages.
    Pair,
    /// Between neighbours in a host's chain, and to and from the network that reduces.
    Chain,
    /// Between a host's ranks and its head, and to and from the network that reduces.
    Star,
}

impl ConnKind {
    /// All, in the order of tables.
    pub const ALL: [ConnKind; 6] =
        [ConnKind::Ring, ConnKind::Mesh, ConnKind::Tree, ConnKind::Pair, ConnKind::Chain, ConnKind::Star];
    /// How many.
    pub const COUNT: usize = ConnKind::ALL.len();

    /// Those of an algorithm.
    pub fn of(connections: Connections) -> ConnKind {
        match connections {
            Connections::Mesh | Connections::Levels => ConnKind::Mesh,
            Connections::Chain => ConnKind::Chain,
            Connections::Star => ConnKind::Star,
            Connections::Ring => ConnKind::Ring,
            Connections::Tree => ConnKind::Tree,
        }
    }
}

/// What a launch needs: the first so many channels of a kind, for kernels of a protocol; between a pair, those to and from `peer`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Need {
    /// The kind.
    pub kind: ConnKind,
    /// The protocol.
    pub protocol: Protocol,
    /// How many.
    pub channels: u32,
    /// Of a pair, the other rank.
    pub peer: Option<Rank>,
}

impl Need {
    /// All that any call of a rank may need.
    pub fn all(facts: &Facts, rank: Rank) -> Vec<Need> {
        let collective = facts.connection_set().into_iter().map(|(connections, protocol)| {
            let (_, channels) = facts.connections(connections);
            Need { kind: ConnKind::of(connections), protocol, channels, peer: None }
        });
        let peers = (0..facts.nranks).map(Rank).filter(|peer| *peer != rank);
        let messages = peers.flat_map(|peer| {
            let need = Need {
                kind: ConnKind::Pair,
                protocol: Protocol::LL,
                channels: facts.mesh_channels,
                peer: Some(peer),
            };
            message_kernels(facts).map(move |(kernel, _)| Need { protocol: kernel.protocol(), ..need })
        });
        collective.chain(messages).collect()
    }
}

/// Connections over a network that have been made, or begun: what its proxy is to drive from now on.
#[derive(Default)]
pub struct NetEnds {
    /// This rank's ends.
    pub ends: Vec<ProxyEnd>,
    /// What kernels use of them, to be kept until all kernels have ended.
    pub memory: Vec<Keep>,
}

/// What makes a rank's connections when they are needed.
pub trait Connector: Send + Sync {
    /// Makes what is needed and not there. Other ranks do their part without being called. Returns within a bounded time, with the ends of
    /// connections over a network: what lies between these and their other ends comes while an operation waits. `during` is the call that
    /// needs them, for a report of a wait that lasts.
    ///
    /// # Errors
    /// Why it cannot be had.
    fn connect(&self, needs: &[Need], during: Option<CallRecord>) -> Result<NetEnds, Fault>;

    /// Unmaps and frees everything. Every rank calls it, in the order of the bootstrap's collectives; kernels must have ended.
    fn close(&self, bootstrap: &Bootstrap);
}

/// The lists of one kind of channel, as addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ConnLists {
    /// The producers' ends.
    pub send: u64,
    /// The consumers' ends.
    pub recv: u64,
    /// The cursor of each of `send`.
    pub send_cursors: u64,
    /// The cursor of each of `recv`.
    pub recv_cursors: u64,
    /// Our position and the rank at each position, for each channel.
    pub rings: u64,
    /// Our place in each channel's tree, or in the chain.
    pub trees: u64,
    /// Connections of a channel, in each list.
    pub nconns: u32,
}

/// All lists, and their memory.
#[derive(Debug)]
pub struct ConnTables {
    /// By kind and protocol: of rings one connection a channel and direction; of the mesh and of pairs those to every peer, by rank; of
    /// trees children and parent; of a chain below and above. Connections that serve all protocols have the same lists three times.
    pub lists: [[ConnLists; 3]; ConnKind::COUNT],
    /// A line of memory that operations without buffers may use.
    pub scratch: u64,
    /// The memory of all lists.
    pub memory: Arc<dyn GpuMemory>,
}

impl ConnTables {
    /// The lists for kernels of a protocol.
    pub fn of(&self, kind: ConnKind, protocol: Protocol) -> &ConnLists {
        &self.lists[kind as usize][protocol as usize]
    }
}

impl ConnLists {
    /// From offsets to addresses.
    pub fn at(self, base: u64) -> ConnLists {
        ConnLists {
            send: self.send + base,
            recv: self.recv + base,
            send_cursors: self.send_cursors + base,
            recv_cursors: self.recv_cursors + base,
            rings: self.rings + base,
            trees: self.trees + base,
            nconns: self.nconns,
        }
    }

    /// Fills in a launch's fields for these connections.
    pub(super) fn fill(&self, launch: &mut KernelLaunch) {
        launch.send = std::ptr::without_provenance(self.send as usize);
        launch.recv = std::ptr::without_provenance(self.recv as usize);
        launch.send_cursors = std::ptr::without_provenance_mut(self.send_cursors as usize);
        launch.recv_cursors = std::ptr::without_provenance_mut(self.recv_cursors as usize);
        launch.rings = std::ptr::without_provenance(self.rings as usize);
        launch.trees = std::ptr::without_provenance(self.trees as usize);
        launch.nconns = self.nconns;
    }
}

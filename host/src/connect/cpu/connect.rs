//! Creates the connections of a communicator.

use super::collnet::Reducing;
use super::graph::RankGraph;
use super::wiring::Wiring;
use crate::bootstrap::Bootstrap;
use crate::connect::pipeline::{Ranks, Steps};
use crate::connect::vote::vote;
use crate::connect::{ConnectError, Setting};
use crate::launch::{Channel, NetLinks};
use crate::mem::{self, Segment};
use crate::net::NetConfig;
use crate::transport::{Allowed, InboxName, Opener, PeerInfo, Probe, Transport, TransportKind};
use oxccl_shared::abi::{ConnLayout, Rank};
use std::sync::Arc;
use std::time::Duration;

/// What to connect.
#[derive(Clone, Copy, Debug)]
pub struct CpuWanted<'a> {
    /// This rank.
    pub rank: Rank,
    /// Number of ranks.
    pub nranks: u32,
    /// Identifies the communicator's memory.
    pub comm_hash: u64,
    /// This process.
    pub info: &'a PeerInfo,
    /// The user's settings.
    pub allowed: &'a Allowed,
    /// Those in the digest `info.settings`.
    pub settings: &'a [Setting],
    /// The user's rings, if any; each names every rank once.
    pub rings: Option<&'a [Vec<Rank>]>,
    /// The settings of networks.
    pub net: &'a NetConfig,
    /// Timeout for connections over a network.
    pub net_timeout: Duration,
    /// Slots of ring and tree connections.
    pub ring_layout: ConnLayout,
    /// Slots of mesh connections.
    pub mesh_layout: ConnLayout,
    /// From which length on messages are read from the sender's memory, where the ranks share a host; never where there is none. The
    /// second where they share processors too.
    pub read_from_bytes: Option<[usize; 2]>,
    /// Whether connections over a network are made when operations need them, but for rings.
    pub by_need: bool,
}

/// All connections.
pub struct CpuConnected {
    /// Ring and tree channels.
    pub channels: Vec<Channel>,
    /// The mesh: direct algorithms, send and receive.
    pub mesh: Channel,
    /// Index into the mesh's send connections by rank.
    pub send_to: Vec<u16>,
    /// Index into the mesh's receive connections by rank.
    pub recv_from: Vec<u16>,
    /// The connections over a network, if there are any.
    pub net_links: Option<NetLinks>,
    /// What makes more of them when operations need them.
    pub opener: Option<(&'static dyn Transport, Box<dyn Opener>)>,
    /// In-network reduction, or why there is none.
    pub reducing: Reducing,
    /// The transport to each peer; this rank's own entry is unused.
    pub kinds: Vec<TransportKind>,
    /// All ranks' peer info.
    pub peers: Vec<PeerInfo>,
    /// The rings and trees.
    pub graph: RankGraph,
    /// Bytes of connections from each rank, in this rank's memory.
    pub inbound_bytes: Vec<usize>,
    /// Bytes of connections to each rank, in this rank's memory.
    pub outbound_bytes: Vec<usize>,
    /// Keeps the connections' memory mapped.
    pub memory: Vec<Arc<Segment>>,
}

impl Steps for CpuWanted<'_> {
    type Unit = Option<Probe>;
    type Plan<'s>
        = Wiring<'s>
    where
        Self: 's;
    type Memory<'s>
        = Wiring<'s>
    where
        Self: 's;
    type Connected = CpuConnected;

    fn info(&self) -> &PeerInfo {
        self.info
    }

    fn settings(&self) -> &[Setting] {
        self.settings
    }

    fn unit(&self) -> Result<Option<Probe>, ConnectError> {
        Ok(self.read_from_bytes.map(|_| Probe::here()))
    }

    fn check(&self, rank: Rank, ranks: &Ranks<Option<Probe>>) -> Result<(), ConnectError> {
        check_transports(rank, &ranks.peers, self.allowed)
    }

    fn plan<'s>(&'s self, _: &Bootstrap, ranks: Ranks<Option<Probe>>) -> Result<Wiring<'s>, ConnectError> {
        let graph = RankGraph::new(&ranks.peers, self.rings)?;
        Ok(Wiring::new(self, graph, ranks))
    }

    fn share<'s>(
        &'s self,
        bootstrap: &Bootstrap,
        mut wiring: Wiring<'s>,
    ) -> Result<Wiring<'s>, ConnectError> {
        vote(bootstrap, wiring.make_memory())?;
        vote(bootstrap, wiring.open_peers())?;
        Ok(wiring)
    }

    fn connect<'s>(
        &'s self,
        bootstrap: &Bootstrap,
        mut wiring: Wiring<'s>,
    ) -> Result<CpuConnected, ConnectError> {
        wiring.connect_remote(bootstrap)?;
        // Every peer has mapped every file: without names, no file can outlive us. A rank that is killed before this line leaves its own, and
        // no other would fail and remove it: the first two of a host remove all.
        let here = wiring.peers[self.rank.index()].host;
        let before = wiring.peers[..self.rank.index()].iter().filter(|peer| peer.host == here).count();
        if before < 2 {
            self.give_up(&wiring.peers);
        } else {
            mem::unlink_all([self.inbox_name(&wiring.peers, self.rank).file()]);
        }
        Ok(wiring.finish())
    }

    fn give_up(&self, peers: &[PeerInfo]) {
        let host = |rank: Rank| peers[rank.index()].host;
        let locals = (0..self.nranks).map(Rank).filter(|rank| host(*rank) == host(self.rank));
        mem::unlink_all(locals.map(|rank| self.inbox_name(peers, rank).file()));
    }
}

impl CpuWanted<'_> {
    /// The name of a rank's inbox.
    pub(super) fn inbox_name(&self, peers: &[PeerInfo], rank: Rank) -> InboxName {
        InboxName { comm_hash: self.comm_hash, rank, told: peers[rank.index()].files }
    }
}

/// Whether this rank reaches every other. If one does not, the two ends of the gap report it, and the others learn it from the vote.
fn check_transports(me: Rank, peers: &[PeerInfo], allowed: &Allowed) -> Result<(), ConnectError> {
    let mine = &peers[me.index()];
    let unreachable = |peer: &Rank| *peer != me && allowed.choose(mine, &peers[peer.index()]).is_none();
    match (0..peers.len() as u32).map(Rank).find(unreachable) {
        None => Ok(()),
        Some(peer) => {
            let why = if mine.host == peers[peer.index()].host {
                "they share a host, but neither shared memory nor TCP nor a network is allowed or possible between them"
            } else {
                "they are on different hosts, and neither TCP nor a network is allowed"
            };
            Err(ConnectError::NoTransport { rank: me, peer, why })
        }
    }
}

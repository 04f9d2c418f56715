//! Creates the connections of a communicator.

use super::collnet::Reducing;
use super::graph::RankGraph;
use super::wiring::Wiring;
use crate::bootstrap::{Agreement, Bootstrap, BootstrapError};
use crate::connect::ConnectError;
use crate::launch::{Channel, NetLinks};
use crate::mem::{self, Segment};
use crate::net::NetConfig;
use crate::transport::{Allowed, PeerInfo, TRANSPORTS, TransportKind};
use crate::wire::Message;
use oxccl_shared::abi::{ConnLayout, Rank};
use std::sync::Arc;
use std::time::Duration;

/// What to connect.
#[derive(Clone, Copy, Debug)]
pub struct CpuWanted<'a> {
    /// This rank.
    pub rank: u32,
    /// Number of ranks.
    pub nranks: u32,
    /// Identifies the communicator's memory.
    pub comm_hash: u64,
    /// This process.
    pub info: &'a PeerInfo,
    /// The user's settings.
    pub allowed: &'a Allowed,
    /// The variables in the digest `info.settings`.
    pub settings: &'static str,
    /// The user's rings, if any; each names every rank once.
    pub rings: Option<&'a [Vec<u32>]>,
    /// The settings of networks.
    pub net: &'a NetConfig,
    /// Timeout for connections over a network.
    pub net_timeout: Duration,
    /// Slots of ring and tree connections.
    pub ring_layout: ConnLayout,
    /// Slots of mesh connections.
    pub mesh_layout: ConnLayout,
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

/// Connects this rank with all others. Every rank calls it at the same time.
///
/// # Errors
/// The same step fails on every rank: on the rank at fault with its own error, elsewhere with one that names it.
pub fn connect(bootstrap: &Bootstrap, wanted: &CpuWanted<'_>) -> Result<CpuConnected, ConnectError> {
    let peers = gather_peers(bootstrap, wanted)?;
    let fit = check_settings(wanted, &peers).and_then(|()| check_transports(wanted, &peers));
    agree(bootstrap, wanted, fit)?;
    let graph = RankGraph::new(&peers, wanted.rings)?;
    let mut wiring = Wiring::new(wanted, graph, peers);

    let made = wiring.make_memory();
    let file = agree(bootstrap, wanted, made)?;
    let opened = wiring.open_peers();
    agree(bootstrap, wanted, opened)?;
    let connected = TRANSPORTS.into_iter().try_for_each(|transport| wiring.connect_by(transport, bootstrap));
    agree_or_leave(bootstrap, wanted, connected)?;
    if wiring.wants_collnet() {
        let listener = agree(bootstrap, wanted, wiring.listen_collnet())?;
        let joined = wiring.join_collnet(bootstrap, listener);
        agree_or_leave(bootstrap, wanted, joined)?;
    }
    // Every peer has mapped every file: without names, no file can outlive us. Remove all names: a rank that is
    // killed before this line leaves its own, and no other rank would fail and remove it.
    wanted.forget_files();
    drop(file);
    Ok(wiring.finish())
}

fn gather_peers(bootstrap: &Bootstrap, wanted: &CpuWanted<'_>) -> Result<Vec<PeerInfo>, ConnectError> {
    let blocks = bootstrap.all_gather(&wanted.info.to_bytes())?;
    let mut peers = Vec::with_capacity(blocks.len());
    for (peer, block) in blocks.iter().enumerate() {
        peers.push(PeerInfo::from_bytes(block).map_err(|_| ConnectError::Malformed { peer: peer as u32 })?);
    }
    Ok(peers)
}

/// Whether all ranks have the same settings. All ranks see the same, but must not leave before all others have seen
/// it.
fn check_settings(wanted: &CpuWanted<'_>, peers: &[PeerInfo]) -> Result<(), ConnectError> {
    match peers.iter().position(|peer| peer.settings != peers[0].settings) {
        Some(peer) => Err(ConnectError::Settings { peer: peer as u32, settings: wanted.settings }),
        None => Ok(()),
    }
}

/// Whether this rank reaches every other. If one does not, the two ends of the gap report it, and the others learn it
/// from their [`agree`].
fn check_transports(wanted: &CpuWanted<'_>, peers: &[PeerInfo]) -> Result<(), ConnectError> {
    let (me, mine) = (wanted.rank, &peers[wanted.rank as usize]);
    let unreachable =
        |peer: &u32| *peer != me && wanted.allowed.choose(mine, &peers[*peer as usize]).is_none();
    match (0..wanted.nranks).find(unreachable) {
        None => Ok(()),
        Some(peer) => {
            let why = if mine.host == peers[peer as usize].host {
                "they share a host, but neither shared memory nor TCP nor a network is allowed or possible between them"
            } else {
                "they are on different hosts, and neither TCP nor a network is allowed"
            };
            Err(ConnectError::NoTransport { rank: me, peer, why })
        }
    }
}

/// As [`agree`], after a step in which ranks wait for each other. Fail fast: abort before the vote.
fn agree_or_leave<T>(
    bootstrap: &Bootstrap,
    wanted: &CpuWanted<'_>,
    mine: Result<T, ConnectError>,
) -> Result<T, ConnectError> {
    if let Err(error) = &mine {
        wanted.forget_files();
        // An abort that another rank reported is known to the others.
        if !matches!(error, ConnectError::Bootstrap(BootstrapError::PeerAborted { .. })) {
            bootstrap.abort(&error.to_string());
        }
        return mine;
    }
    agree(bootstrap, wanted, mine)
}

/// A vote: every rank learns whether every rank succeeded.
fn agree<T>(
    bootstrap: &Bootstrap,
    wanted: &CpuWanted<'_>,
    mine: Result<T, ConnectError>,
) -> Result<T, ConnectError> {
    let agreed = bootstrap.agree(mine.as_ref().map(|_| &[][..]));
    // A rank that was lost comes first: whoever hears of it removes all files, which others may then miss.
    let agreed = agreed.inspect_err(|_| wanted.forget_files())?;
    let value = mine.inspect_err(|_| wanted.forget_files())?;
    match agreed {
        Agreement::All(_) => Ok(value),
        Agreement::Failed { peer, why, .. } => {
            wanted.forget_files();
            Err(ConnectError::PeerFailed { peer, why })
        }
    }
}

impl CpuWanted<'_> {
    /// Removes the files that any rank of this host may have left, since a rank that died cannot.
    fn forget_files(&self) {
        mem::unlink_all(self.comm_hash, (0..self.nranks).map(Rank));
    }
}

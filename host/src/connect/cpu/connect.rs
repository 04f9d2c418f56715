//! Creates the connections of a communicator.

use super::connected::CpuConnected;
use super::graph::RankGraph;
use super::wanted::CpuWanted;
use super::wiring::Wiring;
use crate::bootstrap::Bootstrap;
use crate::connect::pipeline::{Ranks, Steps};
use crate::connect::vote::vote;
use crate::connect::{ConnectError, Setting};
use crate::mem;
use crate::net::NetConfig;
use crate::transport::{Allowed, PeerInfo, Probe};
use oxccl_shared::abi::Rank;

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

    fn net(&self) -> &NetConfig {
        self.net
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
                "they are on different hosts or run as different users, and neither TCP nor a network is allowed"
            };
            Err(ConnectError::NoTransport { rank: me, peer, why })
        }
    }
}

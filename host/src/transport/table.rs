//! The transports that there are: one row each.

use super::contract::{Memory, Transport};
use super::kind::{Allowed, TransportKind};
use super::peer::PeerInfo;
use super::{inproc, net, shm, tcp};

/// The transports between CPU ranks, the best first. (GPUs reach each other's memory by `p2p`, which their own survey decides.)
pub static TRANSPORTS: [&dyn Transport; 4] = [&inproc::InProcess, &shm::Shm, &tcp::Tcp, &net::Net];

/// The transport of that kind, if CPU ranks have it.
pub fn transport_of(kind: TransportKind) -> Option<&'static dyn Transport> {
    TRANSPORTS.into_iter().find(|transport| transport.kind() == kind)
}

impl TransportKind {
    /// Whether it carries bytes from one memory to another.
    pub fn is_remote(self) -> bool {
        transport_of(self).is_some_and(|transport| transport.memory() == Memory::Halves)
    }

    /// The transport of that name.
    pub fn from_name(name: &str) -> Option<TransportKind> {
        let mut kinds = TRANSPORTS.into_iter().map(|transport| transport.kind());
        kinds.find(|kind| kind.name().eq_ignore_ascii_case(name))
    }
}

impl Allowed {
    /// The best transport between two ranks, if any is possible and allowed. Symmetric, so both ends choose alike.
    pub fn choose(&self, a: &PeerInfo, b: &PeerInfo) -> Option<TransportKind> {
        TRANSPORTS
            .into_iter()
            .find(|transport| transport.connects(self, a, b))
            .map(|transport| transport.kind())
    }

    /// Whether no two of these ranks are connected by memory. The same on every rank.
    pub fn all_streams(&self, peers: &[PeerInfo]) -> bool {
        let is_remote = |a: &PeerInfo, b: &PeerInfo| self.choose(a, b).is_some_and(TransportKind::is_remote);
        let mut by_host: Vec<&PeerInfo> = peers.iter().collect();
        by_host.sort_by_key(|peer| peer.host);
        let mut hosts = by_host.chunk_by(|a, b| a.host == b.host);
        // Ranks of different hosts share no memory, so that one pair of hosts stands for all.
        let are_reached = by_host.windows(2).filter(|pair| pair[0].host != pair[1].host).take(1);
        let others =
            |ranks: &[&PeerInfo], at: usize| ranks[..at].iter().all(|other| is_remote(other, ranks[at]));
        are_reached.into_iter().all(|pair| is_remote(pair[0], pair[1]))
            && hosts.all(|ranks| (0..ranks.len()).all(|at| others(ranks, at)))
    }

    /// Whether some of these ranks are connected over a network. The same on every rank: that two share memory means that they share it
    /// with the same others.
    pub fn has_streams(&self, peers: &[PeerInfo]) -> bool {
        let is_remote = |peer: &PeerInfo| self.choose(&peers[0], peer).is_some_and(TransportKind::is_remote);
        peers.iter().skip(1).any(is_remote)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_allowed_transport_wins() {
        let peer = |host, process| PeerInfo { host, process, ..PeerInfo::default() };
        let (a, thread, process, remote) = (peer(1, 1), peer(1, 1), peer(1, 2), peer(2, 1));
        let all = Allowed::ALL;
        assert_eq!(all.choose(&a, &thread), Some(TransportKind::InProcess));
        assert_eq!(all.choose(&a, &process), Some(TransportKind::Shm));
        assert_eq!(all.choose(&a, &remote), Some(TransportKind::Tcp));
        let shm = Allowed::only(TransportKind::Shm);
        assert_eq!(shm.choose(&a, &thread), Some(TransportKind::Shm));
        assert_eq!(shm.choose(&a, &remote), None);
        let net = Allowed { tcp: false, ..Allowed::ALL };
        assert_eq!(net.choose(&a, &remote), Some(TransportKind::Net));
        assert_eq!(net.choose(&a, &process), Some(TransportKind::Shm));
        assert!(all.all_streams(&[a, remote, peer(3, 1)]));
        assert!(!all.all_streams(&[a, remote, process]));
        assert!(all.has_streams(&[a, process, remote]) && !all.has_streams(&[a, process, thread]));
    }
}

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
        let others = |i: usize| peers[..i].iter().map(move |other| (other, &peers[i]));
        (0..peers.len())
            .flat_map(others)
            .all(|(a, b)| self.choose(a, b).is_some_and(TransportKind::is_remote))
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
    }
}

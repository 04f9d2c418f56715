//! Which transport connects two ranks.

use super::peer::PeerInfo;
use core::fmt;

/// A way from one rank to another, best first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TransportKind {
    /// Memory of the process that both ranks live in.
    InProcess,
    /// A file in /dev/shm that both processes map.
    Shm,
    /// A TCP stream.
    Tcp,
    /// A network: InfiniBand, a plugin's, or sockets by NCCL's rules.
    Net,
    /// Memory of a GPU that other GPUs of the host reach; between GPUs only.
    P2p,
}

impl TransportKind {
    /// The name used in options and tables.
    pub const fn name(self) -> &'static str {
        match self {
            TransportKind::InProcess => "inproc",
            TransportKind::Shm => "shm",
            TransportKind::Tcp => "tcp",
            TransportKind::Net => "net",
            TransportKind::P2p => "p2p",
        }
    }

    /// Whether it carries bytes from one memory to another.
    pub const fn is_remote(self) -> bool {
        matches!(self, TransportKind::Tcp | TransportKind::Net)
    }

    /// The transport of that name.
    pub fn from_name(name: &str) -> Option<TransportKind> {
        [TransportKind::InProcess, TransportKind::Shm, TransportKind::Tcp, TransportKind::Net]
            .into_iter()
            .find(|kind| kind.name().eq_ignore_ascii_case(name))
    }
}

impl fmt::Display for TransportKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Which transports the user allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allowed {
    /// Memory of one process (`NCCL_P2P_DISABLE=1` forbids it).
    pub in_process: bool,
    /// Shared memory files (`NCCL_SHM_DISABLE=1` forbids them).
    pub shm: bool,
    /// Streams.
    pub tcp: bool,
    /// Networks, where streams are forbidden (`NCCL_NET` names one and so forbids streams).
    pub net: bool,
}

impl Allowed {
    /// Everything.
    pub const ALL: Allowed = Allowed { in_process: true, shm: true, tcp: true, net: true };

    /// Nothing but `kind`.
    pub fn only(kind: TransportKind) -> Allowed {
        Allowed {
            in_process: kind == TransportKind::InProcess,
            shm: kind == TransportKind::Shm,
            tcp: kind == TransportKind::Tcp,
            net: kind == TransportKind::Net,
        }
    }

    /// The best transport between two ranks, if any is possible and allowed. Symmetric, so both ends choose alike.
    pub fn choose(&self, a: &PeerInfo, b: &PeerInfo) -> Option<TransportKind> {
        if self.in_process && a.process == b.process && a.host == b.host {
            return Some(TransportKind::InProcess);
        }
        if self.shm && a.host == b.host {
            return Some(TransportKind::Shm);
        }
        match (self.tcp, self.net) {
            (true, _) => Some(TransportKind::Tcp),
            (false, true) => Some(TransportKind::Net),
            (false, false) => None,
        }
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

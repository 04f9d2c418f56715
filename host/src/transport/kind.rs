//! Which transport connects two ranks.

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
    /// Whether what a rank has sent lies at once where the other sees it.
    pub(crate) const fn is_memory(self) -> bool {
        matches!(self, TransportKind::InProcess | TransportKind::Shm | TransportKind::P2p)
    }

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
}

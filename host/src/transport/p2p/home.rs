//! Where each rank's memory lies: decided by every rank alike, from facts alone.

use std::fmt;
use std::time::Duration;

/// What the user allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct P2pSettings {
    /// GPUs use each other's memory (`NCCL_P2P_DISABLE=1` forbids it; then all goes through the host).
    pub enabled: bool,
    /// Memory for other processes is made by cuMem (`NCCL_CUMEM_ENABLE=0` forbids it; then by legacy IPC).
    pub cumem: bool,
    /// How long the processes of a host wait for each other's descriptors.
    pub timeout: Duration,
}

impl Default for P2pSettings {
    fn default() -> Self {
        P2pSettings { enabled: true, cumem: true, timeout: Duration::from_secs(30) }
    }
}

/// How ranks of different processes share memory; tried in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Method {
    /// cuMem allocations, by file descriptors.
    CuMem,
    /// Legacy IPC handles.
    Legacy,
    /// Through the host.
    Host,
}

impl Method {
    /// The first to try.
    pub fn first(settings: &P2pSettings, all_export_fds: bool) -> Method {
        if settings.cumem && all_export_fds { Method::CuMem } else { Method::Legacy }
    }

    /// The one after it.
    pub fn next(self) -> Option<Method> {
        match self {
            Method::CuMem => Some(Method::Legacy),
            Method::Legacy => Some(Method::Host),
            Method::Host => None,
        }
    }
}

/// Where a rank's memory lies.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Home {
    /// On its device, from `cuMemAlloc`.
    Device,
    /// On its device, from `cuMemCreate`.
    Shareable,
    /// On the host, for one process.
    Pinned,
    /// On the host, in a file that processes share.
    HostFile,
}

impl Home {
    /// All, by number on the wire.
    const ALL: [Home; 4] = [Home::Device, Home::Shareable, Home::Pinned, Home::HostFile];

    pub(super) fn from_wire(number: u8) -> Option<Home> {
        Home::ALL.get(usize::from(number)).copied()
    }

    pub(super) fn to_wire(self) -> u8 {
        self as u8
    }

    /// Whether the memory is on the GPU.
    pub fn is_on_device(self) -> bool {
        matches!(self, Home::Device | Home::Shareable)
    }
}

impl fmt::Display for Home {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Home::Device => "device memory (cuMemAlloc)",
            Home::Shareable => "device memory (cuMem)",
            Home::Pinned => "pinned host memory",
            Home::HostFile => "host memory in /dev/shm",
        })
    }
}

/// Whether kernels of one GPU can use the memory of another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Access {
    /// They can.
    Yes,
    /// They cannot.
    No,
    /// The other GPU is hidden from this process, which cannot ask; mapping its memory may work all the same.
    Hidden,
}

impl Access {
    const ALL: [Access; 3] = [Access::Yes, Access::No, Access::Hidden];

    pub fn from_wire(number: u8) -> Option<Access> {
        Access::ALL.get(usize::from(number)).copied()
    }

    pub fn to_wire(self) -> u8 {
        self as u8
    }
}

/// What decides how a peer of the same host reaches an owner's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Pair {
    pub same_process: bool,
    /// What the owner's process says of the peer's device.
    pub there: Access,
    /// What the peer's process says of the owner's device.
    pub back: Access,
}

/// Where the memory of an owner lies that has these peers on its host. One home for all of them: a peer that cannot reach
/// the owner's GPU draws the memory to the host for everybody.
pub(super) fn home(settings: &P2pSettings, method: Method, peers: &[Pair]) -> Home {
    if peers.is_empty() {
        return Home::Device;
    }
    let is_reached = |pair: &Pair| pair.there != Access::No && pair.back != Access::No;
    let is_foreign = peers.iter().any(|pair| !pair.same_process);
    match (settings.enabled && peers.iter().all(is_reached), is_foreign, method) {
        (true, false, _) | (true, true, Method::Legacy) => Home::Device,
        (true, true, Method::CuMem) => Home::Shareable,
        (false, false, _) => Home::Pinned,
        (true, true, Method::Host) | (false, true, _) => Home::HostFile,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Access::{Hidden, No, Yes};

    const ON: P2pSettings = P2pSettings { enabled: true, cumem: true, timeout: Duration::from_secs(1) };
    const OFF: P2pSettings = P2pSettings { enabled: false, ..ON };

    fn thread(there: Access) -> Pair {
        Pair { same_process: true, there, back: there }
    }

    fn process(there: Access, back: Access) -> Pair {
        Pair { same_process: false, there, back }
    }

    #[test]
    fn homes_follow_the_table() {
        let both = process(Yes, Yes);
        for (settings, method, peers, expected) in [
            (ON, Method::CuMem, vec![], Home::Device),
            (OFF, Method::CuMem, vec![], Home::Device),
            (ON, Method::CuMem, vec![thread(Yes)], Home::Device),
            (ON, Method::Host, vec![thread(Yes)], Home::Device),
            (ON, Method::CuMem, vec![both], Home::Shareable),
            (ON, Method::CuMem, vec![thread(Yes), both], Home::Shareable),
            (ON, Method::Legacy, vec![both], Home::Device),
            (ON, Method::Host, vec![both], Home::HostFile),
            (ON, Method::CuMem, vec![process(Hidden, Hidden)], Home::Shareable),
            (ON, Method::CuMem, vec![process(Yes, No)], Home::HostFile),
            (ON, Method::CuMem, vec![process(No, Yes)], Home::HostFile),
            (ON, Method::CuMem, vec![process(Hidden, No)], Home::HostFile),
            (ON, Method::CuMem, vec![both, thread(No)], Home::HostFile),
            (ON, Method::CuMem, vec![thread(Yes), thread(No)], Home::Pinned),
            (OFF, Method::CuMem, vec![thread(Yes)], Home::Pinned),
            (OFF, Method::CuMem, vec![thread(Yes), both], Home::HostFile),
        ] {
            assert_eq!(home(&settings, method, &peers), expected, "{settings:?} {method:?} {peers:?}");
        }
    }

    #[test]
    fn methods_come_in_order_and_end_with_the_host() {
        assert_eq!(Method::first(&ON, true), Method::CuMem);
        assert_eq!(Method::first(&ON, false), Method::Legacy);
        assert_eq!(Method::first(&P2pSettings { cumem: false, ..ON }, true), Method::Legacy);
        let order: Vec<_> = std::iter::successors(Some(Method::CuMem), |method| method.next()).collect();
        assert_eq!(order, [Method::CuMem, Method::Legacy, Method::Host]);
    }

    #[test]
    fn numbers_on_the_wire_round_trip() {
        for home in Home::ALL {
            assert_eq!(Home::from_wire(home.to_wire()), Some(home));
        }
        for access in Access::ALL {
            assert_eq!(Access::from_wire(access.to_wire()), Some(access));
        }
        assert_eq!((Home::from_wire(4), Access::from_wire(3)), (None, None));
    }
}

//! Where each rank's memory lies: decided by every rank alike, from facts alone.

use super::sides::Side;
use serde::{Deserialize, Serialize};
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
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
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
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Access {
    /// They can.
    Yes,
    /// They cannot.
    No,
    /// The other GPU is hidden from this process, which cannot ask; mapping its memory may work all the same.
    Hidden,
}

/// What decides where two ranks of a host meet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Pair {
    /// What one's process says of the other's device.
    pub there: Access,
    /// What the other's says of the one's.
    pub back: Access,
}

/// Where two ranks of a host meet. What one end's driver or user refuses is refused for both.
pub(super) fn side(settings: &P2pSettings, method: Method, pair: &Pair) -> Side {
    let is_reached = pair.there != Access::No && pair.back != Access::No;
    if settings.enabled && is_reached && method != Method::Host { Side::Device } else { Side::Host }
}

/// Where one side of an owner's memory lies; `is_foreign` if any rank that it meets there is another process.
pub(super) fn home(side: Side, method: Method, is_foreign: bool) -> Home {
    match (side, is_foreign) {
        (Side::Device, true) if method == Method::CuMem => Home::Shareable,
        (Side::Device, _) => Home::Device,
        (Side::Host, false) => Home::Pinned,
        (Side::Host, true) => Home::HostFile,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Access::{Hidden, No, Yes};

    const ON: P2pSettings = P2pSettings { enabled: true, cumem: true, timeout: Duration::from_secs(1) };
    const OFF: P2pSettings = P2pSettings { enabled: false, ..ON };

    fn pair(there: Access, back: Access) -> Pair {
        Pair { there, back }
    }

    #[test]
    fn a_pair_meets_on_the_host_if_either_end_cannot_reach_the_other() {
        let both = pair(Yes, Yes);
        for (settings, method, pair, expected) in [
            (ON, Method::CuMem, pair(No, No), Side::Host),
            (ON, Method::CuMem, both, Side::Device),
            (ON, Method::Legacy, both, Side::Device),
            (ON, Method::Host, both, Side::Host),
            (OFF, Method::CuMem, both, Side::Host),
            (ON, Method::CuMem, pair(Hidden, Hidden), Side::Device),
            (ON, Method::CuMem, pair(Yes, No), Side::Host),
            (ON, Method::CuMem, pair(No, Yes), Side::Host),
            (ON, Method::CuMem, pair(Hidden, No), Side::Host),
        ] {
            assert_eq!(side(&settings, method, &pair), expected, "{settings:?} {method:?} {pair:?}");
        }
    }

    #[test]
    fn homes_follow_the_table() {
        for (side, method, is_foreign, expected) in [
            (Side::Device, Method::CuMem, false, Home::Device),
            (Side::Device, Method::CuMem, true, Home::Shareable),
            (Side::Device, Method::Legacy, true, Home::Device),
            (Side::Host, Method::CuMem, false, Home::Pinned),
            (Side::Host, Method::Legacy, true, Home::HostFile),
            (Side::Host, Method::Host, true, Home::HostFile),
        ] {
            assert_eq!(home(side, method, is_foreign), expected, "{side:?} {method:?} {is_foreign}");
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
}

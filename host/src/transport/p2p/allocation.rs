//! The kind of each rank's memory: a pure function of facts, so that every rank decides alike.

use super::domains::Domain;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// The user's settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct P2pSettings {
    /// GPUs access each other's memory (`NCCL_P2P_DISABLE=1` disables it; then all goes through the host).
    pub enabled: bool,
    /// Memory for other processes is allocated by cuMem (`NCCL_CUMEM_ENABLE=0` disables it; then by legacy IPC).
    pub cumem: bool,
    /// Several ranks may be on one GPU (`OXCCL_DUPLICATE_GPUS=1`). For tests on machines with few: their kernels share its multiprocessors, so
    /// they take few; those of several processes take turns, which is slow.
    pub shares_gpus: bool,
    /// Timeout for the descriptors of the host's other processes.
    pub timeout: Duration,
}

impl Default for P2pSettings {
    fn default() -> Self {
        P2pSettings { enabled: true, cumem: true, shares_gpus: false, timeout: Duration::from_secs(30) }
    }
}

/// How ranks of different processes share memory, in order of preference.
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
pub enum AllocationKind {
    /// On its device, from `cuMemAlloc`.
    Device,
    /// On its device, from `cuMemCreate`.
    Shareable,
    /// On the host, for one process.
    Pinned,
    /// On the host, in a file that processes share.
    HostFile,
}

impl fmt::Display for AllocationKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            AllocationKind::Device => "device memory (cuMemAlloc)",
            AllocationKind::Shareable => "device memory (cuMem)",
            AllocationKind::Pinned => "pinned host memory",
            AllocationKind::HostFile => "host memory in /dev/shm",
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
    /// Unknown: the other GPU is hidden from this process. Mapping its memory may work nevertheless.
    Hidden,
}

/// What decides the memory domain of two ranks of a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Pair {
    /// Access from the first rank's GPU to the second's.
    pub there: Access,
    /// Access from the second rank's GPU to the first's.
    pub back: Access,
}

/// The memory domain of two ranks of a host. A refusal by one end's driver or user holds for both.
pub(super) fn domain(settings: &P2pSettings, method: Method, pair: &Pair) -> Domain {
    let is_reached = pair.there != Access::No && pair.back != Access::No;
    if settings.enabled && is_reached && method != Method::Host { Domain::Device } else { Domain::Host }
}

/// The kind of an owner's memory in one domain; `is_foreign` if any rank that shares it is another process.
pub(super) fn allocation_kind(domain: Domain, method: Method, is_foreign: bool) -> AllocationKind {
    match (domain, is_foreign) {
        (Domain::Device, true) if method == Method::CuMem => AllocationKind::Shareable,
        (Domain::Device, _) => AllocationKind::Device,
        (Domain::Host, false) => AllocationKind::Pinned,
        (Domain::Host, true) => AllocationKind::HostFile,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Access::{Hidden, No, Yes};

    const ON: P2pSettings =
        P2pSettings { enabled: true, cumem: true, shares_gpus: false, timeout: Duration::from_secs(1) };
    const OFF: P2pSettings = P2pSettings { enabled: false, ..ON };

    fn pair(there: Access, back: Access) -> Pair {
        Pair { there, back }
    }

    #[test]
    fn a_pair_meets_on_the_host_if_either_end_cannot_reach_the_other() {
        let both = pair(Yes, Yes);
        for (settings, method, pair, expected) in [
            (ON, Method::CuMem, pair(No, No), Domain::Host),
            (ON, Method::CuMem, both, Domain::Device),
            (ON, Method::Legacy, both, Domain::Device),
            (ON, Method::Host, both, Domain::Host),
            (OFF, Method::CuMem, both, Domain::Host),
            (ON, Method::CuMem, pair(Hidden, Hidden), Domain::Device),
            (ON, Method::CuMem, pair(Yes, No), Domain::Host),
            (ON, Method::CuMem, pair(No, Yes), Domain::Host),
            (ON, Method::CuMem, pair(Hidden, No), Domain::Host),
        ] {
            assert_eq!(domain(&settings, method, &pair), expected, "{settings:?} {method:?} {pair:?}");
        }
    }

    #[test]
    fn kinds_follow_the_table() {
        for (domain, method, is_foreign, expected) in [
            (Domain::Device, Method::CuMem, false, AllocationKind::Device),
            (Domain::Device, Method::CuMem, true, AllocationKind::Shareable),
            (Domain::Device, Method::Legacy, true, AllocationKind::Device),
            (Domain::Host, Method::CuMem, false, AllocationKind::Pinned),
            (Domain::Host, Method::Legacy, true, AllocationKind::HostFile),
            (Domain::Host, Method::Host, true, AllocationKind::HostFile),
        ] {
            assert_eq!(
                allocation_kind(domain, method, is_foreign),
                expected,
                "{domain:?} {method:?} {is_foreign}"
            );
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

//! The route between two GPUs: memory, or a network. Every rank decides alike.

use crate::connect::ConnectError;
use crate::transport::{Allowed, PeerInfo};
use oxccl_shared::abi::Rank;
use std::collections::{BTreeMap, BTreeSet};

/// The routes that the user allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RouteSettings {
    /// GPUs of one host may access each other's memory, or at least host memory: unless `NCCL_P2P_DISABLE=1` and
    /// `NCCL_SHM_DISABLE=1`, as in NCCL, or `OXCCL_TRANSPORT` selects another route.
    pub memory: bool,
    /// A network may be used: unless `OXCCL_TRANSPORT` selects another route.
    pub network: bool,
}

impl RouteSettings {
    /// From the transports that the user allows.
    pub fn new(allowed: &Allowed) -> RouteSettings {
        RouteSettings { memory: allowed.in_process || allowed.shm, network: allowed.net }
    }
}

/// The group of each rank: ranks of one group access each other's memory, all others use a network. By default all
/// are in one.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Routes(Vec<u64>);

impl Routes {
    /// The routes between ranks on these hosts.
    pub fn new(peers: &[PeerInfo], settings: RouteSettings) -> Routes {
        let group = |(rank, peer): (usize, &PeerInfo)| if settings.memory { peer.host } else { rank as u64 };
        Routes(peers.iter().enumerate().map(group).collect())
    }

    /// Whether two ranks are connected over a network. Symmetric; a rank reaches itself.
    pub fn is_net(&self, a: Rank, b: Rank) -> bool {
        self.0.get(a.index()) != self.0.get(b.index())
    }

    /// The group of each rank.
    pub fn group_of(&self) -> &[u64] {
        &self.0
    }

    /// Whether some ranks are connected over a network.
    pub fn is_wide(&self) -> bool {
        self.0.iter().any(|group| *group != self.0[0])
    }

    /// Number of groups.
    pub fn groups(&self) -> u32 {
        self.0.iter().collect::<BTreeSet<_>>().len() as u32
    }

    /// The most ranks that share memory.
    pub fn group_max(&self) -> u32 {
        let mut sizes = BTreeMap::new();
        self.0.iter().for_each(|group| *sizes.entry(group).or_insert(0) += 1);
        sizes.into_values().max().unwrap_or(0)
    }

    /// Whether any two ranks share memory.
    pub fn has_memory(&self) -> bool {
        (self.groups() as usize) < self.0.len()
    }

    /// Whether the user allows the routes needed.
    ///
    /// # Errors
    /// [`ConnectError::NoTransport`] with the first pair that needs a network.
    pub fn check(&self, settings: RouteSettings) -> Result<(), ConnectError> {
        let far = self.0.iter().position(|group| *group != self.0[0]);
        match far {
            Some(peer) if !settings.network => {
                let why = "GPUs of one host are connected by memory, others by a network, and OXCCL_TRANSPORT forbids that";
                Err(ConnectError::NoTransport { rank: Rank(0), peer: Rank(peer as u32), why })
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::TransportKind;
    use proptest::prelude::*;

    fn peers(hosts: &[u64]) -> Vec<PeerInfo> {
        hosts.iter().map(|host| PeerInfo { host: *host, ..PeerInfo::default() }).collect()
    }

    #[test]
    fn settings_follow_from_what_is_allowed() {
        let of = |allowed| RouteSettings::new(&allowed);
        let both = RouteSettings { memory: true, network: true };
        assert_eq!(of(Allowed::ALL), both);
        assert_eq!(of(Allowed { tcp: false, ..Allowed::ALL }), both, "NCCL_NET=Socket");
        assert_eq!(
            of(Allowed { in_process: false, ..Allowed::ALL }),
            both,
            "NCCL_P2P_DISABLE=1: through the host"
        );
        assert_eq!(of(Allowed { shm: false, ..Allowed::ALL }), both, "NCCL_SHM_DISABLE=1");
        let network = RouteSettings { memory: false, network: true };
        assert_eq!(of(Allowed { in_process: false, shm: false, ..Allowed::ALL }), network, "both");
        assert_eq!(of(Allowed::only(TransportKind::Net)), network);
        assert_eq!(of(Allowed::only(TransportKind::Shm)), RouteSettings { memory: true, network: false });
    }

    #[test]
    fn a_network_that_is_needed_and_forbidden_is_refused_with_the_pair() {
        let forbidden = RouteSettings { memory: true, network: false };
        assert_eq!(Routes::new(&peers(&[1, 1]), forbidden).check(forbidden), Ok(()));
        let error = Routes::new(&peers(&[1, 1, 2]), forbidden).check(forbidden).unwrap_err();
        assert!(matches!(error, ConnectError::NoTransport { rank: Rank(0), peer: Rank(2), .. }), "{error}");
    }

    proptest! {
        /// Hosts decide if memory may be used; otherwise all other ranks are remote.
        #[test]
        fn ways_are_those_of_hosts_or_all_are_networks(
            hosts in proptest::collection::vec(0u64..4, 1..9),
            memory: bool,
        ) {
            let routes = Routes::new(&peers(&hosts), RouteSettings { memory, network: true });
            let ranks = || 0..hosts.len();
            let mut any_memory = false;
            for (a, b) in ranks().flat_map(|a| ranks().map(move |b| (a, b))) {
                let is_far = if memory { hosts[a] != hosts[b] } else { a != b };
                prop_assert_eq!(routes.is_net(Rank(a as u32), Rank(b as u32)), is_far);
                any_memory |= a != b && !is_far;
            }
            prop_assert_eq!(routes.has_memory(), any_memory);
            let groups = if memory { hosts.iter().collect::<BTreeSet<_>>().len() } else { hosts.len() };
            prop_assert_eq!(routes.groups() as usize, groups);
        }
    }
}

//! How the GPUs of each host reach its head, and through it a network that reduces.

use super::routes::Routes;
use crate::bootstrap::Bootstrap;
use crate::connect::ConnectError;
use crate::connect::collnet::{HeadListener, Heads, HostRanks, headed};
use crate::connect::vote::vote;
use crate::net::{Locality, NetConfig};
use crate::plan::{Collnet, Facts};
use crate::topology::detect::Sysfs;
use crate::topology::{BusId, Channels};
use oxccl_shared::abi::{ConnLayout, KernelTree, Rank};
use oxccl_shared::algo::collnet::{Owner, Shape};

/// On each channel the ranks of each group that shares memory; no channels if no network reduces. Equal on every rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceHeads {
    /// How a group's ranks are connected.
    pub shape: Shape,
    /// The ranks of each group on each channel, its head first. A group's head differs between channels where its rings enter by several GPUs.
    pub channels: Vec<HostRanks>,
    /// Slots.
    pub slots: ConnLayout,
}

/// Channels of both shapes.
#[derive(Clone, Default, Debug)]
pub struct InHosts {
    /// Of chains.
    pub chains: Vec<HostRanks>,
    /// Of stars.
    pub stars: Vec<HostRanks>,
}

/// What heads find, where the user wants a network that reduces, and if there is one, the channels: along the first rings, so that a host has
/// a head for each device by which they come.
pub(super) fn find(
    bootstrap: &Bootstrap,
    gpu: BusId,
    net: &NetConfig,
    (facts, channels): (&Facts, &Channels),
    routes: &Routes,
) -> Result<(Heads, InHosts), ConnectError> {
    let why_not = match () {
        () if !net.coll.enabled => Some(Collnet::Disabled),
        () if routes.groups() < 2 => Some(Collnet::OneHost),
        () if routes.groups() < net.coll.hosts_min => Some(Collnet::FewHosts),
        () => None,
    };
    if let Some(collnet) = why_not {
        return Ok((Heads { collnet, lack: String::new(), mine: Vec::new() }, InHosts::default()));
    }
    let rank = bootstrap.rank();
    let along = |channel| DeviceHeads::along(channels.ring(channel as usize), routes.group_of());
    let of = |count| (0..count).map(along).collect::<Vec<_>>();
    let in_hosts = InHosts { chains: of(facts.chain_channels), stars: of(facts.star_channels) };
    let all = in_hosts.all();
    let listener = match headed(&all, rank).count() {
        0 => Ok(HeadListener::member()),
        count => {
            // The device nearest to the head's GPU: of a host's heads each has its own.
            let place = Locality::of_gpu(Sysfs::live().place(gpu), 0);
            HeadListener::listen(net, rank, &place, count)
        }
    };
    let heads = vote(bootstrap, listener)?.gather(bootstrap, &all)?;
    let is_there = matches!(heads.collnet, Collnet::There(_));
    Ok((heads, if is_there { in_hosts } else { InHosts::default() }))
}

impl InHosts {
    /// All: those of chains before those of stars.
    pub fn all(&self) -> Vec<HostRanks> {
        self.chains.iter().chain(&self.stars).cloned().collect()
    }
}

/// A rank's neighbours on a channel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlaceInHost {
    /// The rank above; of a head, which has the network there, the next head.
    pub above: Rank,
    /// The ranks below.
    pub below: Vec<Rank>,
    /// Whether it is a head.
    pub is_head: bool,
}

impl DeviceHeads {
    /// No channels, which have these slots.
    pub fn none(shape: Shape, slots: ConnLayout) -> DeviceHeads {
        DeviceHeads { shape, channels: Vec::new(), slots }
    }

    /// Each group's ranks in the order in which this ring passes them, from where it enters a group on.
    pub fn along(ring: &[Rank], group_of: &[u64]) -> HostRanks {
        let group = |rank: Rank| group_of[rank.index()];
        let n = ring.len();
        let enters = |at: usize| group(ring[at]) != group(ring[(at + n - 1) % n]);
        let first = (0..n).find(|at| enters(*at)).unwrap_or(0);
        let mut hosts: HostRanks = Vec::new();
        for rank in ring.iter().cycle().skip(first).take(n) {
            match hosts.iter_mut().find(|host| group(host[0]) == group(*rank)) {
                Some(host) => host.push(*rank),
                None => hosts.push(vec![*rank]),
            }
        }
        hosts
    }

    /// Channels.
    pub fn channels(&self) -> usize {
        self.channels.len()
    }

    /// A rank's place on a channel; none if there is no such channel.
    pub fn place(&self, channel: usize, rank: Rank) -> Option<PlaceInHost> {
        let hosts = self.channels.get(channel)?;
        let number = hosts.iter().position(|host| host.contains(&rank))?;
        let place = self.shape.place(&hosts[number], rank)?;
        let next_head = hosts[(number + 1) % hosts.len()][0];
        Some(PlaceInHost {
            above: place.above.unwrap_or(next_head),
            below: place.below.to_vec(),
            is_head: place.above.is_none(),
        })
    }

    /// Where each rank is on a channel, seen from one; empty if there is no such channel.
    pub fn owners(&self, channel: usize, rank: Rank) -> Vec<Owner> {
        let Some(hosts) = self.channels.get(channel) else { return Vec::new() };
        let mine = hosts.iter().find(|host| host.contains(&rank)).map_or(&[][..], Vec::as_slice);
        let n = hosts.iter().map(Vec::len).sum::<usize>() as u32;
        (0..n).map(|other| Owner::of(self.shape, mine, rank, Rank(other))).collect()
    }

    /// A rank's neighbours in its group, in the order in which kernels list them: those below, then the one above. A head's network is none.
    pub fn neighbours(&self, channel: usize, rank: Rank) -> impl Iterator<Item = Rank> + use<> {
        let place = self.place(channel, rank);
        let above = place.as_ref().filter(|place| !place.is_head).map(|place| place.above);
        place.into_iter().flat_map(|place| place.below).chain(above)
    }

    /// The place of a neighbour's connection, or of a head's to the network, among a rank's of one direction.
    pub fn index_of(&self, channel: usize, rank: Rank, peer: Rank) -> usize {
        let below = self.place(channel, rank).map(|place| place.below).unwrap_or_default();
        below.iter().position(|below| *below == peer).unwrap_or(below.len())
    }

    /// The connections of a rank in each direction on the channel on which it has most.
    pub fn conns_max(&self, rank: Rank) -> usize {
        let conns = |channel| self.place(channel, rank).map_or(0, |place| place.conns());
        (0..self.channels()).map(conns).max().unwrap_or(0)
    }
}

impl PlaceInHost {
    /// Connections of each direction, a head's to the network among them.
    pub fn conns(&self) -> usize {
        1 + self.below.len()
    }

    /// As kernels read it.
    pub fn of_kernel(&self) -> KernelTree {
        KernelTree { children: self.below.len() as u32, has_parent: u32::from(!self.is_head) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SLOTS: ConnLayout =
        ConnLayout { ll_slot_bytes: 512, ll128_slot_bytes: 256, simple_slot_bytes: 1024 };

    proptest! {
        /// Every rank is in its group, neighbours agree, and heads follow each other in a circle.
        #[test]
        fn neighbours_agree_and_heads_are_a_circle(
            groups in proptest::collection::vec(0u64..4, 1..12),
            turn in 0usize..12,
        ) {
            let n = groups.len();
            let ring: Vec<Rank> = (0..n).map(|at| Rank(((at + turn) % n) as u32)).collect();
            let other: Vec<Rank> = (0..n).map(|at| Rank(((2 * n - at - 1 + turn) % n) as u32)).collect();
            let channels = [&ring, &other].map(|ring| DeviceHeads::along(ring, &groups)).to_vec();
            for shape in [Shape::Chain, Shape::Star] {
                let heads = DeviceHeads { shape, channels: channels.clone(), slots: SLOTS };
                for channel in 0..2 {
                    check(&heads, channel, &groups)?;
                }
            }
        }
    }

    /// What every channel has.
    fn check(heads: &DeviceHeads, channel: usize, groups: &[u64]) -> Result<(), TestCaseError> {
        let n = groups.len();
        let mut all: Vec<Rank> = heads.channels[channel].concat();
        all.sort_unstable();
        prop_assert_eq!(all, (0..n as u32).map(Rank).collect::<Vec<_>>());
        let place = |rank| heads.place(channel, rank).unwrap();
        for rank in (0..n as u32).map(Rank) {
            let PlaceInHost { above, below, is_head } = place(rank);
            prop_assert!(heads.shape == Shape::Star || below.len() < 2);
            prop_assert!(heads.shape == Shape::Chain || is_head || below.is_empty());
            for (at, below) in below.iter().enumerate() {
                prop_assert!(place(*below).above == rank && !place(*below).is_head);
                prop_assert_eq!(heads.index_of(channel, rank, *below), at);
            }
            let is_near = groups[above.index()] == groups[rank.index()];
            if is_head {
                prop_assert!(place(above).is_head && (!is_near || heads.channels[channel].len() == 1));
                prop_assert_eq!(heads.index_of(channel, rank, above), below.len());
            } else {
                prop_assert!(is_near && place(above).below.contains(&rank));
            }
            for (other, owner) in (0..).map(Rank).zip(heads.owners(channel, rank)) {
                prop_assert_eq!(owner == Owner::HERE, other == rank);
                prop_assert!(
                    owner
                        .branch()
                        .is_none_or(|at| at < below.len() && groups[other.index()] == groups[rank.index()])
                );
                prop_assert!(!below.contains(&other) || owner.branch().is_some_and(|at| below[at] == other));
            }
        }
        let count = heads.channels[channel].len();
        let first = heads.channels[channel][0][0];
        let mut rank = first;
        for at in 0..count {
            prop_assert!(at == 0 || rank != first);
            rank = place(rank).above;
        }
        prop_assert_eq!(rank, first);
        Ok(())
    }

    /// A ring in rank order that enters a host in the middle of the list: that host's ranks still follow the ring.
    #[test]
    fn a_host_begins_where_its_ring_enters_it() {
        let ring = [0, 1, 2, 3, 4].map(Rank);
        let hosts = DeviceHeads::along(&ring, &[7, 9, 9, 7, 7]);
        assert_eq!(hosts, [vec![Rank(1), Rank(2)], vec![Rank(3), Rank(4), Rank(0)]]);
        assert_eq!(DeviceHeads::along(&ring, &[7; 5]), [ring.to_vec()]);
    }
}

//! Channels by link: how many go over a network, from what its devices carry and which of them the rings and trees leave a host by.

use super::count::{BLOCK_GBYTES, whole_turns};
use super::facts::Facts;
use super::messages::lane_channels_max;
use super::numbers::{
    FAR_CHANNELS_MAX, NEAR_MESSAGES, NET_MESH_CHANNELS, NET_RING_CHANNELS, NET_TREE_CHANNELS, Tuning,
};
use super::tuning::{Crossing, Machine, NetSpeed};
use crate::topology::Channels;
use oxccl_shared::abi::{Algorithm, Func, Rank};
use oxccl_shared::algo::tree::TreeLinks;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The least that a device of a network gets: what one channel sends while another waits for the other end.
const NIC_CHANNELS_MIN: u32 = 2;

/// Which ranks only a network connects, and by which devices. The same on every rank.
#[derive(Clone, Debug)]
pub struct Nics {
    /// The group of each rank, from 0: ranks of one share memory.
    group_of: Vec<u32>,
    /// Groups.
    groups: u32,
    /// The device of each rank: equal numbers in a group are one device.
    nic_of: Vec<u64>,
    /// Of the slowest device.
    speed: NetSpeed,
    /// Threads that the proxy of every rank has.
    proxy_threads: u32,
}

impl Nics {
    /// From the group and the device of each rank.
    pub fn new(group_of: &[u64], nic_of: Vec<u64>, speed: NetSpeed, proxy_threads: u32) -> Nics {
        let mut numbers = BTreeMap::new();
        let mut number = |group: &u64| {
            let next = numbers.len() as u32;
            *numbers.entry(*group).or_insert(next)
        };
        let group_of: Vec<u32> = group_of.iter().map(&mut number).collect();
        let groups = numbers.len() as u32;
        Nics { group_of, groups, nic_of, speed, proxy_threads }
    }

    /// Groups of ranks that follow each other, each with one device.
    pub fn one_each(nranks: u32, groups: u32, speed: NetSpeed, proxy_threads: u32) -> Nics {
        let each = nranks.div_ceil(groups.max(1)).max(1);
        let group_of: Vec<u64> = (0..nranks).map(|rank| u64::from(rank / each)).collect();
        Nics { groups, ..Nics::new(&group_of, vec![0; nranks as usize], speed, proxy_threads) }
    }

    /// Whether only a network connects two ranks.
    fn is_far(&self, a: Rank, b: Rank) -> bool {
        self.group_of[a.index()] != self.group_of[b.index()]
    }

    /// The device of a rank, of all groups.
    fn nic(&self, rank: Rank) -> (u32, u64) {
        (self.group_of[rank.index()], self.nic_of[rank.index()])
    }

    /// The least that any group has of some devices.
    fn least(&self, nics: &BTreeSet<(u32, u64)>) -> u32 {
        let of_group = |group| nics.range((group, 0)..=(group, u64::MAX)).count() as u32;
        (0..self.groups).map(of_group).min().unwrap_or(0)
    }

    /// Devices of every group.
    fn nics_each(&self) -> u32 {
        let all = (0..self.nic_of.len() as u32).map(|rank| self.nic(Rank(rank)));
        self.least(&all.collect()).max(1)
    }

    /// Ranks of the largest group.
    fn ranks_each(&self) -> u32 {
        let mut counts = vec![0; self.groups as usize];
        self.group_of.iter().for_each(|group| counts[*group as usize] += 1);
        counts.into_iter().max().unwrap_or(1).max(1)
    }

    /// The devices by which a channel's ring leaves its groups: those that the search gave it, or else those of the ranks.
    fn of_ring<'a>(
        &'a self,
        channels: &'a Channels,
        channel: usize,
    ) -> impl Iterator<Item = (u32, u64)> + 'a {
        let ring = channels.ring(channel);
        let nexts = ring.iter().skip(1).chain(ring.first());
        let leaving = ring.iter().zip(nexts).filter(|(rank, next)| self.is_far(**rank, **next));
        let gates: HashMap<Rank, u64> =
            channels.gates(channel).iter().map(|gate| (gate.last, gate.nets[1])).collect();
        leaving.map(move |(rank, _)| match gates.get(rank) {
            Some(net) => (self.group_of[rank.index()], *net),
            None => self.nic(*rank),
        })
    }

    /// The devices by which a tree does.
    fn of_tree<'a>(&'a self, tree: &'a [TreeLinks]) -> impl Iterator<Item = (u32, u64)> + 'a {
        let leaves = |(rank, links): &(Rank, &TreeLinks)| {
            let mut neighbours = links.down.iter().flatten().chain(&links.up);
            neighbours.any(|peer| self.is_far(*rank, *peer))
        };
        (0..).map(Rank).zip(tree).filter(leaves).map(|(rank, _)| self.nic(rank))
    }

    /// Channels that devices of so many GB/s need blocks for.
    fn channels_of(&self, gbytes: f64) -> u32 {
        ((gbytes / BLOCK_GBYTES - 0.01).ceil() as u32).max(NIC_CHANNELS_MIN)
    }

    /// Channels for all devices that these leave by.
    fn worth(&self, leaving: impl Iterator<Item = (u32, u64)>) -> u32 {
        self.least(&leaving.collect()) * self.channels_of(self.speed.gbytes)
    }

    /// So many channels, each of which leaves by these devices.
    fn crossing<I: Iterator<Item = (u32, u64)>>(
        &self,
        channels: u32,
        leaving: impl Fn(usize) -> I,
    ) -> Crossing {
        let mut users: BTreeMap<(u32, u64), u32> = BTreeMap::new();
        for channel in 0..channels as usize {
            let nics: BTreeSet<(u32, u64)> = leaving(channel).collect();
            nics.into_iter().for_each(|nic| *users.entry(nic).or_insert(0) += 1);
        }
        Crossing { channels, sharing: users.into_values().max().unwrap_or(channels) }
    }
}

impl Facts {
    /// The same where GPUs are in groups that only a network connects, along these channels: as many go over it as its devices carry,
    /// and between GPUs of a group messages keep theirs.
    pub fn over_nics(self, nics: &Nics, channels: &Channels) -> Facts {
        let blocks = self.tuning.blocks.expect("every table of GPUs has blocks");
        let at_most = |count: u32| self.limits.max.unwrap_or(count).min(count).min(self.blocks_max).max(1);
        let rings = nics.worth((0..channels.rings.len()).flat_map(|channel| nics.of_ring(channels, channel)));
        let rings = rings.max(NET_RING_CHANNELS).max(self.limits.min.unwrap_or(0)).min(self.ring_channels);
        let ring_channels = whole_turns(&channels.rings, rings, self.ring_channels);
        let tree_channels = if self.takes_trees_over_network() {
            let trees = nics.worth(channels.trees.iter().flat_map(|tree| nics.of_tree(tree)));
            at_most(trees.max(NET_TREE_CHANNELS).min(blocks.tree_channels))
        } else {
            self.tree_channels.min(NET_TREE_CHANNELS)
        };
        let each = f64::from(nics.nics_each()) / f64::from(nics.ranks_each());
        // More than a launch of messages has room for are none's.
        let near =
            self.mesh_channels.min(lane_channels_max(&self)).max(NET_MESH_CHANNELS.min(self.mesh_channels));
        let far_channels = nics
            .channels_of(nics.speed.gbytes * each.min(1.0))
            .clamp(NET_MESH_CHANNELS, FAR_CHANNELS_MAX)
            .min(near);
        let facts = Facts { ring_channels, tree_channels, mesh_channels: near, far_channels, ..self };
        let crossings = [
            nics.crossing(ring_channels, |channel| nics.of_ring(channels, channel)),
            nics.crossing(tree_channels, |channel| nics.of_tree(channels.tree(channel))),
        ];
        let inside = self.machine.level_bw[0].min(f64::from(far_channels) * BLOCK_GBYTES);
        let between = f64::from(nics.nics_each()) * nics.speed.gbytes;
        let between = between.min(f64::from(nics.ranks_each() * far_channels) * BLOCK_GBYTES);
        let machine = self.machine.over_network(nics.groups, nics.speed, crossings);
        let machine = Machine { level_bw: [inside, between], ..machine };
        let tuning = Tuning { messages: NEAR_MESSAGES, ..self.tuning };
        Facts { machine, tuning, proxy_threads: nics.proxy_threads, ..facts }.with_short_slots()
    }

    /// The same where groups of GPUs that follow each other have one device each, on a machine of which no more is known.
    pub fn over_network(self, groups: u32, network: NetSpeed, proxy_threads: u32) -> Facts {
        let nics = Nics::one_each(self.nranks, groups, network, proxy_threads);
        self.over_nics(&nics, &Channels::in_rank_order(self.nranks))
    }

    /// Whether trees are connected over a network, unless the user excludes them: two ranks' tree is no better than their ring.
    fn takes_trees_over_network(&self) -> bool {
        self.nranks > 2 && self.forced.allows_algorithm(Func::AllReduce, Algorithm::Tree)
    }
}

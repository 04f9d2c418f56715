//! What plans depend on.

use super::count::ring_channels;
use super::kernel::MESH_PEERS_MAX;
use super::tuning::{
    ChannelLimits, DeviceTuning, NET_MESH_CHANNELS, NET_MESSAGES, NET_RING_CHANNELS, NET_TREE_CHANNELS,
};
use crate::plan::Call;
use crate::plan::tuning::{Architecture, Forced, Machine, NetSpeed, TuneTable};
use crate::topology::PathKind;
use oxccl_shared::abi::{Algorithm, ConnLayout, Func, Protocol};
use oxccl_shared::algo::registry::spec_of;

/// What a communicator of GPUs knows after init; equal on every rank.
#[derive(Clone, Copy, Debug)]
pub struct DeviceFacts {
    /// Ranks.
    pub nranks: u32,
    /// Slots of rings' connections.
    pub ring_layout: ConnLayout,
    /// Slots of connections between pairs.
    pub mesh_layout: ConnLayout,
    /// Slots of trees' connections.
    pub tree_layout: ConnLayout,
    /// Channels of rings that are connected.
    pub ring_channels: u32,
    /// Channels of connections between pairs.
    pub mesh_channels: u32,
    /// Channels of trees that are connected: none unless the user insists on trees. Nothing shows yet that they are best at any
    /// size among GPUs of one host, so that their memory would lie idle.
    pub tree_channels: u32,
    /// Blocks that every device runs at once: all blocks of a kernel must, for they wait for those of other ranks.
    pub blocks_max: u32,
    /// The user's overrides.
    pub forced: Forced,
    /// The user's limits.
    pub limits: ChannelLimits,
    /// Thresholds.
    pub tuning: DeviceTuning,
    /// What connects the ranks.
    pub machine: Machine,
    /// Threads that the proxy of every rank has, where there are any.
    pub proxy_threads: u32,
    /// What was measured here.
    pub table: Option<TuneTable>,
}

impl DeviceFacts {
    /// What communicators of `nranks` ranks agree on, whose weakest device has this compute capability and so many
    /// multiprocessors.
    pub fn new(
        nranks: u32,
        (sm, sm_count): (u32, u32),
        forced: Forced,
        limits: ChannelLimits,
        buffer_bytes: Option<usize>,
    ) -> DeviceFacts {
        let tuning = DeviceTuning::of(sm).with_threads(limits.threads);
        let blocks_max = sm_count.max(1);
        let at_most = |channels: u32| limits.max.unwrap_or(channels).min(channels).min(blocks_max).max(1);
        DeviceFacts {
            nranks,
            ring_layout: tuning.ring_layout(buffer_bytes),
            mesh_layout: tuning.mesh_layout(buffer_bytes),
            tree_layout: tuning.tree_layout(buffer_bytes),
            ring_channels: at_most(tuning.ring_channels),
            mesh_channels: at_most(tuning.mesh_channels),
            tree_channels: if forced.wants_trees() { at_most(tuning.tree_channels) } else { 0 },
            blocks_max,
            forced,
            limits,
            tuning,
            machine: Machine::nominal(Architecture::of_sm(sm), nranks),
            proxy_threads: 0,
            table: None,
        }
    }

    /// The same with what was measured here. Trees are connected if it takes any.
    pub fn with_table(mut self, table: Option<TuneTable>) -> DeviceFacts {
        self.table = table;
        if table.is_some_and(|table| table.uses(Func::AllReduce, Algorithm::Tree)) {
            let most = self.limits.max.unwrap_or(u32::MAX).min(self.blocks_max);
            self.tree_channels = self.tuning.tree_channels.min(most).max(1);
        }
        self
    }

    /// The same on a machine of which more is known, whose rings go this way: they get the channels that its links need.
    pub fn on(self, machine: Machine, rings: &[Vec<u32>]) -> DeviceFacts {
        let ring_channels = ring_channels(rings, &machine, self.ring_channels, self.limits.min);
        DeviceFacts { machine, ring_channels, ..self }
    }

    /// The same with no more channels than pay over a network.
    pub fn with_few_channels(self) -> DeviceFacts {
        DeviceFacts {
            ring_channels: self.ring_channels.min(self.limits.min.unwrap_or(0).max(NET_RING_CHANNELS)),
            tree_channels: self.tree_channels.min(NET_TREE_CHANNELS),
            mesh_channels: self.mesh_channels.min(NET_MESH_CHANNELS),
            ..self
        }
    }

    /// The same where ranks are in `groups` that only a network connects, on a machine whose speeds are the network's, driven by so many
    /// threads of each rank.
    pub fn over_network(self, groups: u32, network: NetSpeed, proxy_threads: u32) -> DeviceFacts {
        let machine = self.machine.over_network(groups, network, [self.ring_channels, self.tree_channels]);
        let tuning = DeviceTuning { messages: NET_MESSAGES, ..self.tuning };
        DeviceFacts { machine, tuning, proxy_threads, ..self }
    }

    /// Whether some connections lead over a network, and so through a proxy. These do not carry LL128, whose lines would not arrive
    /// whole in pinned memory; kernels that exchange words with all peers at once, see `one_trip_channels`.
    pub fn crosses_network(&self) -> bool {
        self.machine.nhosts > 1
    }

    /// Channels that a call needs for every thread of a kernel that goes to everybody in one hop to have one word of each message at
    /// most, so that it can go through proxies: a slot leaves when all its words are there, and a thread of such a kernel waits
    /// for its peers' words before it writes its next one. None if there are not as many.
    pub(super) fn one_trip_channels(&self, call: &Call) -> Option<u32> {
        let channels = call.bytes().div_ceil(8 * u64::from(self.tuning.ll_threads)).max(1);
        let most = self.mesh_channels.min(self.limits.max.unwrap_or(u32::MAX)).max(1);
        (channels <= u64::from(most)).then_some(channels as u32)
    }

    /// Whether such kernels are for `call`, not by how fast they are but by whom they reach. Over a network
    /// they are for what a proxy carries.
    pub(super) fn has_mesh_for(&self, call: &Call) -> bool {
        let is_mesh = self.nranks <= MESH_PEERS_MAX + 1;
        is_mesh
            && (!self.crosses_network()
                || spec_of(Algorithm::OneShot).is_proxied(call.func)
                    && self.one_trip_channels(call).is_some())
    }

    /// Whether kernels that go to all peers at once reach everybody, whatever the call.
    pub fn has_mesh(&self) -> bool {
        self.nranks <= MESH_PEERS_MAX + 1 && !self.crosses_network()
    }

    /// Whether they can by LL128. Pairs without an NVLink of their own meet over PCI, or in memory of the host.
    pub(super) fn has_mesh_of_lines(&self) -> bool {
        self.has_mesh() && self.machine.pairs.kind <= PathKind::Nvl
    }

    /// Whether an all-to-all is one kernel instead of messages. The same on every rank.
    pub fn is_one_hop_all_to_all(&self, call: &Call) -> bool {
        call.func == Func::AllToAll
            && self.nranks > 1
            && self.has_mesh()
            && call.count > 0
            && (self.is_by(call, Protocol::LL, self.tuning.all_to_all_one_shot_max_bytes)
                || self.is_by_lines(call.func, call.bytes())
                || self.has_mesh_of_lines() && self.forced.names_protocol(call.func, Protocol::LL128))
    }

    /// Whether a call is short enough for a line format that the user allows.
    fn is_by(&self, call: &Call, protocol: Protocol, max_bytes: u64) -> bool {
        call.bytes() <= max_bytes && self.forced.allows_protocol(call.func, protocol)
    }

    /// Bytes of the larger buffer, for what has kernels of its own.
    pub(super) fn buffer_bytes(&self, call: &Call) -> u64 {
        // What an all-to-all's messages are chosen by is one of them.
        if call.func.is_pairwise() { call.bytes() } else { call.buffer_bytes(self.nranks) }
    }
}

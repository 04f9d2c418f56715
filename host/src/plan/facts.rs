//! What plans depend on.

use super::call::Call;
use super::collnet::Collnet;
use super::copy_engines::CtaPolicy;
use super::count::ring_channels;
use super::hosts::Hosts;
use super::numbers::{
    CHAIN_CHANNELS_MAX, ChannelLimits, FAR_MESH_MAX, FAR_RANKS_MEASURED_MAX, NET_MESH_CHANNELS, NET_MESSAGES,
    READ_ALL_REDUCE_BYTES, READ_REDUCE_SCATTER_BYTES, Tuning,
};
use super::tuning::{
    Advice, Architecture, Candidate, Candidates, Crossing, Forced, Machine, NetSpeed, TuneTable,
};
use crate::topology::PathKind;
use oxccl_shared::abi::{Algorithm, ConnLayout, Func, Protocol, Rank};
use oxccl_shared::algo::collnet::STAR_BELOW_MAX;
use oxccl_shared::algo::kernels::Kernel;
use oxccl_shared::algo::registry::spec_of;
use oxccl_shared::algo::spec::{Connections, Processor, Proxied};
use std::collections::BTreeSet;

/// What a communicator knows after init; equal on every rank.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
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
    /// Of these, what pairs have that only a network connects.
    pub far_channels: u32,
    /// Channels of chains of GPUs to a network that reduces.
    pub chain_channels: u32,
    /// Channels of stars of GPUs to it.
    pub star_channels: u32,
    /// Channels of trees that are connected: among GPUs of one host none unless the user insists on trees. Nothing shows yet that they
    /// are best at any size there, so that their memory would lie idle.
    pub tree_channels: u32,
    /// Blocks that every device runs at once: all blocks of a kernel must, for they wait for those of other ranks.
    pub blocks_max: u32,
    /// The user's overrides.
    pub forced: Forced,
    /// The user's limits.
    pub limits: ChannelLimits,
    /// Thresholds.
    pub tuning: Tuning,
    /// Which ranks share a host.
    pub hosts: Hosts,
    /// How many hosts there are.
    pub nhosts: u32,
    /// What the ranks run on, and what connects them.
    pub machine: Machine,
    /// Threads that the proxy of every rank has, where GPUs need any.
    pub proxy_threads: u32,
    /// In-network reduction, or why there is none.
    pub collnet: Collnet,
    /// What a tuner plugin wants for the call that is planned.
    pub advice: Option<Advice>,
    /// What was measured here.
    pub table: Option<TuneTable>,
    /// How many multiprocessors calls may take.
    pub cta_policy: CtaPolicy,
    /// Whether calls go by symmetric kernels, whatever their size; none where that is faster.
    pub symmetric: Option<bool>,
    /// From how many bytes of a block on an all-gather is made of messages, each read from its sender's memory: where all ranks can read
    /// each other's.
    pub read_from_bytes: Option<u64>,
    /// Whether some ranks on CPUs meet over a network.
    pub has_far_ranks: bool,
}

impl Facts {
    /// What ranks on CPUs agree on, whose rings and trees have connections of the first layout, and pairs of the second; so many
    /// channels of rings and trees are connected.
    pub fn of_cpus(
        nranks: u32,
        architecture: Architecture,
        forced: Forced,
        [ring_layout, mesh_layout]: [ConnLayout; 2],
        [ring_channels, tree_channels]: [u32; 2],
    ) -> Facts {
        Facts {
            nranks,
            ring_layout,
            mesh_layout,
            tree_layout: ring_layout,
            ring_channels,
            mesh_channels: 1,
            far_channels: 1,
            chain_channels: 1,
            star_channels: 1,
            tree_channels,
            blocks_max: 1,
            forced,
            limits: ChannelLimits::default(),
            tuning: Tuning::of(architecture),
            hosts: Hosts::One,
            nhosts: 1,
            machine: Machine::nominal(architecture, nranks),
            proxy_threads: 0,
            collnet: Collnet::Disabled,
            advice: None,
            table: None,
            cta_policy: CtaPolicy::Default,
            symmetric: None,
            read_from_bytes: None,
            has_far_ranks: false,
        }
    }

    /// What ranks on GPUs agree on, whose weakest device has this compute capability and so many multiprocessors.
    pub fn of_gpus(
        nranks: u32,
        (sm, sm_count): (u32, u32),
        forced: Forced,
        limits: ChannelLimits,
        buffer_bytes: Option<usize>,
    ) -> Facts {
        let architecture = Architecture::of_sm(sm);
        let tuning = Tuning::of(architecture).with_threads(limits.threads);
        let blocks = tuning.blocks.expect("every table of GPUs has blocks");
        let blocks_max = sm_count.max(1);
        let at_most = |channels: u32| limits.max.unwrap_or(channels).min(channels).min(blocks_max).max(1);
        let layouts = [blocks.ring_layout(buffer_bytes), blocks.mesh_layout(buffer_bytes)];
        let tree_channels = if forced.wants_trees() { at_most(blocks.tree_channels) } else { 0 };
        let channels = [at_most(blocks.ring_channels), tree_channels];
        // All else is as with CPUs: one host, and nothing known of what connects it to others.
        Facts {
            tree_layout: blocks.tree_layout(buffer_bytes),
            mesh_channels: at_most(blocks.mesh_channels),
            far_channels: at_most(blocks.mesh_channels),
            star_channels: 0,
            blocks_max,
            limits,
            tuning,
            ..Facts::of_cpus(nranks, architecture, forced, layouts, channels)
        }
    }

    /// The same for ranks that read each other's memory.
    pub fn reading_from(self, read_from_bytes: Option<u64>) -> Facts {
        Facts { read_from_bytes, ..self }
    }

    /// The same for ranks of one host that are more than the processors they may use, or not, once it is known whether they read each other's
    /// memory. Two have one peer each way they take.
    pub fn sharing_processors(self, they_do: bool) -> Facts {
        let meet_in_memory = self.machine.architecture == Architecture::Cpu && self.nhosts == 1;
        let tuning = match they_do {
            _ if !meet_in_memory || self.nranks <= 2 => self.tuning,
            true => self.tuning.sharing_processors(self.nranks, self.read_from_bytes.is_some()),
            false => self.tuning.with_own_processors(self.nranks),
        };
        Facts { tuning, ..self }
    }

    /// The same with what was measured here. Trees are connected if it takes any.
    pub fn with_table(mut self, table: Option<TuneTable>) -> Facts {
        self.table = table;
        let trees = Candidates::over(Connections::Tree);
        let uses_trees = table.is_some_and(|table| table.uses(trees));
        if let Some(blocks) = self.tuning.blocks.filter(|_| uses_trees) {
            let most = self.limits.max.unwrap_or(u32::MAX).min(self.blocks_max);
            self.tree_channels = blocks.tree_channels.min(most).max(1);
        }
        self
    }

    /// The same where some ranks on CPUs meet over a network, or none. Where others meet in memory, the model knows of both: a host's
    /// ranks share what streams carry.
    pub fn with_far_ranks(self, has_far_ranks: bool) -> Facts {
        let facts = Facts { has_far_ranks, ..self };
        if !has_far_ranks || self.nhosts < 2 || self.machine.architecture != Architecture::Cpu {
            return facts;
        }
        let network = NetSpeed { gbytes: Architecture::CpuStreams.constants().nominal.1, latency_us: 0.0 };
        let crossings = [self.ring_channels, self.tree_channels].map(Crossing::by_one);
        // What a rank posts, it posts itself.
        let machine =
            Machine { net_overhead_us: 0.0, ..self.machine.over_network(self.nhosts, network, crossings) };
        facts.with_machine(machine)
    }

    /// Whether ranks on CPUs are where nobody has measured algorithms: many over hosts, or some in memory and others over a network.
    pub(super) fn has_unmeasured_hosts(&self) -> bool {
        let is_mixed = self.machine.architecture == Architecture::Cpu;
        !self.has_gpus()
            && self.has_far_ranks
            && self.nhosts > 1
            && (is_mixed || self.nranks > FAR_RANKS_MEASURED_MAX)
    }

    /// Whether what goes to all peers at once would need more connections over a network than a rank should have: each has memory of
    /// its own and descriptors at both ends, and grows with the number of ranks.
    pub fn is_sparse(&self) -> bool {
        self.has_far_ranks && self.nranks > FAR_MESH_MAX
    }

    /// The same with ranks on these hosts.
    pub fn on_hosts(self, host_of: impl Iterator<Item = u64>) -> Facts {
        let host_of: Vec<u64> = host_of.collect();
        let nhosts = host_of.iter().collect::<BTreeSet<_>>().len() as u32;
        let hosts = Hosts::of(host_of.into_iter());
        Facts { hosts, nhosts, ..self }.with_machine(self.machine)
    }

    /// The same where a network reduces, or not: the model knows the hosts between which it does.
    pub fn with_collnet(self, collnet: Collnet) -> Facts {
        let crossings = [self.ring_channels, self.tree_channels].map(Crossing::by_one);
        let machine = collnet.machine(self.machine, crossings);
        Facts { collnet, ..self }.with_machine(machine)
    }

    /// The same where a network reduces between the GPUs of hosts, or not: the model knows the hosts and the network between them already.
    pub fn with_collnet_of_gpus(self, collnet: Collnet) -> Facts {
        Facts { collnet, ..self }
    }

    /// The same for GPUs of which so many share a host at most. On the way to a network that reduces there are chains along the first rings,
    /// and stars where the user or a table names them and kernels have room: chains are then left out unless they are named too.
    pub fn with_hosts_of_gpus(self, host_max: u32) -> Facts {
        let channels = self.ring_channels.clamp(1, CHAIN_CHANNELS_MAX);
        let has_room = host_max as usize <= STAR_BELOW_MAX + 1;
        let [has_chains, has_stars] =
            [Algorithm::CollnetChain, Algorithm::CollnetDirect].map(|algorithm| self.is_asked_for(algorithm));
        let has_stars = has_stars && has_room;
        let of = |is_there: bool| if is_there { channels } else { 0 };
        Facts { chain_channels: of(has_chains || !has_stars), star_channels: of(has_stars), ..self }
    }

    /// Whether the user or a table names it for any function.
    pub(super) fn is_asked_for(&self, algorithm: Algorithm) -> bool {
        let mut funcs = spec_of(algorithm).offered(self.processor()).iter();
        funcs.any(|offered| self.forced.names_algorithm(offered.func, algorithm))
            || self.table.is_some_and(|table| table.uses(Candidates::along(algorithm)))
    }

    /// The same on a machine of which more is known, whose rings go this way: they get the channels that its links need.
    pub fn on(self, machine: Machine, rings: &[Vec<Rank>]) -> Facts {
        let ring_channels = ring_channels(rings, &machine, self.ring_channels, self.limits.min);
        Facts { ring_channels, ..self }.with_machine(machine).with_links().with_slots()
    }

    /// The same if rings, trees or pairs use host memory, whatever links their GPUs. Their slots have been laid out by then, and stay as they are.
    pub fn through_host(self, kinds: [bool; 3]) -> Facts {
        Facts { machine: self.machine.through_host(kinds), ..self }.with_links()
    }

    /// Whether NVLink connects all GPUs of a host.
    fn is_by_nvlink(&self) -> bool {
        self.machine.pairs.kind <= PathKind::Nvl
    }

    /// The same with the numbers for the links between the GPUs of a host.
    pub(super) fn with_links(self) -> Facts {
        let is_measured = self.has_gpus() && !self.crosses_network() && self.tuning.source.is_some();
        let tuning = if is_measured && !self.is_by_nvlink() {
            self.tuning.without_nvlink(self.nranks)
        } else {
            self.tuning
        };
        Facts { tuning, ..self }
    }

    /// The same with the slots for these links.
    pub(super) fn with_slots(self) -> Facts {
        if self.is_by_nvlink() && !self.crosses_network() { self } else { self.with_short_slots() }
    }

    /// The same with slots between pairs that are no longer than those were that were measured without NVLink.
    pub(super) fn with_short_slots(self) -> Facts {
        let most = self.tuning.blocks.map_or(u32::MAX, |blocks| blocks.short_mesh_slot_bytes);
        let simple_slot_bytes = self.mesh_layout.simple_slot_bytes.min(most);
        Facts { mesh_layout: ConnLayout { simple_slot_bytes, ..self.mesh_layout }, ..self }
    }

    /// The same on this machine, which gets the hosts that are known here.
    fn with_machine(self, machine: Machine) -> Facts {
        Facts { machine: Machine { host_ranks: self.hosts.ranks_each(), ..machine }, ..self }
    }

    /// What the ranks run on, as far as algorithms differ.
    pub fn processor(&self) -> Processor {
        self.machine.architecture.processor()
    }

    /// Whether ranks are GPUs.
    pub(super) fn has_gpus(&self) -> bool {
        self.processor() == Processor::Gpu
    }

    /// The slots and the channels of a kind of connections.
    pub fn connections(&self, kind: Connections) -> (&ConnLayout, u32) {
        match kind {
            Connections::Ring => (&self.ring_layout, self.ring_channels),
            Connections::Tree => (&self.tree_layout, self.tree_channels),
            // Of GPUs they have channels of their own, and slots like those of rings.
            Connections::Chain if self.has_gpus() => (&self.ring_layout, self.chain_channels),
            Connections::Star if self.has_gpus() => (&self.ring_layout, self.star_channels),
            Connections::Mesh | Connections::Chain | Connections::Star | Connections::Levels => {
                (&self.mesh_layout, self.far_channels)
            }
        }
    }

    /// Whether connections of GPUs lead over a network, and so through a proxy. These do not carry LL128, whose lines would not arrive
    /// whole in pinned memory; kernels that exchange words with all peers at once, see `one_trip_channels`.
    pub fn crosses_network(&self) -> bool {
        self.has_gpus() && self.machine.nhosts > 1
    }

    /// Channels that a call needs for every thread of a kernel that exchanges words with all peers at once to have one word of each
    /// message at most, so that it can go through proxies: a slot leaves when all its words are there, and a thread of such a kernel
    /// waits for its peers' words before it writes its next one. None if there are not as many.
    pub(super) fn one_trip_channels(&self, call: &Call) -> Option<u32> {
        let threads = self.tuning.blocks.map_or(1, |blocks| blocks.ll_threads);
        let channels = call.bytes().div_ceil(8 * u64::from(threads)).max(1);
        let most = self.far_channels.min(NET_MESH_CHANNELS).min(self.limits.max.unwrap_or(u32::MAX)).max(1);
        (channels <= u64::from(most)).then_some(channels as u32)
    }

    /// Whether what the kernels of a candidate send goes through the proxies of GPUs.
    pub(super) fn is_carried(&self, call: &Call, candidate: Candidate) -> bool {
        let Candidate { algorithm, protocol } = candidate;
        let spec = spec_of(algorithm);
        let is_fit = match spec.proxied {
            Proxied::OneTrip { at_once, .. } => {
                at_once.contains(&call.func)
                    && spec.is_at_once(protocol)
                    && self.one_trip_channels(call).is_some()
            }
            Proxied::Any(_) | Proxied::Nothing => spec.is_proxied(call.func),
        };
        is_fit && !protocol.needs_whole_lines()
    }

    /// Whether kernels that go to all peers at once reach everybody, whatever the call.
    pub(super) fn has_mesh(&self) -> bool {
        self.has_room() && !self.crosses_network()
    }

    /// Whether they can by LL128. Pairs without an NVLink of their own meet over PCI, or in memory of the host.
    pub fn has_mesh_of_lines(&self) -> bool {
        self.has_mesh() && self.machine.pairs.kind <= PathKind::Nvl
    }

    /// Whether a call is carried out as messages between pairs.
    pub fn goes_as_messages(&self, call: &Call) -> bool {
        (call.func.is_pairwise() && !self.is_one_hop_all_to_all(call)) || self.is_read(call)
    }

    /// Whether an all-gather goes by one copy of each block out of its rank's memory. An order of the user or a measurement comes first.
    /// Not a broadcast, where one rank fills slots while another empties them (docs/measurements/2026-11-23-cma.md).
    fn is_read(&self, call: &Call) -> bool {
        call.func == Func::AllGather && self.tuning.gathers_by_reading && self.reads_from(call.bytes())
    }

    /// Whether two ranks reduce by reading each other's memory, in one copy.
    #[inline]
    pub fn is_reduced_by_reading(&self, call: &Call) -> bool {
        let lengths = match call.func {
            Func::AllReduce => READ_ALL_REDUCE_BYTES,
            Func::ReduceScatter => READ_REDUCE_SCATTER_BYTES,
            _ => return false,
        };
        self.nranks == 2 && lengths.contains(&call.bytes()) && self.reads_from(call.bytes())
    }

    /// Whether blocks of so many bytes are read out of their ranks' memory.
    fn reads_from(&self, bytes: u64) -> bool {
        self.read_from_bytes.is_some_and(|from| bytes >= from)
            && self.advice.is_none()
            && self.table.is_none()
            && self.forced.deterministic(false) == Forced::default()
    }

    /// Bytes of the longer buffer, for what has kernels of its own.
    pub(super) fn buffer_bytes(&self, call: &Call) -> u64 {
        // What an all-to-all's messages are chosen by is one of them.
        if call.func.is_pairwise() { call.bytes() } else { call.buffer_bytes(self.nranks) }
    }

    /// Bytes of a hop along a ring or a tree.
    pub(super) fn hop_bytes(&self, call: &Call, algorithm: Algorithm) -> u64 {
        let bytes = self.buffer_bytes(call);
        let goes_whole = spec_of(algorithm).connections == Connections::Tree || call.func.is_rooted();
        if goes_whole { bytes } else { bytes / u64::from(self.nranks) }
    }

    /// Threads of a kernel's blocks.
    pub(super) fn threads_of(&self, kernel: &Kernel) -> u32 {
        self.tuning.blocks.map_or(1, |blocks| blocks.threads(kernel.protocol()).min(kernel.threads_max()))
    }

    /// Bytes of a tile of kernels with bulk copies, or 0. Peers cannot tell, but nobody has measured how they do where slots are not in
    /// memory that NVLink reaches.
    pub fn tile_bytes(&self) -> u32 {
        let is_like_measured = self.machine.ring.intra <= PathKind::Nvb && self.machine.nhosts == 1;
        self.tuning.blocks.filter(|_| is_like_measured).map_or(0, |blocks| blocks.tile_bytes)
    }

    /// The protocol of a message of `bytes` between two ranks.
    pub fn message_protocol(&self, bytes: u64) -> Protocol {
        let classes = if self.crosses_network() { NET_MESSAGES } else { self.tuning.messages };
        let class =
            classes.iter().find(|class| bytes <= class.max_bytes).unwrap_or(&classes[classes.len() - 1]);
        self.message_protocol_for(class.protocol)
    }

    /// The protocol of messages where `wanted` would be best.
    pub(super) fn message_protocol_for(&self, wanted: Protocol) -> Protocol {
        let allowed = self.forced.message_protocol(wanted);
        if self.has_gpus() { Kernel::nearest_for_messages(allowed) } else { allowed }
    }
}

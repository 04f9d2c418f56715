//! The plan of one collective.

use super::call::Call;
use super::copy_engines::Placement;
use super::facts::Facts;
use super::numbers::{THREADS_FOR_CHANNELS, net_channel_bytes};
use super::symmetric::SymmetricPlan;
use super::tuning::{self, Candidate, Choice, Explanation, Forced};
use core::ops::Range;
use oxccl_shared::abi::{Algorithm, ConnLayout, DataType, Func, Protocol};
use oxccl_shared::algo::chunk;
use oxccl_shared::algo::kernels::Kernel;
use oxccl_shared::algo::registry::spec_of;
use oxccl_shared::algo::spec::{Connections, Proxied, Terms};
use oxccl_shared::proto;

/// How a collective is carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// What is done: the call's function, or what stands for it.
    pub func: Func,
    /// The schedule.
    pub algorithm: Algorithm,
    /// The protocol.
    pub protocol: Protocol,
    /// The type of elements; none for kernels that only move bytes.
    pub dtype: Option<DataType>,
    /// The number of ranks of a kernel that was compiled for so many alone.
    pub ranks: Option<u32>,
    /// Channels in use, from channel 0. On GPUs each has a block.
    pub channels: u32,
    /// Threads that work on a channel.
    pub threads: u32,
    /// Elements of the call, or its bytes if there is no type. So are all that follow.
    pub count: u64,
    /// Elements of a block in one hop.
    pub chunk_elems: u64,
    /// Elements in one slot.
    pub slice_elems: u64,
    /// Borders are rounded to multiples of this.
    pub grain_elems: u64,
    /// Ranks of each host, where all have equally many that follow each other; otherwise 0.
    pub host_ranks: u32,
    /// Whether outputs bypass the caches.
    pub stream: bool,
}

/// How a call is carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallPlan {
    /// As messages between pairs.
    Messages,
    /// By kernels of all ranks.
    Collective(Plan),
    /// By copy engines, on buffers that all ranks have mapped.
    CopyEngines(Placement),
    /// By kernels of all ranks that reach each other's buffers.
    Symmetric(SymmetricPlan),
    /// By every rank alone: there is nothing to do, or no other rank.
    Local,
}

/// Plans `call`, which is not made of messages. Every rank of a communicator that makes the same call gets the same plan.
pub fn plan(call: &Call, facts: &Facts) -> Plan {
    // What stands for a barrier where no kernel that goes to all peers at once has room for them, or where it would be the first that
    // needs a connection to each.
    let needs_stand_in = !call.func.has_buffers() && (!facts.has_room() || facts.is_sparse());
    let call = if needs_stand_in { &Call::ONE_BYTE } else { call };
    let Choice { candidate, channels: tuned, .. } = facts.choose(call);
    let Candidate { algorithm, protocol } = candidate;
    let spec = spec_of(algorithm);
    let (layout, connected) = facts.connections(spec.connections);
    // Kernels of GPUs that only move data are the same for all types.
    let dtype = (call.func.is_reduction() || !facts.has_gpus()).then_some(call.dtype);
    let (elem_bytes, count) = dtype.map_or((1, call.bytes()), |dtype| (dtype.size_bytes(), call.count));
    let grain_elems = chunk::grain_elems(proto::grain_bytes(protocol), elem_bytes) as u64;
    let slot_elems = (facts.slot_bytes(call, candidate, layout) / elem_bytes).max(1) as u64;
    // A tree's kernel lets the way up run ahead of the way down by as many chunks as the credits allow: with one slice each, by all
    // slots.
    let is_simple_ring = protocol.is_counted() && spec.connections == Connections::Ring;
    let slices = if is_simple_ring { u64::from(facts.tuning.ring_slices) } else { 1 };
    let connected = connected.max(1);
    // A channel that would get less than a grain would only start and end.
    let useful = count.div_ceil(grain_elems).clamp(1, u64::from(connected)) as u32;
    let ranks = spec.own_ranks(protocol, facts.nranks);
    let threads = facts.threads_of(&Kernel::collective((call.func, algorithm, protocol), dtype, ranks));
    let by_size = || facts.channels(call, candidate, threads, connected);
    let least = match spec.proxied {
        Proxied::OneTrip { .. } if facts.crosses_network() => facts.one_trip_channels(call).unwrap_or(1),
        _ => 1,
    };
    let channels = facts.limits.apply(tuned.unwrap_or_else(by_size)).max(least).min(useful);
    let slots = Slots { elems: slot_elems, grain_elems };
    let turn_elems = facts.turn_bytes(threads) / elem_bytes as u64;
    let Cut { slice_elems, slices } =
        match facts.even_share(call.func, spec.connections, protocol, (count, channels, grain_elems)) {
            Some(share) => slots.cut_evenly(share, turn_elems, slices),
            None => Cut { slice_elems: slot_elems, slices },
        };
    Plan {
        func: call.func,
        algorithm,
        protocol,
        dtype,
        ranks,
        channels,
        threads,
        count,
        chunk_elems: slice_elems * slices,
        slice_elems,
        grain_elems,
        host_ranks: facts.hosts.ranks_each(),
        stream: facts.tuning.stream_min_bytes.is_some_and(|least| call.bytes() >= least),
    }
}

/// Slots that hold `elems` elements each, with borders at multiples of `grain_elems`.
struct Slots {
    elems: u64,
    grain_elems: u64,
}

/// How the blocks of hops are cut.
struct Cut {
    /// Elements of a slice.
    slice_elems: u64,
    /// Slices of a hop.
    slices: u64,
}

impl Slots {
    /// As few slices of `share` elements as slots allow, of about equal length: one of a few elements takes as long to exchange as any. Hops have
    /// `slices` of them.
    ///
    /// Threads of a GPU block do `turn_elems` at once, which is not cut. What takes them more than five turns is two slices, so that one is under
    /// way while the next is filled (docs/measurements/2026-11-29-four-gpus.md); and where hops of two would leave one for a last round, hops of few
    /// have three.
    fn cut_evenly(&self, share: u64, turn_elems: u64, slices: u64) -> Cut {
        let unit = turn_elems.max(1).next_multiple_of(self.grain_elems);
        let is_long = turn_elems > 0 && share > 5 * turn_elems;
        let count = share.div_ceil(self.elems).max(if is_long { 2 } else { 1 });
        let slice_elems = match count {
            1 => self.elems,
            _ => share.div_ceil(count).next_multiple_of(unit).min(self.elems),
        };
        let leaves_one = turn_elems > 0 && slices == 2 && matches!(count, 3 | 5);
        Cut { slice_elems, slices: if leaves_one { 3 } else { slices } }
    }
}

impl Plan {
    /// Its kernel on GPUs.
    pub fn kernel(&self) -> Kernel {
        let Plan { func, algorithm, protocol, dtype, ranks, .. } = *self;
        Kernel::collective((func, algorithm, protocol), dtype, ranks)
    }

    /// The elements that `channel` works on.
    pub fn part(&self, channel: u32) -> Range<usize> {
        chunk::channel_part(self.count as usize, self.channels, channel, self.grain_elems as usize)
    }
}

impl Facts {
    /// Plans any call of several ranks.
    pub fn plan(&self, call: &Call) -> CallPlan {
        match () {
            () if self.goes_as_messages(call) => CallPlan::Messages,
            () if call.count == 0 && call.func.has_buffers() => CallPlan::Local,
            () => CallPlan::Collective(plan(call, self)),
        }
    }

    /// The same for a call on which something else is insisted than on the communicator's.
    pub fn plan_with(&self, call: &Call, forced: Option<Forced>) -> CallPlan {
        match forced {
            None => self.plan(call),
            Some(forced) => Facts { forced, ..*self }.plan(call),
        }
    }

    /// Plans a call of a rank that is alone, whose operator changes its input.
    pub fn plan_alone(&self, call: &Call) -> Plan {
        let (call, facts) = self.alone(call);
        plan(&call, &facts)
    }

    /// Why a call, which is not made of messages, goes as it goes.
    pub fn explain(&self, call: &Call) -> Explanation {
        let plan = plan(call, self);
        let explanation = Explanation::new(&self.scope(call), |candidate| self.absent(call, candidate));
        explanation.with_blocks(plan.channels, self.has_gpus().then_some(plan.threads))
    }

    /// The elements of a call that a channel carries to each rank, if they are cut into slices of equal length.
    ///
    /// On CPUs (one channel) that was measured for whole blocks of ranks, along rings and between pairs; of GPUs for rings by Simple. Broadcasts and
    /// reduces along a chain take as long either way.
    fn even_share(
        &self,
        func: Func,
        connections: Connections,
        protocol: Protocol,
        (count, channels, grain_elems): (u64, u32, u64),
    ) -> Option<u64> {
        let moves_blocks = matches!(func, Func::AllGather | Func::ReduceScatter);
        let is_ring = connections == Connections::Ring;
        let is_even = match self.has_gpus() {
            true => is_ring && protocol.is_counted() && (moves_blocks || func == Func::AllReduce),
            false => is_ring && moves_blocks || connections == Connections::Mesh,
        };
        let longest = chunk::channel_part(count as usize, channels, 0, grain_elems as usize).len() as u64;
        let ranks = if is_ring && func == Func::AllReduce { u64::from(self.nranks) } else { 1 };
        (self.tuning.even_slices && is_even).then(|| longest.div_ceil(ranks))
    }

    /// Bytes that a block of GPU threads moves along a ring in one turn, with all packs that it has in flight; none where one thread moves all.
    fn turn_bytes(&self, threads: u32) -> u64 {
        const PACKS_BYTES: u64 = 4 * 16;
        let workers = threads.saturating_sub(32);
        if self.has_gpus() { u64::from(workers) * PACKS_BYTES } else { 0 }
    }

    /// Bytes of a slot that a candidate fills.
    fn slot_bytes(&self, call: &Call, candidate: Candidate, layout: &ConnLayout) -> usize {
        let spec = spec_of(candidate.algorithm);
        let bytes = spec.payload_bytes(candidate.protocol, layout);
        match self.collnet.serves(call).filter(|_| spec.connections.has_network()) {
            Some(network) => network.at_most(bytes),
            None => bytes,
        }
    }

    /// Channels before limits.
    fn channels(&self, call: &Call, candidate: Candidate, threads: u32, connected: u32) -> u32 {
        let Some(blocks) = &self.tuning.blocks else { return connected };
        let (Candidate { algorithm, protocol }, bytes) = (candidate, self.buffer_bytes(call));
        if self.tuning.source.is_none() {
            let most = if protocol.is_counted() { blocks.simple_channels_max() } else { connected };
            return tuning::channels(candidate, bytes, &self.machine, threads, connected.min(most));
        }
        let trips =
            |bytes: u64, trip: u64| bytes.div_ceil(trip).min(u64::from(blocks.ll_channels_max)) as u32;
        let is_ll = protocol.is_flagged() && !protocol.needs_whole_lines();
        match spec_of(algorithm).terms {
            Terms::Hops(_) if is_ll => trips(call.bytes(), blocks.hops_trip_bytes),
            Terms::Hops(hops) if protocol.is_flagged() => {
                let shares = if hops > 1 { u64::from(self.nranks) } else { 1 };
                trips(call.bytes() / shares, blocks.hops_ll128_channel_bytes)
            }
            _ if is_ll && self.crosses_network() && self.proxy_threads < THREADS_FOR_CHANNELS => 1,
            _ if is_ll => trips(self.hop_bytes(call, algorithm), blocks.ring_trip_bytes),
            _ if self.crosses_network() => {
                bytes.div_ceil(net_channel_bytes(self.proxy_threads)).min(u64::from(u32::MAX)) as u32
            }
            _ => blocks.simple_channels(call.func, self.nranks, bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::ChannelLimits;
    use crate::plan::tuning::tests::tables;
    use crate::plan::tuning::{Candidates, Forced, Machine, NetSpeed, Reason, TuneRow, TuneTable};
    use oxccl_shared::abi::{Rank, RedOp};
    use oxccl_shared::algo::ring;
    use oxccl_shared::algo::spec::Processor;
    use proptest::prelude::*;

    fn facts(nranks: u32, sm: u32, forced: Forced, limits: ChannelLimits, buffer: Option<usize>) -> Facts {
        Facts::of_gpus(nranks, (sm, if sm == 90 { 132 } else { 24 }), forced, limits, buffer)
    }

    fn calls() -> impl Strategy<Value = Call> {
        const FUNCS: &[Func] = &[
            Func::AllReduce,
            Func::AllGather,
            Func::ReduceScatter,
            Func::Broadcast,
            Func::Reduce,
            Func::Barrier,
            Func::AllToAll,
        ];
        let counts = prop_oneof![0u64..3000, 3000u64..1 << 33];
        (proptest::sample::select(FUNCS), proptest::sample::select(DataType::ALL), counts).prop_map(
            |(func, dtype, count)| {
                let count = if func == Func::Barrier { 0 } else { count };
                Call { func, dtype, op: RedOp::Sum, root: Rank(0), count }
            },
        )
    }

    fn forced() -> impl Strategy<Value = Forced> {
        let algorithm = proptest::option::of(proptest::sample::select(Algorithm::ALL));
        let protocol = proptest::option::of(proptest::sample::select(Protocol::ALL));
        (algorithm, protocol).prop_map(|(algorithm, protocol)| Forced::only(algorithm, protocol))
    }

    const SLOW: NetSpeed = NetSpeed { gbytes: 1.25, latency_us: 20.0 };

    proptest! {
        #[test]
        fn a_plan_fits_what_is_connected(
            call in calls(),
            forced in forced(),
            nranks in 1u32..17,
            sm in prop_oneof![Just(70u32), Just(90)],
            (min, max) in (proptest::option::of(1u32..100), proptest::option::of(1u32..100)),
            buffer in proptest::option::of(8usize..8193),
            threads in proptest::option::of((2u32..13).prop_map(|warps| 32 * warps)),
            groups in proptest::option::of((2u32..17, 1u32..9)),
            table in proptest::option::of(tables()),
        ) {
            let buffer = buffer.map(|kib| kib << 10);
            let facts = facts(nranks, sm, forced, ChannelLimits { min, max, threads }, buffer).with_table(table);
            let groups = groups.filter(|(groups, _)| *groups <= nranks);
            let facts = groups.map_or(facts, |(groups, proxy_threads)| {
                let hosts = (0..nranks).map(|rank| u64::from(rank * groups / nranks));
                facts.on_hosts(hosts).over_network(groups, SLOW, proxy_threads)
            });
            let layouts = [facts.ring_layout, facts.mesh_layout, facts.tree_layout];
            prop_assert!(layouts.iter().all(ConnLayout::is_valid));
            prop_assume!(call.func != Func::AllToAll || facts.is_one_hop_all_to_all(&call));
            let plan = plan(&call, &facts);
            let (layout, connected) = facts.connections(spec_of(plan.algorithm).connections);
            prop_assert!((1..=connected).contains(&plan.channels), "{plan:?}");
            prop_assert!(plan.channels <= facts.blocks_max);
            prop_assert!(max.is_none_or(|max| plan.channels <= max));
            prop_assert!(plan.threads.is_multiple_of(32) && plan.threads <= 1024);
            prop_assert!(threads.is_none_or(|threads| plan.threads == threads));
            prop_assert!(plan.slice_elems > 0 && plan.grain_elems > 0 && plan.chunk_elems >= plan.slice_elems);
            let Plan { protocol, func, dtype, .. } = plan;
            let slices = plan.chunk_elems / plan.slice_elems;
            prop_assert!(slices <= ring::slices_max(protocol.slots()) as u64, "deadlock: {plan:?}");
            prop_assert!(groups.is_none() || goes_over_a_proxy(&plan), "not over a proxy: {plan:?}");
            let is_replaced = call.func == Func::Barrier && !facts.has_room();
            let call = if is_replaced { Call::ONE_BYTE } else { call };
            let holds_both = plan.algorithm == Algorithm::TwoShot && protocol == Protocol::LL128;
            let payload = match holds_both {
                true => proto::ll128::half_payload_bytes(layout.ll128_slot_bytes as usize),
                false => proto::payload_bytes(protocol, layout),
            } as u64;
            prop_assert_eq!(plan.count.max(1), if dtype.is_some() { call.count } else { call.bytes() }.max(1));
            let elem_bytes = dtype.map_or(1, |dtype| dtype.size_bytes() as u64);
            prop_assert!(plan.slice_elems * elem_bytes <= payload);
            prop_assert_eq!(dtype.unwrap_or(call.dtype), call.dtype);
            prop_assert_eq!(func, call.func);
            prop_assert!(Candidates::offered(func, Processor::Gpu).has(Candidate::new(plan.algorithm, protocol)));
            prop_assert!(facts.kernel_set().contains(&(plan.kernel(), plan.threads)), "not loaded: {plan:?}");
        }
    }

    #[test]
    fn rings_of_gpus_are_cut_evenly() {
        const TURN: u64 = 480 * 64;
        let free = facts(4, 90, Forced::default(), ChannelLimits::default(), None);
        // Bytes of a slice in turns, and slices of a hop.
        let cut = |func, bytes: u64| {
            let call = Call { func, dtype: DataType::F32, op: RedOp::Sum, root: Rank(0), count: bytes / 4 };
            let plan = plan(&call, &free);
            assert_eq!(
                (plan.algorithm, plan.protocol, plan.channels),
                (Algorithm::Ring, Protocol::Simple, 24)
            );
            let elem_bytes = plan.dtype.map_or(1, |dtype| dtype.size_bytes() as u64);
            (plan.slice_elems * elem_bytes / TURN, plan.chunk_elems / plan.slice_elems)
        };
        assert_eq!(cut(Func::AllReduce, 12 << 20), (8, 2), "one slice of a hop, as long as it is");
        assert_eq!(cut(Func::AllReduce, 16 << 20), (3, 2), "a slice under way while another is filled");
        assert_eq!(cut(Func::AllReduce, 25_000_004), (5, 2), "once a full slot and 15 KB");
        assert_eq!(cut(Func::AllReduce, 48 << 20), (6, 3), "not a round of two and a round of one");
        assert_eq!(cut(Func::AllReduce, 1 << 30), (8, 2));
        assert_eq!(cut(Func::AllGather, 25_000_000 / 4), (5, 2));
        assert_eq!(cut(Func::ReduceScatter, 12 << 20), (6, 3));
        assert_eq!(cut(Func::Broadcast, 25_000_004), (8, 2), "a chain takes as long either way");
    }

    /// Whether its lines arrive whole, and of a kernel of one hop the words that a thread waits for before it writes its next one.
    fn goes_over_a_proxy(plan: &Plan) -> bool {
        let Plan { protocol, dtype, .. } = *plan;
        let words = |channel| {
            let part =
                chunk::channel_part(plan.count as usize, plan.channels, channel, plan.grain_elems as usize);
            (part.len() * dtype.map_or(1, |dtype| dtype.size_bytes())).div_ceil(8)
        };
        let is_one_trip = (0..plan.channels).all(|channel| words(channel) <= plan.threads as usize);
        protocol != Protocol::LL128
            && plan.algorithm != Algorithm::TwoShot
            && (plan.algorithm != Algorithm::OneShot || protocol == Protocol::LL && is_one_trip)
    }

    proptest! {
        /// Near the border: a table may have what is impossible there, and fewer channels than one trip needs.
        #[test]
        fn no_table_takes_a_kernel_of_one_hop_for_more_than_one_trip(
            func in proptest::sample::select(&[Func::AllReduce, Func::AllGather, Func::ReduceScatter][..]),
            count in 0u64..8 << 10,
            nranks in 2u32..10,
            algorithm in proptest::sample::select(&[Algorithm::OneShot, Algorithm::TwoShot][..]),
            protocol in proptest::sample::select(Protocol::ALL),
            channels in proptest::option::of(1u16..4),
            max in proptest::option::of(1u32..4),
            threads in proptest::option::of((2u32..13).prop_map(|warps| 32 * warps)),
        ) {
            let row = TuneRow { max_bytes: u64::MAX, candidate: Candidate::new(algorithm, protocol), channels };
            let limits = ChannelLimits { min: None, max, threads };
            let facts = facts(nranks, 90, Forced::default(), limits, None)
                .with_table(TuneTable::default().with(func, row))
                .over_network(2, SLOW, 1);
            let plan = plan(&Call { func, dtype: DataType::U8, op: RedOp::Sum, root: Rank(0), count }, &facts);
            prop_assert!(goes_over_a_proxy(&plan), "{plan:?}");
        }
    }

    #[test]
    fn names_that_the_user_gives_are_respected() {
        let call =
            Call { func: Func::AllGather, dtype: DataType::F32, op: RedOp::Sum, root: Rank(0), count: 100 };
        let planned = |algorithm, protocol| {
            let facts = facts(4, 90, Forced::only(algorithm, protocol), ChannelLimits::default(), None);
            plan(&call, &facts).kernel().to_string()
        };
        assert_eq!(planned(None, None), "oxccl_all_gather_oneshot4_ll");
        assert_eq!(planned(Some(Algorithm::Ring), None), "oxccl_all_gather_ring_ll");
        assert_eq!(planned(None, Some(Protocol::Simple)), "oxccl_all_gather_ring_simple");
        assert_eq!(planned(Some(Algorithm::Ring), Some(Protocol::LL128)), "oxccl_all_gather_ring_ll128");
        assert_eq!(planned(Some(Algorithm::Tree), Some(Protocol::LL128)), "oxccl_all_gather_oneshot4_ll128");
        assert_eq!(planned(Some(Algorithm::OneShot), Some(Protocol::Simple)), "oxccl_all_gather_oneshot4_ll");
    }

    /// Over a network, whatever was measured inside a host or the user names.
    #[test]
    fn what_cannot_go_over_a_proxy_is_not_planned() {
        let forced = |algorithm, protocol| {
            facts(4, 90, Forced::only(algorithm, protocol), ChannelLimits::default(), None)
                .over_network(2, SLOW, 1)
        };
        let call = |func, count| Call { func, dtype: DataType::F32, op: RedOp::Sum, root: Rank(0), count };
        let entry = |facts: &Facts, func, count| plan(&call(func, count), facts).kernel().to_string();
        let free = forced(None, None);
        assert_eq!(entry(&free, Func::AllReduce, 2), "oxccl_all_reduce_oneshot4_ll_f32");
        // Two channels of 384 words.
        assert_eq!(entry(&free, Func::AllReduce, 1536), "oxccl_all_reduce_oneshot4_ll_f32");
        assert_eq!(entry(&free, Func::AllReduce, 1537), "oxccl_all_reduce_ring_ll_f32");
        assert_eq!(entry(&free, Func::AllReduce, 1 << 28), "oxccl_all_reduce_ring_simple_f32");
        assert_eq!(entry(&free, Func::Barrier, 0), "oxccl_barrier_oneshot4_ll");
        assert!(!free.is_one_hop_all_to_all(&call(Func::AllToAll, 1)));
        let named = forced(Some(Algorithm::OneShot), Some(Protocol::LL128));
        assert_eq!(entry(&named, Func::AllGather, 2000), "oxccl_all_gather_ring_simple");
        let tree = forced(Some(Algorithm::Tree), None);
        assert_eq!(tree.tree_channels, 4);
        assert_eq!(entry(&tree, Func::AllReduce, 2), "oxccl_all_reduce_tree_ll_f32");
        let said = free.explain(&call(Func::AllReduce, 2000)).to_string();
        assert!(said.contains("not over a network"), "{said}");
    }

    /// What was measured here ends a doubt about speed, and makes nothing possible or right that is not.
    #[test]
    fn a_table_is_followed_but_to_where_data_goes_wrong() {
        let tuned = |algorithm, protocol| {
            let candidate = Candidate::new(algorithm, protocol);
            let row = TuneRow { max_bytes: u64::MAX, candidate, channels: None };
            let table = TuneTable::default().with(Func::AllReduce, row).unwrap();
            facts(4, 100, Forced::default(), ChannelLimits::default(), None).with_table(Some(table))
        };
        let over_network = |facts: Facts| facts.over_network(2, SLOW, 1);
        let searched = |facts: Facts| {
            let machine = Machine { is_searched: true, ..facts.machine };
            Facts { machine, ..facts }
        };
        let call = Call {
            func: Func::AllReduce,
            dtype: DataType::U8,
            op: RedOp::Sum,
            root: Rank(0),
            count: 64 << 20,
        };
        let is_tuned = |facts: Facts| facts.choose(&call).reason == Reason::Tuned { row: 0 };
        assert!(is_tuned(over_network(tuned(Algorithm::Ring, Protocol::LL))));
        assert!(is_tuned(over_network(tuned(Algorithm::Tree, Protocol::LL))));
        assert!(!is_tuned(over_network(tuned(Algorithm::OneShot, Protocol::LL))), "more than one trip");
        assert!(!is_tuned(over_network(tuned(Algorithm::Ring, Protocol::LL128))));
        // Nobody has measured two-shot LL128 on this generation; nobody has looked for NVLink either, unless the graphs were searched.
        let lines = tuned(Algorithm::TwoShot, Protocol::LL128);
        assert!(is_tuned(searched(lines)));
        assert!(!is_tuned(lines));
        assert!(!is_tuned(tuned(Algorithm::Ring, Protocol::LL128)));
        let said = lines.explain(&call).to_string();
        assert!(said.contains("128 bytes may arrive in pieces"), "{said}");
    }

    #[test]
    fn sizes_choose() {
        let facts = facts(4, 90, Forced::default(), ChannelLimits::default(), None);
        let planned = |count| {
            let call =
                Call { func: Func::AllReduce, dtype: DataType::F32, op: RedOp::Sum, root: Rank(0), count };
            let plan = plan(&call, &facts);
            (plan.kernel().to_string(), plan.channels)
        };
        assert_eq!(planned(2), ("oxccl_all_reduce_oneshot4_ll_f32".into(), 1));
        assert_eq!(planned(32 << 10), ("oxccl_all_reduce_oneshot4_ll_f32".into(), 32));
        assert_eq!(planned((48 << 10) - 1), ("oxccl_all_reduce_oneshot4_ll_f32".into(), 32));
        assert_eq!(planned(48 << 10), ("oxccl_all_reduce_twoshot4_ll_f32".into(), 32));
        assert_eq!(planned(64 << 10), ("oxccl_all_reduce_twoshot4_ll_f32".into(), 32));
        assert_eq!(planned(1 << 20), ("oxccl_all_reduce_ring_simple_f32".into(), 24));
        assert_eq!(planned(256 << 20), ("oxccl_all_reduce_ring_simple_f32".into(), 24));
        // Where the machine is known to have NVLinks everywhere.
        let facts = Facts { machine: Machine { is_searched: true, ..facts.machine }, ..facts };
        let planned = |count| {
            let call =
                Call { func: Func::AllReduce, dtype: DataType::F32, op: RedOp::Sum, root: Rank(0), count };
            let plan = plan(&call, &facts);
            (plan.kernel().to_string(), plan.channels)
        };
        assert_eq!(planned(24 << 10), ("oxccl_all_reduce_oneshot4_ll_f32".into(), 32));
        assert_eq!(planned(32 << 10), ("oxccl_all_reduce_twoshot4_ll128_f32".into(), 8));
        assert_eq!(planned(1 << 20), ("oxccl_all_reduce_twoshot4_ll128_f32".into(), 32));
        assert_eq!(planned(2 << 20), ("oxccl_all_reduce_twoshot4_ll128_f32".into(), 32));
        assert_eq!(planned((2 << 20) + 1), ("oxccl_all_reduce_ring_simple_f32".into(), 24));
    }

    #[test]
    fn trees_are_taken_only_where_the_user_insists() {
        let call = |count| Call {
            func: Func::AllReduce,
            dtype: DataType::BF16,
            op: RedOp::Max,
            root: Rank(0),
            count,
        };
        let facts = |algorithm, protocol| {
            facts(4, 90, Forced::only(algorithm, protocol), ChannelLimits::default(), None)
        };
        for algorithm in [None, Some(Algorithm::Ring), Some(Algorithm::OneShot), Some(Algorithm::TwoShot)] {
            let facts = facts(algorithm, None);
            assert_eq!(facts.tree_channels, 0);
            assert!((0..40).all(|k| plan(&call(1 << k), &facts).algorithm != Algorithm::Tree));
        }
        for protocol in Protocol::ALL {
            let facts = facts(Some(Algorithm::Tree), Some(*protocol));
            let plan = plan(&call(1 << 30), &facts);
            assert_eq!(plan.kernel().to_string(), format!("oxccl_all_reduce_tree_{}_bf16", protocol.name()));
            assert_eq!((plan.channels, plan.chunk_elems), (8, plan.slice_elems));
        }
        let by_size = facts(Some(Algorithm::Tree), None);
        assert_eq!(plan(&call(10), &by_size).kernel().to_string(), "oxccl_all_reduce_tree_ll_bf16");
        assert_eq!(plan(&call(1 << 30), &by_size).kernel().to_string(), "oxccl_all_reduce_tree_simple_bf16");
        let barrier = Call { func: Func::Barrier, ..call(0) };
        assert_eq!(plan(&barrier, &by_size).algorithm, Algorithm::OneShot);
    }
}

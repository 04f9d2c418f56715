//! What is counted by plans, against what goes over connections when the kernels' algorithms run by the same plans on a CPU: here those of
//! one host, in `net::tests` those of several.

use crate::connect::gpu::connect::layout;
use crate::connect::gpu::layout::DeviceLayout;
use crate::launch::{PeerTraffic, PlannedTraffic, RawCall};
use crate::machine::collective_args;
use crate::plan::{Call, CallPlan, ChannelLimits, Facts, Forced, Plan};
use crate::topology::Channels;
use oxccl_device::coll::{self, CollWork, Endpoints, HostEnds, RingEnds, TreeEnds};
use oxccl_device::conn::{Conns, RecvConn, SendConn};
use oxccl_device::gpu::cpu::{CpuBlock, Waiter};
use oxccl_device::gpu::{Stop, Wait};
use oxccl_device::traffic::Traffic;
use oxccl_shared::abi::{
    Algorithm, ConnControl, ConnEnd, ConnLayout, DataType, Func, Protocol, Rank, RedOp, SlotHeader,
};
use oxccl_shared::algo::mesh::{peers, place_from};
use oxccl_shared::algo::registry::spec_of;
use oxccl_shared::fifo::{ConsumerCursor, ProducerCursor};
use oxccl_shared::reduce::resolve;
use proptest::prelude::*;
use std::ptr::{null, null_mut};
use std::sync::Arc;

/// Of a wait that may last.
struct Patient;

impl Waiter for Patient {
    fn spins(&self) -> u32 {
        1
    }
    fn wait(&self, _: Wait, _: u32) -> Result<(), Stop> {
        std::thread::yield_now();
        Ok(())
    }
    fn refuse(&self, on: Wait, expected: SlotHeader, found: SlotHeader) -> Stop {
        panic!("{on:?}: {found:?} instead of {expected:?}")
    }
}

/// A cache line, of which connections' memory consists.
#[repr(align(128))]
#[derive(Clone)]
struct Line {
    _bytes: [u8; 128],
}

fn memory(len_bytes: usize) -> Box<[Line]> {
    vec![Line { _bytes: [0; 128] }; len_bytes.div_ceil(128)].into()
}

/// A connection from each rank to each.
struct World {
    nranks: u32,
    slots: ConnLayout,
    memory: Vec<[Box<[Line]>; 2]>,
}

// SAFETY: what threads share are the words and slots of connections.
unsafe impl Sync for World {}

impl World {
    fn new(nranks: u32, slots: ConnLayout) -> World {
        let one = || [memory(size_of::<ConnControl>()), memory(slots.total_bytes())];
        World { nranks, slots, memory: (0..nranks * nranks).map(|_| one()).collect() }
    }

    fn end(&self, from: Rank, to: Rank, peer: Rank) -> ConnEnd {
        let of_pair = &self.memory[from.index() * self.nranks as usize + to.index()];
        let [producer_side, consumer_side] = of_pair.each_ref().map(|memory| memory.as_ptr().cast_mut());
        let counted = consumer_side.cast::<u8>().wrapping_add(self.slots.simple_offset());
        let (producer_side, consumer_side) = (producer_side.cast(), consumer_side.cast());
        ConnEnd { producer_side, consumer_side, counted, layout: self.slots, peer }
    }

    /// A rank's connections to and from all others, in rank order, which count.
    fn of_rank(&self, me: Rank, moved: &[Arc<Traffic>]) -> (Vec<SendConn>, Vec<RecvConn>) {
        let others = || (0..self.nranks).map(Rank).filter(|peer| *peer != me);
        let send = others().map(|peer| {
            // SAFETY: the world outlives its walk, and this is the connection's only producer.
            let mut conn = unsafe { SendConn::resume(self.end(me, peer, peer), ProducerCursor::default()) };
            conn.count_in(moved[peer.index()].clone());
            conn
        });
        let recv = others().map(|peer| {
            // SAFETY: as above, its only consumer.
            let mut conn = unsafe { RecvConn::resume(self.end(peer, me, peer), ConsumerCursor::default()) };
            conn.count_in(moved[peer.index()].clone());
            conn
        });
        (send.collect(), recv.collect())
    }
}

/// All ranks of a host of GPUs.
struct Host {
    facts: Facts,
    layout: DeviceLayout,
    /// Of each rank, by rank.
    moved: Vec<Vec<Arc<Traffic>>>,
    traffic: Vec<PlannedTraffic>,
}

impl Host {
    fn new(nranks: u32, forced: Forced) -> Host {
        let facts = Facts::of_gpus(nranks, (90, 132), forced, ChannelLimits::default(), Some(16 << 10));
        let layout = layout(&facts, &Channels::in_rank_order(nranks));
        let moved = || (0..nranks).map(|_| Arc::default()).collect();
        let traffic = |rank| PlannedTraffic::new(Rank(rank), nranks, layout.places(Rank(rank)));
        let (moved, traffic) = ((0..nranks).map(|_| moved()).collect(), (0..nranks).map(traffic).collect());
        Host { facts, layout, moved, traffic }
    }

    /// All ranks make these calls as one group, so often.
    fn run(&self, calls: &[Call], times: usize) {
        let plans: Vec<CallPlan> = calls.iter().map(|call| self.facts.plan(call)).collect();
        let raw: Vec<RawCall> = calls.iter().map(raw).collect();
        self.traffic.iter().for_each(|traffic| traffic.begin(&raw, &plans, |_| true));
        for _ in 0..times {
            self.traffic.iter().for_each(PlannedTraffic::count);
            for (call, plan) in calls.iter().zip(&plans) {
                if let CallPlan::Collective(plan) = plan {
                    self.walk(call, plan);
                }
            }
        }
    }

    fn walk(&self, call: &Call, plan: &Plan) {
        let (slots, _) = self.facts.connections(spec_of(plan.algorithm).connections);
        let world = World::new(self.facts.nranks, *slots);
        std::thread::scope(|scope| {
            for (rank, moved) in (0..).map(Rank).zip(&self.moved) {
                let world = &world;
                scope.spawn(move || self.walk_rank(rank, (call, plan), world, moved));
            }
        });
    }

    fn walk_rank(&self, me: Rank, (call, plan): (&Call, &Plan), world: &World, moved: &[Arc<Traffic>]) {
        let n = self.facts.nranks;
        moved.iter().for_each(|traffic| traffic.begin());
        let bytes = (call.buffer_bytes(n) as usize).max(16);
        let (input, mut output) = (vec![1u8; bytes], vec![0u8; bytes]);
        let (send, recv) = (input.as_ptr().cast(), output.as_mut_ptr().cast());
        let raw = RawCall { call: *call, send, recv, scalar_bits: 0, forced: None };
        let dtype = plan.dtype.unwrap_or(DataType::U8);
        let operator = resolve(RedOp::Sum, dtype, n, 0);
        let coll = collective_args(&raw, plan, &operator, 7);
        let block = CpuBlock::new(&Patient, dtype, &operator);
        let (send, recv) = world.of_rank(me, moved);
        for channel in 0..plan.channels {
            let work = CollWork {
                func: plan.func,
                algorithm: plan.algorithm,
                protocol: plan.protocol,
                dtype,
                src: coll.src,
                dst: coll.dst,
                count: coll.cut.count as usize,
                part: coll.cut.part(channel),
                chunk_elems: coll.chunk_elems as usize,
                slice_elems: coll.slice_elems as usize,
                grain_elems: coll.cut.grain_elems as usize,
                rank: me,
                nranks: n,
                root: coll.root,
                host_ranks: coll.host_ranks,
                tag: coll.tag,
                stream: false,
                is_direct: false,
            };
            let conns = Conns { send: &send, recv: &recv };
            self.walk_channel(&block, conns, &work, channel as usize);
        }
    }

    fn walk_channel(&self, block: &CpuBlock<'_, Patient>, conns: Conns<'_>, work: &CollWork, channel: usize) {
        let (me, n) = (work.rank, work.nranks);
        let index = |peer: Rank| place_from(me, peer) as u16;
        let ring = &self.layout.rings[channel.min(self.layout.rings.len() - 1)];
        let position = ring.iter().position(|rank| *rank == me).unwrap();
        let beside = |by: usize| [index(ring[(position + by) % n as usize])];
        let links = match self.layout.trees.channels() {
            0 => Default::default(),
            trees => self.layout.trees.links(channel.min(trees - 1), me),
        };
        let below = links.down.map(|child| child.map_or(0, index));
        let above = [links.up.map_or(0, index)];
        let tree = TreeEnds {
            links,
            children: links.down.iter().flatten().count(),
            child_recv: below,
            child_send: below,
            parent_recv: above,
            parent_send: above,
        };
        let mesh_send: Vec<u16> = peers(me, n).map(index).collect();
        let mesh_recv: Vec<u16> = (0..n as u16 - 1).collect();
        let ends = Endpoints {
            ring: RingEnds {
                order: ring,
                position: position as u32,
                recv: beside(n as usize - 1),
                send: beside(1),
            },
            tree: &tree,
            chain: HostEnds::default(),
            star: HostEnds::default(),
            mesh_recv: &mesh_recv,
            mesh_send: &mesh_send,
        };
        // SAFETY: buffers are as long as the longer one of the call; indices are those of connections in rank order.
        let ran = unsafe { coll::run(block, conns, &ends, work) };
        ran.unwrap();
    }

    fn check(&self) {
        for (rank, (moved, traffic)) in self.moved.iter().zip(&self.traffic).enumerate() {
            let moved = moved.iter().map(|traffic| traffic.read());
            let moved = moved.map(|moved| PeerTraffic { operations: moved.operations, bytes: moved.bytes });
            assert_eq!(traffic.read(), moved.collect::<Vec<_>>(), "rank {rank}");
        }
    }
}

/// Without buffers.
fn raw(call: &Call) -> RawCall {
    RawCall { call: *call, send: null(), recv: null_mut(), scalar_bits: 0, forced: None }
}

const FUNCS: [Func; 7] = [
    Func::AllReduce,
    Func::AllGather,
    Func::ReduceScatter,
    Func::Broadcast,
    Func::Reduce,
    Func::AllToAll,
    Func::Barrier,
];

fn calls(nranks: u32) -> impl Strategy<Value = Vec<Call>> {
    let dtypes = prop::sample::select(&[DataType::U8, DataType::U32, DataType::F64][..]);
    let counts = prop_oneof![0u64..10, 100u64..3000, 5_000u64..60_000];
    let call = (prop::sample::select(&FUNCS[..]), dtypes, 0..nranks, counts).prop_map(
        |(func, dtype, root, count)| {
            let root = Rank(if func.is_rooted() { root } else { 0 });
            let count = if func.has_buffers() { count } else { 0 };
            Call { func, dtype, op: RedOp::Sum, root, count }
        },
    );
    prop::collection::vec(call, 1..4)
}

fn forced() -> impl Strategy<Value = Forced> {
    let algorithms = prop::option::of(prop::sample::select(
        &[Algorithm::Ring, Algorithm::Tree, Algorithm::OneShot, Algorithm::TwoShot][..],
    ));
    let protocols = prop::option::of(prop::sample::select(Protocol::ALL));
    (algorithms, protocols).prop_map(|(algorithm, protocol)| Forced::only(algorithm, protocol))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]
    #[test]
    fn what_plans_say_is_what_goes_over_connections(
        (forced, groups) in forced().prop_flat_map(|forced| {
            (Just(forced), (2u32..5).prop_flat_map(|n| {
                (Just(n), prop::collection::vec((calls(n), 1usize..3), 1..4))
            }))
        }),
    ) {
        let (nranks, groups) = groups;
        let host = Host::new(nranks, forced);
        for (calls, times) in groups {
            // What is made of messages is not walked here.
            let by_kernels = |call: &Call| matches!(host.facts.plan(call), CallPlan::Collective(_));
            let calls: Vec<Call> = calls.into_iter().filter(by_kernels).collect();
            host.run(&calls, times);
            host.check();
        }
    }
}

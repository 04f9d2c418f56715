//! What a rank of 1,024 has of connections: planned, cut into parts and placed by the code that makes them, on no machine.

use super::cases::call;
use super::places::NetPlaces;
use crate::connect::gpu::connect::{all_parts, layout};
use crate::connect::gpu::layout::DeviceLayout;
use crate::connect::gpu::part::Part;
use crate::connect::gpu::routes::{RouteSettings, Routes};
use crate::connect::gpu::tables::Tables;
use crate::machine::{ConnKind, Need};
use crate::plan::tests::over_hosts::{FAST, SLOW, gpus_along};
use crate::plan::tuning::NetSpeed;
use crate::plan::{Call, Facts, Forced, plan};
use crate::transport::PeerInfo;
use oxccl_shared::abi::{DataType, Func, Rank};
use oxccl_shared::algo::registry::spec_of;

const RANKS: u32 = 1024;
const MIB: usize = 1 << 20;

/// A communicator of so many hosts.
struct Many {
    facts: Facts,
    layout: DeviceLayout,
}

/// A rank's connections.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Taken {
    /// Over the network, one way each.
    conns: usize,
    /// In pinned memory of the host, in the GPU's, and in tables there.
    bytes: [usize; 3],
}

impl Taken {
    fn all_bytes(&self) -> usize {
        self.bytes.iter().sum()
    }
}

impl Many {
    fn new(hosts: u32, nics: u32, speed: NetSpeed) -> Many {
        let (facts, channels, host_of) = gpus_along(hosts, RANKS / hosts, nics, speed, Forced::default());
        let peers: Vec<PeerInfo> =
            host_of.iter().map(|host| PeerInfo { host: *host, ..PeerInfo::default() }).collect();
        let routes = Routes::new(&peers, RouteSettings { memory: true, network: true });
        let layout = layout(&facts, &channels).with_routes(routes, facts.far_channels);
        Many { facts, layout }
    }

    /// The parts that a rank has after these calls.
    fn parts(&self, calls: &[Call], rank: Rank) -> Vec<Part> {
        let mut parts = vec![self.layout.first()];
        for call in calls {
            let plan = plan(call, &self.facts);
            let kind = ConnKind::of(spec_of(plan.algorithm).connections);
            let need = Need { kind, protocol: plan.protocol, channels: plan.channels, peer: None };
            let new =
                self.layout.parts_of(&need, rank).filter(|part| !parts.contains(part)).collect::<Vec<_>>();
            parts.extend(new);
        }
        parts
    }

    fn taken(&self, parts: &[Part], rank: Rank) -> Taken {
        let places = NetPlaces::of_parts(&self.layout, rank, parts);
        let near = parts.iter().map(|part| self.layout.of_part(*part).len_bytes(rank).iter().sum::<usize>());
        let tables = Tables::new(&self.layout, rank).on_device().0.len();
        Taken { conns: places.places.len(), bytes: [places.len_bytes, near.sum(), tables] }
    }

    /// The most that some ranks have: every seventh, so that all places in hosts and trees are among them.
    fn most(&self, calls: &[Call]) -> Taken {
        let each = (0..RANKS).step_by(7).map(Rank).map(|rank| self.taken(&self.parts(calls, rank), rank));
        let least = Taken { conns: 0, bytes: [0; 3] };
        each.fold(least, |most, taken| Taken {
            conns: most.conns.max(taken.conns),
            bytes: if taken.all_bytes() > most.all_bytes() { taken.bytes } else { most.bytes },
        })
    }
}

/// After an all-reduce and a barrier, by the bytes of the all-reduce.
#[test]
fn a_rank_of_many_has_what_its_algorithms_need() {
    for (name, hosts, nics, speed) in [
        ("1,024 hosts of 1 GPU, 1 device of 50 GB/s", RANKS, 1, FAST),
        ("128 hosts of 8 GPUs, 8 devices of 50 GB/s", 128, 8, FAST),
        ("128 hosts of 8 GPUs, 1 device of 1.25 GB/s", 128, 1, SLOW),
    ] {
        let many = Many::new(hosts, nics, speed);
        let barrier = Call { count: 0, ..call(Func::Barrier, 0) };
        let at_init = many.most(&[]);
        println!("{name}: at init {at_init:?}");
        for power in (2..=30).step_by(4) {
            let all_reduce = Call { dtype: DataType::U8, ..call(Func::AllReduce, 1 << power) };
            let taken = many.most(&[all_reduce, barrier]);
            let chosen = plan(&all_reduce, &many.facts);
            println!(
                "  {} B by {:?} {:?} on {}: {taken:?}, {:.1} MiB",
                1u64 << power,
                chosen.algorithm,
                chosen.protocol,
                chosen.channels,
                taken.all_bytes() as f64 / MIB as f64
            );
            assert!(taken.conns <= 64, "{name}, {power}: {taken:?}");
            assert!(taken.all_bytes() <= 64 * MIB, "{name}, {power}: {taken:?}");
        }
        // A message adds its pair alone.
        let (rank, peer) = (Rank(3), Rank(RANKS - 5));
        let need = Need {
            kind: ConnKind::Pair,
            protocol: oxccl_shared::abi::Protocol::LL,
            channels: 1,
            peer: Some(peer),
        };
        let mut parts = many.parts(&[barrier], rank);
        let before = many.taken(&parts, rank);
        parts.extend(many.layout.parts_of(&need, rank));
        let after = many.taken(&parts, rank);
        assert_eq!(after.conns, before.conns + 2);
        assert!(after.all_bytes() <= before.all_bytes() + 3 * MIB);
        // What it all was once.
        let all = many.taken(&all_parts(&many.layout, &many.facts, rank), rank);
        println!("  everything: {all:?}, {} MiB", all.all_bytes() / MIB);
        assert!(
            all.conns > RANKS as usize
                && !all_parts(&many.layout, &many.facts, rank).iter().any(|part| part.kind == ConnKind::Mesh)
        );
    }
}

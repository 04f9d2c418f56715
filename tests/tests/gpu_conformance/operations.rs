//! Random operations in random groups, several communicators at once, and GPUs that may not reach each other.

use oxccl::cuda::Device;
use oxccl::transport::TransportKind;
use oxccl::{DataType, Func, RedOp};
use oxccl_tests::case::{Case, FUNCS, Placement};
use oxccl_tests::deadline::{Deadline, doing};
use oxccl_tests::devices::{DeviceWorld, Launch, gpus, ranks_max};
use oxccl_tests::harness::{Settings, on_threads};
use oxccl_tests::model::mix;
use std::io::Write;
use std::time::Duration;

/// A generator of cases that are the same on every machine.
struct Cases {
    random: u64,
    nranks: u32,
}

impl Cases {
    fn below(&mut self, bound: usize) -> usize {
        self.random = mix(self.random);
        (self.random >> 33) as usize % bound
    }

    fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    fn case(&mut self) -> Case {
        let most = self.pick(&[1, 64, 2_000, 20_000, 120_000]);
        Case {
            func: self.pick(&FUNCS),
            dtype: self.pick(DataType::ALL),
            op: self.pick(RedOp::ALL),
            root: self.below(self.nranks as usize) as u32,
            count: self.below(most + 1),
            placement: self.pick(&Placement::ALL),
            seed: self.random,
        }
    }
}

/// Runs at least this many calls on each rank, in groups of one to eight.
pub fn run(world: &mut DeviceWorld, seed: u64, calls: usize) {
    let nranks = world.ranks.len() as u32;
    let mut cases = Cases { random: seed, nranks };
    let (mut done, mut groups) = (0, 0);
    while done < calls {
        let group: Vec<Case> = (0..1 + cases.below(8)).map(|_| cases.case()).collect();
        let launch = cases.pick(&[Launch::Group, Launch::Threads]);
        doing(|| format!("group {groups} by {launch:?} of {nranks} GPUs: {group:?}"));
        world.check_group(&group, launch).unwrap_or_else(|failure| panic!("group {groups}: {failure}"));
        done += group.len();
        groups += 1;
    }
    println!("{done} operations in {groups} groups of {nranks} GPUs");
}

/// Makes memory for all that [`run`] may need. It has to be there before kernels of other communicators run on the same GPUs: giving
/// memory back waits for all of a GPU's kernels, and a kernel for ranks that come later.
pub fn make_room(world: &mut DeviceWorld) {
    let largest = Case {
        func: Func::AllGather,
        dtype: DataType::F64,
        op: RedOp::Sum,
        root: 0,
        count: 1_200_000,
        placement: Placement::Apart,
        seed: 1,
    };
    world.check(&largest, Launch::Group).unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_a_thousand_random_operations_in_random_groups() {
    let _deadline = Deadline::start("needs_gpu_a_thousand_random_operations", Duration::from_secs(300));
    for nranks in [2, 4].into_iter().filter(|nranks| *nranks <= ranks_max()) {
        run(&mut DeviceWorld::new(nranks, Settings::default(), None), u64::from(nranks), 500);
    }
}

/// Communicators of the same GPUs, each driven by a thread of its own on streams of its own.
#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_several_communicators_at_once() {
    let _deadline = Deadline::start("needs_gpu_several_communicators_at_once", Duration::from_secs(200));
    let mut worlds: Vec<DeviceWorld> =
        (0..3).map(|_| DeviceWorld::new(gpus().min(4), Settings::default(), None)).collect();
    worlds.iter_mut().for_each(make_room);
    on_threads(worlds.iter_mut().enumerate(), |(seed, world)| run(world, 100 + seed as u64, 100));
}

/// Without peer access (`NCCL_P2P_DISABLE=1`) connections lie in memory of the host.
#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_peer_access_may_be_forbidden() {
    let _deadline = Deadline::start("needs_gpu_peer_access_may_be_forbidden", Duration::from_secs(120));
    for nranks in [2, 4].into_iter().filter(|nranks| *nranks <= ranks_max()) {
        let mut world =
            DeviceWorld::with(nranks, Settings::default(), None, |config| config.p2p.enabled = false);
        run(&mut world, 7, 100);
    }
}

/// GPUs below two sockets, as a file states: below each they access each other's memory, across they use host memory,
/// whatever links them.
fn two_sockets(gpus: u32) -> String {
    let bus = |ordinal| Device::open(ordinal).unwrap_or_else(|error| panic!("{error}")).id().bus;
    let gpu = |ordinal: u32| {
        let nvlink = "<nvlink target=\"ffff:ff:ff.0\" count=\"0\"/>";
        format!(
            "<pci busid=\"{}\" class=\"0x030200\"><gpu dev=\"{ordinal}\">{nvlink}</gpu></pci>\n",
            bus(ordinal)
        )
    };
    let socket = |node: u32| {
        let below: String = (0..gpus).filter(|ordinal| 2 * ordinal / gpus == node).map(gpu).collect();
        let cpu = "arch=\"x86_64\" vendor=\"GenuineIntel\" familyid=\"6\" modelid=\"106\"";
        let switch = format!("busid=\"fff{node}:00:00.0\" class=\"0x060400\"");
        format!("<cpu numaid=\"{node}\" {cpu}>\n<pci {switch}>\n{below}</pci>\n</cpu>\n")
    };
    format!("<system version=\"1\">\n{}{}</system>\n", socket(0), socket(1))
}

#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_pairs_meet_in_different_memory() {
    let _deadline = Deadline::start("needs_gpu_pairs_meet_in_different_memory", Duration::from_secs(120));
    let nranks = gpus().min(8);
    if nranks < 3 {
        return println!("skipped: needs three GPUs, this machine has {nranks}");
    }
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(two_sockets(nranks).as_bytes()).expect("a temporary file");
    let mut world = DeviceWorld::with(nranks, Settings::default(), None, |config| {
        config.topology.file = Some(file.path().to_owned());
    });
    for rank in &world.ranks {
        let socket = |rank: u32| 2 * rank / nranks;
        for peer in &rank.comm.memory().peers {
            let is_near = socket(rank.comm.rank()) == socket(peer.rank.0);
            let expected = if is_near { TransportKind::P2p } else { TransportKind::Shm };
            assert_eq!(peer.transport, expected, "rank {} and rank {}", rank.comm.rank(), peer.rank);
        }
    }
    run(&mut world, 8, 100);
}

//! Ranks that are processes: every function along every kind of algorithm and protocol, each rank comparing its own part.

use oxccl::{Algorithm, DataType, DeviceCommunicator, Protocol, RedOp, UniqueId};
use oxccl_tests::case::{Case, FUNCS, Placement, reduces};
use oxccl_tests::deadline::{Deadline, doing};
use oxccl_tests::devices::{DeviceWorld, Launch, device_config, ordinal_of, ranks_max};
use oxccl_tests::harness::Settings;
use oxccl_tests::process::fresh_id;
use std::process::{Child, Command};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(300);
const DTYPES: [DataType; 3] = [DataType::F32, DataType::BF16, DataType::U8];
/// Ranks of several processes that share a GPU take turns: every hop costs milliseconds.
const COUNTS: [usize; 4] = [1, 1000, 40_003, 200_000];
/// Tells a child its rank, the number of ranks and the ids of its communicators.
const CHILD: &str = "OXCCL_TEST_PROCESSES";

/// A communicator for each.
fn settings() -> Vec<Settings> {
    let forced = [
        (Algorithm::Ring, Protocol::LL),
        (Algorithm::Ring, Protocol::Simple),
        (Algorithm::OneShot, Protocol::LL128),
        (Algorithm::TwoShot, Protocol::LL),
    ];
    let forced = forced.map(|(algorithm, protocol)| Settings::forced(algorithm, protocol));
    std::iter::once(Settings::default()).chain(forced).collect()
}

/// The same on every rank.
fn cases(nranks: u32) -> Vec<Case> {
    let mut cases = Vec::new();
    for (func, dtype) in FUNCS.iter().flat_map(|func| DTYPES.map(|dtype| (*func, dtype))) {
        let at = cases.len();
        let op = if reduces(func) { RedOp::ALL[at % RedOp::ALL.len()] } else { RedOp::Sum };
        cases.push(Case {
            func,
            dtype,
            op,
            root: at as u32 % nranks,
            count: COUNTS[at % COUNTS.len()],
            placement: Placement::ALL[at % Placement::ALL.len()],
            seed: at as u64,
        });
    }
    cases
}

/// A rank of the test below.
#[test]
#[ignore = "a process of another test"]
fn needs_gpu_processes_child() {
    let Ok(what) = std::env::var(CHILD) else { return };
    let _deadline = Deadline::start("needs_gpu_processes_child", LIMIT - Duration::from_secs(20));
    let words: Vec<&str> = what.split(' ').collect();
    let [rank, nranks, ids @ ..] = &words[..] else { panic!("{what}") };
    let (rank, nranks): (u32, u32) = (rank.parse().expect("a rank"), nranks.parse().expect("a number"));
    for (settings, id) in settings().into_iter().zip(ids) {
        doing(|| format!("rank {rank} of {nranks}: joining with {settings:?}"));
        let id: UniqueId = id.parse().expect("an id");
        let builder = DeviceCommunicator::builder().unique_id(id).rank(rank).ranks(nranks);
        let builder = builder.device(ordinal_of(rank)).config(device_config(&settings, None));
        let comm = builder.build().unwrap_or_else(|error| panic!("rank {rank}: {error}"));
        let mut world = DeviceWorld::of(settings, vec![comm]);
        for (at, case) in cases(nranks).iter().enumerate() {
            let launch = [Launch::Threads, Launch::Graph][at % 2];
            doing(|| format!("rank {rank} of {nranks}: {case:?} by {launch:?}, {settings:?}"));
            world.check(case, launch).unwrap_or_else(|failure| panic!("{failure}"));
        }
    }
}

fn run(nranks: u32) {
    if nranks > ranks_max() {
        return println!("skipped: this machine has places for {} ranks", ranks_max());
    }
    let ids = settings().iter().map(|_| fresh_id(LIMIT).to_string()).collect::<Vec<_>>().join(" ");
    let child = |rank: u32| -> Child {
        let mut command = Command::new(std::env::current_exe().expect("a running program has a file"));
        command.args(["--exact", "processes::needs_gpu_processes_child", "--ignored", "--nocapture"]);
        command.env(CHILD, format!("{rank} {nranks} {ids}")).spawn().expect("a process")
    };
    let children: Vec<Child> = (0..nranks).map(child).collect();
    for (rank, mut child) in children.into_iter().enumerate() {
        let status = child.wait().expect("a child");
        assert!(status.success(), "rank {rank} of {nranks}: {status}");
    }
}

#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_2_processes() {
    run(2);
}

#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_3_processes() {
    run(3);
}

#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_4_processes() {
    run(4);
}

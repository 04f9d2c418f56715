//! GPUs of one machine whose ranks go over sockets, as if each were a host of its own: `NCCL_P2P_DISABLE=1` with `NCCL_SHM_DISABLE=1`,
//! and `NCCL_HOSTID`.

use super::{messages, operations};
use oxccl::bootstrap::InterfaceFilter;
use oxccl::cuda::{DeviceMemory, Stream};
use oxccl::{
    Algorithm, Config, DataType, DeviceCommunicator, Error, Fault, Func, Protocol, Rank, RedOp,
    TransportKind, UniqueId, Untyped,
};
use oxccl_tests::case::{Case, FUNCS, Placement};
use oxccl_tests::deadline::{Deadline, doing};
use oxccl_tests::devices::{DeviceWorld, Launch, device_config, ordinal_of, ranks_max};
use oxccl_tests::harness::Settings;
use oxccl_tests::process::fresh_id;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// As `NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_NET=Socket NCCL_SOCKET_IFNAME=lo`.
pub fn no_memory(config: &mut Config) {
    config.p2p.enabled = false;
    (config.transports.in_process, config.transports.shm) = (false, false);
    loopback(config);
}

pub fn loopback(config: &mut Config) {
    config.net.socket.interfaces = InterfaceFilter::parse("=lo");
}

/// Every rank a host, and all is as it should be: the transport is the network.
pub fn world(nranks: u32, settings: Settings) -> DeviceWorld {
    let world = DeviceWorld::with(nranks, settings, None, no_memory);
    for rank in &world.ranks {
        let peers = &rank.comm.memory().peers;
        assert!(peers.iter().all(|peer| peer.transport == TransportKind::Net), "{peers:?}");
    }
    world
}

/// Every function by one thread, by a thread each and in graphs, at counts of a word, of some slots, and of all slots several times.
pub fn every_function(world: &mut DeviceWorld, funcs: &[Func]) {
    let mut seed = 0;
    for func in funcs {
        for count in [0, 1, 1000, 100_000, 1_000_000] {
            let dtype = [DataType::F32, DataType::BF16, DataType::I64][seed % 3];
            let placement = Placement::ALL[seed % Placement::ALL.len()];
            let case =
                Case { func: *func, dtype, op: RedOp::Sum, root: 0, count, placement, seed: seed as u64 };
            for launch in Launch::ALL {
                doing(|| format!("{case:?} by {launch:?} of {} GPUs over sockets", world.ranks.len()));
                world.check(&case, launch).unwrap_or_else(|failure| panic!("{failure}"));
            }
            seed += 1;
        }
    }
}

#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_net_every_function() {
    let _deadline = Deadline::start("needs_gpu_net_every_function", Duration::from_secs(300));
    if ranks_max() < 2 {
        return println!("skipped: this machine has one GPU, and OXCCL_DUPLICATE_GPUS=1 is not set");
    }
    for nranks in [2, ranks_max().min(4)] {
        every_function(&mut world(nranks, Settings::default()), &FUNCS);
    }
}

#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_net_rings_and_trees_by_every_protocol() {
    let _deadline = Deadline::start("needs_gpu_net_rings_and_trees", Duration::from_secs(300));
    if ranks_max() < 2 {
        return println!("skipped: this machine has one GPU, and OXCCL_DUPLICATE_GPUS=1 is not set");
    }
    for algorithm in [Algorithm::Ring, Algorithm::Tree] {
        // LL128 is not for networks: naming it selects another protocol.
        for protocol in [Protocol::LL, Protocol::LL128, Protocol::Simple] {
            let settings = Settings::forced(algorithm, protocol);
            every_function(&mut world(ranks_max().min(4), settings), &[Func::AllReduce]);
        }
    }
}

#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_net_random_messages_and_operations() {
    let _deadline = Deadline::start("needs_gpu_net_random_messages_and_operations", Duration::from_secs(300));
    for nranks in [2, 4].into_iter().filter(|nranks| *nranks <= ranks_max()) {
        let mut world = world(nranks, Settings::default());
        messages::run(&world, 30);
        operations::run(&mut world, 11, 200);
    }
}

/// Some ranks reach each other's memory, others do not.
#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_net_between_hosts_of_several_gpus() {
    let _deadline = Deadline::start("needs_gpu_net_between_hosts_of_several_gpus", Duration::from_secs(300));
    let hosts: [&[&str]; 3] = [&["a", "b"], &["a", "a", "b"], &["a", "b", "a", "b"]];
    for hosts in hosts {
        let mut world = DeviceWorld::on_hosts(hosts, Settings::default(), loopback);
        for (rank, host) in world.ranks.iter().zip(hosts) {
            for peer in &rank.comm.memory().peers {
                let is_far = hosts[peer.rank.index()] != *host;
                assert_eq!(peer.transport == TransportKind::Net, is_far, "{peer:?}");
            }
        }
        messages::run(&world, 20);
        operations::run(&mut world, 13, 100);
        let settings = Settings { algorithm: Some(Algorithm::Tree), ..Settings::default() };
        every_function(&mut DeviceWorld::on_hosts(hosts, settings, loopback), &[Func::AllReduce]);
    }
}

fn all_reduce(comm: &DeviceCommunicator, memory: &DeviceMemory, stream: &Stream) -> Result<(), Error> {
    let buffer: *mut u8 = std::ptr::without_provenance_mut(memory.address() as usize);
    let count = memory.len() / 4;
    let call = Untyped { send: buffer, recv: buffer, count, ..Untyped::new(Func::AllReduce, DataType::F32) };
    // SAFETY: in place, of the whole memory, which lives until the stream has been waited for.
    unsafe { comm.enqueue_untyped(&call, stream.by_ref()) }
}

#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_net_abort_and_silence_end_kernels() {
    let _deadline = Deadline::start("needs_gpu_net_abort_and_silence_end_kernels", Duration::from_secs(90));
    if ranks_max() < 2 {
        return println!("skipped: this machine has one GPU, and OXCCL_DUPLICATE_GPUS=1 is not set");
    }
    for (timeout, aborts) in [(Duration::from_secs(60), true), (Duration::from_secs(2), false)] {
        let world = world(2, Settings { timeout, ..Settings::default() });
        let rank = &world.ranks[0];
        let memory = DeviceMemory::zeroed(rank.comm.device(), 4 << 20).expect("4 MiB");
        all_reduce(&rank.comm, &memory, &rank.stream).expect("a call");
        std::thread::sleep(Duration::from_millis(200));
        assert!(!rank.stream.by_ref().is_done().expect("a stream"), "rank 1 has not called");
        if aborts {
            rank.comm.abort();
        }
        let reported = rank.comm.synchronize(rank.stream.by_ref()).unwrap_err().fault();
        match aborts {
            true => assert_eq!(reported, Some(Fault::Aborted)),
            false => assert!(matches!(reported, Some(Fault::Timeout { rank: Rank(1), .. })), "{reported:?}"),
        }
    }
}

/// Names the communicator for the process that is to be killed.
const CHILD_ID: &str = "OXCCL_TEST_NET_ID";

/// Joins as one of two ranks over sockets, and does one operation with the other.
fn join(rank: u32, id: UniqueId) -> (DeviceCommunicator, DeviceMemory, Stream) {
    let mut config = device_config(&Settings::default(), None);
    no_memory(&mut config);
    let builder = DeviceCommunicator::builder()
        .unique_id(id)
        .rank(rank)
        .ranks(2)
        .device(ordinal_of(rank))
        .config(config);
    let comm = builder.build().unwrap_or_else(|error| panic!("{error}"));
    let memory = DeviceMemory::zeroed(comm.device(), 4 << 20).expect("4 MiB");
    let stream = Stream::new(comm.device()).expect("a stream");
    all_reduce(&comm, &memory, &stream)
        .and_then(|()| comm.synchronize(stream.by_ref()))
        .expect("both are here");
    (comm, memory, stream)
}

/// Not a test of its own: the process that `needs_gpu_net_a_killed_rank_is_named` kills.
#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_net_to_be_killed() {
    let Ok(id) = std::env::var(CHILD_ID) else { return println!("skipped: a part of another test") };
    let _deadline = Deadline::start("needs_gpu_net_to_be_killed", Duration::from_secs(100));
    let _joined = join(1, id.parse().expect("an id"));
    println!("\nready");
    loop {
        std::thread::park();
    }
}

/// Killed when dropped.
struct Victim(Child);

impl Drop for Victim {
    fn drop(&mut self) {
        // It may be dead already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_net_a_killed_rank_is_named() {
    let _deadline = Deadline::start("needs_gpu_net_a_killed_rank_is_named", Duration::from_secs(120));
    if ranks_max() < 2 {
        return println!("skipped: this machine has one GPU, and OXCCL_DUPLICATE_GPUS=1 is not set");
    }
    let id = fresh_id(Duration::from_secs(60));
    let program = std::env::current_exe().expect("this program");
    let child = Command::new(program)
        .args(["--ignored", "--nocapture", "--exact", "net::needs_gpu_net_to_be_killed"])
        .env(CHILD_ID, id.to_string())
        .stdout(Stdio::piped())
        .spawn();
    let mut victim = Victim(child.expect("a process"));
    let (comm, memory, stream) = join(0, id);
    let lines = BufReader::new(victim.0.stdout.take().expect("a pipe")).lines();
    let ready = lines.map_while(Result::ok).any(|line| line == "ready");
    assert!(ready, "rank 1 ended early");
    all_reduce(&comm, &memory, &stream).expect("a call");
    drop(victim);
    let reported = comm.synchronize(stream.by_ref()).unwrap_err().fault();
    assert!(
        matches!(
            reported,
            Some(
                Fault::PeerDied { rank: Rank(1) } | Fault::PeerAborted { rank: Rank(1) } | Fault::Link { .. }
            )
        ),
        "{reported:?}"
    );
}

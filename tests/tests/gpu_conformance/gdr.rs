//! GPUs of one machine, each a host of its own, over a network that uses their memory itself: copies of the driver play the NIC.

use super::{messages, operations};
use oxccl::bootstrap::InterfaceFilter;
use oxccl::cuda::{Device, Stream};
use oxccl::net::{MemoryKinds, find};
use oxccl::topology::PathKind;
use oxccl::{Algorithm, Config, Protocol, TransportKind};
use oxccl_tests::case::FUNCS;
use oxccl_tests::deadline::Deadline;
use oxccl_tests::devices::{DeviceWorld, ordinal_of, ranks_max};
use oxccl_tests::gdr::{CopyNet, Moved};
use oxccl_tests::harness::Settings;
use std::sync::Arc;
use std::time::Duration;

/// How a network uses GPUs' memory.
#[derive(Clone, Copy, Debug)]
struct Way {
    /// The kind of memory by which it registers.
    memory: MemoryKinds,
    /// Whether it sends from there, beside receiving.
    reads: bool,
    /// Whether what came is flushed.
    flushes: bool,
    /// By rank, the ranks that do so; the others' slots are on the host.
    ranks: fn(u32) -> bool,
}

const BOTH_WAYS: Way = Way { memory: MemoryKinds::CUDA, reads: true, flushes: true, ranks: |_| true };

const HOSTS: [&str; 4] = ["0", "1", "2", "3"];

/// Sets up a rank; its host tells which one it is.
fn adjust(config: &mut Config, way: Way, moved: &Arc<Moved>) {
    let rank: u32 = config.host_id.as_ref().and_then(|host| host.parse().ok()).expect("a host's number");
    config.net.socket.interfaces = InterfaceFilter::parse("=lo");
    config.net.name = Some("Socket".to_owned());
    let inner = find(&config.net).expect("sockets");
    let device = Device::open(ordinal_of(rank)).expect("a GPU");
    let stream = Arc::new(Stream::new(&device).expect("a stream"));
    let memory = if (way.ranks)(rank) { way.memory } else { MemoryKinds::HOST };
    let (awaits_flush, moved) = (way.flushes, moved.clone());
    config.net.own = Some(Arc::new(CopyNet { inner, device, stream, memory, awaits_flush, moved }));
    config.topology.gdr_level = Some(PathKind::Sys);
    config.net.gdr.read = Some(way.reads);
    config.net.gdr.flush = Some(way.flushes);
}

fn world(nranks: u32, settings: Settings, way: Way) -> (DeviceWorld, Arc<Moved>) {
    let moved = Arc::new(Moved::default());
    let hosts = &HOSTS[..nranks as usize];
    let world = DeviceWorld::on_hosts(hosts, settings, |config| adjust(config, way, &moved));
    for rank in &world.ranks {
        let peers = &rank.comm.memory().peers;
        assert!(peers.iter().all(|peer| peer.transport == TransportKind::Net), "{peers:?}");
    }
    (world, moved)
}

/// The number of GPUs to use; with one GPU only, prints a line and returns none.
fn ranks() -> Option<u32> {
    let ranks = ranks_max().min(4);
    if ranks < 2 {
        println!("skipped: this machine has one GPU, and OXCCL_DUPLICATE_GPUS=1 is not set");
    }
    Some(ranks).filter(|ranks| *ranks >= 2)
}

#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_gdr_every_function_with_slots_on_gpus() {
    let _deadline = Deadline::start("needs_gpu_gdr_every_function", Duration::from_secs(300));
    let Some(nranks) = ranks() else { return };
    let simple = Settings::forced(Algorithm::Ring, Protocol::Simple);
    for settings in [simple, Settings::default()] {
        for nranks in [2, nranks] {
            let (mut world, moved) = world(nranks, settings, BOTH_WAYS);
            super::net::every_function(&mut world, &FUNCS);
            drop(world);
            let [sent, received, flushed, _] = moved.all();
            println!(
                "{nranks} ranks: {sent} messages sent from GPUs, {received} received, {flushed} flushed"
            );
            assert!(sent > 0 && sent == received && flushed == received);
        }
    }
}

/// What came is there when the receive is done, as Hopper has it; slots are sent from the host.
#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_gdr_receives_without_flush() {
    let _deadline = Deadline::start("needs_gpu_gdr_receives_without_flush", Duration::from_secs(200));
    let Some(nranks) = ranks() else { return };
    let way = Way { reads: false, flushes: false, ..BOTH_WAYS };
    let (mut world, moved) = world(nranks, Settings::forced(Algorithm::Ring, Protocol::Simple), way);
    super::net::every_function(&mut world, &FUNCS);
    drop(world);
    let [sent, received, flushed, _] = moved.all();
    assert!(sent == 0 && received > 0 && flushed == 0, "{sent} {received} {flushed}");
}

/// By descriptors of the driver, where it makes them; by address elsewhere. One rank has its slots on the host.
#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_gdr_dma_bufs_and_a_rank_without() {
    let _deadline = Deadline::start("needs_gpu_gdr_dma_bufs_and_a_rank_without", Duration::from_secs(200));
    let Some(nranks) = ranks() else { return };
    let facts = Device::open(0).and_then(|device| device.rdma()).expect("facts");
    println!("{facts:?}");
    let memory = MemoryKinds::CUDA | MemoryKinds::DMA_BUF;
    let way = Way { memory, ranks: |rank| rank != 1, ..BOTH_WAYS };
    let (mut world, moved) = world(nranks, Settings::forced(Algorithm::Ring, Protocol::Simple), way);
    super::net::every_function(&mut world, &FUNCS);
    drop(world);
    let [sent, received, _, dma_bufs] = moved.all();
    println!("{dma_bufs} registrations by dma-buf");
    assert!(sent > 0 && received > 0);
    assert!(dma_bufs == 0 || facts.dma_buf);
}

#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_gdr_trees_random_messages_and_operations() {
    let _deadline =
        Deadline::start("needs_gpu_gdr_trees_random_messages_and_operations", Duration::from_secs(300));
    let Some(nranks) = ranks() else { return };
    let (mut trees, _) = world(nranks, Settings::forced(Algorithm::Tree, Protocol::Simple), BOTH_WAYS);
    super::net::every_function(&mut trees, &[oxccl::Func::AllReduce]);
    let (mut world, _) = world(nranks, Settings::default(), BOTH_WAYS);
    messages::run(&world, 30);
    operations::run(&mut world, 17, 200);
}

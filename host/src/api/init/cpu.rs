//! Ranks on CPUs.

use super::{Init, Joined, Started, this_process};
use crate::api::config::Config;
use crate::api::config::agree::flag;
use crate::api::error::Error;
use crate::api::memory::{MemoryReport, PeerMemory};
use crate::bootstrap::Bootstrap;
use crate::connect::cpu::{CpuConnected, CpuWanted, FarBytes, FarLinks, Reducing};
use crate::connect::{ConnectError, connect};
use crate::launch::{CustomAlgorithm, Drives, WaitContext};
use crate::machine::cpu::{Cpu, CpuParts, Far};
use crate::plan::tuning::{Architecture, Backend, Impossible};
use crate::plan::{Collnet, Facts, Hosts, Lacks};
use crate::transport::{TransportKind, processors_each, stream_layout};
use crate::tuner::Tuner;
use oxccl_device::conn::SendConn;
use oxccl_shared::abi::Rank;
use oxccl_shared::algo::spec::Processor;
use std::sync::{Arc, Mutex, PoisonError};

/// Ranks on CPUs that are connected.
pub struct CpuReady {
    connected: CpuConnected,
    /// The algorithms from outside the library that can be used.
    custom: Vec<CustomAlgorithm>,
    /// Whether every rank reads every other's memory.
    reads: bool,
    /// What is connected later, and what connections take by now.
    far: Option<FarLinks>,
    bytes: FarBytes,
}

impl Init for Cpu {
    type Unit = ();
    type Device = ();
    type Kept = ();
    type Connected = CpuReady;

    fn unit_of(_local_rank: u32) {}

    fn name_of((): &()) -> String {
        "on CPUs".to_owned()
    }

    /// Whether a network reduces is known when the ranks have met.
    fn check_settings(config: &Config, nranks: u32) -> Result<(), Error> {
        let no_collnet = (!config.net.coll.enabled).then(|| Collnet::Disabled.why_none());
        let lacks = Lacks { collnet: no_collnet, ..Lacks::default() };
        Ok(Facts::check(Processor::Cpu, nranks, &config.restrictions(), lacks)?)
    }

    fn connect(bootstrap: &Bootstrap, config: &Config, (): ()) -> Result<CpuReady, Error> {
        let (rank, nranks) = (bootstrap.rank(), bootstrap.nranks());
        let random = getrandom::u64().unwrap_or_else(|_| u64::from(std::process::id()));
        let shared = bootstrap.broadcast(Rank(0), &random.to_le_bytes())?;
        let comm_hash = shared.try_into().map_err(|_| ConnectError::Malformed { peer: Rank(0) })?;
        let mut settings = config.must_agree_on_cpus();
        // Both ends of a connection make it at the same time: of GPUs, what one makes all have.
        settings.push(flag("NCCL_RUNTIME_CONNECT", config.runtime_connect));
        let info = this_process(bootstrap, config, &settings)?;
        let wanted = CpuWanted {
            rank,
            nranks,
            comm_hash: u64::from_le_bytes(comm_hash),
            info: &if config.topology.ignore_cpu_affinity { info } else { info.on_numa_node() },
            allowed: &config.transports,
            settings: &settings,
            rings: config.topology.rings.as_deref(),
            net: &config.net,
            net_timeout: config.bootstrap.timeout,
            ring_layout: config.ring_layout(),
            mesh_layout: config.mesh_layout(nranks),
            mesh_buffer_bytes: config.mesh_buffer_bytes(nranks),
            read_from_bytes: config.cma.is_on().then(|| [false, true].map(|is| config.cma_from_bytes(is))),
            ping_pong: config.ping_pong,
            outbox: config.outbox,
            by_need: config.runtime_connect,
        };
        config.cma.permit();
        let mut connected = connect(bootstrap, &wanted)?;
        let bytes = connected.inbound_bytes.iter().zip(&connected.outbound_bytes);
        let bytes: FarBytes = Arc::new(Mutex::new(bytes.map(|(from, to)| [*from, *to]).collect()));
        let far = FarLinks::new(&wanted, &mut connected, bytes.clone());
        // The same on all ranks, which may still be listening.
        check_orders(config, &connected)?;
        let custom = match config.custom.is_empty() || !shares_memory(bootstrap, &connected)? {
            true => Vec::new(),
            false => config.custom.clone(),
        };
        let reads = config.custom.is_empty() && can_read(bootstrap, &connected)?;
        Ok(CpuReady { connected, custom, reads, far, bytes })
    }

    fn start(connected: CpuReady, joined: &Joined<'_>) -> Result<Started<Cpu>, Error> {
        let CpuReady { connected, custom, reads, far, bytes } = connected;
        let (rank, rings) = (joined.rank, connected.graph.rings());
        let (kinds, own_bytes) = (connected.kinds.clone(), connected.reducing.bytes + connected.outbox_bytes);
        let memory = Box::new(move || report(rank, &kinds, &bytes, own_bytes));
        let far = far.map(|far| Far::new(Box::new(far), connected.graph.ring_channels()));
        let tuner = joined.tuner(connected.peers.iter().map(|peer| peer.host))?;
        let machine = machine(connected, custom, reads, (far, tuner), joined);
        Ok(Started { machine, device: (), rings, memory })
    }
}

/// Whether all pairs of ranks meet in memory, which an algorithm needs that no network knows. Every rank calls it.
fn shares_memory(bootstrap: &Bootstrap, connected: &CpuConnected) -> Result<bool, ConnectError> {
    let peers = (0..).map(Rank).zip(&connected.kinds).filter(|(peer, _)| *peer != bootstrap.rank());
    let mine = peers.map(|(_, kind)| kind).all(|kind| kind.is_memory());
    let all = bootstrap.all_gather(&[u8::from(mine)])?;
    Ok(all.iter().all(|theirs| **theirs == [1]))
}

/// Whether every rank can read every other's memory. Every rank calls it.
fn can_read(bootstrap: &Bootstrap, connected: &CpuConnected) -> Result<bool, ConnectError> {
    if connected.graph.hosts().len() > 1 || connected.peers.len() == 1 {
        return Ok(false);
    }
    let sends = &connected.mesh.send;
    let mine = sends.len() + 1 == connected.peers.len() && sends.iter().all(SendConn::has_reader);
    let all = bootstrap.all_gather(&[u8::from(mine)])?;
    Ok(all.iter().all(|theirs| **theirs == [1]))
}

/// Whether what was ordered can be had, now that it is known which hosts there are and whether a network reduces.
fn check_orders(config: &Config, connected: &CpuConnected) -> Result<(), Impossible> {
    let Reducing { collnet, lack, .. } = &connected.reducing;
    let hosts = Hosts::of(connected.peers.iter().map(|peer| peer.host));
    let (lack, unserved) = (collnet.lack(lack), collnet.unserved());
    let lacks = Lacks { collnet: lack, unserved, levels: hosts.lack(), ..Lacks::default() };
    Facts::check(Processor::Cpu, connected.peers.len() as u32, &config.restrictions(), lacks)
}

fn machine(
    connected: CpuConnected,
    custom: Vec<CustomAlgorithm>,
    reads: bool,
    (far, tuner): (Option<Far>, Tuner),
    joined: &Joined<'_>,
) -> Cpu {
    let Joined { rank, config, health, .. } = *joined;
    let here = connected.peers[rank.index()];
    let crowded = processors_each(&connected.peers, here.host) == 0;
    // Of several hosts some may be crowded, but plans are the same on all ranks: they ask for one host.
    let facts = facts_of(&connected, config)
        .reading_from(reads.then(|| config.cma_from_bytes(crowded) as u64))
        .sharing_processors(crowded);
    let notify = Box::new(joined.teller());
    let ends = connected.channels.iter().chain([&connected.mesh]).flat_map(|channel| &channel.send);
    ends.for_each(|conn| conn.set_stores(config.slot_stores));
    Cpu::new(CpuParts {
        rank,
        facts,
        tuner,
        custom,
        channels: connected.channels,
        mesh: connected.mesh,
        send_to: connected.send_to,
        recv_from: connected.recv_from,
        wait: {
            let CpuConnected { net_links, reducing, .. } = connected;
            let drives = Drives::none().with_network(net_links).with_reduction(reducing.links);
            let wait = WaitContext::new(health.clone(), drives, notify, config.timeout, crowded);
            config.stall_warn.into_iter().fold(wait, WaitContext::warning_after)
        },
        memory: connected.memory,
        far,
    })
}

/// What plans depend on.
fn facts_of(connected: &CpuConnected, config: &Config) -> Facts {
    let nranks = connected.peers.len() as u32;
    let (ring_layout, mesh_layout) = (config.ring_layout(), config.mesh_layout(nranks));
    // A schedule's slices fit every connection, and streams have the longer slots.
    let streams = nranks > 1 && config.transports.all_streams(&connected.peers);
    let (layouts, architecture) = match streams {
        true => ([stream_layout(ring_layout), stream_layout(mesh_layout)], Architecture::CpuStreams),
        false => ([ring_layout, mesh_layout], Architecture::Cpu),
    };
    let channels = [connected.graph.ring_channels(), connected.graph.tree_channels()];
    let table = config.tuned.as_ref().and_then(|tuned| tuned.table(Backend::of(architecture), nranks));
    Facts::of_cpus(nranks, architecture, config.restrictions(), layouts, channels)
        .on_hosts(connected.peers.iter().map(|peer| peer.host))
        .with_far_ranks(config.transports.has_streams(&connected.peers))
        .with_collnet(connected.reducing.collnet)
        .with_table(table.copied())
}

fn report(rank: Rank, kinds: &[TransportKind], bytes: &FarBytes, own_bytes: usize) -> MemoryReport {
    let bytes = bytes.lock().unwrap_or_else(PoisonError::into_inner);
    let peers = (0..).map(Rank).zip(kinds.iter().zip(&*bytes)).filter(|(peer, _)| *peer != rank);
    let peers = peers.map(|(rank, (transport, [inbound_bytes, outbound_bytes]))| PeerMemory {
        rank,
        transport: *transport,
        inbound_bytes: *inbound_bytes,
        outbound_bytes: *outbound_bytes,
    });
    MemoryReport { peers: peers.collect(), own_bytes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connect::cpu::RankGraph;
    use crate::launch::{Channel, Health};
    use crate::machine::cpu::{FarConnector, FarEnds, FarNeed, NOT_MADE};
    use crate::plan::{Call, CallPlan};
    use crate::transport::PeerInfo;
    use crate::transport::{Allowed, Asking, Opener, Opening, Openings, TransportError, transport_of};
    use oxccl_shared::abi::{DataType, Func, RedOp};
    use oxccl_shared::algo::registry::spec_of;
    use oxccl_shared::algo::spec::Connections;
    use std::time::Instant;

    /// A network that never answers.
    struct Silent;

    impl Opener for Silent {
        fn open(&self, to: &[Asking], from: &[Asking]) -> Result<Openings, TransportError> {
            fn never<C>(_: &Asking) -> Opening<C> {
                Box::new(|| Ok(None))
            }
            Ok(Openings { to: to.iter().map(never).collect(), from: from.iter().map(never).collect() })
        }
    }

    /// A rank after init, each on a host of its own, without the connections of its rings.
    fn connected(peers: &[PeerInfo]) -> CpuConnected {
        let graph = RankGraph::new(peers, None).unwrap();
        let tcp = transport_of(TransportKind::Tcp).unwrap();
        CpuConnected {
            channels: (0..graph.channels()).map(|_| Channel::default()).collect(),
            mesh: Channel::default(),
            send_to: vec![NOT_MADE; peers.len()],
            recv_from: vec![NOT_MADE; peers.len()],
            net_links: None,
            opener: Some((tcp, Box::new(Silent))),
            reducing: Reducing::default(),
            kinds: vec![TransportKind::Tcp; peers.len()],
            peers: peers.to_vec(),
            graph,
            outbox_bytes: 0,
            inbound_bytes: Vec::new(),
            outbound_bytes: Vec::new(),
            memory: Vec::new(),
        }
    }

    /// Connections and bytes of a rank that has run these calls.
    fn used(peers: &[PeerInfo], rank: Rank, config: &Config, calls: &[Call]) -> (usize, usize) {
        let nranks = peers.len() as u32;
        let mut connected = connected(peers);
        let facts = facts_of(&connected, config);
        let wanted = CpuWanted {
            rank,
            nranks,
            comm_hash: 0,
            info: &peers[rank.index()],
            allowed: &config.transports,
            settings: &[],
            rings: None,
            net: &config.net,
            net_timeout: config.bootstrap.timeout,
            ring_layout: config.ring_layout(),
            mesh_layout: config.mesh_layout(nranks),
            mesh_buffer_bytes: config.mesh_buffer_bytes(nranks),
            ping_pong: true,
            outbox: None,
            by_need: true,
            read_from_bytes: None,
        };
        let bytes: FarBytes = Arc::new(Mutex::new(vec![[0; 2]; peers.len()]));
        let mut far = FarLinks::new(&wanted, &mut connected, bytes.clone()).unwrap();
        let health = Health::new(rank, nranks);
        let mut ends = 0;
        let mut needs = vec![FarNeed::Rings(connected.graph.ring_channels())];
        for call in calls {
            let CallPlan::Collective(plan) = facts.plan_with(call, None) else { panic!("{call:?} is one") };
            needs.push(match spec_of(plan.algorithm).connections {
                Connections::Ring => FarNeed::Rings(plan.channels),
                Connections::Tree => FarNeed::Trees(plan.channels),
                _ => FarNeed::Mesh,
            });
        }
        for need in needs {
            let CpuConnected { channels, mesh, send_to, recv_from, memory, .. } = &mut connected;
            let drive = &mut |_| ends += 1;
            let made = FarEnds { channels, mesh, send_to, recv_from, memory, health: &health, drive };
            far.connect(need, made).unwrap();
        }
        let total = bytes.lock().unwrap().iter().flatten().sum();
        (ends, total)
    }

    /// A rank of very many has neighbours in rings and trees alone, whatever the length, by the planner's and the tables' own code.
    #[test]
    fn a_rank_among_thousands_has_few_connections() {
        let config = Config { transports: Allowed::only(TransportKind::Tcp), ..Config::default() };
        let call = |func, count| Call { func, dtype: DataType::F32, op: RedOp::Sum, root: Rank(0), count };
        for nranks in [1024, 16_384u64] {
            let peers: Vec<PeerInfo> =
                (0..nranks).map(|host| PeerInfo { host, process: host, ..PeerInfo::default() }).collect();
            for rank in [0, 1, nranks / 2, nranks - 1].map(|rank| Rank(rank as u32)) {
                for count in [1, 1 << 10, 1 << 24] {
                    let begun = Instant::now();
                    let calls = [call(Func::AllReduce, count), call(Func::Barrier, 0)];
                    let (ends, bytes) = used(&peers, rank, &config, &calls);
                    eprintln!(
                        "rank {rank} of {nranks}, {count} elements and a barrier: {ends} connections, {:.1} MiB, in {:?}",
                        bytes as f64 / f64::from(1 << 20),
                        begun.elapsed()
                    );
                    assert!(ends <= 64 && bytes <= 64 << 20, "{ends} {bytes}");
                }
            }
        }
    }
}

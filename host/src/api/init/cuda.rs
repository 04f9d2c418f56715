//! Ranks on GPUs of NVIDIA.

use super::{Init, Joined, Started, this_process};
use crate::api::config::Config;
use crate::api::error::{DeviceError, Error};
use crate::api::handle::operation_error;
use crate::api::membership::Notes;
use crate::api::memory::{MemoryReport, MemoryUse, PeerMemory};
use crate::bootstrap::Bootstrap;
use crate::connect::gpu::{DeviceConnected, DeviceLayout, DeviceWanted, Parts, PartsOpen, RouteSettings};
use crate::connect::{ConnectError, connect};
use crate::gpu::{CudaError, Gpu, PciBus};
use crate::launch::{Health, Notify, PlannedTraffic, RunError};
use crate::log::Laps;
use crate::machine::cuda::{
    Clusters, Cuda, CudaParts, CustomKernels, Device, DeviceKernels, Forms, Monitor, Stream, Tiles,
    side_stream,
};
use crate::machine::{NetParts, NetProxy};
use crate::net::NetError;
use crate::plan::tuning::Backend;
use crate::plan::{Collnet, Facts, Lacks};
use crate::topology::BusId;
use crate::topology::detect::nvml_index;
use crate::transport::TransportKind;
use crate::transport::p2p::Domain;
use cudarc::driver::CudaStream;
use oxccl_shared::abi::Rank;
use oxccl_shared::algo::spec::Processor;
use std::sync::Arc;

/// A GPU that is connected with all others.
pub struct ConnectedGpu {
    device: Device,
    side: Arc<Stream>,
    kernels: Arc<DeviceKernels>,
    connected: DeviceConnected,
}

impl Init for Cuda {
    /// The GPU, by its number among those that the process sees.
    type Unit = u32;
    type Device = Device;
    /// Streams: that of the latest operations, so that its address stays its own.
    type Kept = Vec<Arc<CudaStream>>;
    type Connected = ConnectedGpu;

    fn unit_of(local_rank: u32) -> u32 {
        local_rank
    }

    fn name_of(device: &Device) -> String {
        let PciBus { domain, bus, device: number } = device.id().bus;
        let bus_id = BusId::new(domain, bus, number);
        let nvml = nvml_index(bus_id).map_or(-1, i64::from);
        format!("cudaDev {} nvmlDev {nvml} busId {:x}", device.ordinal(), bus_id.0)
    }

    fn check_settings(config: &Config, nranks: u32) -> Result<(), Error> {
        // Whether a network reduces is known when the ranks have met.
        let no_collnet = (!config.net.coll.enabled).then(|| Collnet::Disabled.why_none());
        let lacks = Lacks { collnet: no_collnet, ..Lacks::default() };
        Ok(Facts::check(Processor::Gpu, nranks, &config.restrictions(), lacks)?)
    }

    fn connect(bootstrap: &Bootstrap, config: &Config, ordinal: u32) -> Result<ConnectedGpu, Error> {
        let (rank, nranks) = (bootstrap.rank(), bootstrap.nranks());
        crate::log::on_device(ordinal);
        let mut laps = Laps::start(rank);
        let opened = open(rank, ordinal, config);
        laps.done("GPU opened");
        let settings = config.must_agree_on_gpus();
        let info = this_process(bootstrap, config, &settings)?;
        let wanted = DeviceWanted {
            device: opened.as_ref().map(|(device, ..)| device as &dyn Gpu).map_err(Clone::clone),
            info: &info,
            settings: &settings,
            routes: RouteSettings::new(&config.transports),
            p2p: &config.p2p,
            net: &config.net,
            by_need: config.runtime_connect,
            net_timeout: config.bootstrap.timeout,
            timeout: config.timeout,
            topology: &config.topology,
            forced: config.restrictions(),
            limits: config.channels,
            table: config.tuned.as_ref().and_then(|tuned| tuned.table(Backend::Gpu, nranks)).copied(),
            buffer_bytes: config.device_buffer_bytes,
        };
        let connected = connect(bootstrap, &wanted)?;
        // The same on all ranks, now that their hosts are known.
        let is_wide = connected.facts.crosses_network();
        let mesh = is_wide.then_some("not between hosts: set it off, or reduce inside each host first");
        let collnet = connected.facts.collnet.lack(&connected.no_collnet);
        let unserved = connected.facts.collnet.unserved();
        let (levels, stars) = (connected.facts.hosts.lack(), connected.facts.lack_of_stars());
        let lacks = Lacks { collnet, unserved, stars, levels, mesh };
        Facts::check(Processor::Gpu, nranks, &config.restrictions(), lacks)?;
        let (device, side, kernels) = opened?;
        Ok(ConnectedGpu { device, side, kernels, connected })
    }

    fn notes(connected: &ConnectedGpu) -> Option<Notes> {
        let parts = connected.connected.parts.clone();
        Some(Box::new(move |rank, note| parts.note(rank, note)))
    }

    fn start(connected: ConnectedGpu, joined: &Joined<'_>) -> Result<Started<Cuda>, Error> {
        let Joined { rank, nranks, config, health, .. } = *joined;
        let mut laps = Laps::start(rank);
        let ConnectedGpu { device, side, kernels, connected } = connected;
        record_calls(rank, health, &connected.layout);
        let memory = memory_use(rank, &connected);
        let DeviceConnected { facts, tables, parts, layout, net, hosts, .. } = connected;
        let tuner = joined.tuner(hosts.into_iter())?;
        let failed = |source: CudaError| DeviceError { rank, nranks, source: Box::new(source.into()) };
        // A rank that is alone seldom needs a kernel. A plugin may want others than plans choose without it.
        let has_all_kernels = nranks > 1 && !tuner.is_there() && load_kernels(&kernels, &facts, config);
        laps.done("kernels loaded");
        let custom = CustomKernels::load_all(&device, &config.custom).map_err(|source| DeviceError {
            rank,
            nranks,
            source: Box::new(source),
        })?;
        let monitor = Arc::new(Monitor::new(&device).map_err(failed)?);
        let notify: Arc<dyn Notify + Sync> = Arc::new(joined.teller());
        let net = net.map(|net| start_proxy(net, health, &notify)).transpose()?;
        // Ranks that share a GPU have blocks for as many kernels as there are ranks, and none for kernels that wait. Where a proxy works,
        // nothing short is on the way, and graphs have nodes of the host's between kernels.
        let starts_early = config.dependent_launch && !config.p2p.shares_gpus && net.is_none();
        let cta_policy = config.cta_policy.unwrap_or_default();
        let facts = Facts { cta_policy, symmetric: config.symmetric, ..facts };
        let tile_bytes = config.tile_kib.map_or(facts.tile_bytes(), |kib| kib << 10);
        let tiles = Tiles::on(&device, tile_bytes);
        let clusters = Clusters {
            wanted: config.cluster_size,
            shares_gpu: config.p2p.shares_gpus,
            multiprocessors: device.sm_count(),
        };
        let machine = Cuda::new(CudaParts {
            rank,
            facts,
            tuner,
            device: device.clone(),
            side,
            kernels,
            custom,
            tiles,
            tile_bytes: config.tile_kib.filter(|kib| *kib > 0).map(|kib| kib << 10),
            has_all_kernels,
            tables,
            connector: parts.clone(),
            monitor,
            health: health.clone(),
            notify: notify.clone(),
            net,
            timeout: config.timeout,
            starts_early,
            clusters,
        });
        let mut machine = machine.map_err(failed)?;
        if config.flight_times {
            machine.time_calls().map_err(failed)?;
        }
        laps.done("machine made");
        let (gpu, says) = (Arc::new(device.clone()), joined.teller());
        let say = Box::new(move |note: &[u8]| says.say(note));
        parts.open(PartsOpen { device: gpu, health: health.clone(), notify, say });
        if !config.runtime_connect {
            machine.connect_all().map_err(|error| match error {
                RunError::Stopped(outstanding) => operation_error((rank, nranks), outstanding),
                RunError::Kernel(error) => DeviceError { rank, nranks, source: Box::new(error) }.into(),
                RunError::Gpu(error) => failed(error).into(),
            })?;
        }
        Ok(Started { machine, device, rings: layout.rings, memory })
    }
}

/// Opens this rank's GPU and its resources. A failure is reported to the other ranks, which would wait otherwise.
fn open(
    rank: Rank,
    ordinal: u32,
    config: &Config,
) -> Result<(Device, Arc<Stream>, Arc<DeviceKernels>), ConnectError> {
    let refused = |source: CudaError| ConnectError::Device { rank, source: source.into() };
    let device = Device::open(ordinal).map_err(refused)?;
    let side = side_stream(&device).map_err(refused)?;
    let kernels = DeviceKernels::open(&device, config.kernels.as_ref(), config.ptx_path.as_deref());
    let kernels = kernels.map_err(|source| ConnectError::Kernels { rank, source: source.into() })?;
    Ok((device, side, kernels))
}

/// Loads the kernels that plans choose; whether all are there. The first communicator then also loads those that all ranks but one would
/// need.
fn load_kernels(kernels: &DeviceKernels, facts: &Facts, config: &Config) -> bool {
    let is_first = kernels.has_none();
    let forms = if config.runtime_connect { Forms::MachineCode } else { Forms::All };
    let has_all = kernels.load_all(&facts.kernel_set(), forms);
    if is_first && has_all && facts.nranks > 2 {
        kernels.load_spare(&facts.kernel_set_of_survivors());
    }
    has_all
}

/// Starts what moves the bytes of connections over a network.
fn start_proxy(
    parts: NetParts,
    health: &Arc<Health>,
    notify: &Arc<dyn Notify + Sync>,
) -> Result<NetProxy, ConnectError> {
    let (rank, name) = (parts.rank, parts.device.clone());
    NetProxy::start(parts, health, notify).map_err(|error| {
        let source = NetError::of_io(&name, None, "start the proxy's thread", &error);
        ConnectError::Net { rank, peer: None, source: Box::new(source) }
    })
}

/// Prepares the records and counters of a rank's calls.
fn record_calls(rank: Rank, health: &Health, layout: &DeviceLayout) {
    health.recorder().keep_streams();
    let places = layout.places(rank);
    health.planned_traffic.get_or_init(|| PlannedTraffic::new(rank, layout.nranks, places));
}

/// Asks for the memory of connections, in the GPU's memory and the host's.
fn memory_use(rank: Rank, connected: &DeviceConnected) -> MemoryUse {
    let DeviceConnected { layout, tables, parts, head_bytes, .. } = connected;
    let own_bytes = tables.memory.len_bytes() + head_bytes;
    let peers = (0..layout.nranks).map(Rank).filter(|peer| *peer != rank);
    let peers = peers.map(|peer| PeerMemory {
        rank: peer,
        transport: transport_to(rank, peer, layout),
        inbound_bytes: 0,
        outbound_bytes: 0,
    });
    let (nothing, parts) = (MemoryReport { peers: peers.collect(), own_bytes }, parts.clone());
    Box::new(move || so_far(&nothing, &parts))
}

/// What of it has been made so far.
fn so_far(nothing: &MemoryReport, parts: &Parts) -> MemoryReport {
    let mut report = nothing.clone();
    let mut in_memory = 0;
    for peer in &mut report.peers {
        let [inbound, outbound] = parts.bytes_with(peer.rank);
        in_memory += if peer.transport == TransportKind::Net { 0 } else { inbound + outbound };
        (peer.inbound_bytes, peer.outbound_bytes) = (inbound, outbound);
    }
    report.own_bytes += parts.bytes().saturating_sub(in_memory);
    report
}

fn transport_to(rank: Rank, peer: Rank, layout: &DeviceLayout) -> TransportKind {
    match layout.domains.of(rank, peer) {
        _ if layout.routes.is_net(rank, peer) => TransportKind::Net,
        Domain::Device => TransportKind::P2p,
        Domain::Host => TransportKind::Shm,
    }
}

//! From settings to a communicator of GPUs.

use super::communicator::DeviceCommunicator;
use crate::api::builder::this_process;
use crate::api::config::{Config, MISSING_ID};
use crate::api::error::{DeviceError, Error};
use crate::api::launcher::LaunchEnv;
use crate::api::membership::{Membership, TellByWatch, watch};
use crate::api::memory::{MemoryReport, PeerMemory};
use crate::api::tune_file;
use crate::bootstrap::{Bootstrap, UniqueId};
use crate::channel::ConnectError;
use crate::channel::device::{DeviceConnected, DeviceWanted, WaySettings, connect};
use crate::gpu::Gpu;
use crate::launch::{Health, Tell};
use crate::machine::cuda::driver::Device;
use crate::machine::cuda::{DeviceEngine, DeviceEngineParts, DeviceKernels, Monitor, NetProxy};
use crate::net::NetError;
use crate::plan::device::DeviceFacts;
use crate::plan::tuning::Backend;
use crate::transport::TransportKind;
use crate::transport::p2p::Side;
use oxccl_shared::abi::Rank;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Sets up a communicator of GPUs: who, how many, on which GPU, and any setting that should not come from the environment.
#[derive(Clone, Debug, Default)]
pub struct DeviceCommunicatorBuilder {
    id: Option<UniqueId>,
    rank: u32,
    nranks: u32,
    device: u32,
    config: Option<Config>,
    timeout: Option<Duration>,
    tune_file: Option<PathBuf>,
}

impl DeviceCommunicatorBuilder {
    /// The id that one rank created and all were given.
    pub fn unique_id(mut self, id: UniqueId) -> Self {
        self.id = Some(id);
        self
    }

    /// This rank.
    pub fn rank(mut self, rank: u32) -> Self {
        self.rank = rank;
        self
    }

    /// The number of ranks.
    pub fn ranks(mut self, nranks: u32) -> Self {
        self.nranks = nranks;
        self
    }

    /// This rank's GPU, by its number among those that the process sees.
    pub fn device(mut self, ordinal: u32) -> Self {
        self.device = ordinal;
        self
    }

    /// Takes id, rank and number of ranks from the launcher's environment. The GPU is the rank's number on its host.
    ///
    /// # Errors
    /// [`Error::Launch`] if no launcher is recognised or its variables cannot be used.
    pub fn from_env(self) -> Result<Self, Error> {
        let launch = LaunchEnv::from_process()?;
        let device = launch.local_rank.unwrap_or(launch.rank);
        Ok(self.unique_id(launch.unique_id()?).rank(launch.rank).ranks(launch.nranks).device(device))
    }

    /// Replaces the environment's settings.
    pub fn config(mut self, config: Config) -> Self {
        self.config = Some(config);
        self
    }

    /// How long an operation's kernel waits for a peer that does nothing.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Chooses by the tables in this file, which `oxccl tune` writes. Every rank needs the same tables.
    pub fn tune_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.tune_file = Some(path.into());
        self
    }

    /// Joins. Returns when all ranks have joined, or with the same error on all.
    ///
    /// # Errors
    /// Any [`Error`] but `Argument` and `Operation`.
    pub fn build(self) -> Result<DeviceCommunicator, Error> {
        let mut config = match &self.config {
            Some(config) => config.clone(),
            None => Config::from_env()?,
        };
        config.timeout = self.timeout.unwrap_or(config.timeout);
        config.validate(self.nranks)?;
        DeviceFacts::check(&config.forced, self.nranks)?;
        if config.net.coll.enabled {
            tracing::warn!("NCCL_COLLNET_ENABLE=1: networks that reduce are for ranks on CPUs so far");
        }
        config.tune_file = self.tune_file.clone().or(config.tune_file);
        tune_file::load(&mut config)?;
        let id = match self.id {
            Some(id) => id,
            None if self.nranks == 1 => UniqueId::create(&config.bootstrap)?,
            None => return Err(MISSING_ID.into()),
        };
        let bootstrap = Bootstrap::connect(&id, Rank(self.rank), self.nranks, &config.bootstrap)?;
        assemble(bootstrap, config, self.device)
    }
}

/// This rank's GPU and what it needs of its own. A failure is told to the other ranks, which would wait otherwise.
fn open(rank: u32, ordinal: u32, config: &Config) -> Result<(Device, Arc<DeviceKernels>), ConnectError> {
    let device =
        Device::open(ordinal).map_err(|source| ConnectError::Device { rank, source: source.into() })?;
    let kernels = DeviceKernels::open(&device, config.ptx_path.as_deref());
    let kernels = kernels.map_err(|source| ConnectError::Kernels { rank, source: source.into() })?;
    Ok((device, kernels))
}

/// Connects all ranks' GPUs and puts the communicator together.
pub(super) fn assemble(
    bootstrap: Bootstrap,
    config: Config,
    ordinal: u32,
) -> Result<DeviceCommunicator, Error> {
    let (rank, nranks) = (bootstrap.rank().0, bootstrap.nranks());
    let opened = open(rank, ordinal, &config);
    let wanted = DeviceWanted {
        device: opened.as_ref().map(|(device, _)| device as &dyn Gpu).map_err(Clone::clone),
        info: &this_process(&bootstrap, &config)?,
        settings: Config::MUST_AGREE,
        ways: WaySettings::new(&config.transports),
        p2p: &config.p2p,
        net: &config.net,
        net_timeout: config.bootstrap.timeout,
        timeout: config.timeout,
        topology: &config.topology,
        forced: config.forced,
        limits: config.channels,
        table: config.tuned.as_ref().and_then(|tuned| tuned.table(Backend::Gpu, nranks)).copied(),
        buffer_bytes: config.device_buffer_bytes,
    };
    let connected = match connect(&bootstrap, wanted) {
        Ok(connected) => connected,
        Err(error) => {
            // As for ranks on CPUs: all have agreed to fail, unless one is lost.
            if !matches!(error, ConnectError::Bootstrap(_)) {
                bootstrap.close();
            }
            return Err(error.into());
        }
    };
    let (device, kernels) = opened?;
    if nranks > 1 {
        kernels.load_all(&connected.facts.repertoire());
    }
    let failed = |source: crate::machine::cuda::driver::CudaError| DeviceError {
        rank,
        nranks,
        source: Box::new(source.into()),
    };
    let monitor = Arc::new(Monitor::new(&device).map_err(failed)?);
    let health = Arc::new(Health::new(rank, nranks));
    let memory = report(rank, &connected);
    let watch = watch(bootstrap, &health);
    let DeviceConnected { facts, tables, arena, layout, net, .. } = connected;
    let tell: Arc<dyn Tell + Sync> = Arc::new(TellByWatch::new(&watch));
    let net = net.map(|net| {
        let name = net.parts.device.clone();
        NetProxy::start(net.parts, &health, &tell).map_err(|error| {
            let source = NetError::of_io(&name, None, "start the proxy's thread", &error);
            ConnectError::Net { rank, peer: None, source: Box::new(source) }
        })
    });
    let engine = DeviceEngine::new(DeviceEngineParts {
        rank,
        facts,
        device,
        kernels,
        tables,
        arena,
        monitor,
        health: health.clone(),
        tell,
        net: net.transpose()?,
        timeout: config.timeout,
    });
    let member = Membership::new((rank, nranks), layout.rings, health, watch);
    Ok(DeviceCommunicator::new(member, config, memory, engine.map_err(failed)?))
}

fn report(rank: u32, connected: &DeviceConnected) -> MemoryReport {
    let DeviceConnected { layout, net, tables, .. } = connected;
    let peer_memory = |peer| match net {
        Some(net) if layout.ways.is_net(rank, peer) => PeerMemory {
            rank: peer,
            transport: TransportKind::Net,
            inbound_bytes: net.bytes_with(peer, false),
            outbound_bytes: net.bytes_with(peer, true),
        },
        _ => PeerMemory {
            rank: peer,
            transport: match layout.sides.of(rank, peer) {
                Side::Device => TransportKind::P2p,
                Side::Host => TransportKind::Shm,
            },
            inbound_bytes: layout.inbound_bytes(rank, peer),
            outbound_bytes: layout.outbound_bytes(rank, peer),
        },
    };
    let peers = (0..layout.nranks).filter(|peer| *peer != rank).map(peer_memory);
    MemoryReport { peers: peers.collect(), own_bytes: tables.memory.len_bytes() }
}

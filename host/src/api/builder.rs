//! From settings to a communicator.

use super::communicator::Communicator;
use super::config::Config;
use super::error::Error;
use super::launcher::LaunchEnv;
use super::membership::{Membership, TellByWatch, watch};
use super::memory::{MemoryReport, PeerMemory};
use super::tune_file;
use crate::bootstrap::{Bootstrap, BootstrapError, UniqueId, Watch};
use crate::channel::{self, ConnectError, Connected, Reducing, Wanted};
use crate::launch::{Engine, EngineParts, Health, WaitContext};
use crate::plan::tuning::Impossible;
use crate::plan::{Collnet, Facts, Tuning};
use crate::transport::{Allowed, PeerInfo, TransportKind, processors_each, stream_layout};
use oxccl_shared::abi::{Algorithm, Protocol, Rank};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Sets up a communicator: who, how many, and any setting that should not come from the environment.
#[derive(Clone, Debug, Default)]
pub struct CommunicatorBuilder {
    id: Option<UniqueId>,
    rank: u32,
    nranks: u32,
    config: Option<Config>,
    overrides: Overrides,
}

/// What was set explicitly, and so wins over the environment.
#[derive(Clone, Debug, Default)]
struct Overrides {
    algorithm: Option<Algorithm>,
    protocol: Option<Protocol>,
    transport: Option<TransportKind>,
    timeout: Option<Duration>,
    tune_file: Option<PathBuf>,
}

impl CommunicatorBuilder {
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

    /// Takes id, rank and number of ranks from the launcher's environment.
    ///
    /// # Errors
    /// [`Error::Launch`] if no launcher is recognised or its variables cannot be used.
    pub fn from_env(self) -> Result<Self, Error> {
        let launch = LaunchEnv::from_process()?;
        Ok(self.unique_id(launch.unique_id()?).rank(launch.rank).ranks(launch.nranks))
    }

    /// Replaces the environment's settings.
    pub fn config(mut self, config: Config) -> Self {
        self.config = Some(config);
        self
    }

    /// Uses this algorithm wherever the function has it.
    pub fn algorithm(mut self, algorithm: Algorithm) -> Self {
        self.overrides.algorithm = Some(algorithm);
        self
    }

    /// Uses this protocol.
    pub fn protocol(mut self, protocol: Protocol) -> Self {
        self.overrides.protocol = Some(protocol);
        self
    }

    /// Uses this transport and no other.
    pub fn transport(mut self, transport: TransportKind) -> Self {
        self.overrides.transport = Some(transport);
        self
    }

    /// How long an operation waits for a peer that does nothing.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.overrides.timeout = Some(timeout);
        self
    }

    /// Chooses by the tables in this file, which `oxccl tune` writes. Every rank needs the same tables.
    pub fn tune_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.overrides.tune_file = Some(path.into());
        self
    }

    /// Joins. Returns when all ranks have joined, or with the same error on all.
    ///
    /// # Errors
    /// Any [`Error`] but `Argument` and `Operation`.
    pub fn build(self) -> Result<Communicator, Error> {
        let config = self.settings()?;
        let id = match self.id {
            Some(id) => id,
            None if self.nranks == 1 => UniqueId::create(&config.bootstrap)?,
            None => return Err(super::config::MISSING_ID.into()),
        };
        let bootstrap = Bootstrap::connect(&id, Rank(self.rank), self.nranks, &config.bootstrap)?;
        assemble(bootstrap, config)
    }

    fn settings(&self) -> Result<Config, Error> {
        let mut config = match &self.config {
            Some(config) => config.clone(),
            None => Config::from_env()?,
        };
        let Overrides { algorithm, protocol, transport, timeout, tune_file } = self.overrides.clone();
        config.forced = algorithm.map_or(config.forced, |algorithm| config.forced.with_algorithm(algorithm));
        config.forced = protocol.map_or(config.forced, |protocol| config.forced.with_protocol(protocol));
        config.tune_file = tune_file.or(config.tune_file);
        config.transports = transport.map_or(config.transports, Allowed::only);
        config.timeout = timeout.unwrap_or(config.timeout);
        config.validate(self.nranks)?;
        // Whether a network reduces is known when the ranks have met.
        let no_collnet = (!config.net.coll.enabled).then(|| Collnet::Disabled.why_not());
        Facts::check(&config.forced, no_collnet)?;
        tune_file::load(&mut config)?;
        Ok(config)
    }
}

/// Connects all ranks and puts the communicator together.
pub(super) fn assemble(bootstrap: Bootstrap, config: Config) -> Result<Communicator, Error> {
    let (rank, nranks) = (bootstrap.rank().0, bootstrap.nranks());
    let random = getrandom::u64().unwrap_or_else(|_| u64::from(std::process::id()));
    let shared = bootstrap.broadcast(Rank(0), &random.to_le_bytes())?;
    let comm_hash = shared.try_into().map_err(|_| ConnectError::Malformed { peer: 0 })?;
    let info = this_process(&bootstrap, &config)?;
    let wanted = Wanted {
        rank,
        nranks,
        comm_hash: u64::from_le_bytes(comm_hash),
        info: &if config.topology.ignore_cpu_affinity { info } else { info.on_numa_node() },
        allowed: &config.transports,
        settings: Config::MUST_AGREE,
        rings: config.topology.rings.as_deref(),
        net: &config.net,
        net_timeout: config.bootstrap.timeout,
        ring_layout: config.ring_layout(),
        mesh_layout: config.mesh_layout(nranks),
    };
    let connected = match channel::connect(&bootstrap, &wanted) {
        Ok(connected) => connected,
        Err(error) => {
            // All ranks have agreed to fail: leaving in order lets those that still gather the verdict have it. If they have
            // not, because one is lost, dropping the bootstrap tells them that this one gave up.
            if !matches!(error, ConnectError::Bootstrap(_)) {
                bootstrap.close();
            }
            return Err(error.into());
        }
    };

    // The same on all ranks, which may still be listening.
    if let Err(error) = check_collnet(&config, &connected) {
        bootstrap.close();
        return Err(error.into());
    }

    let health = Arc::new(Health::new(rank, nranks));
    let watch = watch(bootstrap, &health);
    let memory = report(rank, &connected);
    let rings = connected.graph.rings();
    let engine = engine(&config, &wanted, connected, health.clone(), &watch);
    let member = Membership::new((rank, nranks), rings, health, watch);
    Ok(Communicator::new(member, config, memory, engine))
}

/// What this rank tells the others of its process.
pub(crate) fn this_process(bootstrap: &Bootstrap, config: &Config) -> Result<PeerInfo, BootstrapError> {
    let what = "ask the kernel which host this is";
    let rank = Some(bootstrap.rank());
    PeerInfo::local(config.host_id.as_deref(), config.digest())
        .map_err(|why| BootstrapError::NoDescriptor { rank, what, why })
        .inspect_err(|error| bootstrap.abort(&error.to_string()))
}

/// Whether what was ordered can be had, now that it is known whether a network reduces.
fn check_collnet(config: &Config, connected: &Connected) -> Result<(), Impossible> {
    let Reducing { collnet, lack, .. } = &connected.reducing;
    let why = match collnet {
        Collnet::There(_) => None,
        Collnet::Lacking => Some(&**lack),
        _ => Some(collnet.why_not()),
    };
    Facts::check(&config.forced, why)
}

fn engine(
    config: &Config,
    wanted: &Wanted<'_>,
    connected: Connected,
    health: Arc<Health>,
    watch: &Arc<Watch>,
) -> Engine {
    let Wanted { rank, nranks, ring_layout, mesh_layout, .. } = *wanted;
    let here = connected.peers[rank as usize];
    // A schedule's slices fit every connection, and streams have the longer slots.
    let streams = nranks > 1 && config.transports.all_streams(&connected.peers);
    let (ring_layout, mesh_layout, tuning) = match streams {
        true => (stream_layout(ring_layout), stream_layout(mesh_layout), Tuning::CPU_STREAMS),
        false => (ring_layout, mesh_layout, Tuning::CPU),
    };
    let facts = Facts {
        nranks,
        ring_layout,
        mesh_layout,
        ring_channels: connected.graph.ring_channels(),
        tree_channels: connected.graph.tree_channels(),
        forced: config.forced,
        tuning,
        collnet: connected.reducing.collnet,
        table: config.tuned.as_ref().and_then(|tuned| tuned.table(tuning.backend(), nranks)).copied(),
    };
    let crowded = processors_each(&connected.peers, here.host) == 0;
    let tell = Box::new(TellByWatch::new(watch));
    Engine::new(EngineParts {
        rank,
        facts,
        channels: connected.channels,
        mesh: connected.mesh,
        send_to: connected.send_to,
        recv_from: connected.recv_from,
        wait: {
            let Connected { links, net_links, reducing, .. } = connected;
            WaitContext::new(health, links, (net_links, reducing.links), tell, config.timeout, crowded)
        },
        memory: connected.memory,
    })
}

fn report(rank: u32, connected: &Connected) -> MemoryReport {
    let peers = (0..connected.peers.len() as u32).filter(|peer| *peer != rank);
    let peers = peers.map(|peer| PeerMemory {
        rank: peer,
        transport: connected.kinds[peer as usize],
        inbound_bytes: connected.inbound_bytes[peer as usize],
        outbound_bytes: connected.outbound_bytes[peer as usize],
    });
    MemoryReport { peers: peers.collect(), own_bytes: connected.reducing.bytes }
}

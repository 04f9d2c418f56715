//! All settings, and the only place that reads the environment.

pub(super) mod agree;
mod names;
mod parse;
mod topology;

use super::launcher::aggregator_secret;
use crate::bootstrap::secret::Secret;
use crate::bootstrap::{BootstrapConfig, InterfaceFilter};
use crate::gpu::bundle::Bundle;
use crate::launch::CustomAlgorithm;
use crate::log::{self, Level, LogSettings, Subsystems};
use crate::net::aggregate::AggregatorConfig;
use crate::net::ib::IbConfig;
use crate::net::plugin::{PluginConfig, PluginName};
use crate::net::socket::DATA_SOCKETS_MAX;
use crate::net::{GdrConfig, NetConfig};
use crate::plan::ChannelLimits;
use crate::plan::CtaPolicy;
use crate::plan::Forced;
use crate::plan::tuning::TuneFile;
use crate::status::RAS_ADDRESS;
use crate::topology::{PathKind, TopologySettings};
use crate::transport::p2p::P2pSettings;
use crate::transport::{Allowed, Cma, TransportKind};
use oxccl_device::distance::SlotStores;
use oxccl_shared::abi::{ABI_DIGEST, ConnLayout};
use parse::Source;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// A communicator's settings. [`Config::default`] is that of an empty environment.
#[derive(Clone, Debug)]
pub struct Config {
    /// Timeout of an operation that waits for a peer without progress (`OXCCL_TIMEOUT`, seconds). Default 600 s.
    pub timeout: Duration,
    /// An operation without progress for so long is reported to the log, by one rank, with the rank at fault (`OXCCL_STALL_WARN`,
    /// seconds; 0 for never); `None`: never. Default 10 s.
    pub stall_warn: Option<Duration>,
    /// The communicator's name in reports.
    pub name: Option<String>,
    /// Whether this process answers `oxccl status`, of the same user and root (`OXCCL_STATUS`). Default: yes.
    pub status: bool,
    /// Where NCCL's RAS protocol is answered; every process that can connect there may ask (`NCCL_RAS_ENABLE`, `NCCL_RAS_ADDR`); `None`: nowhere. Default:
    /// `localhost:28028`, which processes of one user share.
    pub ras: Option<String>,
    /// How the names of files with flight records begin, the rank follows; they are written when a communicator fails
    /// (`OXCCL_FLIGHT_FILE`). Default: none are.
    pub flight_file: Option<String>,
    /// Whether SIGUSR2 writes them, without a name to `/tmp/oxccl_flight_rank_` (`OXCCL_FLIGHT_SIGNAL`). Default: no.
    pub flight_signal: bool,
    /// Rendezvous and liveness (`OXCCL_BOOTSTRAP_TIMEOUT` and `OXCCL_OUTAGE` seconds, `NCCL_SOCKET_IFNAME`, `NCCL_SOCKET_FAMILY`).
    pub bootstrap: BootstrapConfig,
    /// The user's restrictions on algorithms and protocols (`NCCL_ALGO`, `NCCL_PROTO`). Between GPUs trees are
    /// connected, and their memory is allocated, only if they are named here or in the tuning file.
    pub forced: Forced,
    /// Whether results of reductions have the bits of a reduction by rank, from left to right, whatever the size, the place in the buffer,
    /// the calls that it is split into, the channels and the protocol, on CPUs and GPUs alike (`OXCCL_DETERMINISTIC`). Default: the order
    /// is that of the fastest algorithm.
    pub deterministic: bool,
    /// The plugin that chooses algorithms, protocols and channels (`NCCL_TUNER_PLUGIN`), before any table.
    pub tuner: PluginName,
    /// The plugin that hears of every call (`NCCL_PROFILER_PLUGIN`).
    pub profiler: PluginName,
    /// The file written by `oxccl tune` (`OXCCL_TUNE_FILE`). It is read when a communicator is built.
    pub tune_file: Option<PathBuf>,
    /// Measurements to use instead of the file.
    pub tuned: Option<Arc<TuneFile>>,
    /// Transports (`NCCL_P2P_DISABLE`, `NCCL_SHM_DISABLE`, `OXCCL_TRANSPORT`).
    pub transports: Allowed,
    /// Networks (`NCCL_IB_*`, `OXCCL_ENCRYPT`).
    pub net: NetConfig,
    /// How GPUs of a host share memory (`NCCL_P2P_DISABLE`, `NCCL_CUMEM_ENABLE`), and whether ranks may share GPUs (`OXCCL_DUPLICATE_GPUS`).
    pub p2p: P2pSettings,
    /// Overrides the host's identity (`NCCL_HOSTID`), so that one host can act as several.
    pub host_id: Option<String>,
    /// Bytes of the Simple buffer of a ring or tree connection, eight slots (`NCCL_BUFFSIZE`). Default 1 MiB.
    pub buffer_bytes: usize,
    /// The same for GPUs; default: by GPU model.
    pub device_buffer_bytes: Option<usize>,
    /// Limits of GPU operations' channels and threads (`NCCL_MIN_NCHANNELS`, `NCCL_MAX_NCHANNELS`, `NCCL_NTHREADS`).
    pub channels: ChannelLimits,
    /// How many multiprocessors of a GPU operations may take (`NCCL_CTA_POLICY`: 0, 1, 2); equal on all ranks. `None`:
    /// [`CtaPolicy::Default`].
    pub cta_policy: Option<CtaPolicy>,
    /// Topology, graphs and rings (`NCCL_TOPO_FILE`, `NCCL_GRAPH_FILE`, `NCCL_RINGS` and others).
    pub topology: TopologySettings,
    /// The bundle of GPU kernels (`OXCCL_PTX_PATH`), if not in one of the default places.
    pub ptx_path: Option<PathBuf>,
    /// GPU kernels to use instead of a file's.
    pub kernels: Option<Arc<Bundle>>,
    /// Whether GPUs of one host, and ranks on CPUs over networks, make connections when an operation first needs them, or all at init
    /// (`NCCL_RUNTIME_CONNECT=0`). Default: as they are needed.
    pub runtime_connect: bool,
    /// What is logged, and where to (`NCCL_DEBUG`, `NCCL_DEBUG_SUBSYS`, `NCCL_DEBUG_FILE`). Read when a process's first communicator is built.
    pub log: LogSettings,
    /// Whether calls of the C interface return only when they are done, whatever their caller says (`NCCL_COMM_BLOCKING`).
    pub blocking: Option<bool>,
    /// Whether collectives on buffers in symmetric windows go by kernels that reach the other ranks' buffers, whatever their size
    /// (`OXCCL_SYMMETRIC`); equal on all ranks. `None`: where that is faster.
    pub symmetric: Option<bool>,
    /// KiB of the tiles by which kernels of NVIDIA GPUs with bulk copies move Simple's slots; 0 for ordinary copies (`OXCCL_TILE_KIB`).
    pub tile_kib: Option<u32>,
    /// Whether short kernels of NVIDIA GPUs may start while the kernel in front of them on their stream still runs, and wait for its end
    /// themselves (`OXCCL_PDL`; programmatic dependent launch, Hopper and later).
    pub dependent_launch: bool,
    /// How CPU ranks fill slots in shared memory (`OXCCL_SLOT_STORES`). Default: by how far the consumer is found to be.
    pub slot_stores: SlotStores,
    /// Whether CPU ranks of a host copy long messages out of each other's memory, once instead of twice through slots (`OXCCL_CMA`).
    pub cma: Cma,
    /// From how many bytes on a message is long (`OXCCL_CMA_MIN_BYTES`); equal on all ranks. `None`: 8 KiB, or 32 where the ranks of the host
    /// share processors.
    pub cma_min_bytes: Option<usize>,
    /// Algorithms that are not the library's; see [`super::Builder::register`].
    pub custom: Vec<CustomAlgorithm>,
}

/// An invalid setting.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{variable}={value}: {expected}")]
pub struct ConfigError {
    /// The variable or option.
    pub variable: &'static str,
    /// Its value.
    pub value: String,
    /// The expected form.
    pub expected: &'static str,
}

/// The error of [`super::CommunicatorBuilder::build`] for several ranks without an id.
pub(super) const MISSING_ID: ConfigError = ConfigError {
    variable: "unique_id",
    value: String::new(),
    expected: "an id was expected: create one on one rank and give it to all, or use from_env",
};

/// Default of `OXCCL_CMA_MIN_BYTES`: where one copy by the kernel begins to win over two through slots (docs/measurements/2026-11-23-cma.md).
const CMA_MIN_BYTES: usize = 8 << 10;

/// The same where ranks share processors: a message that is read has one hand-over more, to its sender, who waits until it is read
/// (docs/measurements/2026-11-25-cpu-four-ranks.md).
const CMA_MIN_BYTES_CROWDED: usize = 32 << 10;

/// Default Simple buffer of a ring or tree connection.
const BUFFER_BYTES: usize = 1 << 20;

impl Default for Config {
    fn default() -> Self {
        Config {
            timeout: Duration::from_secs(600),
            stall_warn: Some(Duration::from_secs(10)),
            name: None,
            status: true,
            ras: Some(RAS_ADDRESS.to_owned()),
            flight_file: None,
            flight_signal: false,
            bootstrap: BootstrapConfig::default(),
            forced: Forced::default(),
            deterministic: false,
            tuner: PluginName::default(),
            profiler: PluginName::default(),
            tune_file: None,
            tuned: None,
            transports: Allowed::ALL,
            net: NetConfig::default(),
            p2p: P2pSettings::default(),
            host_id: None,
            buffer_bytes: BUFFER_BYTES,
            device_buffer_bytes: None,
            channels: ChannelLimits::default(),
            cta_policy: None,
            topology: TopologySettings::default(),
            ptx_path: None,
            kernels: None,
            runtime_connect: true,
            log: LogSettings::default(),
            blocking: None,
            symmetric: None,
            tile_kib: None,
            dependent_launch: true,
            slot_stores: SlotStores::default(),
            cma: Cma::default(),
            cma_min_bytes: None,
            custom: Vec::new(),
        }
    }
}

impl Config {
    /// The process's environment over the defaults.
    ///
    /// # Errors
    /// The first invalid variable.
    pub fn from_env() -> Result<Config, ConfigError> {
        names::warn_of_unknown(std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()));
        let config = Config::from_lookup(&Config::variable)?;
        if let Some(why) = config.idle_aggregators() {
            tracing::warn!("{why}");
        }
        Ok(config)
    }

    /// Why the aggregators that are named are not used, if no operation can use them.
    fn idle_aggregators(&self) -> Option<&'static str> {
        let coll = &self.net.coll;
        (coll.aggregators.is_some() && !coll.enabled)
            .then_some("OXCCL_AGGREGATOR is set, and not used: set NCCL_COLLNET_ENABLE=1 on every rank too")
    }

    /// What the environment's `OXCCL_COMM_SECRET` or `OXCCL_COMM_SECRET_FILE` gives to aggregators and their users.
    ///
    /// # Errors
    /// A text that says why there is none.
    pub fn aggregator_secret() -> Result<Secret, String> {
        aggregator_secret(&Config::variable)
    }

    /// One variable of the process's environment as it stands, unchecked: for the launcher, and for bindings that show settings.
    pub fn variable(name: &str) -> Option<String> {
        // Bytes that are no text become text that no parser accepts, so that they are an error and not a default.
        std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
    }

    /// As [`Self::from_env`], from any source.
    ///
    /// # Errors
    /// The first invalid variable.
    pub fn from_lookup(lookup: &dyn Fn(&str) -> Option<String>) -> Result<Config, ConfigError> {
        let mut config = Config::default();
        let env = Source(lookup);
        env.set("OXCCL_TIMEOUT", parse::SECONDS, &mut config.timeout, parse::seconds)?;
        env.set("OXCCL_STALL_WARN", parse::SECONDS_OR_NONE, &mut config.stall_warn, parse::seconds_or_none)?;
        env.set("OXCCL_STATUS", parse::FLAG, &mut config.status, parse::flag)?;
        config.flight_file = env.get("OXCCL_FLIGHT_FILE");
        let mut has_ras = true;
        env.set("NCCL_RAS_ENABLE", parse::FLAG, &mut has_ras, parse::flag)?;
        env.set("NCCL_RAS_ADDR", parse::HOST_PORT, &mut config.ras, |text| parse::host_port(text).map(Some))?;
        config.ras = config.ras.filter(|_| has_ras);
        env.set("OXCCL_FLIGHT_SIGNAL", parse::FLAG, &mut config.flight_signal, parse::flag)?;
        env.set("OXCCL_BOOTSTRAP_TIMEOUT", parse::SECONDS, &mut config.bootstrap.timeout, parse::seconds)?;
        env.set("OXCCL_OUTAGE", parse::OUTAGE, &mut config.bootstrap.peer_dead_after, parse::outage)?;
        let filter = |text: &str| InterfaceFilter::parse(text).map(Some);
        env.set("NCCL_SOCKET_IFNAME", parse::INTERFACES, &mut config.bootstrap.interfaces, filter)?;
        env.set(
            "NCCL_SOCKET_FAMILY",
            "AF_INET or AF_INET6 was expected",
            &mut config.bootstrap.prefer_ipv6,
            parse::family,
        )?;
        env.restrict("NCCL_ALGO", &mut config.forced, Forced::with_algorithms)?;
        env.restrict("NCCL_PROTO", &mut config.forced, Forced::with_protocols)?;
        env.set("OXCCL_DETERMINISTIC", parse::FLAG, &mut config.deterministic, parse::flag)?;
        let plugin = |text: &str| Some(PluginName::parse(text));
        env.set("NCCL_TUNER_PLUGIN", parse::PLUGIN, &mut config.tuner, plugin)?;
        env.set("NCCL_PROFILER_PLUGIN", parse::PLUGIN, &mut config.profiler, plugin)?;
        config.tune_file = env.get("OXCCL_TUNE_FILE").map(PathBuf::from);
        let allowed = |text: &str| TransportKind::from_name(text).map(Allowed::only);
        env.set("OXCCL_TRANSPORT", "inproc, shm, tcp or net was expected", &mut config.transports, allowed)?;
        let (mut no_p2p, mut no_shm) = (false, false);
        env.set("NCCL_P2P_DISABLE", parse::FLAG, &mut no_p2p, parse::flag)?;
        env.set("NCCL_SHM_DISABLE", parse::FLAG, &mut no_shm, parse::flag)?;
        config.transports.in_process &= !no_p2p;
        config.p2p.enabled = !no_p2p;
        env.set("NCCL_CUMEM_ENABLE", parse::FLAG, &mut config.p2p.cumem, parse::cumem)?;
        env.set("OXCCL_DUPLICATE_GPUS", parse::FLAG, &mut config.p2p.shares_gpus, parse::flag)?;
        config.transports.shm &= !no_shm;
        config.host_id = lookup("NCCL_HOSTID").filter(|id| !id.is_empty());
        env.set("NCCL_BUFFSIZE", parse::BUFFER, &mut config.device_buffer_bytes, |text| {
            parse::buffer_bytes(text).map(Some)
        })?;
        config.buffer_bytes = config.device_buffer_bytes.unwrap_or(config.buffer_bytes);
        // The last one that is set wins: the earlier ones are older names, which NCCL still supports.
        for variable in ["NCCL_MIN_CTAS", "NCCL_MIN_NRINGS", "NCCL_MIN_NCHANNELS"] {
            env.set(variable, parse::CHANNELS, &mut config.channels.min, parse::channels)?;
        }
        for variable in ["NCCL_MAX_CTAS", "NCCL_MAX_NRINGS", "NCCL_MAX_NCHANNELS"] {
            env.set(variable, parse::CHANNELS, &mut config.channels.max, parse::channels)?;
        }
        let policy = |text: &str| parse::cta_policy(text).map(Some);
        env.set("NCCL_CTA_POLICY", parse::CTA_POLICY, &mut config.cta_policy, policy)?;
        let symmetric = |text: &str| parse::flag(text).map(Some);
        env.set("OXCCL_SYMMETRIC", parse::FLAG, &mut config.symmetric, symmetric)?;
        let kib = |text: &str| parse::tile_kib(text).map(Some);
        env.set("OXCCL_TILE_KIB", parse::TILE_KIB, &mut config.tile_kib, kib)?;
        env.set("OXCCL_PDL", parse::FLAG, &mut config.dependent_launch, parse::flag)?;
        env.set("OXCCL_SLOT_STORES", parse::SLOT_STORES, &mut config.slot_stores, SlotStores::from_name)?;
        env.set("OXCCL_CMA", parse::CMA, &mut config.cma, Cma::from_name)?;
        let length = |text: &str| text.parse().ok().filter(|bytes| *bytes > 0).map(Some);
        env.set("OXCCL_CMA_MIN_BYTES", parse::CMA_MIN_BYTES, &mut config.cma_min_bytes, length)?;
        env.set("NCCL_NTHREADS", parse::THREADS, &mut config.channels.threads, parse::threads)?;
        config.topology = topology::read(&env)?;
        for variable in IbConfig::VARIABLES {
            let Some(value) = lookup(variable).filter(|value| !value.is_empty()) else { continue };
            let set = config.net.ib.set(variable, value.trim());
            set.map_err(|expected| ConfigError { variable, value, expected })?;
        }
        if no_p2p {
            config.topology.p2p_level = Some(PathKind::Loc);
        }
        config.read_network(&env)?;
        config.net.gdr = read_gdr(&env)?;
        config.ptx_path = lookup("OXCCL_PTX_PATH").filter(|path| !path.is_empty()).map(PathBuf::from);
        env.set("NCCL_RUNTIME_CONNECT", parse::FLAG, &mut config.runtime_connect, parse::flag)?;
        env.set("NCCL_COMM_BLOCKING", parse::FLAG, &mut config.blocking, |text| parse::flag(text).map(Some))?;
        config.log = read_log(&env)?;
        Ok(config)
    }

    /// Starts the log, if the environment or the program asked for one and the program has no subscriber of its own.
    pub fn start_log(&self) {
        let LogSettings { level, .. } = self.log;
        if level == Level::None {
            return;
        }
        let mut settings = self.log.clone();
        settings.environment = std::env::vars_os()
            .map(|(name, value)| [name, value].map(|text| text.to_string_lossy().into_owned()).into())
            .filter(|(name, _): &(String, String)| is_shown(name))
            .collect();
        settings.environment.sort();
        log::install(&settings, &version_line());
    }

    /// `NCCL_NET` and the settings that networks share with other sockets. Naming a network selects it instead of
    /// streams.
    fn read_network(&mut self, env: &Source<'_>) -> Result<(), ConfigError> {
        let Config { net, bootstrap, transports, .. } = self;
        let name = |text: &str| Some(Some(text.to_owned()));
        env.set("NCCL_NET", "the name of a network was expected", &mut net.name, name)?;
        transports.tcp &= net.name.is_none() || !transports.net;
        let plugins = |text: &str| Some(PluginConfig::parse(text));
        env.set("NCCL_NET_PLUGIN", "names of plugins were expected", &mut net.plugins, plugins)?;
        env.set("NCCL_COLLNET_ENABLE", parse::FLAG, &mut net.coll.enabled, parse::flag)?;
        let hosts = |text: &str| text.parse().ok();
        env.set("NCCL_COLLNET_NODE_THRESHOLD", parse::HOSTS, &mut net.coll.hosts_min, hosts)?;
        let threads = |text: &str| parse::proxy_threads(text).map(Some);
        env.set("OXCCL_PROXY_THREADS", parse::PROXY_THREADS, &mut net.proxy_threads, threads)?;
        net.socket.peer_dead_after = bootstrap.peer_dead_after;
        net.socket.interfaces = bootstrap.interfaces.clone();
        net.socket.ipv6 = bootstrap.prefer_ipv6;
        env.set("OXCCL_ENCRYPT", parse::FLAG, &mut net.socket.encrypt, parse::flag)?;
        let (mut threads, mut sockets_per_thread) = (0, 1);
        env.set("NCCL_SOCKET_NTHREADS", parse::SOCKETS, &mut threads, parse::sockets)?;
        env.set("NCCL_NSOCKS_PERTHREAD", parse::SOCKETS, &mut sockets_per_thread, parse::sockets)?;
        net.socket.data_sockets = (threads * sockets_per_thread).min(DATA_SOCKETS_MAX);
        let mut servers = Vec::new();
        env.set("OXCCL_AGGREGATOR", parse::SERVERS, &mut servers, parse::servers)?;
        let network = env.get("OXCCL_AGGREGATOR_NET");
        net.coll.aggregators = (!servers.is_empty()).then(|| AggregatorConfig {
            servers,
            secret: aggregator_secret(env.0),
            connect_timeout: net.socket.connect_timeout,
            peer_dead_after: bootstrap.peer_dead_after,
            net: network,
        });
        Ok(())
    }

    /// What plans may not choose.
    pub(crate) fn restrictions(&self) -> Forced {
        self.forced.deterministic(self.deterministic)
    }

    /// Slots of a ring or tree connection.
    pub fn ring_layout(&self) -> ConnLayout {
        ConnLayout {
            ll_slot_bytes: 8 << 10,
            ll128_slot_bytes: 16 << 10,
            simple_slot_bytes: (self.buffer_bytes / 8) as u32,
        }
    }

    /// Slots of a mesh connection, of which a rank has one to and from each peer: smaller where there are many.
    pub fn mesh_layout(&self, nranks: u32) -> ConnLayout {
        let shrink = match nranks {
            0..=8 => 0,
            9..=32 => 1,
            33..=128 => 3,
            _ => 5,
        };
        let simple = (self.buffer_bytes / 8).min(128 << 10) >> shrink;
        ConnLayout {
            ll_slot_bytes: (8 << 10) >> shrink,
            ll128_slot_bytes: (16 << 10) >> shrink,
            simple_slot_bytes: (simple as u32).max(1 << 10) / 128 * 128,
        }
    }

    /// From how many bytes on messages of CPU ranks are read from their sender's memory, where the ranks of the host share processors or do
    /// not.
    pub(crate) fn cma_from_bytes(&self, is_crowded: bool) -> usize {
        self.cma_min_bytes.unwrap_or(if is_crowded { CMA_MIN_BYTES_CROWDED } else { CMA_MIN_BYTES })
    }

    /// Checks the settings for a communicator of so many ranks, whatever their source.
    pub(crate) fn validate(&self, nranks: u32) -> Result<(), ConfigError> {
        for (variable, time) in [
            ("OXCCL_TIMEOUT", self.timeout),
            ("OXCCL_BOOTSTRAP_TIMEOUT", self.bootstrap.timeout),
            ("OXCCL_OUTAGE", self.bootstrap.peer_dead_after),
        ] {
            if time.is_zero() {
                return Err(ConfigError { variable, value: "0".into(), expected: parse::SECONDS });
            }
        }
        if self.stall_warn.is_some_and(|warn| warn.is_zero()) {
            let expected = "Config::stall_warn: a positive time was expected, or None for no warning";
            return Err(ConfigError { variable: "OXCCL_STALL_WARN", value: "0".into(), expected });
        }
        let bytes = [Some(self.buffer_bytes), self.device_buffer_bytes];
        for bytes in bytes.into_iter().flatten().map(|bytes| bytes.to_string()) {
            if parse::buffer_bytes(&bytes).is_none() {
                return Err(ConfigError { variable: "NCCL_BUFFSIZE", value: bytes, expected: parse::BUFFER });
            }
        }
        if self.deterministic && !self.custom.is_empty() {
            let expected = "no registered algorithms were expected: nobody knows in which order they reduce";
            return Err(ConfigError { variable: "OXCCL_DETERMINISTIC", value: "1".into(), expected });
        }
        let ChannelLimits { min, max, threads } = self.channels;
        if let (Some(min), Some(max)) = (min, max)
            && min > max
        {
            let expected = "no more than NCCL_MAX_NCHANNELS was expected";
            return Err(ConfigError { variable: "NCCL_MIN_NCHANNELS", value: min.to_string(), expected });
        }
        if let Some(value) = threads.map(|threads| threads.to_string())
            && parse::threads(&value).is_none()
        {
            return Err(ConfigError { variable: "NCCL_NTHREADS", value, expected: parse::THREADS });
        }
        topology::validate(&self.topology, nranks)
    }
}

/// Whether the log may show a variable: those of this library and of NCCL, except secrets.
fn is_shown(name: &str) -> bool {
    (name.starts_with("NCCL_") || name.starts_with("OXCCL_"))
        && !name.contains("SECRET")
        && name != "NCCL_COMM_ID"
}

/// What the log begins with.
fn version_line() -> String {
    let (nccl, own) = (crate::NCCL_VERSION, env!("CARGO_PKG_VERSION"));
    let build = crate::os::build_id().unwrap_or_else(|| "unknown".into());
    format!("NCCL version {nccl} (OxCCL {own}, build {build}, memory layouts {ABI_DIGEST:016x})")
}

fn read_log(env: &Source<'_>) -> Result<LogSettings, ConfigError> {
    let mut log = LogSettings::default();
    let levels = "NONE, VERSION, WARN, INFO or TRACE was expected";
    env.set("NCCL_DEBUG", levels, &mut log.level, Level::parse)?;
    let names = "names of NCCL's subsystems were expected, with commas between, and ^ before the list to leave them out";
    env.set("NCCL_DEBUG_SUBSYS", names, &mut log.subsystems, Subsystems::parse)?;
    log.file = env.get("NCCL_DEBUG_FILE");
    Ok(log)
}

/// The settings of GPUDirect RDMA, except its level.
fn read_gdr(env: &Source<'_>) -> Result<GdrConfig, ConfigError> {
    let mut gdr = GdrConfig::default();
    env.set("NCCL_NET_GDR_READ", parse::FLAG, &mut gdr.read, |text| parse::flag(text).map(Some))?;
    env.set("NCCL_NET_GDR_C2C", parse::FLAG, &mut gdr.c2c, parse::flag)?;
    env.set("NCCL_DMABUF_ENABLE", parse::FLAG, &mut gdr.dma_buf, parse::flag)?;
    let (mut never, mut always) = (false, false);
    env.set("NCCL_GDR_FLUSH_DISABLE", parse::FLAG, &mut never, parse::flag)?;
    env.set("NCCL_NET_FORCE_FLUSH", parse::FLAG, &mut always, parse::flag)?;
    // If both are set, prefer safety to speed.
    gdr.flush = if always { Some(true) } else { never.then_some(false) };
    Ok(gdr)
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxccl_shared::abi::{Algorithm, Protocol};

    fn config(pairs: &[(&str, &str)]) -> Result<Config, ConfigError> {
        Config::from_lookup(&|name| pairs.iter().find(|p| p.0 == name).map(|p| p.1.to_string()))
    }

    #[test]
    fn nccl_names_are_understood() {
        let config = config(&[
            ("NCCL_ALGO", "Tree"),
            ("NCCL_PROTO", "LL128"),
            ("NCCL_SHM_DISABLE", "1"),
            ("NCCL_CUMEM_ENABLE", "0"),
            ("NCCL_BUFFSIZE", "65536"),
            ("OXCCL_TIMEOUT", "2.5"),
            ("OXCCL_STALL_WARN", "0.5"),
        ])
        .unwrap();
        assert_eq!(config.forced, Forced::only(Some(Algorithm::Tree), Some(Protocol::LL128)));
        assert!(!config.transports.shm && config.transports.tcp);
        assert!(config.p2p.enabled && !config.p2p.cumem);
        assert_eq!(config.ring_layout().simple_slot_bytes, 8192);
        assert_eq!(config.timeout, Duration::from_millis(2500));
        assert_eq!(config.stall_warn, Some(Duration::from_millis(500)));
        assert_eq!(super::tests::config(&[("OXCCL_STALL_WARN", "0")]).unwrap().stall_warn, None);
    }

    #[test]
    fn p2p_is_switched_off_for_both_backends() {
        let config = config(&[("NCCL_P2P_DISABLE", "1"), ("NCCL_CUMEM_ENABLE", "-2")]).unwrap();
        assert!(!config.transports.in_process && !config.p2p.enabled && config.p2p.cumem);
        let other = Config { p2p: P2pSettings::default(), ..config.clone() };
        assert_ne!(config.must_agree(), other.must_agree());
    }

    #[test]
    fn networks_that_reduce_are_asked_for_and_asked_for_by_all() {
        let asked = config(&[("NCCL_COLLNET_ENABLE", "1"), ("NCCL_ALGO", "CollnetChain")]).unwrap();
        assert!(asked.net.coll.enabled && !Config::default().net.coll.enabled);
        assert_eq!(asked.forced, Forced::only(Some(Algorithm::CollnetChain), None));
        let not = config(&[("NCCL_COLLNET_ENABLE", "0"), ("NCCL_ALGO", "CollnetChain")]).unwrap();
        assert_ne!(asked.must_agree(), not.must_agree());
    }

    #[test]
    fn gpudirect_is_nccls_to_switch() {
        assert_eq!(config(&[]).unwrap().net.gdr, GdrConfig::default());
        let said = [("NCCL_NET_GDR_READ", "0"), ("NCCL_NET_GDR_C2C", "0"), ("NCCL_DMABUF_ENABLE", "0")];
        let expected = GdrConfig { read: Some(false), c2c: false, dma_buf: false, flush: None };
        assert_eq!(config(&said).unwrap().net.gdr, expected);
        let flush = |pairs| config(pairs).unwrap().net.gdr.flush;
        assert_eq!(flush(&[("NCCL_GDR_FLUSH_DISABLE", "1")]), Some(false));
        assert_eq!(flush(&[("NCCL_GDR_FLUSH_DISABLE", "0")]), None);
        assert_eq!(flush(&[("NCCL_GDR_FLUSH_DISABLE", "1"), ("NCCL_NET_FORCE_FLUSH", "1")]), Some(true));
        assert_eq!(config(&[("NCCL_NET_GDR_READ", "2")]).unwrap_err().variable, "NCCL_NET_GDR_READ");
    }

    #[test]
    fn the_log_has_nccls_variables_and_shows_no_secret() {
        let said = [("NCCL_DEBUG", "info"), ("NCCL_DEBUG_SUBSYS", "ALL"), ("NCCL_DEBUG_FILE", "/tmp/%h")];
        let log = config(&said).unwrap().log;
        assert_eq!((log.level, log.subsystems), (Level::Info, Subsystems::ALL));
        assert_eq!(log.file.as_deref(), Some("/tmp/%h"));
        assert!(is_shown("NCCL_ALGO") && is_shown("OXCCL_TIMEOUT") && !is_shown("PATH"));
        assert!(!is_shown("OXCCL_COMM_SECRET") && !is_shown("NCCL_COMM_ID"));
        let line = version_line();
        assert!(line.starts_with("NCCL version 2.") && line.contains(", build "), "{line}");
    }

    #[test]
    fn the_newest_name_of_a_limit_wins() {
        let limits = |pairs| config(pairs).unwrap().channels;
        assert_eq!(limits(&[("NCCL_MIN_CTAS", "2"), ("NCCL_MAX_NRINGS", "9")]).min, Some(2));
        let both = limits(&[("NCCL_MAX_NCHANNELS", "4"), ("NCCL_MAX_NRINGS", "9"), ("NCCL_MAX_CTAS", "1")]);
        assert_eq!((both.min, both.max), (None, Some(4)));
    }

    #[test]
    fn bad_values_name_the_variable() {
        for (variable, value) in [
            ("OXCCL_OUTAGE", "1"),
            ("OXCCL_BOOTSTRAP_TIMEOUT", "1e19"),
            ("OXCCL_BOOTSTRAP_TIMEOUT", "nan"),
            ("NCCL_ALGO", "rings"),
            ("NCCL_ALGO", "ring;tree"),
            ("NCCL_ALGO", "allreduce:nvls"),
            ("NCCL_NTHREADS", "544"),
            ("NCCL_NTHREADS", "100"),
            ("NCCL_PROTO", "fast"),
            ("NCCL_P2P_DISABLE", "yes"),
            ("NCCL_COLLNET_ENABLE", "2"),
            ("NCCL_COLLNET_NODE_THRESHOLD", "-1"),
            ("OXCCL_AGGREGATOR", "10.0.0.9:1,10.0.0.9"),
            ("OXCCL_DETERMINISTIC", "yes"),
            ("NCCL_DEBUG", "LOUD"),
            ("NCCL_DEBUG_SUBSYS", "INIT,NETT"),
            ("NCCL_COMM_BLOCKING", "2"),
            ("NCCL_CUMEM_ENABLE", "2"),
            ("NCCL_BUFFSIZE", "7"),
            ("NCCL_MAX_NCHANNELS", "0"),
            ("NCCL_MIN_NCHANNELS", "many"),
            ("NCCL_MAX_NRINGS", "0"),
            ("NCCL_MIN_CTAS", "-1"),
            ("NCCL_BUFFSIZE", "99999999999999999999"),
            ("OXCCL_TIMEOUT", "-1"),
            ("OXCCL_TIMEOUT", "1e300"),
            ("OXCCL_TIMEOUT", "1e-12"),
            ("OXCCL_TIMEOUT", "NaN"),
            ("OXCCL_PROXY_THREADS", "0"),
            ("OXCCL_PROXY_THREADS", "17"),
            ("OXCCL_TILE_KIB", "65"),
            ("OXCCL_TILE_KIB", "some"),
            ("OXCCL_SLOT_STORES", "fast"),
            ("OXCCL_CMA", "yes"),
            ("OXCCL_CMA_MIN_BYTES", "0"),
            ("NCCL_SOCKET_FAMILY", "AF_UNIX"),
            ("NCCL_IB_TIMEOUT", "32"),
            ("NCCL_IB_HCA", "^"),
        ] {
            let error = config(&[(variable, value)]).unwrap_err();
            assert_eq!((error.variable, error.value.as_str()), (variable, value));
            assert!(error.to_string().contains(variable));
        }
    }

    #[test]
    fn ranks_that_share_processors_read_longer_messages_only() {
        let from = |config: &Config| [false, true].map(|is_crowded| config.cma_from_bytes(is_crowded));
        assert_eq!(from(&Config::default()), [8 << 10, 32 << 10]);
        assert_eq!(from(&config(&[("OXCCL_CMA_MIN_BYTES", "100")]).unwrap()), [100, 100]);
    }

    #[test]
    fn aggregators_that_nothing_uses_are_warned_about() {
        let idle = |variables: &[(&str, &str)]| config(variables).unwrap().idle_aggregators();
        let servers = ("OXCCL_AGGREGATOR", "10.0.0.9:28040");
        let said = idle(&[servers]).expect("nothing uses them");
        assert!(said.contains("NCCL_COLLNET_ENABLE=1"), "{said}");
        assert!(idle(&[servers, ("NCCL_COLLNET_ENABLE", "0")]).is_some());
        assert_eq!(idle(&[servers, ("NCCL_COLLNET_ENABLE", "1")]), None);
        assert_eq!(idle(&[]), None);
    }

    #[test]
    fn an_empty_variable_counts_as_unset() {
        for variable in ["OXCCL_TIMEOUT", "OXCCL_TRANSPORT", "NCCL_ALGO", "NCCL_HOSTID", "NCCL_SOCKET_IFNAME"]
        {
            let config = config(&[(variable, "")]).unwrap();
            assert_eq!(format!("{config:?}"), format!("{:?}", Config::default()), "{variable}");
        }
    }

    #[test]
    fn no_time_at_all_is_refused_whoever_sets_it() {
        let config = Config { timeout: Duration::ZERO, ..Config::default() };
        assert_eq!(config.validate(2).unwrap_err().variable, "OXCCL_TIMEOUT");
        let bootstrap = BootstrapConfig { timeout: Duration::ZERO, ..BootstrapConfig::default() };
        let config = Config { bootstrap, ..Config::default() };
        assert_eq!(config.validate(2).unwrap_err().variable, "OXCCL_BOOTSTRAP_TIMEOUT");
        assert_eq!(Config::default().validate(2), Ok(()));
    }

    #[test]
    fn limits_that_contradict_each_other_are_refused() {
        let limits = |min, max| {
            config(&[("NCCL_MIN_NCHANNELS", min), ("NCCL_MAX_NCHANNELS", max)]).unwrap().validate(2)
        };
        assert_eq!(limits("4", "4"), Ok(()));
        assert_eq!(limits("5", "4").unwrap_err().variable, "NCCL_MIN_NCHANNELS");
    }

    #[test]
    fn every_layout_is_valid() {
        for buffer_bytes in [parse::BUFFER_BYTES_MIN, 9 << 10, BUFFER_BYTES, parse::BUFFER_BYTES_MAX] {
            let config = Config { buffer_bytes, ..Config::default() };
            assert!(config.ring_layout().is_valid(), "{buffer_bytes}");
            for nranks in [1, 2, 8, 9, 32, 64, 200, 100_000] {
                assert!(config.mesh_layout(nranks).is_valid(), "{buffer_bytes} {nranks}");
            }
        }
    }
}

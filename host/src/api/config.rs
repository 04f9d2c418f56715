//! All settings, and the only place that reads the environment: `read` makes settings of variables.

pub(super) mod agree;
mod error;
mod files;
mod names;
mod parse;
mod tolerance;
mod topology;
mod read;

pub use error::ConfigError;
pub(super) use error::MISSING_ID;

use crate::bootstrap::BootstrapConfig;
use crate::gpu::bundle::Bundle;
use crate::launch::CustomAlgorithm;
use crate::log::{self, Level, LogSettings};
use crate::net::NetConfig;
use crate::net::plugin::PluginName;
use crate::plan::ChannelLimits;
use crate::plan::CtaPolicy;
use crate::plan::Forced;
use crate::plan::tuning::TuneFile;
use crate::status::RAS_ADDRESS;
use crate::topology::TopologySettings;
use crate::transport::p2p::P2pSettings;
use crate::transport::{Allowed, Cma};
use oxccl_device::conn::long_parts_pay;
use oxccl_device::distance::SlotStores;
use oxccl_shared::abi::{ABI_DIGEST, ConnLayout};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// A communicator's settings. [`Config::default`] is that of an empty environment.
#[derive(Clone, Debug)]
pub struct Config {
    /// Timeout of an operation that waits for a peer without progress (`OXCCL_TIMEOUT`, seconds), at least 1 ms. Default 600 s.
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
    /// Whether ranks on GPUs keep when their calls ran, by two events around each group (`OXCCL_FLIGHT_TIMES`). Default: no.
    pub flight_times: bool,
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
    /// Blocks of a GPU's kernels that start together, on neighbouring multiprocessors (`NCCL_CGA_CLUSTER_SIZE`): the largest number up to
    /// this that divides a kernel's blocks; 0 and 1: each by itself. `None`: 4, where they fit.
    pub cluster_size: Option<u32>,
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
    /// Whether a CPU rank fills, for another of its host, the buffer in which that one's latest came in place of a slot of 1 KiB and more
    /// (`OXCCL_PING_PONG`).
    pub ping_pong: bool,
    /// Whether CPU ranks of a host store what goes to several others once, where all read it; equal on all ranks (`OXCCL_OUTBOX`). `None`: where
    /// that is faster, among eight and more with a processor each.
    pub outbox: Option<bool>,
    /// From how many bytes on a message is long (`OXCCL_CMA_MIN_BYTES`); equal on all ranks. `None`: 8 KiB, or 32 where the ranks of the host
    /// share processors.
    pub cma_min_bytes: Option<usize>,
    /// Algorithms that are not the library's; see [`super::Builder::register`].
    pub custom: Vec<CustomAlgorithm>,
}

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
            flight_times: false,
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
            cluster_size: None,
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
            ping_pong: true,
            outbox: None,
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
        Config::of_process(Config::from_lookup)
    }

    /// The same for a library in NCCL's place: a value of an `NCCL_` variable that is none is taken as NCCL takes it, or else ignored, with a
    /// warning.
    ///
    /// # Errors
    /// The first invalid variable of those that NCCL does not have.
    pub fn from_env_as_nccl() -> Result<Config, ConfigError> {
        Config::of_process(Config::from_lookup_as_nccl)
    }

    fn of_process(
        read: impl Fn(&dyn Fn(&str) -> Option<String>) -> Result<Config, ConfigError>,
    ) -> Result<Config, ConfigError> {
        names::warn_of_unknown(std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()));
        let config = read(&Config::variable)?;
        if let Some(why) = config.idle_aggregators() {
            log::warn(why.to_owned());
        }
        Ok(config)
    }

    /// Why the aggregators that are named are not used, if no operation can use them.
    fn idle_aggregators(&self) -> Option<&'static str> {
        let coll = &self.net.coll;
        (coll.aggregators.is_some() && !coll.enabled)
            .then_some("OXCCL_AGGREGATOR is set, and not used: set NCCL_COLLNET_ENABLE=1 on every rank too")
    }

    /// One variable of the process's environment as it stands, unchecked, or else of NCCL's files of settings: for the launcher, and for
    /// bindings that show settings.
    pub fn variable(name: &str) -> Option<String> {
        of_environment(name).or_else(|| FILES.get(name).cloned())
    }

    /// Starts the log, if the environment or the program asked for one and the program has no subscriber of its own.
    pub fn start_log(&self) {
        self.install_log();
        log::say_kept();
    }

    fn install_log(&self) {
        let LogSettings { level, .. } = self.log;
        if level == Level::None {
            return;
        }
        let mut settings = self.log.clone();
        settings.environment = std::env::vars_os()
            .map(|(name, value)| [name, value].map(|text| text.to_string_lossy().into_owned()).into())
            .filter(|(name, _): &(String, String)| is_shown(name))
            .collect();
        let of_files = FILES.iter().filter(|(name, _)| is_shown(name) && of_environment(name).is_none());
        settings.environment.extend(of_files.map(|(name, value)| (name.clone(), value.clone())));
        settings.environment.sort();
        log::install(&settings, &version_line());
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

    /// Length of the buffers that a pair of CPU ranks hands to and fro on its mesh connections: longer than a slot where long parts of messages
    /// pay. All ranks of a host say the same.
    pub fn mesh_buffer_bytes(&self, nranks: u32) -> usize {
        let slot_bytes = self.mesh_layout(nranks).simple_slot_bytes as usize;
        if nranks <= 2 && long_parts_pay() { 4 * slot_bytes } else { slot_bytes }
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
            if time < parse::SECONDS_MIN {
                return Err(ConfigError { variable, value: in_seconds(time), expected: parse::SECONDS });
            }
        }
        if let Some(warn) = self.stall_warn.filter(|warn| *warn < parse::SECONDS_MIN) {
            let expected = "Config::stall_warn: at least 0.001 seconds were expected, or None for no warning";
            return Err(ConfigError { variable: "OXCCL_STALL_WARN", value: in_seconds(warn), expected });
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

/// What NCCL's files of settings say.
static FILES: LazyLock<BTreeMap<String, String>> = LazyLock::new(|| files::settings(&of_environment));

/// Bytes that are no text become text that no parser accepts, so that they are an error and not a default.
fn of_environment(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

/// A time as its variable would have it.
fn in_seconds(time: Duration) -> String {
    time.as_secs_f64().to_string()
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

/// The settings of these variables alone.
#[cfg(test)]
fn of_variables(pairs: &[(&str, &str)]) -> Result<Config, ConfigError> {
    Config::from_lookup(&|name| pairs.iter().find(|p| p.0 == name).map(|p| p.1.to_string()))
}

#[cfg(test)]
mod tests {
    use super::of_variables as config;
    use super::*;
    use crate::log::Subsystems;
    use oxccl_shared::abi::Algorithm;

    #[test]
    fn networks_that_reduce_are_asked_for_and_asked_for_by_all() {
        let asked = config(&[("NCCL_COLLNET_ENABLE", "1"), ("NCCL_ALGO", "CollnetChain")]).unwrap();
        assert!(asked.net.coll.enabled && !Config::default().net.coll.enabled);
        assert_eq!(asked.forced, Forced::only(Some(Algorithm::CollnetChain), None));
        let not = config(&[("NCCL_COLLNET_ENABLE", "0"), ("NCCL_ALGO", "CollnetChain")]).unwrap();
        assert_ne!(asked.must_agree(), not.must_agree());
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
    fn a_time_too_short_for_any_rank_is_refused_whoever_sets_it() {
        for short in [Duration::ZERO, Duration::from_nanos(1), Duration::from_micros(999)] {
            let config = Config { timeout: short, ..Config::default() };
            let error = config.validate(2).unwrap_err();
            assert_eq!((error.variable, error.expected), ("OXCCL_TIMEOUT", parse::SECONDS), "{short:?}");
            let config = Config { stall_warn: Some(short), ..Config::default() };
            assert_eq!(config.validate(2).unwrap_err().variable, "OXCCL_STALL_WARN", "{short:?}");
        }
        let shortest = Config { timeout: Duration::from_millis(1), ..Config::default() };
        assert_eq!(shortest.validate(2), Ok(()));
        let bootstrap = BootstrapConfig { timeout: Duration::ZERO, ..BootstrapConfig::default() };
        let config = Config { bootstrap, ..Config::default() };
        assert_eq!(config.validate(2).unwrap_err().variable, "OXCCL_BOOTSTRAP_TIMEOUT");
        let config = Config { stall_warn: Some(Duration::ZERO), ..Config::default() };
        assert!(config.validate(2).unwrap_err().expected.contains("None for no warning"));
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

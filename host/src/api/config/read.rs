//! Settings from variables.

use super::error::ConfigError;
use super::parse::{self, Source};
use super::{Config, topology};
use crate::api::launcher::aggregator_secret;
use crate::bootstrap::InterfaceFilter;
use crate::bootstrap::secret::Secret;
use crate::log::{Level, LogSettings, Subsystems};
use crate::net::GdrConfig;
use crate::net::aggregate::AggregatorConfig;
use crate::net::ib::IbConfig;
use crate::net::plugin::{PluginConfig, PluginName};
use crate::net::socket::DATA_SOCKETS_MAX;
use crate::plan::Forced;
use crate::topology::PathKind;
use crate::transport::{Allowed, Cma, TransportKind};
use oxccl_device::distance::SlotStores;
use std::path::PathBuf;

impl Config {
    /// As [`Self::from_env`], from any source.
    ///
    /// # Errors
    /// The first invalid variable.
    pub fn from_lookup(lookup: &dyn Fn(&str) -> Option<String>) -> Result<Config, ConfigError> {
        Config::read(&Source { lookup, is_tolerant: false })
    }

    /// As [`Self::from_env_as_nccl`], from any source.
    ///
    /// # Errors
    /// The first invalid variable of those that NCCL does not have.
    pub fn from_lookup_as_nccl(lookup: &dyn Fn(&str) -> Option<String>) -> Result<Config, ConfigError> {
        let mut config = Config::read(&Source { lookup, is_tolerant: true })?;
        config.forget_missing_topology();
        Ok(config)
    }

    fn read(env: &Source<'_>) -> Result<Config, ConfigError> {
        let lookup = env.lookup;
        let mut config = Config::default();
        env.set("OXCCL_TIMEOUT", parse::SECONDS, &mut config.timeout, parse::seconds)?;
        env.set("OXCCL_STALL_WARN", parse::SECONDS_OR_NONE, &mut config.stall_warn, parse::seconds_or_none)?;
        env.set("OXCCL_STATUS", parse::FLAG, &mut config.status, parse::flag)?;
        config.flight_file = env.get("OXCCL_FLIGHT_FILE");
        let mut has_ras = true;
        env.set("NCCL_RAS_ENABLE", parse::FLAG, &mut has_ras, parse::flag)?;
        env.set("NCCL_RAS_ADDR", parse::HOST_PORT, &mut config.ras, |text| parse::host_port(text).map(Some))?;
        config.ras = config.ras.filter(|_| has_ras);
        env.set("OXCCL_FLIGHT_SIGNAL", parse::FLAG, &mut config.flight_signal, parse::flag)?;
        env.set("OXCCL_FLIGHT_TIMES", parse::FLAG, &mut config.flight_times, parse::flag)?;
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
        config.host_id = lookup("NCCL_HOSTID").filter(|id| !id.is_empty());
        env.set("OXCCL_PDL", parse::FLAG, &mut config.dependent_launch, parse::flag)?;
        env.set("OXCCL_SLOT_STORES", parse::SLOT_STORES, &mut config.slot_stores, SlotStores::from_name)?;
        env.set("OXCCL_CMA", parse::CMA, &mut config.cma, Cma::from_name)?;
        let length = |text: &str| text.parse().ok().filter(|bytes| *bytes > 0).map(Some);
        env.set("OXCCL_CMA_MIN_BYTES", parse::CMA_MIN_BYTES, &mut config.cma_min_bytes, length)?;
        env.set("OXCCL_PING_PONG", parse::FLAG, &mut config.ping_pong, parse::flag)?;
        env.set("OXCCL_OUTBOX", parse::FLAG, &mut config.outbox, parse::some_flag)?;
        config.topology = topology::read(env)?;
        config.read_transports(env)?;
        config.read_channels(env)?;
        for variable in IbConfig::VARIABLES {
            let Some(value) = lookup(variable).filter(|value| !value.is_empty()) else { continue };
            let ib = &mut config.net.ib;
            let Err(expected) = ib.set(variable, value.trim()) else { continue };
            let meant = env.meaning(variable, expected, &value);
            if meant.is_none_or(|meant| ib.set(variable, &meant).is_err()) {
                env.refuse(ConfigError { variable, value, expected })?;
            }
        }
        config.read_network(env)?;
        config.net.gdr = read_gdr(env)?;
        config.ptx_path = lookup("OXCCL_PTX_PATH").filter(|path| !path.is_empty()).map(PathBuf::from);
        env.set("NCCL_RUNTIME_CONNECT", parse::FLAG, &mut config.runtime_connect, parse::flag)?;
        env.set("NCCL_COMM_BLOCKING", parse::FLAG, &mut config.blocking, parse::some_flag)?;
        config.log = read_log(env)?;
        Ok(config)
    }

    /// What the environment's `OXCCL_COMM_SECRET` or `OXCCL_COMM_SECRET_FILE` gives to aggregators and their users.
    ///
    /// # Errors
    /// A text that says why there is none.
    pub fn aggregator_secret() -> Result<Secret, String> {
        aggregator_secret(&Config::variable)
    }

    /// Which transports there may be.
    fn read_transports(&mut self, env: &Source<'_>) -> Result<(), ConfigError> {
        let allowed = |text: &str| TransportKind::from_name(text).map(Allowed::only);
        env.set("OXCCL_TRANSPORT", "inproc, shm, tcp or net was expected", &mut self.transports, allowed)?;
        let (mut no_p2p, mut no_shm) = (false, false);
        env.set("NCCL_P2P_DISABLE", parse::FLAG, &mut no_p2p, parse::flag)?;
        env.set("NCCL_SHM_DISABLE", parse::FLAG, &mut no_shm, parse::flag)?;
        self.transports.in_process &= !no_p2p;
        self.p2p.enabled = !no_p2p;
        if no_p2p {
            self.topology.p2p_level = Some(PathKind::Loc);
        }
        env.set("NCCL_CUMEM_ENABLE", parse::FLAG, &mut self.p2p.cumem, parse::cumem)?;
        env.set("OXCCL_DUPLICATE_GPUS", parse::FLAG, &mut self.p2p.shares_gpus, parse::flag)?;
        self.transports.shm &= !no_shm;
        Ok(())
    }

    /// Buffers, channels, and how kernels use them.
    fn read_channels(&mut self, env: &Source<'_>) -> Result<(), ConfigError> {
        env.set("NCCL_BUFFSIZE", parse::BUFFER, &mut self.device_buffer_bytes, |text| {
            parse::buffer_bytes(text).map(Some)
        })?;
        self.buffer_bytes = self.device_buffer_bytes.unwrap_or(self.buffer_bytes);
        // The last one that is set wins: the earlier ones are older names, which NCCL still supports.
        for variable in ["NCCL_MIN_CTAS", "NCCL_MIN_NRINGS", "NCCL_MIN_NCHANNELS"] {
            env.set(variable, parse::CHANNELS, &mut self.channels.min, parse::channels)?;
        }
        for variable in ["NCCL_MAX_CTAS", "NCCL_MAX_NRINGS", "NCCL_MAX_NCHANNELS"] {
            env.set(variable, parse::CHANNELS, &mut self.channels.max, parse::channels)?;
        }
        let policy = |text: &str| parse::cta_policy(text).map(Some);
        env.set("NCCL_CTA_POLICY", parse::CTA_POLICY, &mut self.cta_policy, policy)?;
        env.set("NCCL_CGA_CLUSTER_SIZE", parse::CLUSTER, &mut self.cluster_size, parse::cluster_size)?;
        env.set("OXCCL_SYMMETRIC", parse::FLAG, &mut self.symmetric, parse::some_flag)?;
        let kib = |text: &str| parse::tile_kib(text).map(Some);
        env.set("OXCCL_TILE_KIB", parse::TILE_KIB, &mut self.tile_kib, kib)?;
        env.set("NCCL_NTHREADS", parse::THREADS, &mut self.channels.threads, parse::threads)?;
        Ok(())
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
            secret: aggregator_secret(env.lookup),
            // The heads have the bootstrap's to come together: a server that does not answer is named before they give up.
            connect_timeout: net.socket.connect_timeout.min(bootstrap.timeout / 2),
            peer_dead_after: bootstrap.peer_dead_after,
            net: network,
        });
        Ok(())
    }
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
    env.set("NCCL_NET_GDR_READ", parse::FLAG, &mut gdr.read, parse::some_flag)?;
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
    use super::super::of_variables as config;
    use super::*;
    use crate::transport::p2p::P2pSettings;
    use oxccl_shared::abi::{Algorithm, Protocol};
    use std::time::Duration;

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
        for zero in ["0", "0.0"] {
            assert_eq!(super::tests::config(&[("OXCCL_STALL_WARN", zero)]).unwrap().stall_warn, None);
        }
    }

    #[test]
    fn p2p_is_switched_off_for_both_backends() {
        let config = config(&[("NCCL_P2P_DISABLE", "1"), ("NCCL_CUMEM_ENABLE", "-2")]).unwrap();
        assert!(!config.transports.in_process && !config.p2p.enabled && config.p2p.cumem);
        let other = Config { p2p: P2pSettings::default(), ..config.clone() };
        assert_ne!(config.must_agree(), other.must_agree());
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
    fn the_newest_name_of_a_limit_wins() {
        let limits = |pairs| config(pairs).unwrap().channels;
        assert_eq!(limits(&[("NCCL_MIN_CTAS", "2"), ("NCCL_MAX_NRINGS", "9")]).min, Some(2));
        let both = limits(&[("NCCL_MAX_NCHANNELS", "4"), ("NCCL_MAX_NRINGS", "9"), ("NCCL_MAX_CTAS", "1")]);
        assert_eq!((both.min, both.max), (None, Some(4)));
    }

    /// They had 60 s whatever the bootstrap had, and a server that had stopped was not named.
    #[test]
    fn aggregators_have_half_of_the_bootstraps_time_to_answer() {
        let timeout = |bootstrap: &str| {
            let said = [("OXCCL_AGGREGATOR", "10.0.0.9:28040"), ("OXCCL_BOOTSTRAP_TIMEOUT", bootstrap)];
            config(&said).unwrap().net.coll.aggregators.map(|servers| servers.connect_timeout)
        };
        let expected = [("0.5", 250), ("10", 5_000), ("", 60_000), ("120", 60_000), ("1800", 60_000)];
        for (bootstrap, millis) in expected {
            assert_eq!(timeout(bootstrap), Some(Duration::from_millis(millis)), "{bootstrap}");
        }
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
            ("NCCL_CGA_CLUSTER_SIZE", "9"),
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
            ("OXCCL_TIMEOUT", "1e-9"),
            ("OXCCL_TIMEOUT", "0.0009"),
            ("OXCCL_BOOTSTRAP_TIMEOUT", "1e-9"),
            ("OXCCL_STALL_WARN", "1e-9"),
            ("OXCCL_TIMEOUT", "NaN"),
            ("OXCCL_PROXY_THREADS", "0"),
            ("OXCCL_PROXY_THREADS", "17"),
            ("OXCCL_TILE_KIB", "65"),
            ("OXCCL_TILE_KIB", "some"),
            ("OXCCL_SLOT_STORES", "fast"),
            ("OXCCL_CMA", "yes"),
            ("OXCCL_PING_PONG", "auto"),
            ("OXCCL_OUTBOX", "auto"),
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
    fn an_empty_variable_counts_as_unset() {
        for variable in ["OXCCL_TIMEOUT", "OXCCL_TRANSPORT", "NCCL_ALGO", "NCCL_HOSTID", "NCCL_SOCKET_IFNAME"]
        {
            let config = config(&[(variable, "")]).unwrap();
            assert_eq!(format!("{config:?}"), format!("{:?}", Config::default()), "{variable}");
        }
    }
}

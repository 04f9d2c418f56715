//! Every setting, and the only place that reads the environment.

use crate::bootstrap::{BootstrapConfig, InterfaceFilter};
use crate::plan::Forced;
use crate::plan::device::ChannelLimits;
use crate::transport::p2p::P2pSettings;
use crate::transport::{Allowed, TransportKind};
use oxccl_shared::abi::{Algorithm, ConnLayout, Protocol};
use std::path::PathBuf;
use std::time::Duration;
use thiserror::Error;

/// A communicator's settings. [`Config::default`] is what an empty environment gives.
#[derive(Clone, Debug)]
pub struct Config {
    /// How long an operation waits for a peer that does nothing (`OXCCL_TIMEOUT`, seconds). Default 600 s.
    pub timeout: Duration,
    /// Rendezvous and liveness (`OXCCL_BOOTSTRAP_TIMEOUT` seconds, `NCCL_SOCKET_IFNAME`, `NCCL_SOCKET_FAMILY`).
    pub bootstrap: BootstrapConfig,
    /// Algorithm and protocol, where the user insists (`NCCL_ALGO`, `NCCL_PROTO`). Between GPUs trees are connected, and their
    /// memory is taken, only if [`Algorithm::Tree`] is named here.
    pub forced: Forced,
    /// Transports (`NCCL_P2P_DISABLE`, `NCCL_SHM_DISABLE`, `OXCCL_TRANSPORT`).
    pub transports: Allowed,
    /// How GPUs of a host share memory (`NCCL_P2P_DISABLE`, `NCCL_CUMEM_ENABLE`).
    pub p2p: P2pSettings,
    /// Stands for the host's identity (`NCCL_HOSTID`), so that one host can play several.
    pub host_id: Option<String>,
    /// Bytes of the Simple buffer of a ring or tree connection, eight slots (`NCCL_BUFFSIZE`). Default 1 MiB.
    pub buffer_bytes: usize,
    /// The same for GPUs, where the default is the table's for the GPU.
    pub device_buffer_bytes: Option<usize>,
    /// Channels of GPUs' operations (`NCCL_MIN_NCHANNELS`, `NCCL_MAX_NCHANNELS`).
    pub channels: ChannelLimits,
    /// The bundle of GPU kernels (`OXCCL_PTX_PATH`), if not one of the usual places.
    pub ptx_path: Option<PathBuf>,
}

/// A setting that cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{variable}={value}: {expected}")]
pub struct ConfigError {
    /// The variable or option.
    pub variable: &'static str,
    /// Its value.
    pub value: String,
    /// What was expected.
    pub expected: &'static str,
}

/// What [`super::CommunicatorBuilder::build`] says when it was told of several ranks and no id.
pub(super) const MISSING_ID: ConfigError = ConfigError {
    variable: "unique_id",
    value: String::new(),
    expected: "an id was expected: create one on one rank and give it to all, or use from_env",
};

/// Simple buffer of a ring or tree connection.
const BUFFER_BYTES: usize = 1 << 20;
/// What `NCCL_BUFFSIZE` may be: slots of 1 KiB to 1 MiB.
const BUFFER_BYTES_MIN: usize = 8 << 10;
const BUFFER_BYTES_MAX: usize = 8 << 20;

impl Default for Config {
    fn default() -> Self {
        Config {
            timeout: Duration::from_secs(600),
            bootstrap: BootstrapConfig::default(),
            forced: Forced::default(),
            transports: Allowed::ALL,
            p2p: P2pSettings::default(),
            host_id: None,
            buffer_bytes: BUFFER_BYTES,
            device_buffer_bytes: None,
            channels: ChannelLimits::default(),
            ptx_path: None,
        }
    }
}

impl Config {
    /// The process's environment over the defaults.
    ///
    /// # Errors
    /// The first variable whose value cannot be used.
    pub fn from_env() -> Result<Config, ConfigError> {
        Config::from_lookup(&Config::variable)
    }

    /// One variable of the process's environment, for the one other module that needs some: the launcher's.
    pub(super) fn variable(name: &str) -> Option<String> {
        // Bytes that are no text become text that no parser takes, so that they end in an error and not in a default.
        std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
    }

    /// As [`Self::from_env`], from any source.
    ///
    /// # Errors
    /// The first variable whose value cannot be used.
    pub fn from_lookup(lookup: &dyn Fn(&str) -> Option<String>) -> Result<Config, ConfigError> {
        let mut config = Config::default();
        let env = Source(lookup);
        env.set("OXCCL_TIMEOUT", SECONDS, &mut config.timeout, seconds)?;
        env.set("OXCCL_BOOTSTRAP_TIMEOUT", SECONDS, &mut config.bootstrap.timeout, seconds)?;
        let filter = |text: &str| InterfaceFilter::parse(text).map(Some);
        env.set("NCCL_SOCKET_IFNAME", INTERFACES, &mut config.bootstrap.interfaces, filter)?;
        env.set(
            "NCCL_SOCKET_FAMILY",
            "AF_INET or AF_INET6 was expected",
            &mut config.bootstrap.prefer_ipv6,
            family,
        )?;
        env.set("NCCL_ALGO", ALGORITHMS, &mut config.forced.algorithm, |t| {
            Algorithm::from_name(t).map(Some)
        })?;
        env.set("NCCL_PROTO", PROTOCOLS, &mut config.forced.protocol, |t| Protocol::from_name(t).map(Some))?;
        let allowed = |text: &str| TransportKind::from_name(text).map(Allowed::only);
        env.set("OXCCL_TRANSPORT", "inproc, shm or tcp was expected", &mut config.transports, allowed)?;
        let (mut no_p2p, mut no_shm) = (false, false);
        env.set("NCCL_P2P_DISABLE", "0 or 1 was expected", &mut no_p2p, flag)?;
        env.set("NCCL_SHM_DISABLE", "0 or 1 was expected", &mut no_shm, flag)?;
        config.transports.in_process &= !no_p2p;
        config.p2p.enabled = !no_p2p;
        env.set("NCCL_CUMEM_ENABLE", "0 or 1 was expected", &mut config.p2p.cumem, cumem)?;
        config.transports.shm &= !no_shm;
        config.host_id = lookup("NCCL_HOSTID");
        env.set("NCCL_BUFFSIZE", BUFFER, &mut config.device_buffer_bytes, |text| {
            buffer_bytes(text).map(Some)
        })?;
        config.buffer_bytes = config.device_buffer_bytes.unwrap_or(config.buffer_bytes);
        env.set("NCCL_MIN_NCHANNELS", CHANNELS, &mut config.channels.min, channels)?;
        env.set("NCCL_MAX_NCHANNELS", CHANNELS, &mut config.channels.max, channels)?;
        config.ptx_path = lookup("OXCCL_PTX_PATH").filter(|path| !path.is_empty()).map(PathBuf::from);
        Ok(config)
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

    /// Digest of what must be equal on all ranks.
    pub(crate) fn digest(&self) -> u64 {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hasher = DefaultHasher::new();
        let algorithm = self.forced.algorithm.map(|a| a as u8);
        let protocol = self.forced.protocol.map(|p| p as u8);
        let Allowed { in_process, shm, tcp } = self.transports;
        let P2pSettings { enabled, cumem, .. } = self.p2p;
        let buffers = (self.buffer_bytes, self.device_buffer_bytes);
        (algorithm, protocol, in_process, shm, tcp, enabled, cumem, buffers, self.channels).hash(&mut hasher);
        hasher.finish()
    }

    /// The settings behind [`Self::digest`], for the message when they differ.
    pub(crate) const MUST_AGREE: &'static str = "NCCL_ALGO, NCCL_PROTO, NCCL_P2P_DISABLE, NCCL_CUMEM_ENABLE, NCCL_SHM_DISABLE, OXCCL_TRANSPORT, NCCL_BUFFSIZE, NCCL_MIN_NCHANNELS, NCCL_MAX_NCHANNELS";

    /// Whether the settings can be used, whoever made them.
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        let bytes = [Some(self.buffer_bytes), self.device_buffer_bytes];
        for bytes in bytes.into_iter().flatten().map(|bytes| bytes.to_string()) {
            if buffer_bytes(&bytes).is_none() {
                return Err(ConfigError { variable: "NCCL_BUFFSIZE", value: bytes, expected: BUFFER });
            }
        }
        Ok(())
    }
}

const SECONDS: &str = "a positive number of seconds was expected";
const INTERFACES: &str = "a list of interface prefixes was expected, such as eth,ib or =eth0 or ^docker";
const ALGORITHMS: &str = "ring, tree or direct was expected";
const PROTOCOLS: &str = "LL, LL128 or Simple was expected";
const CHANNELS: &str = "a number of channels was expected, at least 1";
const BUFFER: &str = "8192 to 8388608 bytes were expected, a multiple of 1024";

struct Source<'a>(&'a dyn Fn(&str) -> Option<String>);

impl Source<'_> {
    /// Sets `target` to what `parse` makes of the variable, if it is set and not empty.
    fn set<T>(
        &self,
        variable: &'static str,
        expected: &'static str,
        target: &mut T,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<(), ConfigError> {
        let Some(value) = (self.0)(variable).filter(|value| !value.is_empty()) else { return Ok(()) };
        *target = parse(value.trim()).ok_or(ConfigError { variable, value, expected })?;
        Ok(())
    }
}

fn seconds(text: &str) -> Option<Duration> {
    let seconds: f64 = text.parse().ok()?;
    // What rounds to no time at all is refused too.
    Duration::try_from_secs_f64(seconds).ok().filter(|time| !time.is_zero())
}

fn flag(text: &str) -> Option<bool> {
    match text {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

/// -2, NCCL's way to say "where it works", is what 1 means here too.
fn cumem(text: &str) -> Option<bool> {
    if text == "-2" { Some(true) } else { flag(text) }
}

fn family(text: &str) -> Option<Option<bool>> {
    match text {
        "AF_INET" => Some(Some(false)),
        "AF_INET6" => Some(Some(true)),
        _ => None,
    }
}

fn channels(text: &str) -> Option<Option<u32>> {
    text.parse().ok().filter(|channels| *channels > 0).map(Some)
}

fn buffer_bytes(text: &str) -> Option<usize> {
    let bytes: usize = text.parse().ok()?;
    ((BUFFER_BYTES_MIN..=BUFFER_BYTES_MAX).contains(&bytes) && bytes.is_multiple_of(1024)).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        ])
        .unwrap();
        assert_eq!(config.forced.algorithm, Some(Algorithm::Tree));
        assert_eq!(config.forced.protocol, Some(Protocol::LL128));
        assert!(!config.transports.shm && config.transports.tcp);
        assert!(config.p2p.enabled && !config.p2p.cumem);
        assert_eq!(config.ring_layout().simple_slot_bytes, 8192);
        assert_eq!(config.timeout, Duration::from_millis(2500));
    }

    #[test]
    fn p2p_is_switched_off_for_both_backends() {
        let config = config(&[("NCCL_P2P_DISABLE", "1"), ("NCCL_CUMEM_ENABLE", "-2")]).unwrap();
        assert!(!config.transports.in_process && !config.p2p.enabled && config.p2p.cumem);
        assert_ne!(config.digest(), Config { p2p: P2pSettings::default(), ..config.clone() }.digest());
    }

    #[test]
    fn bad_values_name_the_variable() {
        for (variable, value) in [
            ("NCCL_ALGO", "rings"),
            ("NCCL_PROTO", "fast"),
            ("NCCL_P2P_DISABLE", "yes"),
            ("NCCL_CUMEM_ENABLE", "2"),
            ("NCCL_BUFFSIZE", "7"),
            ("NCCL_MAX_NCHANNELS", "0"),
            ("NCCL_MIN_NCHANNELS", "many"),
            ("NCCL_BUFFSIZE", "99999999999999999999"),
            ("OXCCL_TIMEOUT", "-1"),
            ("OXCCL_TIMEOUT", "1e300"),
            ("OXCCL_TIMEOUT", "1e-12"),
            ("OXCCL_TIMEOUT", "NaN"),
            ("NCCL_SOCKET_FAMILY", "AF_UNIX"),
        ] {
            let error = config(&[(variable, value)]).unwrap_err();
            assert_eq!((error.variable, error.value.as_str()), (variable, value));
            assert!(error.to_string().contains(variable));
        }
    }

    #[test]
    fn every_layout_is_valid() {
        for buffer_bytes in [BUFFER_BYTES_MIN, 9 << 10, BUFFER_BYTES, BUFFER_BYTES_MAX] {
            let config = Config { buffer_bytes, ..Config::default() };
            assert!(config.ring_layout().is_valid(), "{buffer_bytes}");
            for nranks in [1, 2, 8, 9, 32, 64, 200, 100_000] {
                assert!(config.mesh_layout(nranks).is_valid(), "{buffer_bytes} {nranks}");
            }
        }
    }
}

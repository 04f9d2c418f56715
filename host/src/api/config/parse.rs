//! Parsers of variables.

use super::error::ConfigError;
use super::tolerance;
use crate::log;
use crate::plan::ChannelLimits;
use crate::plan::CtaPolicy;
use crate::plan::tuning::{Forced, ListError};
use std::time::Duration;

pub(super) const SECONDS: &str = "0.001 to 1e9 seconds were expected";
pub(super) const SECONDS_OR_NONE: &str = "0.001 to 1e9 seconds were expected, or 0 for never";
/// No rank keeps a shorter limit: the operating system may suspend it for longer between two polls. Who writes less takes the unit for another.
pub(super) const SECONDS_MIN: Duration = Duration::from_millis(1);
/// 31 years.
const SECONDS_MAX: Duration = Duration::from_secs(1_000_000_000);
pub(super) const INTERFACES: &str =
    "a list of interface prefixes was expected, such as eth,ib or =eth0 or ^docker";
pub(super) const THREADS: &str = "64 to 512 threads were expected, a multiple of 32";
pub(super) const SOCKETS: &str = "0 to 64 was expected";
pub(super) const PROXY_THREADS: &str = "1 to 16 was expected";
pub(super) const SLOT_STORES: &str = "measured, cached or streamed was expected";
pub(super) const CMA: &str = "0 (never), 1 (and permit it to every process of the user) or auto was expected";
pub(super) const CMA_MIN_BYTES: &str = "a number of bytes was expected, at least 1";
pub(super) const TILE_KIB: &str = "0 to 64 was expected";
pub(super) const CHANNELS: &str = "a number of channels was expected, at least 1";
pub(super) const HOSTS: &str = "a number of hosts was expected";
pub(super) const BUFFER: &str = "8192 to 8388608 bytes were expected, a multiple of 1024";
pub(super) const PLUGIN: &str = "the name of a plugin was expected";
pub(super) const FLAG: &str = "0 or 1 was expected";

/// Range of `NCCL_BUFFSIZE`: slots of 1 KiB to 1 MiB.
pub(super) const BUFFER_BYTES_MIN: usize = 8 << 10;
pub(super) const BUFFER_BYTES_MAX: usize = 8 << 20;

/// A source of variables.
pub(super) struct Source<'a> {
    /// The value of a variable.
    pub lookup: &'a dyn Fn(&str) -> Option<String>,
    /// Whether a value of an `NCCL_` variable that is none is a warning, as in NCCL, and no error.
    pub is_tolerant: bool,
}

impl Source<'_> {
    /// The variable, if it is set and not empty.
    pub fn get(&self, variable: &str) -> Option<String> {
        (self.lookup)(variable).filter(|value| !value.is_empty())
    }

    /// Sets `target` to the parsed variable, if it is set and not empty.
    pub fn set<T>(
        &self,
        variable: &'static str,
        expected: &'static str,
        target: &mut T,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<(), ConfigError> {
        let Some(value) = self.get(variable) else { return Ok(()) };
        let meant = || self.meaning(variable, expected, &value).and_then(|meant| parse(&meant));
        match parse(value.trim()).or_else(meant) {
            Some(parsed) => *target = parsed,
            None => self.refuse(ConfigError { variable, value, expected })?,
        }
        Ok(())
    }

    /// What NCCL makes of a value that is none here, where that counts.
    pub fn meaning(&self, variable: &str, expected: &str, value: &str) -> Option<String> {
        let meant = self.is_tolerant.then(|| tolerance::meaning(variable, expected, value.trim())).flatten();
        if let Some(meant) = &meant {
            log::warn_once(format!("{variable}={value}: {expected}; it is taken as {meant}"));
        }
        meant
    }

    /// An error, or else a warning: then the variable counts as not set.
    pub fn refuse(&self, error: ConfigError) -> Result<(), ConfigError> {
        if !self.is_tolerant || !error.variable.starts_with("NCCL_") {
            return Err(error);
        }
        log::warn_once(format!("{error}; it is ignored"));
        Ok(())
    }

    /// Passes the variable and `forced` to `read`, and stores the result.
    pub fn restrict(
        &self,
        variable: &'static str,
        forced: &mut Forced,
        read: impl Fn(Forced, &str) -> Result<Forced, ListError>,
    ) -> Result<(), ConfigError> {
        let Some(value) = self.get(variable) else { return Ok(()) };
        match read(*forced, value.trim()) {
            Ok(restricted) => *forced = restricted,
            Err(error) => self.refuse(ConfigError { variable, value, expected: error.expected() })?,
        }
        Ok(())
    }
}

pub(super) fn seconds_or_none(text: &str) -> Option<Option<Duration>> {
    let is_zero = text.parse() == Ok(0.0);
    if is_zero { Some(None) } else { seconds(text).map(Some) }
}

pub(super) fn seconds(text: &str) -> Option<Duration> {
    let seconds: f64 = text.parse().ok()?;
    // Fails for what no clock may hold.
    let time = Duration::try_from_secs_f64(seconds).ok()?;
    Some(time).filter(|time| (SECONDS_MIN..=SECONDS_MAX).contains(time))
}

pub(super) const OUTAGE: &str = "2 or more seconds were expected";

/// What the kernel's keep-alive can tell.
pub(super) fn outage(text: &str) -> Option<Duration> {
    seconds(text).filter(|time| *time >= Duration::from_secs(2))
}

pub(super) const HOST_PORT: &str = "HOST:PORT was expected";

/// An address without its check for existence.
pub(super) fn host_port(text: &str) -> Option<String> {
    let (host, port) = text.rsplit_once(':')?;
    let is_address = !host.is_empty() && port.parse::<u16>().is_ok();
    is_address.then(|| text.to_owned())
}

pub(super) const SERVERS: &str = "HOST:PORT of each aggregator was expected, separated by commas";

/// A list of addresses without a check for existence.
pub(super) fn servers(text: &str) -> Option<Vec<String>> {
    text.split(',').map(|server| host_port(server.trim())).collect()
}

pub(super) fn flag(text: &str) -> Option<bool> {
    match text {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

/// The same where no value is a value of its own.
pub(super) fn some_flag(text: &str) -> Option<Option<bool>> {
    flag(text).map(Some)
}

/// -2, NCCL's value for "where it works", means the same as 1 here.
pub(super) fn cumem(text: &str) -> Option<bool> {
    if text == "-2" { Some(true) } else { flag(text) }
}

pub(super) fn family(text: &str) -> Option<Option<bool>> {
    match text {
        "AF_INET" => Some(Some(false)),
        "AF_INET6" => Some(Some(true)),
        _ => None,
    }
}

/// One factor of the number of a connection's sockets.
pub(super) fn sockets(text: &str) -> Option<u32> {
    text.parse().ok().filter(|sockets| *sockets <= 64)
}

pub(super) fn proxy_threads(text: &str) -> Option<u32> {
    text.parse().ok().filter(|threads| (1..=16).contains(threads))
}

/// KiB of a tile: several must fit a multiprocessor.
pub(super) fn tile_kib(text: &str) -> Option<u32> {
    text.parse().ok().filter(|kib| *kib <= 64)
}

pub(super) const CTA_POLICY: &str = "0 or DEFAULT (fastest), 1 or EFFICIENCY (few multiprocessors), 2 or ZERO (none where possible) or 3 (both) was expected";

/// NCCL's bits: efficiency, and none. Or their names, with `|` between.
pub(super) fn cta_policy(text: &str) -> Option<CtaPolicy> {
    let bit = |name: &str| match name.trim().to_ascii_uppercase().as_str() {
        "DEFAULT" => Some(0),
        "EFFICIENCY" => Some(1),
        "ZERO" => Some(2),
        _ => None,
    };
    let by_name = || text.split('|').try_fold(0, |bits, name| Some(bits | bit(name)?));
    CtaPolicy::from_bits(text.parse().ok().or_else(by_name)?)
}

pub(super) const CLUSTER: &str = "a number of blocks was expected, 0 to 8";

/// As many as every generation that has clusters can take.
pub(super) fn cluster_size(text: &str) -> Option<Option<u32>> {
    text.parse().ok().filter(|blocks| *blocks <= 8).map(Some)
}

pub(super) fn channels(text: &str) -> Option<Option<u32>> {
    text.parse().ok().filter(|channels| *channels > 0).map(Some)
}

pub(super) fn threads(text: &str) -> Option<Option<u32>> {
    let threads: u32 = text.parse().ok()?;
    (ChannelLimits::THREADS.contains(&threads) && threads.is_multiple_of(32)).then_some(Some(threads))
}

pub(super) fn buffer_bytes(text: &str) -> Option<usize> {
    let bytes: usize = text.parse().ok()?;
    ((BUFFER_BYTES_MIN..=BUFFER_BYTES_MAX).contains(&bytes) && bytes.is_multiple_of(1024)).then_some(bytes)
}

//! `ncclConfig_t`: what a caller of any version since 2.14 says about a new communicator.

use crate::encryption;
use crate::pointer::{In, Text};
use crate::result::{Failure, Outcome};
use crate::types::{CommConfig, MAGIC, UNDEFINED, VERSION, version};
use oxccl::{Config, CtaPolicy, Signal};
use std::ffi::{c_int, c_uint};
use std::mem::offset_of;
use std::time::Duration;

/// What the caller wants otherwise than by default.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Settings {
    pub blocking: Option<bool>,
    pub min_ctas: Option<u32>,
    pub max_ctas: Option<u32>,
    pub cta_policy: Option<CtaPolicy>,
    pub cluster_size: Option<u32>,
    pub net_name: Option<String>,
    pub comm_name: Option<String>,
    /// `numRmaCtx` and `numRmaSig`.
    pub contexts: Option<u32>,
    pub signals: Option<u32>,
}

/// NCCL waits for other ranks as long as they live, and its callers have watchdogs of their own: the library's defaults are
/// shorter.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(24 * 3600);
const INIT_TIMEOUT: Duration = Duration::from_secs(1800);

/// Contexts of one-sided operations, unless the caller says how many.
const CONTEXTS: u32 = 4;

/// A field that came later than the structure: a caller of an older version cannot mean what lies there.
struct Since {
    version: c_uint,
    /// Where the fields of that version begin.
    offset: usize,
}

/// By version; the fields of each reach to those of the next.
const FIELDS: [Since; 9] = [
    Since { version: version(2, 17, 0), offset: offset_of!(CommConfig, cga_cluster_size) },
    Since { version: version(2, 18, 0), offset: offset_of!(CommConfig, split_share) },
    Since { version: version(2, 25, 0), offset: offset_of!(CommConfig, traffic_class) },
    Since { version: version(2, 27, 0), offset: offset_of!(CommConfig, comm_name) },
    Since { version: version(2, 28, 0), offset: offset_of!(CommConfig, channels_per_net_peer) },
    Since { version: version(2, 29, 0), offset: offset_of!(CommConfig, graph_usage_mode) },
    Since { version: version(2, 30, 0), offset: offset_of!(CommConfig, max_p2p_peers) },
    Since { version: version(2, 31, 0), offset: offset_of!(CommConfig, launch_order_implicit) },
    Since { version: version(2, 32, 0), offset: offset_of!(CommConfig, nvls_host_mode) },
];

/// The shortest structure that there was: 2.14's, padded.
const SIZE_MIN: usize = 20;

const UNSET: CommConfig = CommConfig {
    size: size_of::<CommConfig>(),
    magic: MAGIC,
    version: VERSION as c_uint,
    blocking: UNDEFINED,
    cga_cluster_size: UNDEFINED,
    min_ctas: UNDEFINED,
    max_ctas: UNDEFINED,
    net_name: std::ptr::null(),
    split_share: UNDEFINED,
    traffic_class: UNDEFINED,
    comm_name: std::ptr::null(),
    collnet_enable: UNDEFINED,
    cta_policy: UNDEFINED,
    shrink_share: UNDEFINED,
    nvls_ctas: UNDEFINED,
    channels_per_net_peer: UNDEFINED,
    nvlink_centric_sched: UNDEFINED,
    graph_usage_mode: UNDEFINED,
    num_rma_ctx: UNDEFINED,
    max_p2p_peers: UNDEFINED,
    graph_stream_ordering: UNDEFINED,
    launch_order_implicit: UNDEFINED,
    num_rma_sig: UNDEFINED,
    rma_eager_init: UNDEFINED,
    host_cft_mode: UNDEFINED,
    nvls_host_mode: UNDEFINED,
};

/// The caller's structure; `None` for a null pointer.
fn read(config: &In<CommConfig>) -> Outcome<Option<CommConfig>> {
    if config.is_null() {
        return Ok(None);
    }
    let head = config.bytes(size_of::<usize>(), "config")?;
    let size = usize::from_ne_bytes(head.try_into().unwrap_or_default());
    let broken = || {
        let text = "config was not initialised: start from NCCL_CONFIG_INITIALIZER (its size or its magic number is wrong)";
        Failure::invalid_argument(text)
    };
    if !(SIZE_MIN..=4096).contains(&size) {
        return Err(broken());
    }
    let given = config.bytes(size.min(size_of::<CommConfig>()), "config")?;
    let word = |at: usize| c_uint::from_ne_bytes(given[at..at + 4].try_into().unwrap_or_default());
    let (magic, theirs) = (word(offset_of!(CommConfig, magic)), word(offset_of!(CommConfig, version)));
    if magic != MAGIC {
        return Err(broken());
    }
    if theirs < version(2, 14, 0) {
        let text = format!("config has version {theirs}: the structure exists since 2.14 (21400)");
        return Err(Failure::invalid_argument(text));
    }
    let known = FIELDS.iter().find(|since| theirs < since.version).map_or(given.len(), |since| since.offset);
    let known = known.min(given.len());
    let mut whole = [0; size_of::<CommConfig>()];
    whole.copy_from_slice(&bytes_of(&UNSET));
    whole[..known].copy_from_slice(&given[..known]);
    // SAFETY: integers and addresses, for which every byte is allowed; a field that only came in part is none of its version's.
    Ok(Some(unsafe { std::mem::transmute::<[u8; size_of::<CommConfig>()], CommConfig>(whole) }))
}

fn bytes_of(config: &CommConfig) -> [u8; size_of::<CommConfig>()] {
    let mut bytes = [0; size_of::<CommConfig>()];
    let from = std::ptr::from_ref(config).cast::<u8>();
    // SAFETY: as long as the structure, whose fields leave out no byte but those at its end.
    unsafe {
        std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), offset_of!(CommConfig, nvls_host_mode) + 4)
    };
    bytes
}

/// An integer that must lie in a range if it is set.
fn checked(name: &str, value: c_int, range: std::ops::RangeInclusive<c_int>) -> Outcome<Option<c_int>> {
    match value {
        UNDEFINED => Ok(None),
        value if range.contains(&value) => Ok(Some(value)),
        _ => {
            let (low, high) = (range.start(), range.end());
            let text = format!("config.{name} is {value}; {low} to {high} was expected");
            Err(Failure::invalid_argument(text))
        }
    }
}

impl Settings {
    /// Reads and checks the caller's structure; without one, `inherited`.
    ///
    /// # Errors
    /// `ncclInvalidArgument`, with the field's name.
    pub fn read(config: &In<CommConfig>, inherited: &Settings) -> Outcome<Settings> {
        let forced = Config::from_env_as_nccl().map_err(oxccl::Error::from)?.blocking;
        let Some(given) = read(config)? else {
            return Ok(Settings { blocking: forced.or(inherited.blocking), ..inherited.clone() });
        };
        let cluster_size = checked("cgaClusterSize", given.cga_cluster_size, 0..=8)?;
        for (name, value) in [
            ("splitShare", given.split_share),
            ("shrinkShare", given.shrink_share),
            ("collnetEnable", given.collnet_enable),
            ("nvlinkCentricSched", given.nvlink_centric_sched),
        ] {
            checked(name, value, 0..=1)?;
        }
        let cta_policy = checked("CTAPolicy", given.cta_policy, 0..=3)?;
        let cta_policy = cta_policy.and_then(|bits| CtaPolicy::from_bits(bits.unsigned_abs()));
        checked("nvlsCTAs", given.nvls_ctas, 1..=c_int::MAX)?;
        checked("graphUsageMode", given.graph_usage_mode, 0..=2)?;
        let [min, max] = [("minCTAs", given.min_ctas), ("maxCTAs", given.max_ctas)]
            .map(|(name, value)| checked(name, value, 1..=c_int::MAX));
        let (min, max) = (min?, max?);
        if let (Some(min), Some(max)) = (min, max)
            && min > max
        {
            return Err(Failure::invalid_argument(format!("config.minCTAs is {min}, above maxCTAs, {max}")));
        }
        let [contexts, signals] = [("numRmaCtx", given.num_rma_ctx), ("numRmaSig", given.num_rma_sig)]
            .map(|(name, value)| checked(name, value, 1..=Signal::KINDS as c_int));
        let [contexts, signals] = [contexts?.map(c_int::unsigned_abs), signals?.map(c_int::unsigned_abs)];
        if contexts.unwrap_or(1) * signals.unwrap_or(1) > Signal::KINDS {
            return Err(Failure::invalid_argument(format!(
                "config.numRmaCtx times config.numRmaSig is above {}, the signals that two ranks have",
                Signal::KINDS
            )));
        }
        let blocking = checked("blocking", given.blocking, 0..=1)?.map(|blocking| blocking == 1);
        Ok(Settings {
            blocking: forced.or(blocking).or(inherited.blocking),
            min_ctas: min.map(c_int::unsigned_abs).or(inherited.min_ctas),
            max_ctas: max.map(c_int::unsigned_abs).or(inherited.max_ctas),
            cta_policy: cta_policy.or(inherited.cta_policy),
            cluster_size: cluster_size.map(c_int::unsigned_abs).or(inherited.cluster_size),
            net_name: Text::of_field(given.net_name).get().or_else(|| inherited.net_name.clone()),
            comm_name: Text::of_field(given.comm_name).get(),
            contexts: contexts.or(inherited.contexts),
            signals: signals.or(inherited.signals),
        })
    }

    /// The environment's settings and these; the environment wins, as in NCCL.
    ///
    /// # Errors
    /// `ncclInvalidUsage`, with the variable's name.
    pub fn engine(&self) -> Outcome<Config> {
        let mut config = Config::from_env_as_nccl().map_err(oxccl::Error::from)?;
        config.start_log();
        let defaults = Config::default();
        config.channels.min = config.channels.min.or(self.min_ctas);
        config.channels.max = config.channels.max.or(self.max_ctas);
        config.cta_policy = config.cta_policy.or(self.cta_policy);
        config.cluster_size = config.cluster_size.or(self.cluster_size);
        config.net.name = config.net.name.take().or_else(|| self.net_name.clone());
        config.name = config.name.take().or_else(|| self.comm_name.clone());
        config.reconcile_channels();
        if config.timeout == defaults.timeout {
            config.timeout = OPERATION_TIMEOUT;
        }
        if config.bootstrap.timeout == defaults.bootstrap.timeout {
            config.bootstrap.timeout = INIT_TIMEOUT;
        }
        encryption::apply(&mut config);
        Ok(config)
    }

    /// The contexts of one-sided operations, and the signals of each.
    pub fn signals(&self) -> (u32, u32) {
        let contexts =
            self.contexts.unwrap_or_else(|| CONTEXTS.min(Signal::KINDS / self.signals.unwrap_or(1)));
        (contexts, self.signals.unwrap_or(Signal::KINDS / contexts))
    }

    /// Whether calls return only when they are done.
    pub fn is_blocking(&self) -> bool {
        self.blocking.unwrap_or(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(config: &CommConfig) -> Outcome<Settings> {
        // SAFETY: the type is a transparent pointer, and the structure lives until the call returns.
        let pointer = unsafe { std::mem::transmute::<*const CommConfig, In<CommConfig>>(config) };
        Settings::read(&pointer, &Settings::default())
    }

    #[test]
    fn fields_newer_than_the_caller_are_not_read() {
        let mut config = CommConfig { blocking: 0, max_ctas: 4, min_ctas: 2, version: 21_403, ..UNSET };
        config.comm_name = std::ptr::without_provenance(1);
        config.split_share = 77;
        let read = settings(&config).unwrap();
        assert_eq!(read, Settings { blocking: Some(false), ..Settings::default() });
        config.version = 21_703;
        let read = settings(&config).unwrap();
        assert_eq!((read.min_ctas, read.max_ctas, read.comm_name), (Some(2), Some(4), None));
        config.version = 21_801;
        assert!(settings(&config).unwrap_err().text.contains("splitShare is 77"));
    }

    #[test]
    fn fields_behind_the_callers_structure_are_not_read() {
        let config = CommConfig { size: 24, blocking: 1, cga_cluster_size: 99, min_ctas: -5, ..UNSET };
        assert!(settings(&config).unwrap_err().text.contains("cgaClusterSize"));
        let config = CommConfig { cga_cluster_size: 4, ..config };
        let read = settings(&config).unwrap();
        assert_eq!((read.blocking, read.cluster_size, read.min_ctas), (Some(true), Some(4), None));
    }

    #[test]
    fn a_longer_structure_of_a_later_version_is_read_as_far_as_it_is_known() {
        let config = CommConfig { size: 400, version: 23_500, max_ctas: 3, ..UNSET };
        // What is behind is not touched: it does not exist here.
        assert_eq!(settings(&config).unwrap().max_ctas, Some(3));
    }

    #[test]
    fn what_was_not_initialised_is_refused() {
        for config in [
            CommConfig { magic: 0, ..UNSET },
            CommConfig { size: 0, ..UNSET },
            CommConfig { size: 1 << 40, ..UNSET },
            CommConfig { version: 21_000, ..UNSET },
            CommConfig { blocking: 2, ..UNSET },
            CommConfig { min_ctas: 5, max_ctas: 4, ..UNSET },
            CommConfig { max_ctas: 0, ..UNSET },
            CommConfig { cta_policy: 4, ..UNSET },
        ] {
            let failure = settings(&config).unwrap_err();
            assert_eq!(failure.code, crate::types::Code::InvalidArgument, "{config:?}");
            assert!(failure.text.contains("config"), "{}", failure.text);
        }
        assert_eq!(settings(&UNSET).unwrap(), Settings::default());
    }
}

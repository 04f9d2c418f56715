//! `ncclCollConfig_t`: settings of one collective.

use crate::comm::Comm;
use crate::pointer::{In, Text};
use crate::result::{Failure, Outcome};
use crate::types::{CollConfig, MAGIC, UNDEFINED};
use oxccl::Untyped;
use std::ffi::c_int;

/// Reads and checks what a caller wants of one collective. Limits on blocks are hints, which the library's plans do not follow call by call.
///
/// # Errors
/// `ncclInvalidArgument` for what is out of range, `ncclInvalidUsage` for what cannot be had by call.
pub fn read(config: &In<CollConfig>) -> Outcome<Option<Wanted>> {
    if config.is_null() {
        return Ok(None);
    }
    let given = config.read_sized("config")?;
    for (name, value, range) in [
        ("minCTAs", given.min_ctas, 1..=c_int::MAX),
        ("maxCTAs", given.max_ctas, 1..=c_int::MAX),
        ("nvlsCTAs", given.nvls_ctas, 1..=c_int::MAX),
        ("cgaClusterSize", given.cga_cluster_size, 0..=8),
        ("forceAlgSelection", given.force_alg_selection, 0..=1),
        ("CTAPolicy", given.cta_policy, 0..=3),
    ] {
        if value != UNDEFINED && !range.contains(&value) {
            return Err(Failure::invalid_argument(format!(
                "config.{name} is {value}, which is out of range"
            )));
        }
    }
    let is_both = given.min_ctas != UNDEFINED && given.max_ctas != UNDEFINED;
    if is_both && given.min_ctas > given.max_ctas {
        return Err(Failure::invalid_argument("config.minCTAs is above config.maxCTAs"));
    }
    if !given.launch_completion_event.is_null() {
        return Err(Failure::invalid_usage(
            "config.launchCompletionEvent is not served: record an event on the stream after the call",
        ));
    }
    let selection = Text::of_field(given.alg_selection).get().filter(|text| !text.is_empty());
    Ok(selection.map(|algorithms| Wanted { algorithms, is_order: given.force_alg_selection != 0 }))
}

/// Algorithms that a caller wants for one collective.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// As `NCCL_ALGO` lists them.
    algorithms: String,
    /// Whether it is an error if they cannot be had.
    is_order: bool,
}

impl Wanted {
    /// The call with these algorithms.
    ///
    /// # Errors
    /// They cannot be had, and must.
    pub fn of(self, comm: &Comm, call: Untyped) -> Outcome<Untyped> {
        let selected = comm.engine()?.selection(call.func, call.dtype, call.count as u64, &self.algorithms);
        match selected {
            Ok(selection) => Ok(Untyped { selection: Some(selection), ..call }),
            Err(error) if self.is_order => {
                let failure = Failure::from(error);
                Err(Failure { text: format!("config.algSelection: {}", failure.text), ..failure })
            }
            Err(error) => {
                tracing::info!(%error, "config.algSelection is not followed");
                Ok(call)
            }
        }
    }
}

impl In<CollConfig> {
    /// The caller's structure, which must have been initialised.
    fn read_sized(&self, name: &str) -> Outcome<CollConfig> {
        let broken = || {
            Failure::invalid_argument(format!(
                "{name} was not initialised: start from NCCL_COLLCONFIG_INITIALIZER (its size or its magic number is wrong)"
            ))
        };
        let head = self.bytes(size_of::<usize>(), name)?;
        let size = usize::from_ne_bytes(head.try_into().unwrap_or_default());
        // The first version has all of these fields.
        if !(size_of::<CollConfig>()..=4096).contains(&size) {
            return Err(broken());
        }
        let given = self.read(name)?;
        if given.magic == MAGIC { Ok(given) } else { Err(broken()) }
    }
}

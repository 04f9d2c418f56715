//! `ncclCollConfig_t`: settings of one collective.

use crate::pointer::{In, Text};
use crate::result::{Failure, Outcome};
use crate::types::{CollConfig, MAGIC, UNDEFINED};
use std::ffi::c_int;

/// Checks what a caller wants of one collective. Limits on blocks are hints, which the library's plans do not follow call by call.
///
/// # Errors
/// `ncclInvalidArgument` for what is out of range, `ncclInvalidUsage` for what cannot be had by call.
pub fn check(config: &In<CollConfig>) -> Outcome {
    if config.is_null() {
        return Ok(());
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
    let selection = Text::of_field(given.alg_selection).get().filter(|text| !text.is_empty());
    if let Some(selection) = selection
        && given.force_alg_selection != 0
    {
        return Err(Failure::invalid_usage(format!(
            "config.algSelection is \"{selection}\": algorithms are chosen by communicator here (NCCL_ALGO, NCCL_PROTO); \
             set forceAlgSelection to 0 to let it be a wish"
        )));
    }
    if !given.launch_completion_event.is_null() {
        return Err(Failure::invalid_usage(
            "config.launchCompletionEvent is not served: record an event on the stream after the call",
        ));
    }
    Ok(())
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

//! What a rank brings to a survey.

use crate::topology::detect::{Found, NvmlError, Own};
use crate::topology::{BusId, Inventory, TopologySettings};

/// A rank's position, and its user's topology settings.
#[derive(Clone, Copy, Debug)]
pub struct SurveyWanted<'a> {
    /// This rank's GPU.
    pub gpu: BusId,
    /// The host of each rank.
    pub hosts: &'a [u64],
    /// Files, levels, rings.
    pub settings: &'a TopologySettings,
    /// How to detect the topology: [`Found::look`], except in tests.
    pub look: fn(Inventory, Own) -> Result<Found, NvmlError>,
}

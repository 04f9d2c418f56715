//! What searches know of a machine.

use super::bounds::Bounds;
use super::choices::Choices;
use crate::topology::{Paths, System};

/// The facts about the machine that searches need.
pub(crate) struct Machine<'a> {
    pub system: &'a System,
    pub paths: &'a Paths,
    pub bounds: Bounds,
    pub choices: Choices,
}

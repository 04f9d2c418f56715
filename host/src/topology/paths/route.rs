//! One route.

use super::PathKind;
use crate::topology::system::LinkId;

/// The route of data from one node to another.
#[derive(Clone, PartialEq, Debug)]
pub struct Route {
    /// Path type.
    pub kind: PathKind,
    /// GB/s of its narrowest link.
    pub bw: f32,
    /// Its links in order; empty from a node to itself and where there is no route.
    pub links: Vec<LinkId>,
}

impl Route {
    pub(super) fn none() -> Route {
        Route { kind: PathKind::Dis, bw: 0.0, links: Vec::new() }
    }
}

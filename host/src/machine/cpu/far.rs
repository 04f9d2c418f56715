//! Connections to ranks of other hosts, made when an operation first needs them.
//!
//! What an operation needs follows from its plan, so both ends of a connection need it in the same operation, and neither tells the
//! other. Its memory is there when the operation begins; what lies between its ends comes while the operation waits, and drives it.

use crate::launch::{Channel, Health};
use crate::mem::Segment;
use crate::proxy::ProxyEnd;
use oxccl_shared::abi::Rank;
use std::sync::Arc;

/// The index of a connection that is not made yet.
pub const NOT_MADE: u16 = u16::MAX;

/// What an operation needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FarNeed<'a> {
    /// The neighbours in the rings of so many channels.
    Rings(u32),
    /// The neighbours in the trees of so many channels.
    Trees(u32),
    /// All other ranks, to and from.
    Mesh,
    /// These ranks: whether to send there.
    Pairs(&'a [(Rank, bool)]),
}

/// What a rank's connections are added to.
pub struct FarEnds<'a> {
    /// Channels for rings and trees.
    pub channels: &'a mut [Channel],
    /// Connections of pairs.
    pub mesh: &'a mut Channel,
    /// Index into the mesh's send connections by rank.
    pub send_to: &'a mut [u16],
    /// Index into the mesh's receive connections by rank.
    pub recv_from: &'a mut [u16],
    /// Keeps the memory of connections.
    pub memory: &'a mut Vec<Arc<Segment>>,
    /// Counts what goes over them.
    pub health: &'a Health,
    /// Takes what drives them.
    pub drive: &'a mut dyn FnMut(ProxyEnd),
}

/// Why a connection cannot even begin.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FarRefused(pub String);

/// What makes a rank's connections to ranks of other hosts.
pub trait FarConnector: Send {
    /// Begins those that are needed and not there. It waits for no other rank.
    ///
    /// # Errors
    /// This rank has no memory for them, or no thread.
    fn connect(&mut self, need: FarNeed<'_>, ends: FarEnds<'_>) -> Result<(), FarRefused>;
}

/// What there is by now, so that an operation like earlier ones only compares numbers.
pub struct Far {
    pub(super) connector: Box<dyn FarConnector>,
    pub(super) rings: u32,
    pub(super) trees: u32,
    pub(super) has_mesh: bool,
    /// Messages' connections that the next operation needs; the capacity is kept.
    pub(super) missing: Vec<(Rank, bool)>,
}

impl Far {
    /// With the rings of so many channels connected, and nothing else.
    pub fn new(connector: Box<dyn FarConnector>, rings: u32) -> Far {
        Far { connector, rings, trees: 0, has_mesh: false, missing: Vec::new() }
    }
}

//! What to connect: the memory of a communicator's first arena, and of those that follow.

use super::allocation::{Access, Method, P2pSettings};
use super::domains::Domains;
use super::info::GpuInfo;
use crate::gpu::Gpu;
use crate::transport::PeerInfo;
use oxccl_shared::abi::Rank;

/// What to connect.
#[derive(Clone, Copy)]
pub struct ArenaWanted<'a> {
    /// This rank's device.
    pub device: &'a dyn Gpu,
    /// Peer info of all ranks.
    pub peers: &'a [PeerInfo],
    /// The user's settings; equal on all ranks.
    pub settings: &'a P2pSettings,
    /// Ranks of this host whose GPU memory must not be used, although it could be.
    pub refused: &'a [Rank],
    /// Bytes of a rank's memories in the order of [`Domain::ALL`](super::domains::Domain::ALL), given the domain of each pair; equal on all ranks.
    pub lens: &'a dyn Fn(&Domains, Rank) -> [usize; 2],
}

/// What a communicator's ranks have agreed on for its first arena, for those that follow.
#[derive(Clone, Debug)]
pub struct Agreed {
    pub(super) peers: Vec<PeerInfo>,
    pub(super) settings: P2pSettings,
    pub(super) gpus: Vec<GpuInfo>,
    pub(super) access: Vec<Vec<Access>>,
    pub(super) method: Method,
}

/// What to add to what was connected.
#[derive(Clone, Copy)]
pub struct FurtherWanted<'a> {
    /// This rank.
    pub rank: Rank,
    /// Its device.
    pub device: &'a dyn Gpu,
    /// What was agreed on for the first arena.
    pub agreed: &'a Agreed,
    /// The ranks that take part, and a number that only this arena of the communicator has.
    pub members: (&'a [Rank], u64),
    /// As in [`ArenaWanted`].
    pub lens: &'a dyn Fn(&Domains, Rank) -> [usize; 2],
}

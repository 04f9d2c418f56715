//! What a rank's kernels on a GPU need.

use super::clusters::Clusters;
use super::custom::CustomKernels;
use super::driver::{Device, Stream};
use super::kernels::DeviceKernels;
use super::monitor::Monitor;
use super::tiles::Tiles;
use crate::launch::{Health, Notify};
use crate::machine::{ConnLists, ConnTables, Connector, NetProxy};
use crate::plan::{Call, Facts};
use crate::tuner::Tuner;
use oxccl_shared::abi::{KernelLaunch, Rank, RedOp};
use oxccl_shared::reduce::{self, Resolved};
use std::sync::Arc;
use std::time::Duration;

/// The parts that `connect` creates at init, and the communicator's own.
pub struct CudaParts {
    /// This rank.
    pub rank: Rank,
    /// Facts for plans.
    pub facts: Facts,
    /// A plugin that chooses with them, or none.
    pub tuner: Tuner,
    /// Its GPU.
    pub device: Device,
    /// Kept, so that connections that are made later find it.
    pub side: Arc<Stream>,
    /// That GPU's kernels.
    pub kernels: Arc<DeviceKernels>,
    /// Kernels of algorithms from outside the library, used before its own.
    pub custom: Vec<CustomKernels>,
    /// The tiles of blocks of its kernels with slots.
    pub tiles: Tiles,
    /// Bytes of those of symmetric kernels, if the user says so.
    pub tile_bytes: Option<u32>,
    /// Whether all kernels that plans may choose are loaded.
    pub has_all_kernels: bool,
    /// Addresses of the connections.
    pub tables: ConnTables,
    /// What makes connections as they are needed.
    pub connector: Arc<dyn Connector>,
    /// Aborts kernels.
    pub monitor: Arc<Monitor>,
    /// The communicator's health.
    pub health: Arc<Health>,
    /// Reports faults to the other ranks.
    pub notify: Arc<dyn Notify + Sync>,
    /// The proxy, if some ranks are reached over a network.
    pub net: Option<NetProxy>,
    /// Timeout of a kernel's wait for a peer.
    pub timeout: Duration,
    /// Whether kernels that can may start before the one in front of them on their stream has ended.
    pub starts_early: bool,
    /// How many blocks of a kernel start together.
    pub clusters: Clusters,
}

impl CudaParts {
    /// The operator of a call, or a sum where the call copies.
    pub(super) fn operator(&self, call: &Call, scalar_bits: u64) -> Resolved {
        let Call { func, dtype, op, .. } = *call;
        let op = if func.is_reduction() { op } else { RedOp::Sum };
        reduce::resolve(op, dtype, self.facts.nranks, scalar_bits)
    }

    /// The arguments that all kernels have.
    pub(super) fn launch(&self, lists: &ConnLists, channels: u32) -> KernelLaunch {
        let mut launch = KernelLaunch {
            send: std::ptr::null(),
            recv: std::ptr::null(),
            send_cursors: std::ptr::null_mut(),
            recv_cursors: std::ptr::null_mut(),
            rings: std::ptr::null(),
            trees: std::ptr::null(),
            monitor: self.monitor.address(),
            number: self.health.recorder().next().wrapping_sub(1),
            nconns: 0,
            nchannels: channels,
            rank: self.rank,
            nranks: self.facts.nranks,
            nmessages: 0,
            tile_bytes: 0,
        };
        lists.fill(&mut launch);
        launch
    }
}

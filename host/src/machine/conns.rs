//! Addresses of a rank's connections in its device's memory.

use crate::gpu::GpuMemory;
use oxccl_shared::abi::KernelLaunch;
use std::sync::Arc;

/// The lists of one kind of channel, as addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ConnLists {
    /// The producers' ends.
    pub send: u64,
    /// The consumers' ends.
    pub recv: u64,
    /// The cursor of each of `send`.
    pub send_cursors: u64,
    /// The cursor of each of `recv`.
    pub recv_cursors: u64,
    /// Our position and the rank at each position, for each channel.
    pub rings: u64,
    /// Our place in each channel's tree.
    pub trees: u64,
    /// Connections of a channel, in each list.
    pub nconns: u32,
}

/// All lists, and their memory.
#[derive(Debug)]
pub struct ConnTables {
    /// Rings: one connection a channel and direction.
    pub ring: ConnLists,
    /// Connections to every peer, by rank, a channel and direction.
    pub mesh: ConnLists,
    /// Trees, if connected: children and parent, a channel and direction.
    pub tree: ConnLists,
    /// A line of memory that operations without buffers may use.
    pub scratch: u64,
    /// The memory of all lists.
    pub memory: Arc<dyn GpuMemory>,
}

impl ConnLists {
    /// From offsets to addresses.
    pub fn at(self, base: u64) -> ConnLists {
        ConnLists {
            send: self.send + base,
            recv: self.recv + base,
            send_cursors: self.send_cursors + base,
            recv_cursors: self.recv_cursors + base,
            rings: self.rings + base,
            trees: self.trees + base,
            nconns: self.nconns,
        }
    }

    /// Fills in a launch's fields for these connections.
    pub(super) fn fill(&self, launch: &mut KernelLaunch) {
        launch.send = std::ptr::without_provenance(self.send as usize);
        launch.recv = std::ptr::without_provenance(self.recv as usize);
        launch.send_cursors = std::ptr::without_provenance_mut(self.send_cursors as usize);
        launch.recv_cursors = std::ptr::without_provenance_mut(self.recv_cursors as usize);
        launch.rings = std::ptr::without_provenance(self.rings as usize);
        launch.trees = std::ptr::without_provenance(self.trees as usize);
        launch.nconns = self.nconns;
    }
}

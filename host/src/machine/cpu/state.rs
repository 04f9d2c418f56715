//! What a rank on CPUs consists of: its connections, and its operations under way.

use super::far::Far;
use super::queue::Queue;
use crate::launch::{Channel, CustomAlgorithm, RunError, WaitContext};
use crate::mem::Segment;
use crate::plan::Facts;
use crate::tuner::Tuner;
use core::ops::Range;
use oxccl_device::coll::P2pWork;
use oxccl_device::gpu::Stop;
use oxccl_shared::abi::{Protocol, Rank, Step};
use std::sync::Arc;

/// The parts that `connect` and `transport` create at init.
pub struct CpuParts {
    /// This rank.
    pub rank: Rank,
    /// Facts for plans.
    pub facts: Facts,
    /// A plugin that chooses with them, or none.
    pub tuner: Tuner,
    /// Algorithms from outside the library, used before its own.
    pub custom: Vec<CustomAlgorithm>,
    /// Channels for rings and trees.
    pub channels: Vec<Channel>,
    /// Connections to every peer, for direct algorithms, send and receive.
    pub mesh: Channel,
    /// Index into `mesh.conns.send` by rank; unused for ourselves, `NOT_MADE` where there is none yet.
    pub send_to: Vec<u16>,
    /// Index into `mesh.conns.recv` by rank; in the same way.
    pub recv_from: Vec<u16>,
    /// The wait loop.
    pub wait: WaitContext,
    /// Memory of the connections.
    pub memory: Vec<Arc<Segment>>,
    /// What makes connections to other hosts when an operation first needs them.
    pub far: Option<Far>,
}

/// A rank's kernels on the caller's thread.
pub struct Cpu {
    pub(super) parts: CpuParts,
    /// Of messages, whatever their length.
    pub(super) message_protocol: Protocol,
    /// Messages of the current operation; its capacity is kept.
    pub(super) works: Vec<P2pWork>,
    /// By connection of the mesh: the first step of the next message.
    pub(super) recv_steps: Vec<Step>,
    /// Operations in flight, which messages may join.
    pub(super) queue: Arc<Queue>,
    /// Of the messages under way, those of each operation in flight.
    pub(super) open: Vec<Open>,
}

// SAFETY: the raw pointers are those of the current operation, which runs on the thread that has the machine.
unsafe impl Send for Cpu {}

/// One operation's messages among those under way.
pub(super) struct Open {
    /// Its number in the queue.
    pub(super) slot: u32,
    /// How many it has.
    pub(super) works: usize,
    /// How many joined before its first.
    pub(super) first: usize,
    /// Its calls in the recorder.
    pub(super) records: Range<u64>,
}

impl Cpu {
    /// A machine over finished connections.
    pub fn new(mut parts: CpuParts) -> Cpu {
        for channel in parts.channels.iter_mut().chain([&mut parts.mesh]) {
            let of = |peer: Rank| parts.wait.health().traffic().get(peer.index()).cloned();
            // A head's connections to a network that reduces count for themselves.
            for conn in channel.send.iter_mut().filter(|conn| !conn.is_counted()) {
                of(conn.peer()).into_iter().for_each(|traffic| conn.count_in(traffic));
            }
            for conn in channel.recv.iter_mut().filter(|conn| !conn.is_counted()) {
                of(conn.peer()).into_iter().for_each(|traffic| conn.count_in(traffic));
            }
        }
        if let Some((peer, traffic)) = parts.wait.drives().reduction() {
            parts.wait.health().set_reduction(peer, traffic);
        }
        let messages = 4 * parts.facts.nranks as usize + 64;
        Cpu {
            recv_steps: Vec::with_capacity(parts.mesh.recv.len()),
            message_protocol: parts.facts.message_protocol(0),
            parts,
            works: Vec::with_capacity(messages),
            queue: Arc::default(),
            open: Vec::new(),
        }
    }

    /// The cause of a stopped kernel, after reporting it to the other ranks.
    #[cold]
    pub(super) fn stopped(&self) -> RunError {
        RunError::Stopped(self.parts.wait.give_up())
    }

    /// Waits until the network has taken everything of a channel, or of the mesh, before the next operation may use another
    /// protocol.
    pub(super) fn flush(&mut self, channel: Option<u32>) -> Result<(), Stop> {
        let CpuParts { channels, mesh, wait, .. } = &mut self.parts;
        if !wait.drives().has_slots() {
            return Ok(());
        }
        let channel = channel.map_or(mesh, |channel| &mut channels[channel as usize]);
        channel.send.iter().filter(|conn| conn.is_streamed).try_for_each(|conn| wait.flush(conn))
    }
}

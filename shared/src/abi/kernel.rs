//! The interface between the host and GPU kernels: the arguments of a launch, and the page through which the host
//! aborts a kernel and a kernel reports why it stopped. Addresses are those of the GPU that runs the kernel.

use super::stand::{KERNEL_STANDS_MAX, KernelStand};
use super::{ConnEnd, Rank};
use crate::algo::chunk::ChannelCut;
use crate::algo::symmetric;
use crate::fifo::{ConsumerCursor, ProducerCursor};
use crate::reduce::{CombineKind, OpArg};
use crate::sync::{Line128, Sys, Word};

/// A collective, the same for all channels.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KernelColl {
    /// The caller's input.
    pub src: *const u8,
    /// The caller's output.
    pub dst: *mut u8,
    /// Number of elements, and their division among channels.
    pub cut: ChannelCut,
    /// Elements of a block in one hop.
    pub chunk_elems: u64,
    /// Elements in one slot.
    pub slice_elems: u64,
    /// Operands of the operator's pre- and post-operation.
    pub arg: OpArg,
    /// [`crate::reduce::CombineKind`] as a number.
    pub kind: u32,
    /// [`KERNEL_PRE`], [`KERNEL_POST`], [`KERNEL_DIRECT`].
    pub flags: u32,
    /// [`super::Func`] as a number.
    pub func: u32,
    /// The root of a rooted operation.
    pub root: Rank,
    /// Digest of the call.
    pub tag: u32,
    /// Ranks of each host, where all have equally many that follow each other; otherwise 0.
    pub host_ranks: u32,
}

impl KernelColl {
    /// How elements are combined.
    pub fn combines(&self) -> CombineKind {
        let known = CombineKind::ALL.into_iter().find(|kind| *kind as u32 == self.kind);
        known.expect("a kernel's arguments come from an operator")
    }
}

/// Inputs are pre-multiplied.
pub const KERNEL_PRE: u32 = 1;
/// Results are divided.
pub const KERNEL_POST: u32 = 2;
/// Every connection of the launch has kernels at both ends: no proxy moves its slots.
pub const KERNEL_DIRECT: u32 = 4;

/// One send or receive of a launch.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KernelMessage {
    /// The user's buffer; only read when sending.
    pub buffer: *mut u8,
    /// Its length.
    pub len_bytes: u64,
    /// Of a message that is received: where its sender's GPU reaches the buffer, at a multiple of 16, or 0.
    pub reached: u64,
    /// Index of the connection in its channel's list.
    pub conn: u32,
    /// [`MESSAGE_SENDS`] or 0 to receive, [`MESSAGE_ASKS`], [`MESSAGE_TILES`].
    pub flags: u32,
    /// Digest of the call.
    pub tag: u32,
    /// Messages with the same `lane` use the same connections: the same blocks run them, in order.
    pub lane: u32,
}

impl KernelMessage {
    /// Whether it is sent.
    pub const fn is_send(&self) -> bool {
        self.flags & MESSAGE_SENDS != 0
    }
}

/// The message is sent.
pub const MESSAGE_SENDS: u32 = 1;
/// Its receiver is asked where the message goes: see [`super::Answer`]. The buffer begins at a multiple of 16 bytes.
pub const MESSAGE_ASKS: u32 = 2;
/// Its slots are moved by bulk copies too, where the kernel can.
pub const MESSAGE_TILES: u32 = 4;

/// Kernels split messages among channels at multiples of this.
pub const KERNEL_MESSAGE_GRAIN_BYTES: usize = 4096;

/// Among so many blocks at most is a message of so many bytes divided that goes straight into the receiver's buffer; those of further channels end
/// early. Twelve carry 358 GB/s and sixteen 365 (docs/measurements/2026-11-28-direct-messages.md), of which the shorter ones see little.
pub const fn direct_blocks_max(len_bytes: u64) -> u32 {
    if len_bytes < DIRECT_LONG_BYTES { DIRECT_BLOCKS } else { DIRECT_BLOCKS_LONG }
}

/// See [`direct_blocks_max`].
pub(super) const DIRECT_LONG_BYTES: u64 = 512 << 20;
pub(super) const DIRECT_BLOCKS: u32 = 12;
pub(super) const DIRECT_BLOCKS_LONG: u32 = 16;

/// A channel's position in its tree. Its connections are those of its children, in reduction order, then its
/// parent's. A chain is a tree of one child at most, whose head has the network that reduces in its parent's place.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KernelTree {
    /// Number of children.
    pub children: u32,
    /// 1 if there is a parent.
    pub has_parent: u32,
}

/// The arguments of every launch. The lists stay in device memory for the communicator's life; only the cursors
/// change. Channel `c`'s connections are `c * nconns ..` of each list, so that a kernel reaches them with one access.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KernelLaunch {
    /// The producers' ends of connections.
    pub send: *const ConnEnd,
    /// The consumers' ends of connections.
    pub recv: *const ConnEnd,
    /// The cursor of each of `send`.
    pub send_cursors: *mut ProducerCursor,
    /// The cursor of each of `recv`.
    pub recv_cursors: *mut ConsumerCursor,
    /// The rings, `nranks + 1` words for each channel: our position, then the ranks in ring order. For kernels of
    /// chains `nranks` words for each: where each rank is, as an `Owner` of `algo::collnet`.
    pub rings: *const u32,
    /// The trees, one for each channel.
    pub trees: *const KernelTree,
    /// The page for aborts and stop causes.
    pub monitor: *const KernelMonitor,
    /// The number of the launch's latest call, among those that the host has recorded: its blocks say it while they wait.
    pub number: u64,
    /// Connections of a channel, in each list.
    pub nconns: u32,
    /// Channels in use: block `b` uses channel `b` (of collectives) or `b % nchannels` (of messages).
    pub nchannels: u32,
    /// This rank.
    pub rank: Rank,
    /// Ranks in the communicator.
    pub nranks: u32,
    /// Messages, if this is a launch of sends and receives.
    pub nmessages: u32,
    /// Bytes of a tile, of which the launch's dynamic shared memory holds some after [`KERNEL_TILES_AT`] bytes; 0 for a launch without
    /// tiles, which moves slots by ordinary copies.
    pub tile_bytes: u32,
}

/// Where a launch's tiles begin in its dynamic shared memory, behind the barriers that say which of them are full.
pub const KERNEL_TILES_AT: u32 = 1024;

/// The most tiles of a launch.
pub const KERNEL_TILES_MAX: u32 = 31;

/// The arguments of a collective kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CollArgs {
    /// For every kernel.
    pub launch: KernelLaunch,
    /// What to compute.
    pub coll: KernelColl,
}

/// A rank's buffers as the GPU that runs the kernel reaches them.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RankBuffers {
    /// Its input.
    pub src: *const u8,
    /// Its output.
    pub dst: *mut u8,
}

impl RankBuffers {
    /// Of no rank.
    pub const NONE: RankBuffers = RankBuffers { src: core::ptr::null(), dst: core::ptr::null_mut() };
}

/// The arguments of a symmetric kernel: its launch's connections are those of the mesh by LL.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SymmetricArgs {
    /// For every kernel.
    pub launch: KernelLaunch,
    /// What to compute.
    pub coll: KernelColl,
    /// By rank; ours is what `coll` says.
    pub ranks: [RankBuffers; symmetric::RANKS_MAX],
    /// Blocks behind those of the launch's channels that copy what a rank sends to itself; 0: the channels' blocks do.
    pub own_blocks: u32,
}

/// Most messages of one launch: the arguments of a kernel are limited to 4 KiB.
pub const KERNEL_MESSAGES_MAX: usize = 96;

/// The arguments of a kernel of sends and receives.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MessageArgs {
    /// For every kernel.
    pub launch: KernelLaunch,
    /// The first `launch.nmessages` are valid.
    pub messages: [KernelMessage; KERNEL_MESSAGES_MAX],
}

/// Pages of pinned host memory, one set per communicator.
#[repr(C)]
pub struct KernelMonitor {
    /// Not 0 when kernels must stop. Writer: the host.
    pub abort: Line128<Word<u32, Sys>>,
    /// Timeout of a wait; 0 waits for ever. Written by the host, once. It is here, not with a launch, because only who has waited for long
    /// needs it.
    pub timeout_ns: Word<u64, Sys>,
    /// Written by threads that stop: why.
    pub stopped: Line128<KernelStop>,
    /// Written by blocks that wait: where they stand.
    pub stands: [KernelStand; KERNEL_STANDS_MAX],
}

impl Default for KernelMonitor {
    fn default() -> KernelMonitor {
        let stands = core::array::from_fn(|_| KernelStand::default());
        KernelMonitor {
            abort: Line128::default(),
            timeout_ns: Word::new(0),
            stopped: Line128::default(),
            stands,
        }
    }
}

/// Why a kernel stopped: cause, peer and the time waited in one word, so that no cause stands beside another's peer. Several threads
/// may write it; whichever value is read is one thread's, and true.
///
/// ```text
/// bits 63 .. 32           31 .. 4      3 .. 0
/// microseconds waited     peer         StopCause, 0 while there is none
/// ```
#[repr(C)]
#[derive(Default)]
pub struct KernelStop {
    /// The reason.
    pub reason: Word<u64, Sys>,
}

/// A reason as the host reads it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stopped {
    /// What happened.
    pub cause: StopCause,
    /// Whom the thread waited for.
    pub peer: Rank,
    /// For how long, if it waited too long; more than an hour and eleven minutes are that.
    pub waited_us: u32,
}

/// Why a kernel stopped early.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StopCause {
    /// The host aborted it.
    Aborted = 1,
    /// The peer did not free a slot in time.
    NoCredit = 2,
    /// The peer did not fill a slot in time.
    NoData = 3,
    /// The peer runs another operation.
    Mismatch = 4,
}

const CAUSE_BITS: u32 = 4;
const PEER_BITS: u32 = 28;

impl KernelStop {
    /// Writes a reason, unless there is one: what follows from a stop is no reason.
    pub fn write(&self, cause: StopCause, peer: Rank, waited_ns: u64) {
        if self.reason.load_relaxed() != 0 {
            return;
        }
        let waited_us = (waited_ns / 1000).min(u64::from(u32::MAX));
        let peer = u64::from(peer.0) & ((1 << PEER_BITS) - 1);
        // Relaxed: the word is all that is said.
        self.reason.store_relaxed(waited_us << (CAUSE_BITS + PEER_BITS) | peer << CAUSE_BITS | cause as u64);
    }

    /// The reason, if there is one.
    pub fn read(&self) -> Option<Stopped> {
        let reason = self.reason.load_relaxed();
        let cause = match reason & ((1 << CAUSE_BITS) - 1) {
            1 => StopCause::Aborted,
            2 => StopCause::NoCredit,
            3 => StopCause::NoData,
            4 => StopCause::Mismatch,
            _ => return None,
        };
        let peer = Rank((reason >> CAUSE_BITS) as u32 & ((1 << PEER_BITS) - 1));
        Some(Stopped { cause, peer, waited_us: (reason >> (CAUSE_BITS + PEER_BITS)) as u32 })
    }
}

#[cfg(not(loom))]
const _: () = {
    use core::mem::{align_of, offset_of, size_of};
    assert!(size_of::<KernelColl>() == 104 && align_of::<KernelColl>() == 8);
    assert!(offset_of!(KernelColl, arg) == 64 && offset_of!(KernelColl, kind) == 80);
    assert!(size_of::<KernelMessage>() == 40 && align_of::<KernelMessage>() == 8);
    assert!(size_of::<KernelTree>() == 8 && offset_of!(KernelTree, has_parent) == 4);
    assert!(size_of::<KernelLaunch>() == 88 && align_of::<KernelLaunch>() == 8);
    assert!(offset_of!(KernelLaunch, rings) == 32 && offset_of!(KernelLaunch, nconns) == 64);
    assert!(size_of::<CollArgs>() == 192 && offset_of!(CollArgs, coll) == 88);
    assert!(size_of::<SymmetricArgs>() == 328 && offset_of!(SymmetricArgs, ranks) == 192);
    assert!(offset_of!(SymmetricArgs, own_blocks) == 320);
    assert!(size_of::<MessageArgs>() <= 4096 && offset_of!(MessageArgs, messages) == 88);
    assert!(
        size_of::<KernelMonitor>() == 384 + 32 * KERNEL_STANDS_MAX
            && offset_of!(KernelMonitor, stopped) == 256
    );
    assert!(size_of::<KernelStop>() == 8);
};

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::abi::Rank;
    use proptest::prelude::*;

    proptest! {
        #[test]
        #[cfg_attr(miri, ignore = "proptest looks for its folder, which miri hides")]
        fn a_reason_is_read_as_it_was_written(cause in 0usize..4, peer in 0u32..1 << PEER_BITS, waited_ns: u64) {
            use StopCause::{Aborted, Mismatch, NoCredit, NoData};
            let (stop, cause) = (KernelStop::default(), [Aborted, NoCredit, NoData, Mismatch][cause]);
            prop_assert_eq!(stop.read(), None);
            stop.write(cause, Rank(peer), waited_ns);
            let waited_us = u32::try_from(waited_ns / 1000).unwrap_or(u32::MAX);
            prop_assert_eq!(stop.read(), Some(Stopped { cause, peer: Rank(peer), waited_us }));
            stop.write(Aborted, Rank(peer ^ 1), 0);
            prop_assert_eq!(stop.read().map(|stopped| stopped.peer), Some(Rank(peer)));
        }
    }
}

//! Measured numbers, one table for each kind of processors: the only thing in which their plans differ that the registry does not say.

use super::copy_engines::WindowRow;
use super::tuning::Architecture;
use core::ops::{Range, RangeInclusive};
use oxccl_shared::abi::{ConnLayout, Func, Protocol};
use oxccl_shared::algo::kernels::{COMMON_THREADS_MAX, THREADS_MAX};
use oxccl_shared::proto::simple::SPREAD_MIN_BYTES;

/// Thresholds and sizes for ranks on processors of a kind. Bytes of a call are its `count` times the element size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tuning {
    /// Where the numbers for algorithms and protocols were measured. `None`: the model decides, and the numbers are sizes only.
    pub source: Option<&'static str>,
    /// The protocol of hops to all peers at once, where LL128 is not better.
    pub hops_protocol: Protocol,
    /// Up to here, in bytes of a message to a peer, functions are one-shot.
    pub one_shot_max_bytes: u64,
    /// The same for reduce, if that is less.
    pub reduce_one_shot_max_bytes: u64,
    /// The same for reduce-scatter.
    pub reduce_scatter_one_shot_max_bytes: u64,
    /// The same for all-reduce, one-shot or two-shot, in bytes of the call.
    pub all_reduce_hops_max_bytes: HopLimit,
    /// The same for all-to-all, in bytes of a block; above it is made of messages.
    pub all_to_all_one_shot_max_bytes: u64,
    /// Whether all-gathers of ranks that read each other's memory are made of messages.
    pub gathers_by_reading: bool,
    /// Up to here, in bytes of the call, all-reduces and barriers go by recursive doubling. 0: where that is slow, or was not measured.
    pub doubling_max_bytes: u64,
    /// From here on all-reduce in hops is two-shot, and sends a rank's share of the buffer to each peer in both hops.
    pub two_shot_min_bytes: u64,
    /// Beyond the first and up to the second, in bytes of a message to a peer, functions are one-shot by LL128, where that is allowed and
    /// possible. Up to 0: never by themselves.
    pub one_shot_ll128_bytes: (u64, u64),
    /// The second number, of two ranks.
    pub pair_one_shot_ll128_max_bytes: u64,
    /// The same for all-reduce, two-shot: beyond so many bytes of the call, and up to so many of each rank's share of it.
    pub two_shot_ll128_bytes: (u64, u64),
    /// Between two ranks LL128 begins only beyond so many bytes of these functions, counted likewise.
    pub pair_ll_max_bytes: &'static [(Func, u64)],
    /// Protocols of rings and trees by bytes of the call's longer buffer, each up to its own; Simple beyond the last.
    pub ring_protocols: &'static [(u64, Protocol)],
    /// The same for broadcasts along rings. Their hops follow each other through all ranks at once: whole slots start to pay earlier.
    pub broadcast_protocols: &'static [(u64, Protocol)],
    /// Slices of a ring's hop by Simple: one is in flight while the next is being filled.
    pub ring_slices: u32,
    /// Whether calls that move one block of each rank, along rings or to all peers, are cut into slices of equal length. A slice of a few
    /// elements takes as long to exchange as any, and a buffer that changes hands is in our caches only as far as its last slice reached.
    pub even_slices: bool,
    /// From here on outputs bypass the caches, unless they are inputs too. About the size of a last-level cache.
    pub stream_min_bytes: Option<u64>,
    /// How messages are divided.
    pub messages: &'static [MessageClass],
    /// Channels of the long ones of an all-to-all to all peers together: every pair has a message at the same time, so fewer for each fill the links.
    pub exchange_channels: u32,
    /// Those that are too short for so few, with the channels of each pair, if that is more.
    pub middle_exchanges: Option<MessageClass>,
    /// Where copy engines are faster than kernels, for buffers in symmetric windows.
    pub copy_engines: &'static [WindowRow],
    /// Where symmetric kernels are faster, for the same.
    pub symmetric: &'static [WindowRow],
    /// Of kernels that run as many blocks at once, and of the memory for them; none where one thread works on one channel after the
    /// other.
    pub blocks: Option<Blocks>,
}

/// Up to how many bytes hops to all peers at once are best.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HopLimit {
    /// For any number of ranks.
    Any(u64),
    /// Their traffic grows with the ranks: so many bytes divided by the number of peers, but for two ranks, whose traffic is a ring's.
    Divided {
        /// Of two ranks.
        pair: u64,
        /// Of more, before the division.
        more: u64,
    },
}

/// Blocks and their connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Blocks {
    /// Bytes of a message that one block of a one-shot or two-shot LL kernel takes in one trip: a word to a thread.
    pub hops_trip_bytes: u64,
    /// Bytes of a message to a peer for each channel of a one-shot or two-shot LL128 kernel.
    pub hops_ll128_channel_bytes: u64,
    /// Bytes of a hop that one block of a ring LL kernel takes in one trip.
    pub ring_trip_bytes: u64,
    /// The most channels of an LL kernel.
    pub ll_channels_max: u32,
    /// Channels of a Simple ring, by bytes of the longer buffer. The first row holds for all sizes below the second.
    pub simple_channels: &'static [(u64, u32)],
    /// The same among more than two ranks, where it differs.
    pub crowd_channels: Option<&'static [(u64, u32)]>,
    /// The same of a broadcast between two ranks, from so many bytes on: its root only sends, and more blocks than fill the link get in each
    /// other's way.
    pub pair_broadcast: Option<(u64, u32)>,
    /// The same among more than two ranks.
    pub crowd_broadcast: Option<(u64, u32)>,
    /// Threads of a block that works by lines.
    pub ll_threads: u32,
    /// Threads of a block that works by Simple; the last warp posts.
    pub simple_threads: u32,
    /// Bytes of a tile, by which blocks that work by Simple move slots with bulk copies; 0 for ordinary copies.
    pub tile_bytes: u32,
    /// Channels of rings that are connected.
    pub ring_channels: u32,
    /// Channels of connections between all pairs.
    pub mesh_channels: u32,
    /// Channels of trees, if the user requests trees.
    pub tree_channels: u32,
    /// Bytes of an LL slot of a ring.
    pub ring_ll_slot_bytes: u32,
    /// Bytes of an LL128 slot of a ring.
    pub ring_ll128_slot_bytes: u32,
    /// Bytes of an LL slot between pairs.
    pub mesh_ll_slot_bytes: u32,
    /// Bytes of an LL128 slot between pairs.
    pub mesh_ll128_slot_bytes: u32,
    /// Bytes of a Simple slot of a ring, unless the user says otherwise.
    pub ring_slot_bytes: u32,
    /// Bytes of a Simple slot between pairs.
    pub mesh_slot_bytes: u32,
    /// The most bytes of one where NVLink does not connect all GPUs.
    pub short_mesh_slot_bytes: u32,
    /// Bytes of a Simple slot of a tree, unless the user says otherwise.
    pub tree_slot_bytes: u32,
}

/// Messages up to a length share a launch, a protocol and a number of channels: both ends of a message know its
/// length, and nothing else of each other's launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MessageClass {
    /// The longest message of the class.
    pub max_bytes: u64,
    /// Its protocol, unless the user says otherwise.
    pub protocol: Protocol,
    /// Channels, as far as the device has blocks for all lanes.
    pub channels: u32,
}

/// `NCCL_MIN_NCHANNELS`, `NCCL_MAX_NCHANNELS` and `NCCL_NTHREADS`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct ChannelLimits {
    /// Threads of a block: whole warps.
    pub threads: Option<u32>,
    /// At least so many, if a collective is large enough.
    pub min: Option<u32>,
    /// Never more.
    pub max: Option<u32>,
}

impl ChannelLimits {
    /// What `threads` may be: a worker and the warp that posts, and what kernels are compiled for. A kernel that is compiled for fewer
    /// takes as many as it can.
    pub const THREADS: RangeInclusive<u32> = 64..=THREADS_MAX;

    /// A number of channels that respects the limits.
    pub fn apply(&self, channels: u32) -> u32 {
        channels.max(self.min.unwrap_or(1)).min(self.max.unwrap_or(u32::MAX)).max(1)
    }
}

/// The fewest channels connected where ranks use a network: of rings, of trees and of pairs. Each is a connection of its own
/// with slots in pinned memory, and one CPU thread drives them all: few keep it busy, as NCCL's two for each device
/// of its network do. Devices that need more get more (`nics`). [`net_channel_bytes`] states the bytes of each. The user raises those of
/// rings by `NCCL_MIN_NCHANNELS`.
pub(super) const NET_RING_CHANNELS: u32 = 4;
/// See [`NET_RING_CHANNELS`].
pub(super) const NET_TREE_CHANNELS: u32 = 4;
/// See [`NET_RING_CHANNELS`]. A rank has these with every other rank.
pub(super) const NET_MESH_CHANNELS: u32 = 2;

/// Most channels of chains of GPUs to a network that reduces, and of stars: each has a communicator of the network, and 5 MiB of pinned memory
/// at each head.
pub(super) const CHAIN_CHANNELS_MAX: u32 = 4;
/// Most of both.
pub(crate) const HEADED_CHANNELS_MAX: u32 = 2 * CHAIN_CHANNELS_MAX;

/// Most ranks on CPUs that go to all peers at once where some of them meet over a network: beyond, a rank would have more connections than
/// 32, and as many more as there are ranks.
pub(super) const FAR_MESH_MAX: u32 = 16;

/// Most channels of pairs over a network: a proxy has room for a launch's messages on so many each.
pub(crate) const FAR_CHANNELS_MAX: u32 = 8;

/// Most ranks on CPUs over streams whose algorithms were measured.
pub(super) const FAR_RANKS_MEASURED_MAX: u32 = 8;

/// Proxy threads from which on channels are added early: two of them send, and two receive.
pub(super) const THREADS_FOR_CHANNELS: u32 = 4;

/// Bytes of a collective for each channel over a network. If one thread drives all channels, few are best: over
/// sockets of the loopback interface a broadcast of 1 MiB took 338 us on one, 400 on two and 507 on four. With four
/// threads it took 211, 161 and 143 us, and 128 KiB 29, 26 and 25.
pub(super) const fn net_channel_bytes(proxy_threads: u32) -> u64 {
    if proxy_threads < THREADS_FOR_CHANNELS { 1 << 20 } else { 64 << 10 }
}

/// LL over a network is considered up to here, in bytes of a hop. Between two GPUs over sockets of the loopback
/// interface it took 0.92 to 0.95 of Simple's time with hops of 2 and 4 KiB (1.06 in broadcasts), and up to 1.10 with
/// hops of 8 KiB.
pub(super) const NET_LL_MAX_BYTES: u64 = 4 << 10;

/// An all-reduce of ranks on CPUs takes two-shot from here on where it must reduce by rank and may not take a ring.
pub(super) const ORDERED_TWO_SHOT_MIN_BYTES: u64 = 32 << 10;

/// Two ranks on CPUs that read each other's memory do so in all-reduces of so many bytes: out of place 64 KiB take 5.8 us instead of 7.7, and 32
/// KiB 3.6 instead of 4.1, but in place the question costs 0.25 us. 4 MiB take as long as through slots, 16 MiB 1.15 times
/// (docs/measurements/2026-11-25-cpu-peers.md).
pub(super) const READ_ALL_REDUCE_BYTES: Range<u64> = 64 << 10..8 << 20;

/// The same in a reduce-scatter, in bytes of a block: 16 KiB take 2.3 us instead of 2.8. It needs no question.
pub(super) const READ_REDUCE_SCATTER_BYTES: Range<u64> = 16 << 10..u64::MAX;

/// Messages between ranks that only a network connects. LL doubles the bytes that a CPU copies and a socket carries: NCCL's bound. At 64
/// KiB over loopback it took 119 us where NCCL's Simple took 68. Long ones take all channels that the devices are worth.
pub(super) const NET_MESSAGES: &[MessageClass] = &[
    MessageClass { max_bytes: 4 << 10, protocol: Protocol::LL, channels: 1 },
    MessageClass { max_bytes: 16 << 10, protocol: Protocol::LL, channels: 2 },
    MessageClass { max_bytes: 1 << 20, protocol: Protocol::Simple, channels: 2 },
    MessageClass { max_bytes: u64::MAX, protocol: Protocol::Simple, channels: u32::MAX },
];

/// Messages within hosts where a network connects some ranks, so that slots between pairs are short: with 16 channels two GPUs would carry
/// 302 GB/s of 256 MiB, with 24 they carry 346.
pub(super) const NEAR_MESSAGES: &[MessageClass] = &[
    MessageClass { max_bytes: 4 << 10, protocol: Protocol::LL, channels: 1 },
    MessageClass { max_bytes: 128 << 10, protocol: Protocol::LL, channels: 16 },
    MessageClass { max_bytes: 8 << 20, protocol: Protocol::Simple, channels: 16 },
    MessageClass { max_bytes: u64::MAX, protocol: Protocol::Simple, channels: 24 },
];

impl Tuning {
    /// For ranks on CPUs. Their caches are coherent: a counter and the data it publishes arrive together as fast as a line that
    /// carries its own flag, so the line protocols, made for links without that, win at no size. One-shot all-reduce of two ranks has
    /// a ring's traffic, with one wait less and twice the reduction.
    pub const CPU: Tuning = Tuning {
        source: Some("docs/measurements/2026-11-21-open-mpi.md, shared memory"),
        hops_protocol: Protocol::Simple,
        one_shot_max_bytes: 0,
        reduce_one_shot_max_bytes: u64::MAX,
        reduce_scatter_one_shot_max_bytes: u64::MAX,
        all_reduce_hops_max_bytes: HopLimit::Divided { pair: u64::MAX, more: 128 << 10 },
        all_to_all_one_shot_max_bytes: 0,
        gathers_by_reading: true,
        doubling_max_bytes: 0,
        two_shot_min_bytes: u64::MAX,
        one_shot_ll128_bytes: (0, 0),
        pair_one_shot_ll128_max_bytes: 0,
        two_shot_ll128_bytes: (0, 0),
        pair_ll_max_bytes: &[],
        ring_protocols: &[],
        broadcast_protocols: &[],
        ring_slices: 2,
        even_slices: true,
        stream_min_bytes: Some(32 << 20),
        messages: &[MessageClass { max_bytes: u64::MAX, protocol: Protocol::Simple, channels: 1 }],
        exchange_channels: 1,
        middle_exchanges: None,
        copy_engines: &[],
        symmetric: &[],
        blocks: None,
    };

    /// For ranks on CPUs that are connected by streams only. There the operating system's work fills the time that a ring's
    /// waits leave, so that what the ranks do themselves counts: a ring reduces each element once.
    pub const CPU_STREAMS: Tuning = Tuning {
        source: Some("docs/measurements/2026-11-21-open-mpi.md, TCP"),
        all_reduce_hops_max_bytes: HopLimit::Divided { pair: 256 << 10, more: 128 << 10 },
        ..Tuning::CPU
    };

    /// Hopper, over NVSwitch. Measured on 4 H200 with the kernels alone, in CUDA graphs: an LL block of 384 threads takes 3 KiB in
    /// one trip, and more blocks beat more trips up to 32; Simple rings fill NVLink from 64 channels of 256 KiB slots at 64 MiB,
    /// and lose their start-up time below. In between, LL128 to all peers at once takes 48 lines to each peer in one pass of a block, some 3 us, and
    /// its slots hold both hops of an all-reduce of 4 MiB. Nothing was measured for trees: few channels, so that they take little memory.
    pub const SM_90: Tuning = Tuning {
        source: Some("2 and 4 H200 on NVSwitch, 2026-11-21 and 2026-11-27"),
        hops_protocol: Protocol::LL,
        one_shot_max_bytes: 128 << 10,
        reduce_one_shot_max_bytes: u64::MAX,
        reduce_scatter_one_shot_max_bytes: u64::MAX,
        all_reduce_hops_max_bytes: HopLimit::Any(512 << 10),
        all_to_all_one_shot_max_bytes: 64 << 10,
        gathers_by_reading: true,
        doubling_max_bytes: 0,
        two_shot_min_bytes: 192 << 10,
        one_shot_ll128_bytes: (64 << 10, 1 << 20),
        // All-to-alls of 3 and 4 MiB 13.2 and 16.9 us instead of 17.4 and 20.4, longer ones are slower (docs/measurements/2026-11-29-odd-blocks.md).
        pair_one_shot_ll128_max_bytes: 2 << 20,
        two_shot_ll128_bytes: (96 << 10, 2 << 20),
        // docs/measurements/2026-11-25-short-messages.md: all-reduce of 128 KiB 4.27 us instead of 6.04, all-gather of 256 KiB 4.14 instead
        // of 5.60.
        pair_ll_max_bytes: &[(Func::AllReduce, (192 << 10) - 1), (Func::AllGather, 128 << 10)],
        ring_protocols: &[(512 << 10, Protocol::LL)],
        broadcast_protocols: &[(192 << 10, Protocol::LL)],
        ring_slices: 2,
        even_slices: true,
        stream_min_bytes: None,
        messages: &[
            MessageClass { max_bytes: 4 << 10, protocol: Protocol::LL, channels: 1 },
            MessageClass { max_bytes: 128 << 10, protocol: Protocol::LL, channels: 16 },
            // Each way. 24 carry 1 % more of 1 GiB, and as much as 16 did with slots of 64 KiB (docs/measurements/2026-11-29-odd-blocks.md).
            MessageClass { max_bytes: u64::MAX, protocol: Protocol::Simple, channels: 16 },
        ],
        // Two GPUs fill the link with 16. Three and four are within 8 % of that with as many for all peers together, and take 40 and 35 blocks
        // instead of 72 and 102 (docs/measurements/2026-11-29-four-gpus.md).
        exchange_channels: 16,
        // All-to-all of 5 and 8 MiB, four GPUs: 25.8 and 35.5 us with 12, 28.2 and 36.1 with 5.
        middle_exchanges: Some(MessageClass { max_bytes: 2 << 20, protocol: Protocol::Simple, channels: 12 }),
        // docs/measurements/2026-11-27-copies.md, for two ranks; docs/measurements/2026-11-27-h200x4.md for four, where a broadcast's
        // chain is slower than a ring's at every size.
        copy_engines: &[
            WindowRow::from(Func::AllGather, 2, 64 << 20),
            WindowRow::from(Func::AllGather, 8, 256 << 20),
            WindowRow::from(Func::AllToAll, 2, 64 << 20),
            WindowRow::from(Func::AllToAll, 8, 256 << 20),
            WindowRow::from(Func::Broadcast, 2, 64 << 20),
        ],
        // docs/measurements/2026-11-28-four-ranks.md. Long reductions of three ranks and four are faster along rings, with more blocks. Not
        // measured: three ranks but for all-reduces, and more than four.
        symmetric: &[
            WindowRow::from(Func::AllReduce, 2, 4 << 20),
            WindowRow::from(Func::AllReduce, 3, 2 << 20).below(32 << 20),
            WindowRow::from(Func::AllReduce, 4, 4 << 20).below(32 << 20),
            WindowRow::from(Func::ReduceScatter, 2, 3 << 20),
            WindowRow::from(Func::ReduceScatter, 3, 9 << 18).below(512 << 20),
            WindowRow::from(Func::ReduceScatter, 4, 4 << 20).below(512 << 20),
            WindowRow::from(Func::AllGather, 2, 3 << 20),
            WindowRow::from(Func::AllGather, 3, 3 << 19),
            WindowRow::from(Func::AllGather, 4, 4 << 20),
            WindowRow::from(Func::AllGather, 8, 8 << 20),
            WindowRow::from(Func::AllToAll, 2, 3 << 20),
            WindowRow::from(Func::AllToAll, 3, 5 << 18),
            WindowRow::from(Func::AllToAll, 4, 4 << 20),
        ],
        blocks: Some(Blocks::SM_90),
    };

    /// Everything older. Not measured: half of Hopper's links, so half of its channels.
    pub const SM_70: Tuning = Tuning {
        source: None,
        one_shot_max_bytes: 64 << 10,
        all_reduce_hops_max_bytes: HopLimit::Any(256 << 10),
        one_shot_ll128_bytes: (0, 0),
        pair_one_shot_ll128_max_bytes: 0,
        two_shot_ll128_bytes: (0, 0),
        pair_ll_max_bytes: &[],
        copy_engines: &[],
        symmetric: &[],
        blocks: Some(Blocks::SM_70),
        ..Tuning::SM_90
    };

    /// What came after Hopper. Not measured: its sizes, and the model's choice.
    pub const SM_100: Tuning = Tuning {
        source: None,
        one_shot_ll128_bytes: (0, 0),
        pair_one_shot_ll128_max_bytes: 0,
        two_shot_ll128_bytes: (0, 0),
        pair_ll_max_bytes: &[],
        copy_engines: &[],
        symmetric: &[],
        ..Tuning::SM_90
    };

    /// How messages of an all-to-all of so many ranks are divided: the short ones as any.
    pub fn exchanges(&self, nranks: u32) -> impl Iterator<Item = MessageClass> {
        let short = self.messages.iter().copied().filter(|class| class.protocol.is_flagged());
        let peers = nranks.saturating_sub(1).max(1);
        let channels = ((self.exchange_channels + peers / 2) / peers).max(1);
        let long = MessageClass { max_bytes: u64::MAX, protocol: Protocol::Simple, channels };
        let middle = self.middle_exchanges.filter(|middle| middle.channels > channels);
        short.chain(middle).chain([long])
    }

    /// The table for processors of a kind; of several the oldest.
    pub fn of(architecture: Architecture) -> Tuning {
        match architecture {
            Architecture::Cpu => Tuning::CPU,
            Architecture::CpuStreams => Tuning::CPU_STREAMS,
            Architecture::Volta | Architecture::Ampere => Tuning::SM_70,
            Architecture::Hopper => Tuning::SM_90,
            Architecture::Blackwell => Tuning::SM_100,
        }
    }

    /// The same for GPUs that do not all reach each other by NVLink: through memory of the host, or over PCI. Measured on two H100 with
    /// `NCCL_P2P_DISABLE=1` (docs/measurements/2026-11-25-24-blocks.md): words that carry flags double what crosses PCI, and 16 blocks fill it.
    pub fn without_nvlink(self, nranks: u32) -> Tuning {
        let blocks = self.blocks.map(|blocks| Blocks {
            simple_channels: &[(0, 16)],
            crowd_channels: Some(&[(0, 16), (2 << 20, 8), (16 << 20, 4)]),
            pair_broadcast: None,
            // 64 MiB of four H200: 1.83 ms with 8, 1.88 with 4, 1.74 with 6 (docs/measurements/2026-11-29-four-gpus.md).
            crowd_broadcast: Some((1 << 20, 6)),
            ..blocks
        });
        Tuning {
            one_shot_ll128_bytes: (0, 0),
            pair_one_shot_ll128_max_bytes: 0,
            two_shot_ll128_bytes: (0, 0),
            pair_ll_max_bytes: &[],
            broadcast_protocols: &[(96 << 10, Protocol::LL)],
            messages: &[
                MessageClass { max_bytes: 4 << 10, protocol: Protocol::LL, channels: 1 },
                MessageClass { max_bytes: 32 << 10, protocol: Protocol::LL, channels: 16 },
                // Two H200, send/receive of 1 MiB: 54 us with 8, 60 with 16 (docs/measurements/2026-11-29-p2p-off.md).
                MessageClass { max_bytes: 1 << 20, protocol: Protocol::Simple, channels: 8 },
                MessageClass { max_bytes: u64::MAX, protocol: Protocol::Simple, channels: 16 },
            ],
            // All-to-all of four H200, 16 MiB: 447 us with 4, 534 with 8, 598 with 16.
            exchange_channels: if nranks == 2 { 8 } else { 4 * nranks.saturating_sub(1) },
            middle_exchanges: None,
            all_to_all_one_shot_max_bytes: if nranks == 2 { 128 << 10 } else { 32 << 10 },
            // 128 KiB of four H200: 37 us in two hops, 47 in one; of three 33 and 31 (docs/measurements/2026-11-29-four-gpus.md).
            two_shot_min_bytes: if nranks > 3 { 96 << 10 } else { self.two_shot_min_bytes },
            blocks,
            ..self
        }
    }

    /// The same for so many ranks on CPUs, more than their processors: one that waits hands its processor over, 0.7 us and what the caches
    /// lose. So the fewest waits that depend on each other win, where a ring has as many as there are ranks. Measured with 3, 4 and 8
    /// ranks on two processors.
    ///
    /// Without reading, ranks that exchange messages use buffers that change hands. A ring's connections have none. So sending to all peers at
    /// once is as fast for long messages too, and far apart it is faster. Where ranks read each other's memory, that was not measured.
    pub fn sharing_processors(self, nranks: u32, reads: bool) -> Tuning {
        // Longer messages are spread over their slots, and no longer in the caches that ranks share.
        let message_max_bytes = SPREAD_MIN_BYTES as u64 - 1;
        let by_messages = message_max_bytes * u64::from(nranks);
        let by_slots = Tuning {
            source: Some("docs/measurements/2026-11-29-cpu-zen4.md"),
            one_shot_max_bytes: u64::MAX,
            reduce_one_shot_max_bytes: message_max_bytes,
            all_reduce_hops_max_bytes: HopLimit::Any(by_messages.max(512 << 10)),
            // docs/measurements/2026-11-29-cpu-many-ranks.md
            two_shot_min_bytes: 12 << 10,
            ..self
        };
        match reads {
            false => by_slots,
            true => Tuning {
                source: Some("docs/measurements/2026-11-25-cpu-four-ranks.md"),
                one_shot_max_bytes: message_max_bytes,
                all_reduce_hops_max_bytes: HopLimit::Any(by_messages),
                ..by_slots
            },
        }
    }

    /// The same for so many ranks on CPUs of one host, three at least, with a processor each. A brief message to each peer takes 0.1 us, and a
    /// ring has as many waits that depend on each other as ranks. Pairs send long messages in buffers that change hands, a ring's neighbours
    /// cannot. Measured with 3 to 16.
    pub fn with_own_processors(self, nranks: u32) -> Tuning {
        Tuning {
            source: Some("docs/measurements/2026-11-29-cpu-many-ranks.md"),
            one_shot_max_bytes: u64::MAX,
            // A chain's ranks do not wait for each other's answers.
            reduce_one_shot_max_bytes: 0,
            reduce_scatter_one_shot_max_bytes: SPREAD_MIN_BYTES as u64,
            // Two-shot is ahead of a ring to 2 MiB among three, and level at 4 MiB. Among four to eight it is to 192 or 256 KiB, among 12 and 16, whose results
            // go out by outboxes, to 512 KiB and 1 MiB.
            all_reduce_hops_max_bytes: HopLimit::Any(match nranks {
                0..4 => u64::MAX,
                4..10 => 192 << 10,
                _ => 768 << 10,
            }),
            gathers_by_reading: false,
            // Others than powers of two have two exchanges more: 3 and 5 ranks are faster in one hop.
            doubling_max_bytes: match nranks {
                _ if nranks.is_power_of_two() => 16 << 10,
                0..6 => 0,
                _ => 2 << 10,
            },
            two_shot_min_bytes: (8 << 10) / u64::from(nranks),
            ..self
        }
    }

    /// The same with blocks of so many threads, if the user says so.
    pub fn with_threads(self, threads: Option<u32>) -> Tuning {
        let blocks = self.blocks.map(|blocks| threads.map_or(blocks, |threads| blocks.with_threads(threads)));
        Tuning { blocks, ..self }
    }
}

impl HopLimit {
    /// For so many ranks.
    pub fn of(self, nranks: u32) -> u64 {
        match self {
            HopLimit::Any(bytes) => bytes,
            HopLimit::Divided { pair, .. } if nranks <= 2 => pair,
            HopLimit::Divided { more, .. } => more / u64::from(nranks - 1),
        }
    }
}

impl Blocks {
    /// See [`Tuning::SM_90`].
    const SM_90: Blocks = Blocks {
        hops_trip_bytes: 3 << 10,
        hops_ll128_channel_bytes: 4 << 10,
        ring_trip_bytes: 3 << 10,
        ll_channels_max: 32,
        // 18 % of Hopper's multiprocessors, as NCCL takes. In clusters 64 carry 1 to 7 % more of 1 GiB (docs/measurements/2026-11-27-h200x4.md),
        // and `NCCL_MIN_NCHANNELS` has them.
        simple_channels: &[(0, 24)],
        crowd_channels: None,
        pair_broadcast: Some((8 << 20, 16)),
        crowd_broadcast: None,
        ll_threads: COMMON_THREADS_MAX,
        simple_threads: THREADS_MAX,
        // Ordinary copies are faster so far: docs/measurements/2026-11-23-bulk-copies.md.
        tile_bytes: 0,
        ring_channels: 64,
        mesh_channels: 32,
        tree_channels: 8,
        ring_ll_slot_bytes: 32 << 10,
        ring_ll128_slot_bytes: 32 << 10,
        // A message of 128 KiB on 16 channels, the longest for a channel, with its header.
        mesh_ll_slot_bytes: (16 << 10) + 128,
        mesh_ll128_slot_bytes: 72 << 10,
        // Eight turns of a ring's 480 workers with four packs each: no pass is left over.
        ring_slot_bytes: 240 << 10,
        // A slot costs 0.9 us whatever its length, and 26 KB of it another: long ones hide it (docs/measurements/2026-11-29-odd-blocks.md).
        mesh_slot_bytes: 120 << 10,
        short_mesh_slot_bytes: 64 << 10,
        tree_slot_bytes: 128 << 10,
    };

    /// See [`Tuning::SM_70`].
    const SM_70: Blocks = Blocks {
        ll_channels_max: 16,
        simple_channels: &[(0, 16), (32 << 20, 24)],
        pair_broadcast: None,
        ring_channels: 32,
        mesh_channels: 16,
        mesh_ll128_slot_bytes: 32 << 10,
        mesh_slot_bytes: 64 << 10,
        ..Blocks::SM_90
    };

    fn with_threads(self, threads: u32) -> Blocks {
        // A word to a thread.
        let ll_threads = threads.min(COMMON_THREADS_MAX);
        let trip = u64::from(ll_threads) * 8;
        Blocks { ll_threads, simple_threads: threads, hops_trip_bytes: trip, ring_trip_bytes: trip, ..self }
    }

    /// Threads of a block that works by a protocol.
    pub fn threads(&self, protocol: Protocol) -> u32 {
        if protocol.is_counted() { self.simple_threads } else { self.ll_threads }
    }

    /// Slots of a ring's connection; `buffer_bytes` are those of all eight Simple slots.
    pub fn ring_layout(&self, buffer_bytes: Option<usize>) -> ConnLayout {
        ConnLayout {
            ll_slot_bytes: self.ring_ll_slot_bytes,
            ll128_slot_bytes: self.ring_ll128_slot_bytes,
            simple_slot_bytes: slot_bytes(buffer_bytes).unwrap_or(self.ring_slot_bytes),
        }
    }

    /// Slots of a tree's connection: those of a ring, the Simple ones of their own length.
    pub fn tree_layout(&self, buffer_bytes: Option<usize>) -> ConnLayout {
        ConnLayout {
            simple_slot_bytes: slot_bytes(buffer_bytes).unwrap_or(self.tree_slot_bytes),
            ..self.ring_layout(None)
        }
    }

    /// Slots of a connection between a pair, never larger than a ring's.
    pub fn mesh_layout(&self, buffer_bytes: Option<usize>) -> ConnLayout {
        ConnLayout {
            ll_slot_bytes: self.mesh_ll_slot_bytes,
            ll128_slot_bytes: self.mesh_ll128_slot_bytes,
            simple_slot_bytes: slot_bytes(buffer_bytes)
                .map_or(self.mesh_slot_bytes, |bytes| bytes.min(self.mesh_slot_bytes)),
        }
    }

    /// The most channels by Simple, unless the user wants more.
    pub(super) fn simple_channels_max(&self) -> u32 {
        self.simple_channels.iter().map(|(_, channels)| *channels).max().unwrap_or(1)
    }

    /// Channels of a Simple ring that works on so many bytes.
    pub(super) fn simple_channels(&self, func: Func, nranks: u32, bytes: u64) -> u32 {
        let broadcast = if nranks == 2 { self.pair_broadcast } else { self.crowd_broadcast };
        let broadcast = broadcast.filter(|(from_bytes, _)| func == Func::Broadcast && bytes >= *from_bytes);
        if let Some((_, channels)) = broadcast {
            return channels;
        }
        let rows = self.crowd_channels.filter(|_| nranks > 2).unwrap_or(self.simple_channels);
        let line = rows.iter().rfind(|(from_bytes, _)| bytes >= *from_bytes);
        line.map_or(1, |(_, channels)| *channels)
    }
}

/// An eighth, on a line border.
fn slot_bytes(buffer_bytes: Option<usize>) -> Option<u32> {
    buffer_bytes.map(|bytes| ((bytes / 8) as u32).next_multiple_of(128))
}

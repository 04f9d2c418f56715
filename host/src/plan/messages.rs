//! Arranges a group's sends and receives into launches and lanes.
//!
//! Both ends of a message must use the same channels and protocol, and no launch may wait for one that its peer
//! launches later. Neither knows the other's further messages. So all of it follows from facts that both know: the
//! message's length, the number of earlier messages of its kind between the two, and the distance of their ranks. A
//! lane is one peer and one direction; blocks of its own run its messages in order.

use super::facts::Facts;
use super::numbers::{MessageClass, NET_MESSAGES};
use oxccl_shared::abi::{KERNEL_MESSAGES_MAX, Protocol, Rank, may_ask};
use oxccl_shared::algo::kernels::Kernel;

/// A message to or from another rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MessageWant {
    /// Whether it is sent.
    pub is_send: bool,
    /// The other rank.
    pub peer: Rank,
    /// Whether only a network connects it.
    pub is_far: bool,
    /// Whether it is of an all-to-all, as both ends know.
    pub is_exchange: bool,
    /// Its length.
    pub len_bytes: u64,
}

/// Where a network connects some ranks, messages within a host go by the kernel of those between hosts up to this length. A kernel of their
/// own takes 17 us before that one begins (docs/measurements/2026-11-27-copies.md), and they wait for the network anyway.
const JOINT_MAX_BYTES: u64 = 256 << 10;

/// A message's place in a launch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Placed {
    /// The launch, by order on every rank: class, how many such messages of the pair come before, how far apart.
    launch: (u32, u32, u32),
    /// Ranks from the sender to the receiver; pairs that are as far apart meet in the same lanes.
    round: u32,
    is_recv: bool,
    ordinal: u32,
    /// Index into the messages given.
    pub index: usize,
    /// Its lane.
    pub lane: u32,
}

/// One launch.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// The kernel.
    pub kernel: Kernel,
    /// Channels among which each message is divided.
    pub channels: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Lanes; the launch has `lanes * channels` blocks.
    pub lanes: u32,
    /// Its messages, those of a lane in order.
    pub placed: &'a [Placed],
}

/// Memory for [`arrange`] that is kept from one group to the next.
#[derive(Default, Debug)]
pub struct Arrangement {
    placed: Vec<Placed>,
    counts: Vec<u32>,
}

/// The kernel of a class, and the threads of its blocks.
fn kernel_of(class: MessageClass, facts: &Facts) -> (Kernel, u32) {
    let protocol = facts.message_protocol_for(class.protocol);
    let kernel = Kernel::Messages { protocol };
    (kernel, facts.threads_of(&kernel))
}

/// Every kernel that messages may need, and the threads of its blocks.
pub fn message_kernels(facts: &Facts) -> impl Iterator<Item = (Kernel, u32)> + '_ {
    (0..classes_count(facts)).map(|class| kernel_of(class_at(class, facts).0, facts))
}

/// The protocol of a message, and the channels among which it is divided: the same at both ends.
pub fn message_connections(want: &MessageWant, facts: &Facts) -> (Protocol, u32) {
    let class = class_of(want, facts);
    (facts.message_protocol_for(class_at(class, facts).0.protocol), channels_of(class, facts))
}

impl Facts {
    /// Whether the receiver of a message of so many bytes is asked where it goes, if it may have a symmetric window. Exchanges are not: bulk copies
    /// to all ranks at once were slower than slots (docs/measurements/2026-11-27-h200x4.md).
    pub fn asks(&self, len_bytes: u64, is_exchange: bool) -> bool {
        may_ask(len_bytes) && self.symmetric.unwrap_or(!is_exchange)
    }
}

/// Classes of messages between near ranks, of those of exchanges, and behind them those between far ones, where there are any.
fn classes_count(facts: &Facts) -> usize {
    first_far(facts) + if facts.crosses_network() { NET_MESSAGES.len() } else { 0 }
}

/// A class, and how many channels are connected for it.
fn class_at(class: usize, facts: &Facts) -> (MessageClass, u32) {
    let mut near = facts.tuning.messages.iter().copied().chain(facts.tuning.exchanges(facts.nranks));
    match near.nth(class) {
        Some(near) => (near, facts.mesh_channels),
        None => (NET_MESSAGES[class - first_far(facts)], facts.far_channels),
    }
}

fn first_far(facts: &Facts) -> usize {
    facts.tuning.messages.len() + facts.tuning.exchanges(facts.nranks).count()
}

fn class_of(want: &MessageWant, facts: &Facts) -> usize {
    let near = facts.tuning.messages;
    let goes_with_far = want.is_far || facts.crosses_network() && want.len_bytes <= JOINT_MAX_BYTES;
    let holds_it = |class: MessageClass| want.len_bytes <= class.max_bytes;
    let (first, found) = match (goes_with_far, want.is_exchange) {
        (true, _) => (first_far(facts), NET_MESSAGES.iter().copied().position(holds_it)),
        (false, true) => (near.len(), facts.tuning.exchanges(facts.nranks).position(holds_it)),
        (false, false) => (0, near.iter().copied().position(holds_it)),
    };
    first + found.expect("the last class holds messages of any length")
}

/// How many ranks apart the ends of a launch's messages may be.
fn rounds_of(facts: &Facts) -> u32 {
    (facts.nranks - 1).clamp(1, KERNEL_MESSAGES_MAX as u32 / 2)
}

/// The most channels that a message may have: all lanes of a launch run at once.
pub(super) fn lane_channels_max(facts: &Facts) -> u32 {
    (facts.blocks_max / (2 * rounds_of(facts))).max(1)
}

/// All lanes that a launch may have run at once, whichever of them this one has.
fn channels_of(class: usize, facts: &Facts) -> u32 {
    let (class, connected) = class_at(class, facts);
    class.channels.min(connected).min(lane_channels_max(facts)).max(1)
}

/// Divides messages of `rank` among launches, which are to be made in order.
pub fn arrange<'a>(
    wants: &[MessageWant],
    rank: Rank,
    facts: &'a Facts,
    scratch: &'a mut Arrangement,
) -> impl Iterator<Item = Batch<'a>> {
    let n = facts.nranks;
    let rounds = rounds_of(facts);
    let per_lane = KERNEL_MESSAGES_MAX as u32 / (2 * rounds);
    let Arrangement { placed, counts } = scratch;
    placed.clear();
    counts.clear();
    counts.resize(classes_count(facts) * n as usize * 2, 0);
    for (index, want) in wants.iter().enumerate() {
        let class = class_of(want, facts);
        let count = &mut counts[(class * n as usize + want.peer.index()) * 2 + usize::from(want.is_send)];
        let ordinal = *count;
        *count += 1;
        let (from, to) = if want.is_send { (rank, want.peer) } else { (want.peer, rank) };
        let round = (to.0 + n - from.0) % n;
        let launch = (class as u32, ordinal / per_lane, (round - 1) / rounds);
        placed.push(Placed { launch, round, is_recv: !want.is_send, ordinal, index, lane: 0 });
    }
    placed.sort_unstable();
    for batch in placed.chunk_by_mut(|a, b| a.launch == b.launch) {
        let mut lane = 0;
        for i in 1..batch.len() {
            let (before, this) = (batch[i - 1], &mut batch[i]);
            lane += u32::from((before.round, before.is_recv) != (this.round, this.is_recv));
            this.lane = lane;
        }
    }
    placed.chunk_by(|a, b| a.launch == b.launch).map(move |placed| {
        let class = placed[0].launch.0 as usize;
        let (kernel, threads) = kernel_of(class_at(class, facts).0, facts);
        Batch {
            kernel,
            threads,
            channels: channels_of(class, facts),
            lanes: placed[placed.len() - 1].lane + 1,
            placed,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Call;
    use crate::plan::ChannelLimits;
    use crate::plan::Forced;
    use crate::plan::tuning::{Machine, NetSpeed, Pairs};
    use crate::topology::PathKind;
    use oxccl_shared::abi::{ASK_MIN_BYTES, DataType, Func, RedOp};
    use proptest::prelude::*;

    /// From, to, length.
    type Message = (Rank, Rank, u64);

    /// All on one host, or half of them on each of two.
    fn facts(nranks: u32, groups: u32) -> Facts {
        let facts = Facts::of_gpus(nranks, (90, 132), Forced::default(), ChannelLimits::default(), None);
        let speed = NetSpeed { gbytes: 50.0, latency_us: 5.0 };
        if groups > 1 { facts.over_network(groups, speed, 1) } else { facts }
    }

    fn is_far(a: Rank, b: Rank, nranks: u32, groups: u32) -> bool {
        let each = nranks.div_ceil(groups);
        a.0 / each != b.0 / each
    }

    /// Some are: both ends of a message know which.
    fn is_exchange(len_bytes: u64) -> bool {
        len_bytes.is_multiple_of(3)
    }

    /// A launch as both ends can describe it: kernel, channels, and its messages as (from, to, number of the pair).
    type Seen = (Kernel, u32, Vec<(Message, usize)>);

    fn launches(rank: Rank, (nranks, groups): (u32, u32), messages: &[Message]) -> Vec<(u32, Seen)> {
        let facts = facts(nranks, groups);
        let mine: Vec<&Message> = messages.iter().filter(|m| m.0 == rank || m.1 == rank).collect();
        let wants: Vec<MessageWant> = mine
            .iter()
            .map(|&&(from, to, len_bytes)| {
                let (is_send, is_far) = (from == rank, is_far(from, to, nranks, groups));
                let peer = if is_send { to } else { from };
                MessageWant { is_send, peer, is_far, is_exchange: is_exchange(len_bytes), len_bytes }
            })
            .collect();
        let number = |index: usize| mine[..index].iter().filter(|m| *m == &mine[index]).count();
        let mut scratch = Arrangement::default();
        let batches = arrange(&wants, rank, &facts, &mut scratch);
        batches
            .map(|batch| {
                assert!(batch.placed.len() <= KERNEL_MESSAGES_MAX);
                assert!(batch.lanes * batch.channels <= 132, "{batch:?}");
                let messages = batch.placed.iter().map(|placed| (*mine[placed.index], number(placed.index)));
                (batch.lanes, (batch.kernel, batch.channels, messages.collect()))
            })
            .collect()
    }

    fn messages() -> impl Strategy<Value = (u32, Vec<Message>)> {
        (2u32..10).prop_flat_map(|nranks| {
            let lengths = prop_oneof![Just(0), 1u64..40_000, 200_000u64..5_000_000];
            let one = (0..nranks, 1..nranks, lengths)
                .prop_map(move |(f, d, len)| (Rank(f), Rank((f + d) % nranks), len));
            (Just(nranks), proptest::collection::vec(one, 0..150))
        })
    }

    /// As each rank of two hosts of two has where each sends to the next.
    #[test]
    fn long_messages_ask_where_they_go() {
        let free = facts(4, 1);
        let [always, never] = [true, false].map(|symmetric| Facts { symmetric: Some(symmetric), ..free });
        let asks = |len_bytes: u64, is_exchange: bool| {
            [free, always, never].map(|facts| facts.asks(len_bytes, is_exchange))
        };
        assert_eq!(asks(ASK_MIN_BYTES - 1, false), [false; 3], "receivers of these look for no question");
        assert_eq!(asks(ASK_MIN_BYTES, false), [true, true, false]);
        assert_eq!(asks(ASK_MIN_BYTES, true), [false, true, false], "exchanges are slower");
    }

    #[test]
    fn short_messages_near_and_far_are_one_launch() {
        let launches = |len_bytes| {
            let facts = facts(4, 2);
            let want =
                |is_send, peer, is_far| MessageWant { is_send, peer, is_far, is_exchange: false, len_bytes };
            let wants = [want(true, Rank(2), true), want(false, Rank(0), false)];
            arrange(&wants, Rank(1), &facts, &mut Arrangement::default()).count()
        };
        assert_eq!([0, 8, 8 << 10, 64 << 10, 1 << 20].map(launches), [1, 1, 1, 1, 2]);
    }

    #[test]
    fn an_exchange_has_channels_of_its_own() {
        let channels = |nranks, is_exchange, through_host: bool, len_bytes| {
            let facts = facts(nranks, 1);
            let facts = if through_host { facts.through_host([true; 3]) } else { facts };
            let want = MessageWant { is_send: true, peer: Rank(1), is_far: false, is_exchange, len_bytes };
            message_connections(&want, &facts).1
        };
        let long = |nranks, through_host| {
            [false, true].map(|is_exchange| channels(nranks, is_exchange, through_host, 64 << 20))
        };
        assert_eq!([2, 3, 4].map(|nranks| long(nranks, false)), [[16, 16], [16, 8], [16, 5]]);
        assert_eq!([2, 3, 4].map(|nranks| long(nranks, true)), [[16, 8], [16, 4], [16, 4]]);
        assert_eq!([2, 3, 4].map(|nranks| channels(nranks, true, false, 2 << 20)), [16, 12, 12]);
        assert_eq!([2, 3, 4].map(|nranks| channels(nranks, true, true, 2 << 20)), [8, 4, 4]);
    }

    #[test]
    fn through_memory_of_the_host_middle_messages_have_fewer_channels() {
        let facts = facts(2, 1).through_host([true; 3]);
        let channels = |len_bytes| {
            let want =
                MessageWant { is_send: true, peer: Rank(1), is_far: false, is_exchange: false, len_bytes };
            message_connections(&want, &facts).1
        };
        assert_eq!([32 << 10, 64 << 10, 1 << 20, (1 << 20) + 1].map(channels), [16, 8, 8, 16]);
        let one_hop = |count| {
            let call =
                Call { func: Func::AllToAll, dtype: DataType::U8, op: RedOp::Sum, root: Rank(0), count };
            facts.is_one_hop_all_to_all(&call)
        };
        assert_eq!([128 << 10, (128 << 10) + 1].map(one_hop), [true, false]);
    }

    #[test]
    fn slots_between_pairs_are_long_over_nvlink_alone_and_short_ones_have_more_channels() {
        let of = |facts: Facts| {
            let want = MessageWant {
                is_send: true,
                peer: Rank(1),
                is_far: false,
                is_exchange: false,
                len_bytes: 64 << 20,
            };
            (facts.mesh_layout.simple_slot_bytes >> 10, message_connections(&want, &facts).1)
        };
        let near = facts(2, 1);
        let pairs = Pairs { kind: PathKind::Sys, ..near.machine.pairs };
        let over_pci = Facts { machine: Machine { is_searched: true, pairs, ..near.machine }, ..near };
        assert_eq!(
            [near, over_pci.with_links().with_slots(), facts(4, 2)].map(of),
            [(120, 16), (64, 16), (64, 22)]
        );
        assert_eq!(of(near.through_host([true; 3])).0, 120, "as they are laid out");
    }

    proptest! {
        #[test]
        fn every_message_is_launched_once_and_lanes_keep_their_order(
            (nranks, messages) in messages(),
            groups in 1u32..3,
        ) {
            for rank in (0..nranks).map(Rank) {
                let mut wants = Vec::new();
                for &(from, to, len_bytes) in &messages {
                    let is_far = is_far(from, to, nranks, groups);
                    let is_exchange = is_exchange(len_bytes);
                    let want = |is_send, peer| MessageWant { is_send, peer, is_far, is_exchange, len_bytes };
                    if from == rank { wants.push(want(true, to)) }
                    if to == rank { wants.push(want(false, from)) }
                }
                let facts = facts(nranks, groups);
                let mut scratch = Arrangement::default();
                let mut met = vec![0; wants.len()];
                for batch in arrange(&wants, rank, &facts, &mut scratch) {
                    for placed in batch.placed {
                        met[placed.index] += 1;
                        prop_assert!(placed.lane < batch.lanes);
                        let want = &wants[placed.index];
                        let ends = message_connections(want, &facts);
                        let connected = if want.is_far { facts.far_channels } else { facts.mesh_channels };
                        prop_assert!(batch.channels <= connected);
                        prop_assert_eq!(ends, (batch.kernel.protocol(), batch.channels));
                    }
                    for (a, b) in batch.placed.iter().zip(&batch.placed[1..]) {
                        let of = |placed: &Placed| (wants[placed.index].peer, wants[placed.index].is_send);
                        prop_assert_eq!(a.lane == b.lane, of(a) == of(b));
                        prop_assert!(a.lane != b.lane || a.index < b.index);
                    }
                }
                prop_assert!(met.iter().all(|times| *times == 1));
            }
        }

        /// Runs all launches of all ranks: a rank's next begins when its last is over, a message needs both of its ends at once.
        #[test]
        fn no_launch_waits_for_one_behind_its_peers((nranks, messages) in messages(), groups in 1u32..3) {
            let mut ranks: Vec<Vec<(u32, Seen)>> =
                (0..nranks).map(|rank| launches(Rank(rank), (nranks, groups), &messages)).collect();
            ranks.iter_mut().for_each(|launches| launches.reverse());
            while ranks.iter().any(|launches| !launches.is_empty()) {
                let current: Vec<Option<Seen>> =
                    ranks.iter().map(|launches| launches.last().map(|(_, seen)| seen.clone())).collect();
                let mut moved = false;
                for (rank, launches) in ranks.iter_mut().enumerate() {
                    let Some((_, (kernel, channels, left))) = launches.last_mut() else { continue };
                    let before = left.len();
                    left.retain(|key| {
                        let peer = if key.0.0.index() == rank { key.0.1 } else { key.0.0 };
                        let both = current[peer.index()].as_ref().filter(|(_, _, theirs)| theirs.contains(key));
                        if let Some((k, c, _)) = both {
                            assert_eq!((&*kernel, &*channels), (k, c), "both ends alike");
                        }
                        both.is_none()
                    });
                    moved |= left.len() != before;
                }
                for launches in &mut ranks {
                    moved |= launches.pop_if(|(_, (_, _, left))| left.is_empty()).is_some();
                }
                prop_assert!(moved, "deadlock");
            }
        }
    }
}

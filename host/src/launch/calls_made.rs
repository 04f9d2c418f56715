//! What ranks tell each other of their calls when they finalize.

use super::health::{Health, LEDGER_RECORDS};
use super::recorder::Recorder;
use crate::plan::CallRecord;
use crate::wire::{Message, digest};
use oxccl_shared::abi::Rank;
use serde::{Deserialize, Serialize};

/// A rank's calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CallsMade {
    /// How many collectives.
    pub count: u64,
    /// Of all of them, in order.
    pub digest: u32,
    /// Its messages, unless it may have made more than it called: launches of graphs are not counted.
    pub messages: Option<MessageSums>,
}

impl Message for CallsMade {
    const VERSION: u8 = 2;
    const BYTES_MAX: usize = 40;
}

/// Digests of a rank's messages that can be added up: those of all that were sent and of all that were received are equal if each was received. So the
/// ranks learn by two numbers of each whether there is anything to look for among all pairs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct MessageSums {
    /// Of those that it sent.
    pub sent: u64,
    /// Of those that it received.
    pub received: u64,
}

impl MessageSums {
    /// Of rank `me`'s messages with the others.
    pub fn of(me: Rank, made: &MessagesMade) -> MessageSums {
        let mut sums = MessageSums::default();
        for with in &made.0 {
            let both = [((me, with.peer), with.sent), ((with.peer, me), with.received)];
            let [sent, received] = both.map(|(pair, count)| if count == 0 { 0 } else { term(pair, count) });
            sums.sent = sums.sent.wrapping_add(sent);
            sums.received = sums.received.wrapping_add(received);
        }
        sums
    }

    /// Whether all messages were received, by the sums of all ranks.
    pub fn all_arrived(all: impl IntoIterator<Item = MessageSums>) -> bool {
        all.into_iter().fold(0u64, |left, sums| left.wrapping_add(sums.sent).wrapping_sub(sums.received)) == 0
    }
}

/// A pair's part of a sum. The digest's own low bits would cancel out among pairs that differ by one message each.
fn term(pair: (Rank, Rank), count: u64) -> u64 {
    let mixed = digest(&("messages", pair.0.0, pair.1.0, count));
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Pairs of ranks with messages that are looked at one by one, each counted at both ends: the counts of all of them fit an all-gather. So many
/// have 512 ranks of which each has messages with each, or any number of ranks with few peers each.
pub const SEARCHED_PAIRS_MAX: u32 = 1 << 18;

/// With how many other ranks a rank had messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PeersMade(pub u32);

impl Message for PeersMade {
    const VERSION: u8 = 1;
    const BYTES_MAX: usize = 6;
}

impl PeersMade {
    /// Whether the pairs of all ranks are few enough to be looked at.
    pub fn are_few(all: &[PeersMade]) -> bool {
        all.iter().map(|peers| u64::from(peers.0)).sum::<u64>() <= u64::from(SEARCHED_PAIRS_MAX)
    }
}

/// A rank's messages with each other rank with which it had any.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct MessagesMade(pub Vec<MessagesWith>);

/// How many messages a rank called, to and from another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MessagesWith {
    /// The other.
    pub peer: Rank,
    /// Sends to it.
    pub sent: u64,
    /// Receives from it.
    pub received: u64,
}

impl Message for MessagesMade {
    const VERSION: u8 = 1;
    const BYTES_MAX: usize = 8 + SEARCHED_PAIRS_MAX as usize * 25;

    fn is_sound(&self) -> bool {
        self.0.windows(2).all(|pair| pair[0].peer < pair[1].peer)
    }
}

impl MessagesMade {
    /// Those that rank `me` has called so far.
    pub fn of(me: Rank, recorder: &Recorder) -> MessagesMade {
        let with = |(peer, [sent, received]): (Rank, [u64; 2])| MessagesWith { peer, sent, received };
        MessagesMade(recorder.messages().map(with).filter(|with| with.peer != me).collect())
    }

    /// With that rank.
    pub fn with(&self, peer: Rank) -> MessagesWith {
        let at = self.0.binary_search_by_key(&peer, |with| with.peer);
        at.map_or(MessagesWith { peer, sent: 0, received: 0 }, |at| self.0[at])
    }
}

/// A call of one rank, for all others; none if it is not known any more, or there is none to speak of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NamedCall(pub Option<CallRecord>);

impl Message for NamedCall {
    const VERSION: u8 = 1;
    const BYTES_MAX: usize = 40;
}

/// A rank's latest collectives, oldest first.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LatestCalls(pub heapless::Vec<CallRecord, LEDGER_RECORDS>);

impl Message for LatestCalls {
    const VERSION: u8 = 1;
    const BYTES_MAX: usize = 2 + LEDGER_RECORDS * 32;
}

impl LatestCalls {
    /// Those that the ledger still has.
    pub fn of(health: &Health) -> LatestCalls {
        LatestCalls(health.latest().iter().flat_map(|latest| health.remembered(latest.seq)).collect())
    }

    /// The collective of that number.
    pub fn get(&self, seq: u64) -> Option<CallRecord> {
        self.0.iter().find(|record| record.seq == seq).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Call;
    use oxccl_shared::abi::{DataType, Func, Rank, RedOp};

    #[test]
    fn a_full_ledger_fits_its_message() {
        let longest = Call {
            func: Func::Reduce,
            dtype: DataType::F32,
            op: RedOp::Sum,
            root: Rank(u32::MAX),
            count: u64::MAX,
        };
        let records = [CallRecord { seq: u64::MAX, call: longest }; LEDGER_RECORDS];
        let latest = LatestCalls(records.into_iter().collect());
        assert_eq!(LatestCalls::from_bytes(&latest.to_bytes()), Ok(latest));
        let messages = Some(MessageSums { sent: u64::MAX, received: u64::MAX });
        let calls = CallsMade { count: u64::MAX, digest: u32::MAX, messages };
        assert_eq!(CallsMade::from_bytes(&calls.to_bytes()), Ok(calls));
        let named = NamedCall(Some(CallRecord { seq: u64::MAX, call: longest }));
        assert_eq!(NamedCall::from_bytes(&named.to_bytes()), Ok(named));
        let with = |peer| MessagesWith { peer: Rank(u32::MAX - peer), sent: u64::MAX, received: u64::MAX };
        let made = MessagesMade((0..SEARCHED_PAIRS_MAX).rev().map(with).collect());
        assert_eq!(MessagesMade::from_bytes(&made.to_bytes()), Ok(made));
        let most = PeersMade(u32::MAX);
        assert_eq!(PeersMade::from_bytes(&most.to_bytes()), Ok(most));
        assert!(PeersMade::are_few(&[PeersMade(511); 512]) && PeersMade::are_few(&[PeersMade(16); 16_384]));
        assert!(!PeersMade::are_few(&[PeersMade(599); 600]) && !PeersMade::are_few(&[most; 2]));
    }

    /// Ranks that send so many to the next one, which receives so many.
    fn sums(sent: &[u64], received: &[u64]) -> Vec<MessageSums> {
        let n = sent.len() as u32;
        let one = |me: u32| {
            let (next, before) = (Rank((me + 1) % n), Rank((me + n - 1) % n));
            let mut made = vec![
                MessagesWith { peer: next, sent: sent[me as usize], received: 0 },
                MessagesWith { peer: before, sent: 0, received: received[before.index()] },
            ];
            made.sort_by_key(|with| with.peer);
            MessageSums::of(Rank(me), &MessagesMade(made))
        };
        (0..n).map(one).collect()
    }

    #[test]
    fn sums_are_equal_if_all_was_received_and_differences_do_not_cancel_out() {
        let sent = [0, 1, 7, u64::MAX, 3, 4, 5, 6];
        assert!(MessageSums::all_arrived(sums(&sent, &sent)));
        // Each set of pairs that lack one message.
        for lacking in 1u32..256 {
            let mut received = sent;
            for (at, count) in received.iter_mut().enumerate().filter(|(at, _)| lacking >> at & 1 != 0) {
                *count = sent[at].saturating_sub(1);
            }
            assert_eq!(MessageSums::all_arrived(sums(&sent, &received)), received == sent, "{lacking:#b}");
        }
    }
}

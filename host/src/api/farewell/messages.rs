//! Whether each message that was sent was received. A short one leaves with its send, and its sender waits for nobody.

use super::blocks::{Difference, read_all};
use crate::bootstrap::{BootstrapError, Watch};
use crate::launch::{
    CallsMade, Fault, Health, MessageSums, MessagesMade, NamedCall, PeersMade, Recorder, SEARCHED_PAIRS_MAX,
};
use crate::plan::CallRecord;
use crate::wire::Message;
use oxccl_shared::abi::{Func, Rank};
use std::collections::BTreeSet;

/// Compares all ranks' messages; they have made the same collectives. Returns how those of a pair of ranks differ, if any do.
pub(super) fn compare(
    watch: &Watch,
    me: Rank,
    all: &[CallsMade],
    health: &Health,
) -> Result<Option<Difference>, BootstrapError> {
    let sums: Option<Vec<MessageSums>> = all.iter().map(|calls| calls.messages).collect();
    if sums.is_none_or(MessageSums::all_arrived) {
        return Ok(None);
    }
    // All ranks see the same blocks, so all go on with each of the next all-gathers or none does.
    let mine = MessagesMade::of(me, health.recorder());
    let peers = read_all::<PeersMade>(&watch.all_gather(&PeersMade(mine.0.len() as u32).to_bytes())?)?;
    if !PeersMade::are_few(&peers) {
        tracing::warn!(
            "messages were sent and never received, or received and never sent; between which ranks is not looked for among more than \
             {SEARCHED_PAIRS_MAX} pairs of ranks with messages"
        );
        return Ok(None);
    }
    let made = read_all::<MessagesMade>(&watch.all_gather(&mine.to_bytes())?)?;
    let differences = differences(&made);
    let named = NamedCall(first_unmatched(me, &differences, health.recorder()));
    let named = read_all::<NamedCall>(&watch.all_gather(&named.to_bytes())?)?;
    Ok(report(me, &differences, &named))
}

/// Two ranks of which one sent what the other did not receive, or the other way round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Pair {
    sender: Rank,
    receiver: Rank,
    sent: u64,
    received: u64,
}

/// All pairs that differ, by sender and receiver. In time and memory of the pairs that there are: ranks may be thousands with a few peers each.
fn differences(made: &[MessagesMade]) -> Vec<Pair> {
    let mut differ = BTreeSet::new();
    for (me, mine) in (0..).map(Rank).zip(made) {
        for with in &mine.0 {
            let none = MessagesMade::default();
            let theirs = made.get(with.peer.index()).unwrap_or(&none).with(me);
            let pairs =
                [(me, with.peer, with.sent, theirs.received), (with.peer, me, theirs.sent, with.received)];
            differ.extend(pairs.into_iter().filter(|(_, _, sent, received)| sent != received));
        }
    }
    let pair = |(sender, receiver, sent, received)| Pair { sender, receiver, sent, received };
    differ.into_iter().map(pair).collect()
}

/// Of a sender, its first send that was not received.
fn first_unmatched(me: Rank, differences: &[Pair], recorder: &Recorder) -> Option<CallRecord> {
    let pair = differences.iter().find(|pair| pair.sender == me)?;
    recorder.message(pair.receiver, Func::Send, pair.received)
}

/// What rank `me` says: of a pair that it is of, or of the first one.
fn report(me: Rank, differences: &[Pair], named: &[NamedCall]) -> Option<Difference> {
    let is_ours = |pair: &&Pair| pair.sender == me || pair.receiver == me;
    let pair = *differences.iter().find(is_ours).or(differences.first())?;
    let is_first_of_sender = differences.iter().find(|other| other.sender == pair.sender) == Some(&pair);
    let call = named.get(pair.sender.index()).filter(|_| is_first_of_sender).and_then(|named| named.0);
    let Pair { sender, receiver, sent, received } = pair;
    let rank = if receiver == me { sender } else { receiver };
    let more = differences.len() as u32 - 1;
    Some((Fault::MessagesDiffer { rank, sender, receiver, sent, received, more }, call))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::{MessagesWith, Outstanding};
    use crate::plan::Call;
    use oxccl_shared::abi::{DataType, RedOp};

    /// The recorders of ranks that have made these messages.
    fn recorders(calls: &[(u32, Func, u32)]) -> Vec<Recorder> {
        let ranks: Vec<Recorder> = (0..4).map(|_| Recorder::new(4)).collect();
        for ((me, func, peer), count) in calls.iter().zip(10..) {
            let call = Call { func: *func, dtype: DataType::F32, op: RedOp::Sum, root: Rank(*peer), count };
            let _ = ranks[*me as usize].begin(&CallRecord { seq: 0, call });
        }
        ranks
    }

    /// What each rank says.
    fn said(calls: &[(u32, Func, u32)]) -> Vec<Option<String>> {
        let ranks = recorders(calls);
        let of = |(me, recorder)| MessagesMade::of(Rank(me), recorder);
        let made: Vec<MessagesMade> = (0..).zip(&ranks).map(of).collect();
        let sums = (0..).zip(&made).map(|(me, made)| MessageSums::of(Rank(me), made));
        let differences = differences(&made);
        assert_eq!(MessageSums::all_arrived(sums), differences.is_empty());
        let named = (0..).zip(&ranks).map(|(me, recorder)| {
            NamedCall(first_unmatched(Rank(me), &differences, recorder)) //
        });
        let named: Vec<NamedCall> = named.collect();
        let text = |(fault, during)| Outstanding { during, fault }.to_string();
        (0..4).map(|me| report(Rank(me), &differences, &named).map(text)).collect()
    }

    #[test]
    fn a_message_that_nobody_received_is_named_with_both_ranks() {
        use Func::{Recv, Send};
        let said_by = said(&[(0, Send, 1), (1, Recv, 0), (0, Send, 1), (2, Send, 1), (1, Recv, 2)]);
        let expected = "at finalize, rank 0 had made 2 sends to rank 1, and that one 1 receive from it; the first without the other half is rank \
                        0's send of 12 float to rank 1: every send needs its receive";
        assert!(said_by.iter().all(|said| said.as_deref() == Some(expected)), "{said_by:?}");
        assert_eq!(said(&[(0, Send, 1), (1, Recv, 0), (3, Send, 3)]), [None, None, None, None]);
    }

    /// Only a warning said that there was something.
    #[test]
    fn among_thousands_of_ranks_with_few_peers_the_pair_is_found() {
        let nranks = 5_000u32;
        let made = |me: u32| {
            let with =
                |peer: u32, sent: u64, received: u64| MessagesWith { peer: Rank(peer), sent, received };
            let mut made = vec![
                with((me + 1) % nranks, 3, 0),
                with((me + nranks - 1) % nranks, 0, if me == 4_321 { 2 } else { 3 }),
            ];
            made.sort_by_key(|with| with.peer);
            MessagesMade(made)
        };
        let made: Vec<MessagesMade> = (0..nranks).map(made).collect();
        let peers: Vec<PeersMade> = made.iter().map(|made| PeersMade(made.0.len() as u32)).collect();
        assert!(PeersMade::are_few(&peers));
        let found = Pair { sender: Rank(4_320), receiver: Rank(4_321), sent: 3, received: 2 };
        assert_eq!(differences(&made), [found]);
    }

    #[test]
    fn each_rank_names_its_own_pair_first() {
        use Func::{Recv, Send};
        let said = said(&[(0, Send, 1), (2, Recv, 3)]);
        let said: Vec<&str> = said.iter().flatten().map(String::as_str).collect();
        assert!(said[0] == said[1] && said[0].contains("rank 0's send of 10 float"), "{said:?}");
        assert!(said[0].contains("; 1 more pair of ranks differs: every send"), "{said:?}");
        assert!(said[2] == said[3] && said[2].contains("rank 3 had made 0 sends to rank 2"), "{said:?}");
    }
}

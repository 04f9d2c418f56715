//! Whether each message that was sent was received. A short one leaves with its send, and its sender waits for nobody.

use super::blocks::{Difference, read_all};
use crate::bootstrap::{BootstrapError, Watch};
use crate::launch::{
    CallsMade, Fault, Health, MessageSums, MessagesMade, NamedCall, Recorder, SEARCHED_RANKS_MAX,
};
use crate::plan::CallRecord;
use crate::wire::Message;
use oxccl_shared::abi::{Func, Rank};

/// Compares all ranks' messages; they have made the same collectives. Returns how those of a pair of ranks differ, if any do.
pub(super) fn compare(
    watch: &Watch,
    (me, nranks): (Rank, u32),
    all: &[CallsMade],
    health: &Health,
) -> Result<Option<Difference>, BootstrapError> {
    let sums: Option<Vec<MessageSums>> = all.iter().map(|calls| calls.messages).collect();
    if sums.is_none_or(MessageSums::all_arrived) {
        return Ok(None);
    }
    if nranks > SEARCHED_RANKS_MAX {
        tracing::warn!(
            "messages were sent and never received, or received and never sent; between which ranks is not looked for among more than \
             {SEARCHED_RANKS_MAX}"
        );
        return Ok(None);
    }
    // All ranks see the same blocks, so all go on with each of the next all-gathers or none does.
    let mine = MessagesMade::of(me, health.recorder());
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

/// All pairs that differ, by sender and receiver.
fn differences(made: &[MessagesMade]) -> Vec<Pair> {
    let ranks = || (0..).map(Rank).zip(made);
    let pairs = ranks().flat_map(|one| ranks().map(move |other| (one, other)));
    let pair =
        |((sender, of_sender), (receiver, of_receiver)): ((Rank, &MessagesMade), (Rank, &MessagesMade))| {
            let (sent, received) = (of_sender.with(receiver).sent, of_receiver.with(sender).received);
            Pair { sender, receiver, sent, received }
        };
    pairs.map(pair).filter(|pair| pair.sent != pair.received).collect()
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
    use crate::launch::Outstanding;
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

//! The end of a communicator in order: its ranks meet once more, and compare what they have called.
//!
//! Ranks that make different calls meet in a slot most of the time, whose tag tells. Where every rank only sends, as all those that take
//! another for the root of a reduction, no slot is ever received: nobody notices before the end.

mod blocks;
mod messages;

use super::comm_call::InCommCall;
use super::error::Error;
use super::membership::Membership;
use crate::bootstrap::{BootstrapError, Watch};
use crate::launch::{
    CallsMade, CommCall, Fault, Health, LatestCalls, MessageSums, MessagesMade, Outstanding,
};
use crate::wire::Message;
use blocks::{Difference, read_all};
use oxccl_shared::abi::Rank;
use std::time::{Duration, Instant};

/// How long a rank that lost another in the meeting waits for the fault that says why.
const REASON_TIME: Duration = Duration::from_millis(500);
/// Ranks among which the latest calls are compared one by one: those of all of them fit an all-gather.
const NAMED_RANKS_MAX: u32 = 1 << 14;

/// Says that this rank calls nothing more, and waits until all ranks have come. `calls` are its collectives and their digest; `replays` says
/// whether graphs may have made messages that were not counted.
///
/// # Errors
/// As [`Comm::finalize`](super::Comm::finalize)'s.
pub(super) fn meet(
    member: &Membership,
    health: &Health,
    calls: (u64, u32),
    replays: bool,
) -> Result<(), Error> {
    let in_call = InCommCall::enter(member.stalls(), CommCall::Finalize, None);
    health.finalized().begin(replays);
    // Who waits for this rank hears of it.
    member.watch().wake();
    let sums = || MessageSums::of(member.rank, &MessagesMade::of(member.rank, health.recorder()));
    let mine = CallsMade { count: calls.0, digest: calls.1, messages: (!replays).then(sums) };
    let had_failed = health.fault().is_some();
    let found = compare((&in_call, member.watch()), (member.rank, member.nranks), mine, health);
    let found = in_call.named(found);
    // Others hear the same, and may have ended for it by now.
    if let Err(differ @ BootstrapError::CallsDiffer { .. }) = found {
        return Err(differ.into());
    }
    let outstanding = match &found {
        Err(error) => await_fault(error, health),
        Ok(Some((fault, ours))) => Some(health.fail(*fault, *ours)),
        Ok(None) => health.fault(),
    };
    // A fault says more than the meeting that it broke; but that this rank's wait was in vain, or another's, the meeting says too, and in
    // which call.
    let has_timed_out = matches!(found, Err(BootstrapError::Timeout { .. }));
    let says_more = |fault: &Fault| match fault {
        Fault::PeerTimeout { .. } => !has_timed_out,
        Fault::Timeout { .. } => !has_timed_out || had_failed,
        _ => true,
    };
    let outstanding = outstanding.filter(|outstanding| says_more(&outstanding.fault));
    outstanding.map_or(Ok(()), |outstanding| Err(member.operation_error(outstanding)))?;
    found?;
    Ok(())
}

/// The fault that says why the meeting broke, if there is one: the thread that hears it may be a moment behind the one that waits for the
/// ranks.
///
/// A rank may have left because of it: once it has heard that another waited in vain for this one, its program has nothing more to do. What it
/// heard it passed on before it left, so that this rank hears it too, and both orders have the same outcome. A rank that left by itself has
/// no fault to wait for, and the meeting's error stands: others that end because it left come meanwhile, and are not at fault.
fn await_fault(error: &BootstrapError, health: &Health) -> Option<Outstanding> {
    let has_left = matches!(error, BootstrapError::PeerLeft { .. });
    let has_reason =
        has_left || matches!(error, BootstrapError::PeerAborted { .. } | BootstrapError::PeerLost { .. });
    let (since, known) = (Instant::now(), health.fault());
    while has_reason && !health.is_stopped() && since.elapsed() < REASON_TIME {
        std::thread::sleep(Duration::from_millis(1));
    }
    known.or_else(|| health.fault().filter(|found| !has_left || explains_leaving(&found.fault)))
}

/// Whether a rank leaves because of a fault that came to be known when it had left.
fn explains_leaving(fault: &Fault) -> bool {
    matches!(
        fault,
        Fault::FinalizedEarly { .. }
            | Fault::PeerFinalized { .. }
            | Fault::Timeout { .. }
            | Fault::PeerTimeout { .. }
            | Fault::Mismatch { .. }
    )
}

/// Waits until all ranks have called it. Returns how their collectives differ, if they do.
fn compare(
    (in_call, watch): (&InCommCall, &Watch),
    (me, nranks): (Rank, u32),
    mine: CallsMade,
    health: &Health,
) -> Result<Option<Difference>, BootstrapError> {
    let all = in_call.gather(watch.bootstrap(), &mine.to_bytes())?;
    let all = read_all::<CallsMade>(&all)?;
    if all.iter().all(|theirs| are_equal(theirs, &mine)) {
        return messages::compare(watch, me, &all, health);
    }
    // All ranks see the same blocks, so all go on with the next all-gather or none does.
    let latest = match nranks <= NAMED_RANKS_MAX {
        true => read_all::<LatestCalls>(&watch.all_gather(&LatestCalls::of(health).to_bytes())?)?,
        false => Vec::new(),
    };
    Ok(difference(me, &all, &latest))
}

/// Whether two ranks have made the same collectives.
fn are_equal(one: &CallsMade, other: &CallsMade) -> bool {
    (one.count, one.digest) == (other.count, other.digest)
}

/// How others' collectives differ from those of rank `me`.
fn difference(me: Rank, all: &[CallsMade], latest: &[LatestCalls]) -> Option<Difference> {
    let mine = all.get(me.index())?;
    let mut others = (0..).map(Rank).zip(all).filter(|(_, theirs)| !are_equal(theirs, mine));
    let (rank, theirs) = others.next()?;
    let more = others.count() as u32;
    let empty = LatestCalls::default();
    let [our_latest, their_latest] = [me, rank].map(|rank| latest.get(rank.index()).unwrap_or(&empty));
    let counts = [mine.count, theirs.count];
    let first = first_that_differs(counts, our_latest, their_latest);
    let [ours, theirs] = first.map_or([None; 2], |seq| [our_latest.get(seq), their_latest.get(seq)]);
    Some((Fault::CallsDiffer { rank, more, theirs }, ours))
}

/// The number of the first collective that one rank called and the other did not, as far as both remember.
fn first_that_differs([ours, theirs]: [u64; 2], our: &LatestCalls, their: &LatestCalls) -> Option<u64> {
    // Of a rank that made none, all that there is is known.
    let since = |count: u64, latest: &LatestCalls| match count {
        0 => Some(0),
        _ => latest.0.first().map(|record| record.seq),
    };
    let known_since = since(ours, our)?.max(since(theirs, their)?);
    (known_since..ours.max(theirs)).find(|seq| our.get(*seq) != their.get(*seq))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Call, CallRecord};
    use oxccl_shared::abi::{DataType, Func, RedOp};

    fn record(seq: u64, root: u32) -> CallRecord {
        let call =
            Call { func: Func::Reduce, dtype: DataType::F32, op: RedOp::Sum, root: Rank(root), count: 8 };
        CallRecord { seq, call }
    }

    /// Ranks whose latest collectives have these roots.
    fn ranks(roots: &[&[u32]]) -> (Vec<CallsMade>, Vec<LatestCalls>) {
        let latest = roots.iter().map(|roots| {
            let records = (0..).zip(*roots).map(|(seq, root)| record(seq, *root));
            LatestCalls(records.collect())
        });
        let calls = roots.iter().map(|roots| CallsMade {
            count: roots.len() as u64,
            digest: roots.iter().fold(1, |digest, root| digest * 31 + root),
            messages: None,
        });
        (calls.collect(), latest.collect())
    }

    fn found(me: u32, roots: &[&[u32]]) -> Option<Difference> {
        let (calls, latest) = ranks(roots);
        difference(Rank(me), &calls, &latest)
    }

    /// A rank that leaves because it has heard that another waited for this one in vain was named instead of that one, a few times in a hundred.
    #[test]
    fn why_a_rank_left_may_come_after_that_it_left() {
        let (health, rank) = (Health::new(Rank(0), 3), Rank(1));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                health.fail(Fault::FinalizedEarly { rank }, None);
            });
            let found = await_fault(&BootstrapError::PeerLeft { rank: Rank(2) }, &health);
            assert_eq!(found.map(|found| found.fault), Some(Fault::FinalizedEarly { rank }));
        });
        // Nothing more comes of what this rank found itself.
        let (since, quiet) = (Instant::now(), Health::new(Rank(0), 3));
        assert_eq!(await_fault(&BootstrapError::Aborted, &quiet), None);
        assert!(since.elapsed() < REASON_TIME);
    }

    /// While this rank waited for the reason, a rank that had ended because of the one that left was taken for it.
    #[test]
    fn who_ends_because_another_left_is_not_named_for_it() {
        let (left, rank) = (BootstrapError::PeerLeft { rank: Rank(2) }, Rank(1));
        for fault in [Fault::PeerDied { rank }, Fault::PeerAborted { rank }, Fault::PeerLeft { rank }] {
            let health = Health::new(Rank(0), 3);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(20));
                    health.fail(fault, None);
                });
                assert_eq!(await_fault(&left, &health), None);
            });
            // What was known before is another matter, and so is a meeting that broke by a death.
            assert_eq!(await_fault(&left, &health).map(|found| found.fault), Some(fault));
            let lost = BootstrapError::PeerLost { rank };
            assert_eq!(await_fault(&lost, &health).map(|found| found.fault), Some(fault));
        }
        // A lone one: its leaving is the error, soon.
        let since = Instant::now();
        assert_eq!(await_fault(&left, &Health::new(Rank(0), 3)), None);
        assert!((REASON_TIME..REASON_TIME * 4).contains(&since.elapsed()), "{:?}", since.elapsed());
    }

    #[test]
    fn the_same_calls_are_no_difference() {
        assert_eq!(found(1, &[&[0, 1], &[0, 1], &[0, 1]]), None);
        assert_eq!(found(0, &[&[]]), None);
    }

    #[test]
    fn the_first_call_that_differs_is_named_with_its_rank() {
        let roots: [&[u32]; 4] = [&[0, 1, 7], &[0, 2, 7], &[0, 1, 7], &[0, 3, 7]];
        let differs =
            |rank, more, root| Fault::CallsDiffer { rank: Rank(rank), more, theirs: Some(record(1, root)) };
        assert_eq!(found(0, &roots), Some((differs(1, 1, 2), Some(record(1, 1)))));
        assert_eq!(found(1, &roots), Some((differs(0, 2, 1), Some(record(1, 2)))));
    }

    #[test]
    fn a_call_that_a_rank_left_out_is_named() {
        let roots: [&[u32]; 2] = [&[0, 1], &[0]];
        let differs = |rank, theirs| Fault::CallsDiffer { rank: Rank(rank), more: 0, theirs };
        assert_eq!(found(0, &roots), Some((differs(1, None), Some(record(1, 1)))));
        assert_eq!(found(1, &roots), Some((differs(0, Some(record(1, 1))), None)));
        assert_eq!(found(0, &[&[], &[5]]), Some((differs(1, Some(record(0, 5))), None)));
    }

    #[test]
    fn what_differed_long_ago_is_said_to() {
        let (calls, _) = ranks(&[&[0], &[1]]);
        let nothing = Fault::CallsDiffer { rank: Rank(1), more: 0, theirs: None };
        assert_eq!(difference(Rank(0), &calls, &[]), Some((nothing, None)));
    }
}

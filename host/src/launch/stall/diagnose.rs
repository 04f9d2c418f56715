//! From what all ranks say to the one at fault.

use super::report::{Stall, StallClass};
use super::standing::Standing;
use crate::plan::CallRecord;
use oxccl_shared::abi::Rank;

/// What one rank has said: at first, and at last.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Said {
    pub first: Option<Standing>,
    pub last: Option<Standing>,
    /// It has left the communicator.
    pub has_left: bool,
}

impl Said {
    fn is_silent(&self) -> bool {
        self.last.is_none() && !self.has_left
    }

    /// Of a rank on a GPU: whether its kernels have come further, which it may enqueue far ahead of them.
    fn has_run(&self) -> bool {
        matches!((&self.first, &self.last), (Some(first), Some(last)) if last.has_run_since(first))
    }

    /// Whether it does its part of an operation that goes on: bytes move, or its kernels run, which count none.
    pub fn works(&self) -> bool {
        self.has_moved() || self.last.is_some_and(|last| last.kernels.is_some())
    }

    fn has_moved(&self) -> bool {
        matches!((&self.first, &self.last), (Some(first), Some(last)) if last.has_moved_since(first))
    }
}

/// The rank at fault for the wait of `me`, whose own standing is among what was said. `None` where nothing shows that a rank is
/// behind: all GPUs have the operation on their streams, which may have other work before it.
pub(super) fn diagnose(me: Rank, said: &[Said]) -> Option<Stall> {
    let own = said.get(me.index())?.last?;
    let during = own.during?;
    let head = own.waits_for.and_then(|first| head_in_circle(first, said));
    let (waiter, rank) = match (head, own.waits_for) {
        (Some(head), _) => (head, head),
        (None, Some(first)) => end_of_chain(me, first, said),
        (None, None) => (me, behind(me, during, said)?),
    };
    let waits_in =
        said[waiter.index()].last.and_then(|waiter| waiter.during.map(|during| (during, waiter.mark)));
    let (during, mark) = waits_in.unwrap_or((during, own.mark));
    let (class, rank) = match said.get(rank.index()) {
        Some(_) if head.is_some() => (StallClass::Network, rank),
        Some(guilty) if guilty.is_silent() => (StallClass::NoAnswer, edge_of_silence(rank, said)),
        Some(guilty) => (classify(&during, guilty), rank),
        None => return None,
    };
    let guilty = said.get(rank.index()).and_then(|said| said.last);
    let moved = match class {
        StallClass::NoAnswer => had_from(rank, said),
        _ => guilty.and_then(|guilty| guilty.moved),
    };
    let kernel = |standing: Option<Standing>| standing?.kernels?.waits;
    Some(Stall {
        class,
        rank,
        waiter,
        during,
        mark,
        link: None,
        waits_at: kernel(said[waiter.index()].last),
        stands_at: kernel(guilty),
        waited: own.waited(),
        lasted: own.lasted(),
        latest: guilty.and_then(|guilty| guilty.latest),
        is_in: guilty.and_then(|guilty| guilty.during),
        in_comm_call: guilty.and_then(|guilty| guilty.comm_calls.first()).map(|now| now.call),
        elsewhere: guilty.and_then(|guilty| guilty.elsewhere),
        moved,
        silent: said.iter().filter(|said| said.is_silent()).count() as u32,
    })
}

/// What the ranks that wait for one have had from it in the operation, and sent to it.
fn had_from(rank: Rank, said: &[Said]) -> Option<[u64; 2]> {
    let waiting = said.iter().filter_map(|said| said.last).filter(|said| said.waits_for == Some(rank));
    let with_it = waiting.filter_map(|standing| standing.with_peer);
    with_it.map(|[sent, received]| [received, sent]).reduce(|all, one| [all[0] + one[0], all[1] + one[1]])
}

/// Follows who waits for whom from `me`, which waits for `first`: the last that waits, and the first that does not. If they wait in
/// a circle, our neighbour.
fn end_of_chain(me: Rank, first: Rank, said: &[Said]) -> (Rank, Rank) {
    let (mut waiter, mut rank) = (me, first);
    for _ in 0..said.len() {
        match next_in_chain(rank, said) {
            None => return (waiter, rank),
            Some(next) if next == me => break,
            Some(next) => (waiter, rank) = (rank, next),
        }
    }
    (me, first)
}

fn next_in_chain(rank: Rank, said: &[Said]) -> Option<Rank> {
    said.get(rank.index())?.last?.waits_for
}

/// If the ranks from `first` on wait in a circle, one of those in it.
pub(super) fn rank_in_circle(first: Rank, said: &[Said]) -> Option<Rank> {
    // As many steps as there are ranks end within the circle.
    said.iter().try_fold(first, |rank, _| next_in_chain(rank, said))
}

/// If the ranks from `first` on wait in a circle, all of them for their parts of the same collectives, the lowest in it that waits for a
/// network that reduces, for which the next head stands.
fn head_in_circle(first: Rank, said: &[Said]) -> Option<Rank> {
    let inside = rank_in_circle(first, said)?;
    let mut circle = vec![inside];
    while let Some(next) = next_in_chain(circle[circle.len() - 1], said).filter(|next| *next != inside) {
        circle.push(next);
    }
    let standing = |rank: &Rank| said[rank.index()].last;
    let calls: Option<Vec<CallRecord>> = circle.iter().map(|rank| standing(rank)?.during).collect();
    let calls = calls.filter(|calls| calls.iter().all(|call| !call.call.func.is_message()))?;
    // One may be an operation behind: it has no result of that yet. Who made another call is at fault.
    let differ = |a: &CallRecord, b: &CallRecord| a.seq == b.seq && a.call != b.call;
    if calls.iter().any(|a| calls.iter().any(|b| differ(a, b))) {
        return None;
    }
    circle.into_iter().filter(|rank| standing(rank).is_some_and(|standing| standing.is_for_network)).min()
}

/// Where a rank cannot say whom it waits for: one that does not answer, else the one that has come least far and stays there, else
/// one that made another call.
fn behind(me: Rank, during: CallRecord, said: &[Said]) -> Option<Rank> {
    let others = || said.iter().zip((0..).map(Rank)).filter(|(said, rank)| *rank != me && !said.has_left);
    if let Some((_, rank)) = others().find(|(said, _)| said.is_silent()) {
        return Some(rank);
    }
    let seq = |said: &Said| said.last.and_then(|last| last.latest).map(|latest| latest.seq);
    let late = others().filter(|(said, _)| seq(said) < Some(during.seq) && !said.has_moved());
    late.min_by_key(|(said, _)| seq(said)).map(|(_, rank)| rank).or_else(|| {
        let is_other = |latest: CallRecord| latest.seq == during.seq && latest != during;
        let mut found =
            others().filter(|(said, _)| said.last.and_then(|last| last.latest).is_some_and(is_other));
        found.next().map(|(_, rank)| rank)
    })
}

/// Notices go around a ring in both directions. Those between two ranks that are stopped are not heard either: of ranks in a row that
/// do not answer, the first is named.
pub(super) fn edge_of_silence(rank: Rank, said: &[Said]) -> Rank {
    let nranks = said.len() as u32;
    let is_silent = |rank: u32| said[rank as usize].is_silent();
    let next = (rank.0 + 1) % nranks;
    if !is_silent(next) {
        return rank;
    }
    let before = |rank: u32| (rank + nranks - 1) % nranks;
    let mut first = rank.0;
    for _ in 0..nranks {
        if !is_silent(before(first)) {
            break;
        }
        first = before(first);
    }
    Rank(first)
}

/// What the rank does that `during` waits for, and that waits for none.
fn classify(during: &CallRecord, guilty: &Said) -> StallClass {
    let Some(now) = guilty.last else { return StallClass::MissingExit };
    let is_stuck = match now.kernels {
        Some(_) if guilty.has_run() => StallClass::Slow,
        Some(kernels) if kernels.waits.is_some() => StallClass::MissingExit,
        Some(kernels) if now.during.is_some() || kernels.has_graphs => StallClass::MissingStart,
        None if guilty.has_moved() => StallClass::Slow,
        _ => StallClass::MissingExit,
    };
    if during.call.func.is_message() {
        // Two ranks know of a message: what another does instead says only that it is not in it.
        return match now.during {
            None if guilty.has_moved() => StallClass::Slow,
            None => StallClass::MissingEnter,
            Some(call) if call.call.func.is_message() && now.waits_for.is_none() => is_stuck,
            Some(_) => StallClass::Mismatch,
        };
    }
    match now.latest {
        Some(latest) if latest.seq == during.seq && latest.call != during.call => StallClass::Mismatch,
        Some(latest)
            if latest.seq == during.seq
                && now.kernels.is_none()
                && now.during.is_some_and(|call| call.call.func.is_message()) =>
        {
            StallClass::MissingExit
        }
        Some(latest) if latest.seq >= during.seq => is_stuck,
        // It makes calls, and comes to this one later.
        _ if guilty.has_moved() => StallClass::Slow,
        // It waits for us in a message, before it comes to this one.
        _ if now.waits_for.is_some() => StallClass::Mismatch,
        _ => StallClass::MissingEnter,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::kernels::{KernelAt, Kernels};
    use super::*;
    use crate::plan::Call;
    use oxccl_shared::abi::{DataType, Func, RedOp};

    pub(in super::super) fn call(func: Func, seq: u64, count: u64) -> CallRecord {
        CallRecord { seq, call: Call { func, dtype: DataType::F32, op: RedOp::Sum, root: Rank(0), count } }
    }

    /// In the collective of this number, waiting.
    fn waits(seq: u64, peer: Option<u32>) -> Said {
        let record = Some(call(Func::AllReduce, seq, 100));
        said(Standing {
            begun: seq + 1,
            done: seq,
            latest: record,
            during: record,
            waits_for: peer.map(Rank),
            waited_ms: 10_000,
            moved: None,
            with_peer: None,
            ..Standing::default()
        })
    }

    /// Has completed the collective of this number and is in no call.
    fn idle(seq: u64) -> Said {
        let done = seq + 1;
        said(Standing {
            begun: done,
            done,
            latest: Some(call(Func::AllReduce, seq, 100)),
            ..Standing::default()
        })
    }

    fn said(standing: Standing) -> Said {
        Said { first: Some(standing), last: Some(standing), has_left: false }
    }

    fn found(me: u32, said: &[Said]) -> Option<(StallClass, u32, u32)> {
        diagnose(Rank(me), said).map(|stall| (stall.class, stall.rank.0, stall.waiter.0))
    }

    #[test]
    fn the_end_of_the_chain_is_named_by_what_it_does() {
        let chain = [waits(7, Some(1)), waits(7, Some(2)), Said::default()];
        assert_eq!(found(0, &chain), Some((StallClass::NoAnswer, 2, 1)));
        let idle = [waits(7, Some(1)), waits(7, Some(2)), idle(6)];
        assert_eq!(found(0, &idle), Some((StallClass::MissingEnter, 2, 1)));
        let stuck = [waits(7, Some(1)), waits(7, Some(2)), waits(7, None)];
        assert_eq!(found(0, &stuck), Some((StallClass::MissingExit, 2, 1)));
        let never = [waits(0, Some(1)), said(Standing::default())];
        assert_eq!(found(0, &never), Some((StallClass::MissingEnter, 1, 0)));
    }

    #[test]
    fn a_rank_that_moves_is_slow() {
        let mut slow = [waits(7, Some(1)), waits(7, None)];
        slow[1].last = slow[1].last.map(|last| Standing { moved: Some([1 << 20, 0]), ..last });
        assert_eq!(found(0, &slow), Some((StallClass::Slow, 1, 0)));
        let mut behind = [waits(7, Some(1)), waits(5, None)];
        behind[1].first = behind[1].first.map(|first| Standing { begun: 5, done: 5, ..first });
        assert_eq!(found(0, &behind), Some((StallClass::Slow, 1, 0)));
    }

    #[test]
    fn another_call_at_the_same_place_is_a_mismatch() {
        let mut other = waits(7, Some(0));
        let record = Some(call(Func::Broadcast, 7, 100));
        other.last = other.last.map(|last| Standing { latest: record, during: record, ..last });
        assert_eq!(found(0, &[waits(7, Some(1)), other]), Some((StallClass::Mismatch, 1, 0)));
        let receive = Some(call(Func::Recv, 7, 1));
        let early =
            Standing { begun: 8, done: 7, during: receive, waits_for: Some(Rank(0)), ..Standing::default() };
        let early = said(Standing { latest: Some(call(Func::AllReduce, 6, 100)), ..early });
        assert_eq!(found(0, &[waits(7, Some(1)), early]), Some((StallClass::Mismatch, 1, 0)));
    }

    #[test]
    fn two_that_send_to_each_other_hear_what_helps() {
        let message = |func, peer| {
            let mut record = call(func, 7, 1 << 20);
            record.call.root = Rank(peer);
            let mut said = waits(7, Some(peer));
            said.last = said.last.map(|last| Standing { during: Some(record), ..last });
            said
        };
        let text = |said: &[Said]| diagnose(Rank(0), said).expect("a stall").finding().to_string();
        let both_send = text(&[message(Func::Send, 1), message(Func::Send, 0)]);
        assert!(both_send.contains("it is in send of 1048576 float to rank 0"), "{both_send}");
        assert!(both_send.contains("belong into one group"), "{both_send}");
        for ranks in
            [[message(Func::Recv, 1), message(Func::Recv, 0)], [message(Func::Send, 1), waits(7, Some(0))]]
        {
            assert!(!text(&ranks).contains("group"), "{}", text(&ranks));
        }
    }

    #[test]
    fn in_a_circle_of_the_same_call_the_data_is_lost() {
        assert_eq!(found(0, &[waits(7, Some(1)), waits(7, Some(0))]), Some((StallClass::MissingExit, 1, 0)));
        assert_eq!(found(1, &[waits(7, Some(1)), idle(7)]), None);
        assert_eq!(found(0, &[waits(7, Some(1)), idle(7)]), Some((StallClass::MissingExit, 1, 0)));
    }

    #[test]
    fn heads_that_wait_for_each_other_by_a_network_are_not_at_fault() {
        let head = |seq, next| {
            let mut said = waits(seq, Some(next));
            said.last = said.last.map(|last| Standing { is_for_network: true, ..last });
            said
        };
        // One may be an operation behind: it has no result of that yet.
        let ranks = [waits(7, Some(1)), head(7, 2), head(6, 1)];
        assert_eq!(found(0, &ranks), Some((StallClass::Network, 1, 1)));
        assert_eq!(found(2, &ranks), Some((StallClass::Network, 1, 1)));
        let in_call = |call: CallRecord, next| {
            let mut said = waits(call.seq, Some(next));
            said.last = said.last.map(|last| Standing { during: Some(call), latest: Some(call), ..last });
            said
        };
        for other in [call(Func::Recv, 7, 5), call(Func::Broadcast, 7, 100)] {
            let found = found(0, &[head(7, 1), in_call(other, 0)]);
            assert_eq!(found.map(|(_, rank, _)| rank), Some(1), "{other:?}");
            assert_ne!(found.map(|(class, ..)| class), Some(StallClass::Network), "{other:?}");
        }
        let late = [waits(7, Some(1)), head(7, 2), waits(7, Some(3)), idle(6)];
        assert_eq!(found(0, &late), Some((StallClass::MissingEnter, 3, 2)));
        assert_eq!(found(0, &[head(7, 1), Said::default()]), Some((StallClass::NoAnswer, 1, 0)));
    }

    /// A GPU that has enqueued collectives up to this number, of which `done` are done, and whose kernel of number `in_` waits for `peer`.
    fn gpu(latest: u64, done: u64, in_: Option<(u64, u32)>) -> Said {
        let waits = in_.map(|(launch, peer)| KernelAt {
            peer: Rank(peer),
            is_credit: false,
            step: 12,
            block: 3,
            launch,
        });
        let record = |seq| Some(call(Func::AllReduce, seq, 100));
        let during = in_.map(|(seq, _)| seq).or((done <= latest).then_some(latest));
        said(Standing {
            begun: latest + 1,
            done,
            latest: record(latest),
            during: during.and_then(record),
            waits_for: waits.map(|at| at.peer),
            waited_ms: if waits.is_some() { 10_000 } else { 0 },
            kernels: Some(Kernels { waits, has_graphs: false }),
            ..Standing::default()
        })
    }

    #[test]
    fn a_kernel_that_waits_says_for_whom_and_the_end_of_the_chain_is_named() {
        let never = [gpu(9, 5, Some((7, 1))), gpu(9, 5, Some((7, 2))), gpu(6, 7, None)];
        assert_eq!(found(0, &never), Some((StallClass::MissingEnter, 2, 1)));
        let stall = diagnose(Rank(0), &never).unwrap();
        assert_eq!((stall.during.seq, stall.waits_at.unwrap().step), (7, 12), "not the one enqueued last");
        let not_started = [gpu(7, 7, Some((7, 1))), gpu(9, 7, None)];
        assert_eq!(found(0, &not_started), Some((StallClass::MissingStart, 1, 0)));
        let text = diagnose(Rank(0), &not_started).unwrap().finding().to_string();
        assert!(text.starts_with("has enqueued it, and its kernel does not run"), "{text}");
        let silent = [gpu(7, 7, Some((7, 1))), Said::default()];
        assert_eq!(found(0, &silent), Some((StallClass::NoAnswer, 1, 0)));
        let circle = [gpu(7, 7, Some((7, 1))), gpu(7, 7, Some((7, 0)))];
        assert_eq!(found(0, &circle), Some((StallClass::MissingExit, 1, 0)));
        let text = diagnose(Rank(0), &circle).unwrap().finding().to_string();
        assert!(text.contains("its own kernel waits: rank 0 has not sent step 12 (block 3)"), "{text}");
        assert_eq!(found(0, &[gpu(7, 8, None), gpu(6, 7, None)]), None, "nobody waits");
    }

    #[test]
    fn who_enqueues_on_and_on_has_not_started_and_whose_kernels_go_on_is_slow() {
        let mut ahead = [gpu(7, 7, Some((7, 1))), gpu(40, 7, None)];
        ahead[1].first = gpu(20, 7, None).last;
        assert_eq!(found(0, &ahead), Some((StallClass::MissingStart, 1, 0)));
        let mut comes = [gpu(7, 7, Some((7, 1))), gpu(40, 7, None)];
        comes[1].first = gpu(40, 6, None).last;
        assert_eq!(found(0, &comes), Some((StallClass::Slow, 1, 0)));
    }

    #[test]
    fn a_graph_that_a_rank_has_not_launched_has_not_started() {
        let mut replayed = [gpu(7, 8, Some((5, 1))), gpu(7, 8, None)];
        assert_eq!(found(0, &replayed), Some((StallClass::MissingExit, 1, 0)), "there are no graphs");
        for said in &mut replayed {
            for standing in [&mut said.first, &mut said.last] {
                let standing = standing.as_mut().unwrap();
                standing.kernels.as_mut().unwrap().has_graphs = true;
            }
        }
        assert_eq!(found(0, &replayed), Some((StallClass::MissingStart, 1, 0)));
        let text = diagnose(Rank(0), &replayed).unwrap().finding().to_string();
        assert!(text.starts_with("has not launched the graph with it"), "{text}");
    }

    #[test]
    fn ranks_that_cannot_say_for_whom_they_wait_are_compared() {
        let gpus = [waits(7, None), waits(7, None), idle(5), idle(6)];
        assert_eq!(found(0, &gpus), Some((StallClass::MissingEnter, 2, 0)));
        assert_eq!(found(0, &[waits(7, None), Said::default(), idle(5)]), Some((StallClass::NoAnswer, 1, 0)));
        assert_eq!(found(0, &[waits(7, None), waits(7, None)]), None, "all have enqueued it");
        let mut comes = idle(6);
        comes.first = comes.first.map(|first| Standing { begun: 6, done: 6, ..first });
        assert_eq!(found(0, &[waits(7, None), comes]), None, "it comes by itself");
    }

    #[test]
    fn of_ranks_behind_two_that_are_stopped_the_first_is_named() {
        let mut ranks = [waits(7, Some(3)); 6];
        (2..5).for_each(|rank| ranks[rank] = Said::default());
        assert_eq!(found(0, &ranks), Some((StallClass::NoAnswer, 2, 0)));
        let gone = [waits(7, Some(1)), Said { has_left: true, ..Said::default() }, Said::default()];
        assert_eq!(found(0, &gone), Some((StallClass::MissingExit, 1, 0)));
        assert_eq!(found(0, &[waits(7, Some(9))]), None, "no such rank");
    }
}

//! From what all ranks say to the one at fault.

use super::links::LinkUse;
use super::report::{Stall, StallClass};
use super::standing::Standing;
use crate::plan::CallRecord;
use oxccl_shared::abi::Rank;
use std::time::Duration;

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
    fn works(&self) -> bool {
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
    let (waiter, rank) = match own.waits_for {
        Some(first) => end_of_chain(me, first, said),
        None => (me, behind(me, during, said)?),
    };
    let during = said[waiter.index()].last.and_then(|waiter| waiter.during).unwrap_or(during);
    let (class, rank) = match said.get(rank.index()) {
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
        link: None,
        waits_at: kernel(said[waiter.index()].last),
        stands_at: kernel(guilty),
        waited: own.waited(),
        lasted: own.lasted(),
        latest: guilty.and_then(|guilty| guilty.latest),
        is_in: guilty.and_then(|guilty| guilty.during),
        moved,
        silent: said.iter().filter(|said| said.is_silent()).count() as u32,
    })
}

/// A rank waits for another most of the time, from so many per cent on.
const IDLE_MIN: u8 = 60;
/// A rank that waits for others so many per cent of the time is not slow itself.
const BUSY_MAX: u8 = 40;

/// What is slow in the operation of `me`, which goes on and lasts: a rank, or a link.
pub(super) fn diagnose_slow(me: Rank, said: &[Said]) -> Option<Stall> {
    // The link first: its kernel's counters hold on busy processors too, where a rank that waits may seem busy.
    slow_link(me, said).or_else(|| slow_rank(me, said))
}

/// The rank that is slow: the only one that does not wait, and for which all others wait
/// most of the time, itself or by way of others. `None` where there is no such rank: the operation is a long one, or a link is slow and both
/// of its ends wait.
fn slow_rank(me: Rank, said: &[Said]) -> Option<Stall> {
    let own = said.get(me.index())?.last?;
    let during = own.during.filter(|during| !during.call.func.is_message())?;
    let is_busy = |said: &Said| {
        let idle = said.last.and_then(|last| last.idle);
        said.works() && idle.is_some_and(|idle| idle.for_all < BUSY_MAX)
    };
    let mut busy = (0..).map(Rank).zip(said).filter(|(_, said)| is_busy(said));
    let (rank, guilty) = busy.next().filter(|_| busy.next().is_none())?;
    let others = || (0..said.len() as u32).map(Rank).filter(|other| *other != rank);
    // A root has more to do than the others, which wait for it.
    let is_root = during.call.func.is_rooted() && during.call.root == rank;
    if is_root || !others().all(|other| waits_at_last_for(other, rank, said)) {
        return None;
    }
    let waiter = others().find(|other| mostly_for(*other, said) == Some(rank))?;
    // A GPU whose kernels do not wait cannot tell one operation from the next; one that waits can.
    let has_waited_long = |waiter: &Said| waiter.last.is_some_and(|last| last.lasted() >= own.lasted() / 2);
    let now = guilty.last?;
    (now.is_in(during.seq) && has_waited_long(&said[waiter.index()])).then_some(Stall {
        class: StallClass::Slow,
        rank,
        waiter,
        during,
        waited: Duration::ZERO,
        lasted: own.lasted(),
        latest: now.latest,
        is_in: now.during,
        moved: now.moved,
        link: None,
        waits_at: None,
        stands_at: None,
        silent: 0,
    })
}

/// So many times faster than a slow link all others are.
const FASTER_MIN: u32 = 4;

/// The link that is slow, from the rank at fault to the one that waits: bytes are under way on it most of the time, and all links but others
/// from and to that rank can carry a multiple. One of these has carried at least half as much: it is not the network as a whole that is slow,
/// nor does the operation use one link only. (How long those are busy says less: a receiver without a processor acknowledges late. Links to
/// that rank say nothing: it acknowledges by the way that is slow.)
fn slow_link(me: Rank, said: &[Said]) -> Option<Stall> {
    let own = said.get(me.index())?.last?;
    let during = own.during.filter(|during| !during.call.func.is_message())?;
    let mut links: Vec<(Rank, LinkUse)> = Vec::new();
    for (rank, said) in (0..).map(Rank).zip(said) {
        let last = said.last.filter(|last| last.is_in(during.seq))?;
        links.extend(last.links?.into_iter().flatten().map(|link| (rank, link)));
    }
    let stands_out = |(from, slow): &(Rank, LinkUse)| {
        let is_faster = |link: &LinkUse| link.can_kbps() / FASTER_MIN >= slow.can_kbps().max(1);
        let others = || links.iter().filter(|(rank, _)| rank != from);
        others().all(|(_, link)| link.peer == *from || is_faster(link))
            && others().any(|(_, link)| is_faster(link) && link.bytes >= slow.bytes / 2)
    };
    let busy = links.iter().filter(|(_, link)| link.busy >= IDLE_MIN);
    let (from, slow) = *busy.filter(|link| stands_out(link)).min_by_key(|(_, link)| link.can_kbps())?;
    let sender = said.get(from.index())?.last?;
    Some(Stall {
        class: StallClass::SlowLink,
        rank: from,
        waiter: slow.peer,
        during,
        waited: Duration::ZERO,
        lasted: own.lasted(),
        latest: sender.latest,
        is_in: sender.during,
        moved: sender.moved,
        link: Some(slow),
        waits_at: None,
        stands_at: None,
        silent: 0,
    })
}

/// The rank that another waits for most of the time, or more than for others: opposite a slow rank in a ring one waits for both neighbours.
fn mostly_for(rank: Rank, said: &[Said]) -> Option<Rank> {
    let idle = said.get(rank.index())?.last?.idle?;
    (idle.for_all >= IDLE_MIN && idle.for_peer >= IDLE_MIN / 2).then_some(idle.peer)
}

/// Whether `from` waits for `to` most of the time, or for one that does.
fn waits_at_last_for(from: Rank, to: Rank, said: &[Said]) -> bool {
    let mut at = from;
    for _ in 0..said.len() {
        match mostly_for(at, said) {
            Some(next) if next == to => return true,
            Some(next) => at = next,
            None => return false,
        }
    }
    false
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
        match said.get(rank.index()).and_then(|said| said.last).and_then(|standing| standing.waits_for) {
            None => return (waiter, rank),
            Some(next) if next == me => break,
            Some(next) => (waiter, rank) = (rank, next),
        }
    }
    (me, first)
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
fn edge_of_silence(rank: Rank, said: &[Said]) -> Rank {
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
mod tests {
    use super::super::kernels::{KernelAt, Kernels};
    use super::super::standing::Idle;
    use super::*;
    use crate::plan::Call;
    use oxccl_shared::abi::{DataType, Func, RedOp};

    fn call(func: Func, seq: u64, count: u64) -> CallRecord {
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

    /// In collective 7 for 10 s, of which it has spent so many per cent waiting for `peer`.
    fn lasts(peer: u32, percent: u8) -> Said {
        let idle = Some(Idle { peer: Rank(peer), for_peer: percent, for_all: percent });
        let record = Some(call(Func::AllReduce, 7, 100));
        let last = Standing { begun: 8, done: 7, latest: record, during: record, ..Standing::default() };
        let last = Standing { lasted_ms: 10_000, idle, moved: Some([2, 2]), ..last };
        Said { first: Some(Standing { moved: Some([1, 1]), ..last }), last: Some(last), has_left: false }
    }

    fn found_slow(said: &[Said]) -> Vec<Option<(StallClass, u32, u32)>> {
        let by = |me| diagnose_slow(me, said).map(|stall| (stall.class, stall.rank.0, stall.waiter.0));
        (0..said.len() as u32).map(Rank).map(by).collect()
    }

    #[test]
    fn a_rank_for_which_all_others_wait_most_of_the_time_is_slow() {
        let slow = [lasts(2, 95), lasts(0, 90), lasts(1, 10), lasts(2, 99)];
        assert_eq!(found_slow(&slow), [Some((StallClass::Slow, 2, 0)); 4], "whoever asks");
        assert_eq!(diagnose_slow(Rank(0), &slow).unwrap().lasted.as_secs(), 10);
        let mut opposite = slow;
        let both = Some(Idle { peer: Rank(3), for_peer: 47, for_all: 93 });
        opposite[0].last = opposite[0].last.map(|last| Standing { idle: both, ..last });
        assert_eq!(found_slow(&opposite), [Some((StallClass::Slow, 2, 3)); 4], "one waits for either side");
        let mut left = slow;
        left[2].first = left[2].last;
        assert_eq!(found_slow(&left), [None; 4], "it does not move: that is another report");
    }

    /// The same of a rank on a GPU, whose kernels count no bytes, and which has enqueued another call behind it.
    fn lasts_on_gpu(peer: u32, percent: u8) -> Said {
        let said = lasts(peer, percent);
        let (latest, kernels) = (Some(call(Func::Broadcast, 8, 5)), Some(Kernels::default()));
        let on_gpu = |standing| Standing { moved: None, latest, kernels, ..standing };
        Said { first: said.first.map(on_gpu), last: said.last.map(on_gpu), ..said }
    }

    #[test]
    fn a_gpu_for_which_all_others_wait_most_of_the_time_is_slow() {
        let slow = [lasts_on_gpu(2, 95), lasts_on_gpu(0, 90), lasts_on_gpu(1, 10), lasts_on_gpu(2, 99)];
        assert_eq!(found_slow(&slow), [Some((StallClass::Slow, 2, 0)); 4], "whoever asks");
        let ring = [lasts_on_gpu(2, 95), lasts_on_gpu(0, 90), lasts_on_gpu(1, 90)];
        assert_eq!(found_slow(&ring), [None; 3]);
        let mut next = slow;
        next[0].last = next[0].last.map(|last| Standing { lasted_ms: 200, ..last });
        assert_eq!(diagnose_slow(Rank(2), &next), None, "one operation after the other");
        let mut unseen = slow;
        unseen[2].last = unseen[2].last.map(|last| Standing { idle: None, ..last });
        assert_eq!(found_slow(&unseen), [None; 4], "nobody knows what it does");
    }

    #[test]
    fn a_root_that_works_while_others_wait_is_not_slow() {
        let of = |func, root| {
            let record =
                Some(CallRecord { call: Call { root: Rank(root), ..call(func, 7, 9).call }, seq: 7 });
            let of_it = |standing| Standing { latest: record, during: record, ..standing };
            [lasts(2, 95), lasts(0, 90), lasts(1, 10)].map(|said| Said {
                first: said.first.map(of_it),
                last: said.last.map(of_it),
                ..said
            })
        };
        assert_eq!(found_slow(&of(Func::Broadcast, 2)), [None; 3]);
        assert_eq!(found_slow(&of(Func::Broadcast, 0)), [Some((StallClass::Slow, 2, 0)); 3]);
        assert_eq!(
            found_slow(&of(Func::AllGather, 2)),
            [Some((StallClass::Slow, 2, 0)); 3],
            "it has no root"
        );
    }

    #[test]
    fn long_operations_of_equal_ranks_are_not_slow() {
        let ring = [lasts(3, 95), lasts(0, 95), lasts(1, 95), lasts(2, 95)];
        assert_eq!(found_slow(&ring), [None; 4], "all wait in a circle: the network is what it is");
        let pair = [lasts(1, 99), lasts(0, 99)];
        assert_eq!(found_slow(&pair), [None; 2]);
        let busy = [lasts(1, 30), lasts(2, 30), lasts(0, 30)];
        assert_eq!(found_slow(&busy), [None; 3], "all work");
        let (one, two) = (lasts(1, 90), lasts(0, 20));
        assert_eq!(found_slow(&[one, two, Said::default()]), [None; 3], "one has not answered");
        assert_eq!(found_slow(&[one, two, lasts(1, 50)]), [None; 3], "one waits for it and for others");
    }

    /// In collective 7, waiting most of the time, with links to these ranks: busy so many per cent of it, and their bytes.
    fn sends(links: [Option<(u32, u8, u64)>; 2]) -> Said {
        let mut said = lasts(0, 95);
        // A link that is busy most of the time can no more.
        let delivery = |busy| if busy > 80 { 5_000 } else { 400_000 };
        let of = |(peer, busy, bytes)| LinkUse {
            peer: Rank(peer),
            busy,
            bytes,
            delivery_kbps: delivery(busy),
            time_ms: 5000,
            retransmits: 2,
        };
        said.last = said.last.map(|last| Standing { links: Some(links.map(|link| link.map(of))), ..last });
        said
    }

    #[test]
    fn the_one_link_that_is_busy_while_like_ones_are_idle_is_slow() {
        let ring = [
            sends([Some((1, 5, 900)), None]),
            sends([Some((2, 98, 1000)), None]),
            sends([Some((0, 9, 1000)), None]),
        ];
        assert_eq!(found_slow(&ring), [Some((StallClass::SlowLink, 1, 2)); 3], "whoever asks");
        let text = diagnose_slow(Rank(0), &ring).unwrap().finding().to_string();
        assert!(text.starts_with("has a slow link to rank 2: bytes were under way on it for 98 %"), "{text}");
        let both_ways = [
            sends([Some((1, 5, 900)), Some((2, 3, 900))]),
            sends([Some((2, 98, 1000)), Some((0, 4, 900))]),
            sends([Some((1, 90, 1000)), Some((0, 9, 1000))]),
        ];
        assert_eq!(found_slow(&both_ways)[0], Some((StallClass::SlowLink, 1, 2)));
    }

    /// What is sent to the rank whose host sends slowly is acknowledged as slowly, and the kernel's sample of it may be the least of all.
    #[test]
    fn a_link_to_the_rank_whose_host_sends_slowly_is_not_taken_for_the_slow_one() {
        let with = |to, busy, delivery_kbps| {
            let mut said = sends([Some((to, busy, 25_000_000)), None]);
            let links = &mut said.last.as_mut().unwrap().links.as_mut().unwrap();
            links[0].as_mut().unwrap().delivery_kbps = delivery_kbps;
            said
        };
        // Ranks on GPUs have enqueued more.
        let enqueued = |mut said: Said, seq| {
            said.last.as_mut().unwrap().latest = Some(call(Func::Barrier, seq, 0));
            said
        };
        let ring = [with(1, 5, 400_000), with(2, 5, 400_000), with(0, 98, 6_000)];
        let ahead = [enqueued(ring[0], 9), enqueued(ring[1], 8), ring[2]];
        assert_eq!(found_slow(&ahead), [Some((StallClass::SlowLink, 2, 0)); 3]);
        for sample in [100, 2_000, 6_000, 50_000] {
            let ring = [with(1, 5, 400_000), with(2, 90, sample), with(0, 98, 6_000)];
            assert_eq!(found_slow(&ring), [Some((StallClass::SlowLink, 2, 0)); 3], "{sample} kB/s");
        }
    }

    #[test]
    fn a_network_that_is_slow_as_a_whole_names_no_link() {
        let all = [(1, 97), (2, 99), (0, 95)].map(|(to, busy)| sends([Some((to, busy, 1000)), None]));
        assert_eq!(found_slow(&all), [None; 3]);
        let pair = [sends([Some((1, 99, 1000)), None]), sends([Some((0, 98, 1000)), None])];
        assert_eq!(found_slow(&pair), [None; 2], "both ways of the only link");
        let only_one = [sends([Some((1, 99, 1000)), None]), sends([None, None]), sends([None, None])];
        assert_eq!(found_slow(&only_one), [None; 3], "a chain of one hop");
        let acks = [sends([Some((1, 99, 1000)), None]), sends([Some((0, 1, 40)), None])];
        assert_eq!(found_slow(&acks), [None; 2], "nothing else has carried as much");
        let mut busy = [sends([Some((1, 99, 1000)), None]), sends([Some((0, 1, 1000)), None])];
        assert_eq!(found_slow(&busy)[0], Some((StallClass::SlowLink, 0, 1)));
        busy[1].last.as_mut().unwrap().links = None;
        assert_eq!(found_slow(&busy), [None; 2], "one says nothing of its links");
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
    fn in_a_circle_of_the_same_call_the_data_is_lost() {
        assert_eq!(found(0, &[waits(7, Some(1)), waits(7, Some(0))]), Some((StallClass::MissingExit, 1, 0)));
        assert_eq!(found(1, &[waits(7, Some(1)), idle(7)]), None);
        assert_eq!(found(0, &[waits(7, Some(1)), idle(7)]), Some((StallClass::MissingExit, 1, 0)));
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

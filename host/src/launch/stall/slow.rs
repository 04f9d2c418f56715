//! From what all ranks say to what is slow in an operation that goes on and lasts: a rank, or a link.

use super::diagnose::Said;
use super::links::LinkUse;
use super::report::{Stall, StallClass};
use oxccl_shared::abi::Rank;
use std::time::Duration;

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
    let mark = said[waiter.index()].last.filter(|last| last.during == Some(during)).unwrap_or(own).mark;
    (now.is_in(during.seq) && has_waited_long(&said[waiter.index()])).then_some(Stall {
        class: StallClass::Slow,
        rank,
        waiter,
        during,
        mark,
        waited: Duration::ZERO,
        lasted: own.lasted(),
        latest: now.latest,
        is_in: now.during,
        in_comm_call: None,
        elsewhere: None,
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
        mark: own.mark,
        waited: Duration::ZERO,
        lasted: own.lasted(),
        latest: sender.latest,
        is_in: sender.during,
        in_comm_call: None,
        elsewhere: None,
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

#[cfg(test)]
mod tests {
    use super::super::diagnose::tests::call;
    use super::super::kernels::Kernels;
    use super::super::standing::{Idle, Standing};
    use super::*;
    use crate::plan::{Call, CallRecord};
    use oxccl_shared::abi::Func;

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
}

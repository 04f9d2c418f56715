//! Detectors of several ranks without sockets or clocks.

use super::*;
use crate::launch::stall::{Idle, KernelAt, Kernels, StallClass};
use crate::plan::{Call, CallRecord};

const WARN: Duration = Duration::from_secs(10);
const MS: Duration = Duration::from_millis(1);

/// A rank: what it does, and since when it has been waiting.
struct One {
    detector: Detector,
    standing: Standing,
    waits_since: Option<Duration>,
    /// Since when it has been in a call that goes on.
    lasts_since: Option<Duration>,
    is_stopped: bool,
    next: Option<Duration>,
}

/// A job whose notices arrive at once, except to and from ranks that are stopped.
struct Job {
    now: Duration,
    ranks: Vec<One>,
    reports: Vec<(u32, Stall)>,
    cleared: Vec<u32>,
    /// Who counts anew how its operation divides its time.
    anew: Vec<u32>,
    notices: u32,
}

fn record(seq: u64) -> Option<CallRecord> {
    Some(CallRecord { seq, call: Call::ONE_BYTE })
}

impl Job {
    fn new(nranks: u32) -> Job {
        let one = |rank| One {
            detector: Detector::new(Rank(rank), nranks, WARN),
            standing: Standing::default(),
            waits_since: None,
            lasts_since: None,
            is_stopped: false,
            next: None,
        };
        let ranks = (0..nranks).map(one).collect();
        let (reports, cleared, anew) = (Vec::new(), Vec::new(), Vec::new());
        Job { now: Duration::from_secs(1000), ranks, reports, cleared, anew, notices: 0 }
    }

    fn waits(&mut self, rank: u32, seq: u64, peer: u32) {
        let standing = Standing {
            begun: seq + 1,
            done: seq,
            latest: record(seq),
            during: record(seq),
            waits_for: Some(Rank(peer)),
            ..Standing::default()
        };
        let now = self.now;
        let one = &mut self.ranks[rank as usize];
        (one.standing, one.waits_since, one.next) = (standing, Some(now), Some(now));
    }

    /// It is in a call, waits for `peer` so many per cent of the time, and goes on all the while.
    fn lasts(&mut self, rank: u32, seq: u64, peer: u32, percent: u8) {
        self.waits(rank, seq, peer);
        let one = &mut self.ranks[rank as usize];
        let idle = Idle { peer: Rank(peer), for_peer: percent, for_all: percent };
        one.standing = Standing { waits_for: None, idle: Some(idle), ..one.standing };
        (one.waits_since, one.lasts_since) = (None, Some(self.now));
    }

    fn done(&mut self, rank: u32, seq: u64) {
        let one = &mut self.ranks[rank as usize];
        let done = seq + 1;
        one.standing = Standing { begun: done, done, latest: record(seq), ..Standing::default() };
        (one.waits_since, one.lasts_since, one.next) = (None, None, Some(self.now));
    }

    fn own(&self, rank: usize) -> Standing {
        let One { standing, waits_since, lasts_since, .. } = &self.ranks[rank];
        let ms = |since: &Option<Duration>| since.map_or(0, |since| (self.now - since).as_millis() as u64);
        let moved = lasts_since.map(|_| [self.now.as_millis() as u64; 2]);
        Standing { waited_ms: ms(waits_since), lasted_ms: ms(lasts_since), moved, ..*standing }
    }

    fn act(&mut self, from: usize, acts: Vec<Act>) {
        for act in acts {
            match act {
                Act::Report(stall) => self.reports.push((from as u32, stall)),
                Act::Clear(_) => self.cleared.push(from as u32),
                Act::CountAnew => self.anew.push(from as u32),
                Act::Tell(notice) => {
                    self.notices += 1;
                    for to in 0..self.ranks.len() {
                        if to != from && !self.ranks[to].is_stopped {
                            let (own, mut more) = (self.own(to), Vec::new());
                            let rank = &mut self.ranks[to];
                            rank.detector.heard(self.now, Rank(from as u32), notice, &own, &mut more);
                            rank.next = Some(self.now);
                            self.act(to, more);
                        }
                    }
                }
            }
        }
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now += 10 * MS;
            for rank in 0..self.ranks.len() {
                let (own, mut acts) = (self.own(rank), Vec::new());
                let one = &mut self.ranks[rank];
                if one.is_stopped || one.next.is_none_or(|next| next > self.now) {
                    continue;
                }
                one.next = one.detector.look(self.now, &own, &mut acts);
                self.act(rank, acts);
            }
        }
    }

    fn found(&self) -> Vec<(StallClass, u32, u32)> {
        self.reports.iter().map(|(_, stall)| (stall.class, stall.rank.0, stall.waiter.0)).collect()
    }
}

#[test]
fn one_rank_reports_once_at_the_warn_time_and_once_when_it_moves() {
    let mut job = Job::new(4);
    job.done(3, 6);
    (0..3).for_each(|rank| job.waits(rank, 7, rank + 1));
    job.pass(WARN - 50 * MS);
    assert_eq!(job.found(), []);
    job.pass(100 * MS);
    assert_eq!(job.found(), [(StallClass::MissingEnter, 3, 2)]);
    assert_eq!(job.reports[0].1.waited.as_secs(), 10);
    job.pass(WARN * 10);
    assert_eq!(job.reports.len(), 1);
    assert!(job.ranks.iter().all(|rank| rank.detector.stall().is_some_and(|stall| stall.rank == Rank(3))));
    (0..4).for_each(|rank| job.done(rank, 7));
    job.pass(WARN * 2);
    assert_eq!((job.cleared.len(), job.reports.len()), (1, 1));
    assert!(job.ranks.iter().all(|rank| rank.detector.stall().is_none()));
}

#[test]
fn a_wait_that_ends_in_time_says_nothing_aloud() {
    let mut job = Job::new(3);
    for seq in 0..20 {
        job.waits(0, seq, 1);
        job.waits(1, seq, 2);
        job.pass(WARN - 100 * MS);
        (0..3).for_each(|rank| job.done(rank, seq));
        job.pass(100 * MS);
    }
    assert_eq!((job.found(), job.cleared.len()), (vec![], 0));
    assert!(job.ranks.iter().all(|rank| rank.detector.stall().is_none()));
}

#[test]
fn a_short_wait_asks_nobody() {
    let mut job = Job::new(3);
    job.waits(0, 1, 1);
    job.pass(WARN / 2);
    job.done(0, 1);
    job.pass(WARN);
    assert_eq!(job.notices, 0);
}

#[test]
fn a_stopped_rank_is_named_by_its_silence_and_a_second_stall_is_reported_anew() {
    for stopped in 0..3u32 {
        let mut job = Job::new(3);
        for round in 0..2 {
            job.ranks[stopped as usize].is_stopped = true;
            let others: Vec<u32> = (0..3).filter(|rank| *rank != stopped).collect();
            job.waits(others[0], round, others[1]);
            job.waits(others[1], round, stopped);
            job.pass(WARN + 100 * MS);
            assert_eq!(job.found().last(), Some(&(StallClass::NoAnswer, stopped, others[1])));
            job.ranks[stopped as usize].is_stopped = false;
            (0..3).for_each(|rank| job.done(rank, round));
            job.pass(WARN);
            assert_eq!((job.reports.len(), job.cleared.len()), (round as usize + 1, round as usize + 1));
        }
    }
}

/// The one that would report is stopped itself while it asks.
#[test]
fn who_asks_and_falls_silent_is_named_by_another() {
    let mut job = Job::new(3);
    job.waits(0, 1, 2);
    job.pass(500 * MS);
    job.waits(1, 1, 0);
    job.waits(2, 1, 1);
    job.pass(WARN - Duration::from_secs(3) + 100 * MS);
    job.ranks[0].is_stopped = true;
    job.pass(WARN * 2);
    assert_eq!(job.found(), [(StallClass::NoAnswer, 0, 1)]);
}

#[test]
fn questions_of_many_ranks_cost_a_few_notices_each() {
    let mut job = Job::new(64);
    job.done(63, 0);
    (0..63).for_each(|rank| job.waits(rank, 1, 63));
    job.pass(WARN * 2);
    assert_eq!(job.reports.len(), 1);
    assert!(job.notices < 64 * 6, "{}", job.notices);
}

#[test]
fn ranks_that_do_not_exist_are_not_heard() {
    let mut detector = Detector::new(Rank(0), 2, WARN);
    let mut acts = Vec::new();
    let own = Standing::default();
    for from in [Rank(0), Rank(2), Rank(u32::MAX)] {
        detector.heard(Duration::ZERO, from, StallNotice::Ask(own), &own, &mut acts);
    }
    detector.left(Rank(9));
    assert_eq!(acts, []);
}

#[test]
fn an_operation_that_goes_on_and_lasts_names_the_slow_rank_once() {
    let mut job = Job::new(4);
    for (rank, peer, percent) in [(0, 3, 95), (1, 2, 95), (2, 1, 8), (3, 2, 90)] {
        job.lasts(rank, 7, peer, percent);
    }
    job.pass(WARN - 50 * MS);
    assert_eq!(job.found(), []);
    job.pass(100 * MS);
    assert_eq!(job.found(), [(StallClass::Slow, 2, 1)]);
    let stall = job.reports[0].1;
    assert_eq!((stall.waited, stall.lasted.as_secs()), (Duration::ZERO, 10));
    job.pass(WARN * 5);
    assert_eq!((job.reports.len(), job.cleared.len()), (1, 0));
    (0..4).for_each(|rank| job.done(rank, 7));
    job.pass(WARN);
    assert_eq!((job.reports.len(), job.cleared.len()), (1, 1));
    assert!(job.ranks.iter().all(|rank| rank.detector.stall().is_none()));
}

/// Its process was stopped, and all others waited for it most of the time so far.
#[test]
fn a_rank_that_was_stopped_for_a_while_is_not_called_slow_afterwards() {
    let mut job = Job::new(3);
    let begin = job.now;
    let all = [(0, 2, 95), (1, 0, 95), (2, 1, 8)];
    all.iter().for_each(|at| job.lasts(at.0, 7, at.1, at.2));
    job.ranks[2].is_stopped = true;
    (0..2).for_each(|rank| job.waits(rank, 7, 2));
    job.pass(WARN + 100 * MS);
    assert_eq!(job.found(), [(StallClass::NoAnswer, 2, 0)]);
    // Found and Over reach it when it runs again.
    job.ranks[2].is_stopped = false;
    let stall = StallNotice::Found(job.reports[0].1);
    let own = job.own(2);
    job.ranks[2].detector.heard(job.now, Rank(0), stall, &own, &mut Vec::new());
    all.iter().for_each(|at| job.lasts(at.0, 7, at.1, at.2));
    job.ranks.iter_mut().for_each(|one| one.lasts_since = Some(begin));
    job.pass(WARN / 2);
    assert_eq!((job.cleared.len(), job.anew.len()), (1, 3), "all count anew");
    job.pass(WARN / 2 - 300 * MS);
    assert_eq!(job.reports.len(), 1, "nothing yet to go by");
    job.pass(WARN);
    assert_eq!(job.found()[1..], [(StallClass::Slow, 2, 0)], "it is slow all the same");
    assert_eq!(job.anew.len(), 3);
}

/// As when a slow link loses its last packets: it does no more, for less than the warn time.
#[test]
fn a_slow_operation_that_pauses_is_over_once() {
    for goes_on in [true, false] {
        let mut job = Job::new(3);
        let slow = [(0, 2, 95), (1, 0, 95), (2, 1, 8)];
        let lasts = |job: &mut Job| slow.iter().for_each(|at| job.lasts(at.0, 7, at.1, at.2));
        lasts(&mut job);
        job.pass(WARN + 100 * MS);
        assert_eq!(job.found(), [(StallClass::Slow, 2, 0)]);
        for one in &mut job.ranks {
            (one.waits_since, one.standing.waits_for) = (Some(job.now), Some(Rank(1)));
        }
        job.pass(WARN - 100 * MS);
        if goes_on {
            job.ranks.iter_mut().for_each(|one| (one.waits_since, one.standing.waits_for) = (None, None));
            job.pass(WARN);
            assert_eq!(job.cleared.len(), 0);
            assert_eq!(job.ranks[0].detector.stall().map(|stall| stall.class), Some(StallClass::Slow));
        }
        (0..3).for_each(|rank| job.done(rank, 7));
        job.pass(WARN);
        assert_eq!((job.reports.len(), job.cleared.len()), (1, 1), "it goes on: {goes_on}");
    }
}

/// A GPU's executor goes on while the kernel of an earlier call waits: that is still the same stall.
#[test]
fn calls_enqueued_behind_a_kernel_that_waits_do_not_end_its_stall() {
    let mut job = Job::new(2);
    job.waits(0, 7, 1);
    for rank in &mut job.ranks {
        let waits = rank.standing.waits_for.map(|peer| KernelAt {
            peer,
            is_credit: false,
            step: 1,
            block: 0,
            launch: 7,
        });
        rank.standing.kernels = Some(Kernels { waits, has_graphs: false });
    }
    job.pass(WARN + 100 * MS);
    assert_eq!(job.reports.len(), 1);
    for _ in 0..5 {
        job.ranks[0].standing.begun += 3;
        job.pass(WARN);
    }
    assert_eq!((job.reports.len(), job.cleared.len()), (1, 0));
    (0..2).for_each(|rank| job.done(rank, 7));
    job.pass(WARN);
    assert_eq!((job.reports.len(), job.cleared.len()), (1, 1));
}

#[test]
fn long_operations_without_a_slow_rank_say_nothing_aloud() {
    let mut job = Job::new(3);
    (0..3).for_each(|rank| job.lasts(rank, 7, (rank + 2) % 3, 97));
    job.pass(WARN * 20);
    assert_eq!(job.found(), []);
    assert!(job.notices < 20 * 20, "{}", job.notices);
}

/// One long wait of one of two ranks, not as long as the warn time, and neither named the slow one any more: this one went on asking why it
/// was stuck, and took the other's question for an answer.
#[test]
fn a_slow_rank_of_two_is_named_after_a_wait_that_almost_lasted_too_long() {
    for begins_ms in (0..8000).step_by(250) {
        let mut job = Job::new(2);
        for (rank, peer, percent) in [(0, 1, 95), (1, 0, 8)] {
            job.lasts(rank, 7, peer, percent);
        }
        job.pass(begins_ms * MS);
        (job.ranks[0].waits_since, job.ranks[0].standing.waits_for) = (Some(job.now), Some(Rank(1)));
        job.pass(8 * WARN / 10);
        (job.ranks[0].waits_since, job.ranks[0].standing.waits_for) = (None, None);
        job.pass(2 * WARN);
        let named: Vec<_> = job.reports.iter().map(|(_, stall)| (stall.class, stall.rank)).collect();
        assert_eq!(named, [(StallClass::Slow, Rank(1))], "the wait began after {begins_ms} ms");
    }
}

/// Whether or not the slow rank has been reported by then.
#[test]
fn a_slow_operation_that_stops_altogether_is_reported_as_that() {
    for before in [WARN / 2, WARN * 2] {
        let mut job = Job::new(3);
        for (rank, peer, percent) in [(0, 2, 95), (1, 0, 95), (2, 1, 8)] {
            job.lasts(rank, 7, peer, percent);
        }
        job.pass(before);
        job.reports.clear();
        job.ranks[2].is_stopped = true;
        job.waits(0, 7, 2);
        job.waits(1, 7, 0);
        job.pass(WARN + 100 * MS);
        assert_eq!(job.found(), [(StallClass::NoAnswer, 2, 0)]);
        job.ranks[2].is_stopped = false;
        (0..3).for_each(|rank| job.done(rank, 7));
        job.pass(WARN);
        assert!(job.ranks[..2].iter().all(|rank| rank.detector.stall().is_none()));
    }
}

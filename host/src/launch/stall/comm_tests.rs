//! Ranks that wait in a split, without sockets or clocks.

use super::*;
use crate::plan::{Call, CallRecord};

const WARN: Duration = Duration::from_secs(10);
const STEP: Duration = Duration::from_millis(50);

/// A rank: its watch, and what it says of its operations.
struct One {
    watch: CommCallWatch,
    standing: Standing,
    is_stopped: bool,
}

/// A job whose notices arrive at once, except to and from ranks that are stopped.
struct Job {
    now: Duration,
    ranks: Vec<One>,
    /// When, by whom, and what.
    reports: Vec<(Duration, u32, CommStall)>,
    asks: u32,
}

impl Job {
    fn new(nranks: u32) -> Job {
        let latest = Some(CallRecord { seq: 0, call: Call::ONE_BYTE });
        let standing = Standing { begun: 1, done: 1, latest, ..Standing::default() };
        let one = |rank| {
            let watch = CommCallWatch::new(Rank(rank), nranks, WARN);
            One { watch, standing, is_stopped: false }
        };
        let ranks = (0..nranks).map(one).collect();
        Job { now: Duration::from_secs(100), ranks, reports: Vec::new(), asks: 0 }
    }

    fn enter(&mut self, rank: usize, call: CommCall, members: Option<&[u32]>) -> u64 {
        let members = members.map(|members| members.iter().copied().map(Rank).collect());
        self.ranks[rank].watch.enter(self.now, call, members)
    }

    fn own(&self, rank: usize) -> Standing {
        Standing { comm_calls: self.ranks[rank].watch.standing(self.now), ..self.ranks[rank].standing }
    }

    fn tell(&mut self, from: usize, notice: StallNotice) {
        for to in (0..self.ranks.len()).filter(|to| *to != from) {
            if self.ranks[to].is_stopped {
                continue;
            }
            self.ranks[to].watch.heard(self.now, Rank(from as u32), notice);
            if matches!(notice, StallNotice::Ask(_)) {
                self.tell(to, StallNotice::Answer(self.own(to)));
            }
        }
    }

    fn run(&mut self, seconds: u64) {
        let end = self.now + Duration::from_secs(seconds);
        while self.now < end {
            for rank in 0..self.ranks.len() {
                let (own, mut acts) = (self.own(rank), Vec::new());
                if self.ranks[rank].is_stopped {
                    continue;
                }
                self.ranks[rank].watch.look(self.now, &own, &mut acts);
                for act in acts {
                    match act {
                        CommAct::Tell(notice) => {
                            self.asks += 1;
                            self.tell(rank, notice);
                        }
                        CommAct::Report(stall) => self.reports.push((self.now, rank as u32, stall)),
                    }
                }
            }
            self.now += STEP;
        }
    }

    /// Who has reported whom, and when.
    fn found(&self, since: Duration) -> Vec<(u64, u32, StallClass, u32, u32)> {
        let one = |(at, by, stall): &(Duration, u32, CommStall)| {
            ((*at - since).as_secs(), *by, stall.class, stall.rank.0, stall.more)
        };
        self.reports.iter().map(one).collect()
    }
}

#[test]
fn the_lowest_of_those_that_wait_reports_once_who_has_not_entered() {
    let mut job = Job::new(5);
    let since = job.now;
    let ids: Vec<u64> = [3, 0, 1].map(|rank| job.enter(rank, CommCall::Split, None)).into();
    job.run(60);
    assert_eq!(job.found(since), [(10, 0, StallClass::MissingEnter, 2, 1)]);
    assert!(job.asks < 6, "{} questions", job.asks);
    let text = job.reports[0].2.to_string();
    assert_eq!(
        text,
        format!(
            "has not entered it (nor has 1 more rank); its latest was {}, and it is in no call",
            job.own(2).latest.unwrap()
        )
    );
    let reported = [3, 0, 1].into_iter().zip(ids).filter_map(|(rank, id)| job.ranks[rank].watch.leave(id));
    assert_eq!(reported.count(), 1, "one says that it is over");
}

/// It would be the one to report, had nobody done so.
#[test]
fn a_lower_rank_that_comes_later_says_nothing_more() {
    let mut job = Job::new(3);
    let since = job.now;
    job.enter(1, CommCall::Finalize, None);
    job.run(6);
    job.enter(0, CommCall::Finalize, None);
    job.run(60);
    assert_eq!(job.found(since), [(10, 1, StallClass::MissingEnter, 2, 0)]);
}

/// The lowest wants no warnings.
#[test]
fn who_was_left_to_report_and_does_not_is_not_waited_for() {
    let mut job = Job::new(3);
    let since = job.now;
    job.ranks[0].watch = CommCallWatch::new(Rank(0), 3, Duration::from_secs(u32::MAX.into()));
    job.enter(0, CommCall::Split, None);
    job.enter(1, CommCall::Split, None);
    job.run(60);
    let found = job.found(since);
    assert!(matches!(found[..], [(10..15, 1, StallClass::MissingEnter, 2, 0)]), "{found:?}");
}

#[test]
fn a_rank_that_does_not_answer_is_named_rather_than_one_that_has_not_come() {
    let mut job = Job::new(4);
    let since = job.now;
    job.ranks[3].is_stopped = true;
    job.enter(0, CommCall::Split, None);
    job.enter(1, CommCall::Split, None);
    job.run(20);
    assert_eq!(job.found(since), [(10, 0, StallClass::NoAnswer, 3, 1)]);
    let text = "does not answer: its process is stopped, frozen or cut off (nor has 1 more rank)";
    assert_eq!(job.reports[0].2.to_string(), text);
}

/// Of two that have not come, the one that waits for the other in an operation is not at fault.
#[test]
fn a_rank_that_waits_itself_is_not_named_first() {
    let mut job = Job::new(3);
    let since = job.now;
    let call = job.ranks[1].standing.latest;
    let waits = Standing { during: call, waits_for: Some(Rank(2)), ..job.ranks[1].standing };
    job.ranks[1].standing = waits;
    job.enter(0, CommCall::Grow, None);
    job.run(20);
    assert_eq!(job.found(since), [(10, 0, StallClass::MissingEnter, 2, 1)]);
}

/// Making the new communicator takes its time; some have it already.
#[test]
fn who_has_been_in_the_call_is_not_missing() {
    let mut job = Job::new(3);
    let ids: Vec<u64> = (0..3).map(|rank| job.enter(rank, CommCall::Split, None)).collect();
    job.ranks[2].watch.leave(ids[2]);
    job.run(60);
    assert_eq!(job.reports, []);
    // The next one is another call.
    job.ranks[0].watch.leave(ids[0]);
    let since = job.now;
    job.enter(0, CommCall::Split, None);
    job.run(20);
    assert_eq!(job.found(since), [(10, 0, StallClass::MissingEnter, 1, 1)]);
}

#[test]
fn only_ranks_that_stay_are_awaited_in_a_shrink_and_none_that_have_left() {
    let mut job = Job::new(4);
    let since = job.now;
    job.ranks[1].is_stopped = true;
    job.enter(0, CommCall::Shrink, Some(&[0, 2, 3]));
    job.enter(3, CommCall::Shrink, Some(&[0, 2, 3]));
    job.enter(2, CommCall::Split, None);
    job.run(20);
    assert_eq!(job.found(since)[0], (10, 0, StallClass::MissingEnter, 2, 0));
    assert!(job.reports[0].2.to_string().ends_with("and it is in split"), "{}", job.reports[0].2);
    // One of two has begun anew.
    let mut job = Job::new(2);
    let first = job.enter(0, CommCall::Shrink, None);
    job.ranks[0].watch.leave(first);
    for rank in 0..2 {
        job.enter(rank, CommCall::Shrink, None);
    }
    job.run(60);
    assert_eq!(job.reports, []);
    let mut job = Job::new(2);
    job.enter(0, CommCall::Finalize, None);
    job.ranks[0].watch.left(Rank(1));
    job.run(60);
    assert_eq!(job.reports, []);
}

/// Only the first of a rank's calls was looked at, and the other one when something else woke the thread after the first had ended.
#[test]
fn every_call_that_a_rank_is_in_is_watched() {
    let mut job = Job::new(4);
    let since = job.now;
    [0, 1].iter().for_each(|rank| {
        job.enter(*rank, CommCall::Split, None);
    });
    job.run(4);
    [0, 1].iter().for_each(|rank| {
        job.enter(*rank, CommCall::Shrink, Some(&[0, 1, 3]));
    });
    job.run(60);
    assert_eq!(
        job.found(since),
        [(10, 0, StallClass::MissingEnter, 2, 1), (14, 0, StallClass::MissingEnter, 3, 0)],
        "one rank reports each"
    );
    assert_eq!([job.reports[0].2.call, job.reports[1].2.call], [CommCall::Split, CommCall::Shrink]);
    // Nobody wakes the thread for the other call when the first has ended.
    let mut job = Job::new(2);
    let split = job.enter(0, CommCall::Split, None);
    job.enter(0, CommCall::Shrink, None);
    let (own, mut acts) = (job.own(0), Vec::new());
    let next = job.ranks[0].watch.look(job.now, &own, &mut acts).expect("both are to be looked at");
    job.ranks[0].watch.leave(split);
    assert_eq!(job.ranks[0].watch.look(job.now, &own, &mut acts), Some(next));
}

/// Shrinks are not told apart: who waited in one was silent for ever once another had reported another one.
#[test]
fn a_shrink_is_reported_when_another_one_that_was_has_ended() {
    let mut job = Job::new(4);
    let since = job.now;
    let first = job.enter(0, CommCall::Shrink, Some(&[0, 2]));
    job.enter(1, CommCall::Shrink, Some(&[1, 3]));
    job.run(30);
    assert_eq!(job.found(since), [(10, 0, StallClass::MissingEnter, 2, 0)]);
    job.ranks[0].watch.leave(first);
    job.run(30);
    let found = job.found(since);
    assert!(matches!(found[1..], [(30..50, 1, StallClass::MissingEnter, 3, 0)]), "{found:?}");
}

/// What a time-out names.
#[test]
fn which_other_call_a_rank_is_in_is_known_once_it_was_asked() {
    let mut job = Job::new(3);
    let split = job.enter(0, CommCall::Split, None);
    let shrink = job.enter(1, CommCall::Shrink, None);
    let other = |job: &Job, [rank, of]: [usize; 2], id| job.ranks[rank].watch.other_call(id, Rank(of as u32));
    assert_eq!(other(&job, [0, 1], split), None);
    job.run(20);
    assert_eq!(other(&job, [0, 1], split), Some(CommCall::Shrink));
    assert_eq!(other(&job, [1, 0], shrink), Some(CommCall::Split));
    assert_eq!(other(&job, [0, 2], split), None);
    // A rank that is in both has come.
    job.enter(1, CommCall::Split, None);
    job.run(20);
    assert_eq!(other(&job, [0, 1], split), None);
    assert_eq!(other(&job, [1, 0], shrink), Some(CommCall::Split));
    job.ranks[0].watch.leave(split);
    assert_eq!(other(&job, [0, 1], split), None);
}

//! Calls about the communicator that not all ranks come to: who waits in one, and for whom.

use super::comm_call::{CommCall, CommCallNow, CommCalls};
use super::detector::lead_of;
use super::diagnose::{Said, edge_of_silence};
use super::report::{DOES_NOT_ANSWER, Doing, StallClass};
use super::standing::{StallNotice, Standing};
use oxccl_shared::abi::Rank;
use std::fmt;
use std::time::Duration;

/// A call that not all ranks have entered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CommStall {
    /// The call.
    pub call: CommCall,
    /// Whether the rank at fault answers.
    pub class: StallClass,
    /// A rank that has not entered it.
    pub rank: Rank,
    /// How many more have not.
    pub more: u32,
    /// How long this rank had been in it.
    pub lasted: Duration,
    /// The rank that waits for it.
    pub waiter: Rank,
    /// What the rank at fault says of itself.
    pub theirs: Option<Standing>,
}

impl fmt::Display for CommStall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.class {
            StallClass::NoAnswer => f.write_str(DOES_NOT_ANSWER)?,
            _ => f.write_str("has not entered it")?,
        }
        match self.more {
            0 => {}
            1 => f.write_str(" (nor has 1 more rank)")?,
            more => write!(f, " (nor have {more} more ranks)")?,
        }
        self.theirs.map_or(Ok(()), |theirs| {
            let in_comm_call = theirs.comm_calls.first().map(|now| now.call);
            Doing { latest: theirs.latest, is_in: theirs.during, in_comm_call }.fmt(f)?;
            theirs.elsewhere.map_or(Ok(()), |elsewhere| write!(f, "; {}", elsewhere.beside(self.waiter)))
        })
    }
}

/// What the owner of a [`CommCallWatch`] is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(clippy::large_enum_variant, reason = "one at a time")]
pub enum CommAct {
    /// Tell all other ranks.
    Tell(StallNotice),
    /// Log it.
    Report(CommStall),
}

/// One that this rank is in.
#[derive(Debug)]
struct Open {
    id: u64,
    call: CommCall,
    /// The ranks that are to enter it; `None`: all.
    members: Option<Vec<Rank>>,
    since: Duration,
    /// Its number among those that are counted with it.
    number: u32,
    /// How often the others were asked what they do, for the report to come.
    asked: u32,
    /// When there is something to do next; never, once it is reported.
    next: Option<Duration>,
    /// It was left to a lower rank to report it.
    has_deferred: bool,
    /// When a lower rank asked what this one wants to know.
    lower_asked: Option<Duration>,
    reported: Option<CommStall>,
    /// What each rank said last, of what it said since this one began to ask; before that, what it said to others that asked.
    said: Vec<Said>,
}

/// Watches one rank's calls of this kind. Times are since any moment, the same for all calls.
#[derive(Debug)]
pub struct CommCallWatch {
    me: Rank,
    warn: Duration,
    /// Time between the first question and the report.
    lead: Duration,
    entered: CommCalls,
    open: Vec<Open>,
    ids: u64,
    left: Vec<Rank>,
    nranks: u32,
}

impl CommCallWatch {
    /// That of rank `me` of `nranks`, which reports calls that last for `warn` and that some rank has not entered.
    pub fn new(me: Rank, nranks: u32, warn: Duration) -> CommCallWatch {
        let lead = lead_of(warn);
        let (entered, open, left) = (CommCalls::default(), Vec::new(), Vec::new());
        CommCallWatch { me, warn, lead, entered, open, ids: 0, left, nranks }
    }

    /// This rank enters a call, of all ranks or of these. Returns what to leave it by.
    pub fn enter(&mut self, now: Duration, call: CommCall, members: Option<Vec<Rank>>) -> u64 {
        let count = match call {
            CommCall::Shrink => &mut self.entered.shrinks,
            _ => &mut self.entered.of_all,
        };
        *count = count.saturating_add(1);
        let (number, next) = (*count, Some(now + self.warn.saturating_sub(self.lead)));
        let (id, since, asked) = (self.ids, now, 0);
        self.ids += 1;
        let (has_deferred, lower_asked, reported) = (false, None, None);
        self.open.push(Open {
            id,
            call,
            members,
            since,
            number,
            asked,
            next,
            has_deferred,
            lower_asked,
            reported,
            said: Vec::new(),
        });
        id
    }

    /// It has returned. What was reported of it, if something was.
    pub fn leave(&mut self, id: u64) -> Option<CommStall> {
        let at = self.open.iter().position(|open| open.id == id)?;
        self.open.remove(at).reported
    }

    /// Which other call a rank was in when it last said what it does, while this rank was in the call with this number; none if it was in
    /// a call of the same kind.
    pub fn other_call(&self, id: u64, rank: Rank) -> Option<CommCall> {
        let open = self.open.iter().find(|open| open.id == id)?;
        let calls = open.said.get(rank.index())?.last?.comm_calls;
        let is_same = calls.now.into_iter().flatten().any(|now| now.call == open.call);
        calls.first().map(|now| now.call).filter(|_| !is_same)
    }

    /// What this rank says of these calls.
    pub fn standing(&self, now: Duration) -> CommCalls {
        let mut open = self.open.iter().map(|open| CommCallNow {
            call: open.call,
            lasted_ms: now.saturating_sub(open.since).as_millis().try_into().unwrap_or(u32::MAX),
            is_reported: open.reported.is_some(),
        });
        let now = [open.next(), open.next()];
        CommCalls { now, ..self.entered }
    }

    /// A rank has left the communicator.
    pub fn left(&mut self, rank: Rank) {
        self.left.push(rank);
    }

    /// Another rank has said what it does.
    pub fn heard(&mut self, now: Duration, from: Rank, notice: StallNotice) {
        let (StallNotice::Ask(standing) | StallNotice::Answer(standing)) = notice else { return };
        if from.index() >= self.nranks as usize {
            return;
        }
        for open in &mut self.open {
            // Its answers come to all ranks.
            if matches!(notice, StallNotice::Ask(_)) && from < self.me && is_in(open, &standing) {
                open.lower_asked = Some(now);
            }
            if open.said.is_empty() {
                open.said = vec![Said::default(); self.nranks as usize];
            }
            open.said[from.index()].last = Some(standing);
        }
    }

    /// Does what is due, for every call that this rank is in. Returns when to look again.
    pub fn look(&mut self, now: Duration, own: &Standing, acts: &mut Vec<CommAct>) -> Option<Duration> {
        for at in 0..self.open.len() {
            let open = &self.open[at];
            if open.next.is_none_or(|next| now < next) {
                continue;
            }
            let (asked, next) = match open.asked {
                0 | 1 => {
                    self.ask(at, now, own, acts);
                    (self.open[at].asked + 1, Some(now + self.lead / 2))
                }
                _ => (0, self.conclude(at, now, acts)),
            };
            (self.open[at].asked, self.open[at].next) = (asked, next);
        }
        self.open.iter().filter_map(|open| open.next).min()
    }

    /// Asks all others what they do, unless a lower rank that waits in the same call has just done so: answers come to all ranks.
    fn ask(&mut self, at: usize, now: Duration, own: &Standing, acts: &mut Vec<CommAct>) {
        let open = &mut self.open[at];
        let is_asked = open.lower_asked.is_some_and(|at| now < at + self.lead / 4);
        if open.said.is_empty() || open.asked == 0 && !is_asked {
            open.said = vec![Said::default(); self.nranks as usize];
        }
        if !is_asked {
            acts.push(CommAct::Tell(StallNotice::Ask(*own)));
        }
    }

    /// Reports, unless another rank has or is about to. Returns when to look again, if it did not.
    fn conclude(&mut self, at: usize, now: Duration, acts: &mut Vec<CommAct>) -> Option<Duration> {
        let open = &self.open[at];
        let same = |rank: usize| now_in(open, &open.said.get(rank)?.last?);
        if (0..open.said.len()).filter_map(same).any(|other| other.is_reported) {
            // Where calls of one kind are not told apart, that may be another one, which ends before this one does.
            let may_be_another = open.call == CommCall::Shrink || self.open.len() > 1;
            return may_be_another.then_some(now + self.warn);
        }
        let lasted = now.saturating_sub(open.since);
        let is_as_late = |other: CommCallNow| {
            Duration::from_millis(other.lasted_ms.into()) + self.lead + self.lead / 2 >= lasted
        };
        if !open.has_deferred && (0..self.me.index()).filter_map(same).any(is_as_late) {
            self.open[at].has_deferred = true;
            return Some(now + self.lead / 4);
        }
        let Some(found) = self.missing(open, lasted) else { return Some(now + self.warn) };
        acts.push(CommAct::Report(found));
        self.open[at].reported = Some(found);
        None
    }

    /// The rank at fault: one that does not answer, else one that has not entered the call, rather one that waits for nobody.
    fn missing(&self, open: &Open, lasted: Duration) -> Option<CommStall> {
        let is_awaited = |rank: &Rank| {
            let is_member = open.members.as_ref().is_none_or(|members| members.contains(rank));
            is_member && *rank != self.me && !self.left.contains(rank)
        };
        let said = |rank: Rank| open.said.get(rank.index()).and_then(|said| said.last);
        let has_entered = |standing: Standing| {
            is_in(open, &standing) || standing.comm_calls.entered(open.call) >= open.number
        };
        let is_outside = |rank: &Rank| !said(*rank).is_some_and(has_entered);
        let missing = || (0..self.nranks).map(Rank).filter(is_awaited).filter(is_outside);
        let (class, rank) = match missing().find(|rank| said(*rank).is_none()) {
            Some(silent) => {
                // One that does not take part may be silent too.
                let first = self.first_of_silent(open, silent);
                (StallClass::NoAnswer, if is_awaited(&first) { first } else { silent })
            }
            None => {
                let waits = |rank: &Rank| said(*rank).is_some_and(|standing| standing.waits_for.is_some());
                (StallClass::MissingEnter, missing().min_by_key(waits)?)
            }
        };
        let (call, more, theirs) = (open.call, missing().count() as u32 - 1, said(rank));
        Some(CommStall { call, class, rank, more, lasted, waiter: self.me, theirs })
    }

    /// Of ranks in a row that do not answer the first is named; this one answers.
    fn first_of_silent(&self, open: &Open, rank: Rank) -> Rank {
        let mut said = open.said.clone();
        said[self.me.index()].last = Some(Standing::default());
        self.left.iter().for_each(|left| said[left.index()].has_left = true);
        edge_of_silence(rank, &said)
    }
}

/// Whether a rank is in the call that this rank is in. Shrinks of some ranks are not numbered alike on all: one may have begun anew.
fn is_in(open: &Open, standing: &Standing) -> bool {
    now_in(open, standing).is_some()
}

/// What a rank says of the call that this rank is in, if it is in it too.
fn now_in(open: &Open, standing: &Standing) -> Option<CommCallNow> {
    let calls = &standing.comm_calls;
    let same = || calls.now.into_iter().flatten().find(|now| now.call == open.call);
    // A rank that is in several calls of all ranks is counted as in the latest of them.
    let is_same = open.call == CommCall::Shrink || calls.entered(open.call) == open.number;
    same().filter(|_| is_same)
}

#[cfg(test)]
#[path = "comm_tests.rs"]
mod tests;

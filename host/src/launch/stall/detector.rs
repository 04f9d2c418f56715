//! When to ask, whom to believe, what to report.

use super::diagnose::{Said, diagnose};
use super::report::Stall;
use super::standing::{StallNotice, Standing};
use oxccl_shared::abi::Rank;
use std::time::Duration;

/// What the owner of a [`Detector`] is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Act {
    /// Tell all other ranks.
    Tell(StallNotice),
    /// Log a stall.
    Report(Stall),
    /// Log that a stall is over.
    Clear(Stall),
}

/// The longest time between the first question and the report.
const LEAD_MAX: Duration = Duration::from_secs(3);
/// How often a rank that has reported a stall looks whether it is over.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// One rank's part. Times are since any moment, the same for all calls.
#[derive(Debug)]
pub struct Detector {
    me: Rank,
    warn: Duration,
    /// Time between the first question and the report.
    lead: Duration,
    phase: Phase,
    said: Vec<Said>,
    answered: Option<Duration>,
    /// By rank: stalls in which it was at fault.
    found: Vec<u64>,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Calm,
    /// We have asked, once or twice, since then.
    Asking {
        since: Duration,
        rounds: u32,
    },
    /// A lower rank has asked, or nothing was found: we do not ask before then.
    Waiting {
        until: Duration,
    },
    Reported {
        stall: Stall,
        /// The call that we were in, if we reported it.
        ours: Option<u64>,
    },
}

impl Detector {
    /// That of rank `me` of `nranks`, which reports operations without progress for `warn`.
    pub fn new(me: Rank, nranks: u32, warn: Duration) -> Detector {
        let said = vec![Said::default(); nranks as usize];
        let lead = (warn / 2).min(LEAD_MAX);
        Detector { me, warn, lead, phase: Phase::Calm, said, answered: None, found: vec![0; nranks as usize] }
    }

    /// The stall that ranks know of.
    pub fn stall(&self) -> Option<Stall> {
        match self.phase {
            Phase::Reported { stall, .. } => Some(stall),
            _ => None,
        }
    }

    /// By rank: stalls found so far in which it was at fault, by this rank or another.
    pub fn found(&self) -> &[u64] {
        &self.found
    }

    fn count(&mut self, stall: &Stall) {
        if let Some(found) = self.found.get_mut(stall.rank.index()) {
            *found += 1;
        }
    }

    /// What each rank said last, while there was something to ask.
    pub fn last_said(&self) -> impl Iterator<Item = Option<Standing>> {
        self.said.iter().map(|said| said.last)
    }

    /// Forgets what ranks have said, for an owner that asks by itself.
    pub fn forget(&mut self) {
        if !matches!(self.phase, Phase::Asking { .. }) {
            self.said.iter_mut().for_each(|said| *said = Said { has_left: said.has_left, ..Said::default() });
        }
    }

    /// This rank looks at itself. Returns when to look again, if before anything happens.
    pub fn look(&mut self, now: Duration, own: &Standing, acts: &mut Vec<Act>) -> Option<Duration> {
        let is_slow = own.waited() + self.lead >= self.warn;
        match self.phase {
            Phase::Calm if is_slow => self.ask(now, own, 1, acts),
            Phase::Calm => {}
            Phase::Asking { .. } | Phase::Waiting { .. } if !is_slow => self.phase = Phase::Calm,
            Phase::Asking { since, .. } if now >= since + self.lead && own.waited() >= self.warn => {
                self.conclude(now, own, acts);
            }
            Phase::Asking { since, rounds: 1 } if now >= since + self.lead / 2 => {
                self.said.iter_mut().for_each(|said| said.first = said.last);
                self.ask(since, own, 2, acts);
            }
            Phase::Asking { .. } => {}
            Phase::Waiting { until } if now >= until => self.ask(now, own, 1, acts),
            Phase::Waiting { .. } => {}
            Phase::Reported { stall, ours: Some(begun) }
                if own.begun != begun || own.waited() < self.warn =>
            {
                acts.extend([Act::Clear(stall), Act::Tell(StallNotice::Over)]);
                self.phase = Phase::Calm;
            }
            Phase::Reported { .. } => {}
        }
        self.next(now, own)
    }

    fn next(&self, now: Duration, own: &Standing) -> Option<Duration> {
        let soon = now + LOOK_EVERY.min(self.warn / 4);
        match self.phase {
            Phase::Calm => {
                let left = self.warn.saturating_sub(self.lead).saturating_sub(own.waited());
                own.waits_for.map(|_| now + left.max(Duration::from_millis(1)))
            }
            Phase::Asking { since, rounds } => {
                let at = since + if rounds == 1 { self.lead / 2 } else { self.lead };
                Some(if at > now { at } else { now + Duration::from_millis(1) })
            }
            Phase::Waiting { until } => Some(until.min(soon)),
            Phase::Reported { ours: Some(_), .. } => Some(soon),
            Phase::Reported { ours: None, .. } => None,
        }
    }

    fn ask(&mut self, since: Duration, own: &Standing, rounds: u32, acts: &mut Vec<Act>) {
        if rounds == 1 {
            self.forget();
        }
        self.said[self.me.index()].last = Some(*own);
        self.phase = Phase::Asking { since, rounds };
        acts.push(Act::Tell(StallNotice::Ask(*own)));
    }

    fn conclude(&mut self, now: Duration, own: &Standing, acts: &mut Vec<Act>) {
        self.said[self.me.index()].last = Some(*own);
        self.phase = match diagnose(self.me, &self.said) {
            Some(stall) => {
                self.count(&stall);
                acts.extend([Act::Report(stall), Act::Tell(StallNotice::Found(stall))]);
                Phase::Reported { stall, ours: Some(own.begun) }
            }
            None => Phase::Waiting { until: now + self.warn },
        };
    }

    /// Another rank has said something.
    pub fn heard(
        &mut self,
        now: Duration,
        from: Rank,
        notice: StallNotice,
        own: &Standing,
        acts: &mut Vec<Act>,
    ) {
        if from == self.me || from.index() >= self.said.len() {
            return;
        }
        match notice {
            StallNotice::Answer(standing) => self.said[from.index()].last = Some(standing),
            StallNotice::Ask(standing) => {
                self.said[from.index()].last = Some(standing);
                let is_stalled = standing.waited() + self.lead >= self.warn;
                match self.phase {
                    // Our question was an answer.
                    Phase::Asking { .. } if from > self.me && is_stalled => return,
                    Phase::Asking { .. } | Phase::Calm if is_stalled => {
                        self.phase = Phase::Waiting { until: now + self.lead * 2 };
                    }
                    _ => {}
                }
                if self.answered.is_none_or(|at| now >= at + self.lead / 4) {
                    self.answered = Some(now);
                    acts.push(Act::Tell(StallNotice::Answer(*own)));
                }
            }
            // Of two that were found at once the lower rank's stays.
            StallNotice::Found(_)
                if matches!(self.phase, Phase::Reported { ours: Some(_), .. }) && self.me < from => {}
            StallNotice::Found(stall) => {
                self.count(&stall);
                self.phase = Phase::Reported { stall, ours: None };
            }
            StallNotice::Over if matches!(self.phase, Phase::Reported { ours: None, .. }) => {
                self.phase = Phase::Calm;
            }
            StallNotice::Over => {}
        }
    }

    /// A rank has left the communicator: it does not answer, and need not.
    pub fn left(&mut self, rank: Rank) {
        if let Some(said) = self.said.get_mut(rank.index()) {
            said.has_left = true;
        }
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;

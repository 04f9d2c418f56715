//! When to ask, whom to believe, what to report.

use super::diagnose::{Said, diagnose, rank_in_circle};
use super::report::{Stall, StallClass};
use super::slow::diagnose_slow;
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
    /// What stood still goes on: begin anew to count how the operation divides its time. A rank that was stopped for a while is not slow.
    CountAnew,
}

/// The longest time between the first question and the report.
const LEAD_MAX: Duration = Duration::from_secs(3);

/// The time between the first question and the report of what lasts for `warn`.
pub(super) fn lead_of(warn: Duration) -> Duration {
    (warn / 2).min(LEAD_MAX)
}
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
    /// The phase in which an operation that lasted was reported, while we ask why it does no more.
    lasting: Option<Phase>,
    /// When an operation that stood still went on. It lasts from then on.
    moves_since: Duration,
    said: Vec<Said>,
    answered: Option<Duration>,
    /// By rank: stalls in which it was at fault.
    found: Vec<u64>,
}

#[derive(Clone, Copy, Debug)]
#[allow(clippy::large_enum_variant, reason = "one for each communicator")]
enum Phase {
    Calm,
    /// We have asked, once or twice, since then.
    Asking {
        since: Duration,
        rounds: u32,
        why: Why,
    },
    /// A lower rank has asked, or nothing was found: we do not ask for the same reason before then.
    Waiting {
        until: Duration,
        why: Why,
    },
    Reported {
        stall: Stall,
        /// The call that we were in, if we reported it.
        ours: Option<u64>,
    },
}

/// Why a rank asks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Why {
    /// Its operation goes on, and lasts.
    Lasts,
    /// Its operation does not go on.
    Stuck,
}

impl Detector {
    /// That of rank `me` of `nranks`, which reports operations without progress for `warn`.
    pub fn new(me: Rank, nranks: u32, warn: Duration) -> Detector {
        let said = vec![Said::default(); nranks as usize];
        let lead = lead_of(warn);
        let found = vec![0; nranks as usize];
        let (phase, moves_since) = (Phase::Calm, Duration::ZERO);
        Detector { me, warn, lead, phase, lasting: None, moves_since, said, answered: None, found }
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
        if stall.class != StallClass::Network
            && let Some(found) = self.found.get_mut(stall.rank.index())
        {
            *found += 1;
        }
    }

    /// Whether the ranks from this one on wait in a circle, by what they said last while there was something to ask.
    pub fn is_circle(&self, first: Rank) -> bool {
        rank_in_circle(first, &self.said).is_some()
    }

    /// Forgets what ranks have said, for an owner that asks by itself.
    pub fn forget(&mut self) {
        if !matches!(self.phase, Phase::Asking { .. }) {
            self.said.iter_mut().for_each(|said| *said = Said { has_left: said.has_left, ..Said::default() });
        }
    }

    /// This rank looks at itself. Returns when to look again, if before anything happens.
    pub fn look(&mut self, now: Duration, own: &Standing, acts: &mut Vec<Act>) -> Option<Duration> {
        let own = &self.since_it_moves(now, own);
        self.go_on(own);
        match (self.phase, self.why(own)) {
            (Phase::Calm, Some(why)) => self.ask(now, own, (1, why), acts),
            (Phase::Calm, None) => {}
            (Phase::Asking { .. } | Phase::Waiting { .. }, None) => self.phase = Phase::Calm,
            // It went on when we asked, and does no more.
            (
                Phase::Asking { why: Why::Lasts, .. } | Phase::Waiting { why: Why::Lasts, .. },
                Some(Why::Stuck),
            ) => {
                self.ask(now, own, (1, Why::Stuck), acts);
            }
            // It did nothing when we asked, and goes on: the answers so far hold. To wait for the reason that is gone would be to say no more.
            (Phase::Asking { since, rounds, why: Why::Stuck }, Some(Why::Lasts)) => {
                self.phase = Phase::Asking { since, rounds, why: Why::Lasts };
            }
            (reported @ Phase::Reported { stall, .. }, Some(Why::Stuck)) if stall.is_lasting() => {
                self.lasting = Some(reported);
                self.ask(now, own, (1, Why::Stuck), acts);
            }
            (Phase::Asking { since, why, .. }, _)
                if now >= since + self.lead && self.time(own, why) >= self.warn =>
            {
                self.conclude(now, own, why, acts);
            }
            (Phase::Asking { since, rounds: 1, why }, _) if now >= since + self.lead / 2 => {
                self.said.iter_mut().for_each(|said| said.first = said.last);
                self.ask(since, own, (2, why), acts);
            }
            (Phase::Asking { .. }, _) => {}
            (Phase::Waiting { until, .. }, Some(why)) if now >= until => self.ask(now, own, (1, why), acts),
            (Phase::Waiting { .. }, _) => {}
            (Phase::Reported { stall, ours: Some(begun) }, _) if self.is_over(&stall, begun, own) => {
                acts.extend([Act::Clear(stall), Act::Tell(StallNotice::Over)]);
                self.end(now, &stall, acts);
            }
            (Phase::Reported { .. }, _) => {}
        }
        self.next(now, own)
    }

    /// What a rank does, without the time before its operation stood still.
    fn since_it_moves(&self, now: Duration, own: &Standing) -> Standing {
        let moves_for = now.saturating_sub(self.moves_since).as_millis() as u64;
        Standing { lasted_ms: own.lasted_ms.min(moves_for), ..*own }
    }

    /// A stall is over.
    fn end(&mut self, now: Duration, stall: &Stall, acts: &mut Vec<Act>) {
        self.phase = Phase::Calm;
        if !stall.is_lasting() {
            self.moves_since = now;
            acts.push(Act::CountAnew);
        }
    }

    /// What lasted, and did no more for a moment, is under way again or done: its report stands.
    fn go_on(&mut self, own: &Standing) {
        let is_asking = matches!(self.phase, Phase::Asking { .. } | Phase::Waiting { .. });
        if self.why(own) != Some(Why::Stuck)
            && let Some(reported) = self.lasting.take_if(|_| is_asking)
        {
            self.phase = reported;
        }
    }

    /// Why a rank that stands so asks the others, if it does.
    fn why(&self, standing: &Standing) -> Option<Why> {
        [Why::Stuck, Why::Lasts].into_iter().find(|why| self.time(standing, *why) + self.lead >= self.warn)
    }

    /// The time by which a rank that asks for this reason counts.
    fn time(&self, standing: &Standing, why: Why) -> Duration {
        match why {
            Why::Stuck => standing.waited(),
            Why::Lasts => standing.lasted(),
        }
    }

    /// Whether what we reported in the call of this number is over.
    fn is_over(&self, stall: &Stall, begun: u64, own: &Standing) -> bool {
        let why = if stall.is_lasting() { Why::Lasts } else { Why::Stuck };
        // A rank whose kernels say what they wait for may enqueue more meanwhile.
        own.begun != begun && own.kernels.is_none() || self.time(own, why) < self.warn
    }

    fn next(&self, now: Duration, own: &Standing) -> Option<Duration> {
        let soon = now + LOOK_EVERY.min(self.warn / 4);
        match self.phase {
            Phase::Calm => {
                let longest = own.waited().max(own.lasted());
                let left = self.warn.saturating_sub(self.lead).saturating_sub(longest);
                let is_under_way = own.waits_for.is_some() || !own.lasted().is_zero();
                is_under_way.then(|| now + left.max(Duration::from_millis(1)))
            }
            Phase::Asking { since, rounds, .. } => {
                let at = since + if rounds == 1 { self.lead / 2 } else { self.lead };
                Some(if at > now { at } else { now + Duration::from_millis(1) })
            }
            Phase::Waiting { until, .. } => Some(until.min(soon)),
            Phase::Reported { ours: Some(_), .. } => Some(soon),
            Phase::Reported { ours: None, .. } => None,
        }
    }

    fn ask(&mut self, since: Duration, own: &Standing, (rounds, why): (u32, Why), acts: &mut Vec<Act>) {
        if rounds == 1 {
            self.forget();
        }
        self.said[self.me.index()].last = Some(*own);
        self.phase = Phase::Asking { since, rounds, why };
        acts.push(Act::Tell(StallNotice::Ask(*own)));
    }

    fn conclude(&mut self, now: Duration, own: &Standing, why: Why, acts: &mut Vec<Act>) {
        self.said[self.me.index()].last = Some(*own);
        let found = match why {
            Why::Stuck => diagnose(self.me, &self.said),
            Why::Lasts => diagnose_slow(self.me, &self.said),
        };
        self.phase = match found {
            Some(stall) => {
                self.count(&stall);
                acts.extend([Act::Report(stall), Act::Tell(StallNotice::Found(stall))]);
                self.lasting = None;
                Phase::Reported { stall, ours: Some(own.begun) }
            }
            None if why == Why::Lasts => return self.ask_later(now, own, acts),
            None => Phase::Waiting { until: now + self.warn, why },
        };
    }

    /// Who is slow may show only once an operation has found its pace: another conclusion follows soon, and less often the longer the
    /// operation lasts.
    fn ask_later(&mut self, now: Duration, own: &Standing, acts: &mut Vec<Act>) {
        let (again, why) = ((own.lasted() / 8).max(self.lead / 2), Why::Lasts);
        match again.checked_sub(self.lead) {
            Some(pause) => self.phase = Phase::Waiting { until: now + pause, why },
            // The second question once more, with the first answers.
            None => self.ask(now.saturating_sub(self.lead - again), own, (2, why), acts),
        }
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
        let own = &self.since_it_moves(now, own);
        match notice {
            StallNotice::Answer(standing) => self.said[from.index()].last = Some(standing),
            StallNotice::Ask(standing) => {
                self.said[from.index()].last = Some(standing);
                match (self.phase, self.why(&standing)) {
                    // Our question was an answer.
                    (Phase::Asking { why: ours, .. }, Some(theirs))
                        if ours > theirs || ours == theirs && from > self.me =>
                    {
                        return;
                    }
                    (Phase::Asking { .. } | Phase::Calm, Some(why)) => {
                        self.phase = Phase::Waiting { until: now + self.lead * 2, why };
                    }
                    _ => {}
                }
                if self.answered.is_none_or(|at| now >= at + self.lead / 4) {
                    self.answered = Some(now);
                    acts.push(Act::Tell(StallNotice::Answer(*own)));
                }
            }
            // Of two that were found at once the lower rank's stays.
            StallNotice::Found(theirs)
                if matches!(self.phase, Phase::Reported { ours: Some(_), stall }
                    if stall.is_lasting() == theirs.is_lasting())
                    && self.me < from => {}
            StallNotice::Found(stall) => {
                self.count(&stall);
                self.lasting = None;
                self.phase = Phase::Reported { stall, ours: None };
            }
            StallNotice::Over => {
                if let Phase::Reported { ours: None, stall } = self.phase {
                    self.end(now, &stall, acts);
                }
            }
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

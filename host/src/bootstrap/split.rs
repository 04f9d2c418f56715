//! Layer: host / bootstrap, its top.
//! Takes: a connected [`Bootstrap`] and the ranks that form a child.
//! Gives: the child's bootstrap, independent of the parent from then on.
//! Never: sends a secret: parent and child derive the child's from their own.

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use oxccl_shared::abi::Rank;

use super::cancel::Cancel;
use super::config::BootstrapConfig;
use super::endpoint::Bootstrap;
use super::error::BootstrapError;
use super::handshake::Purpose;
use super::id::{RootKind, UniqueId};
use super::join;
use super::rank_list::RankList;
use super::rendezvous_wire::{ListenerAddr, Withdrawal};
use super::sock::Deadline;
use super::state::{Meeting, State};
use crate::wire::{Message, digest};

/// The share of the timeout after which the first member tells all others where they meet: some between did not pass it on.
const PATIENCE_SHARE: u32 = 8;
/// How often it tells those again that did not answer: they were stopped, or their host was cut off.
const TELLS_EVERY: Duration = Duration::from_secs(1);
/// The share of the timeout for which others wait longer than the root, which names who is missing.
const ROOT_FIRST_SHARE: u32 = 4;
/// How long a member that is told may take to answer a connection: its bootstrap thread does, unless the process is stopped.
const ANSWERS_WITHIN: Duration = Duration::from_millis(500);
/// How soon a member hears of the others why a meeting has failed on them.
const REASONS_TAKE: Duration = Duration::from_millis(500);

impl Bootstrap {
    /// Creates a child of `members`, whose order gives the ranks of the child. Collective over the parent: ranks that
    /// join different children pass their own child's members, ranks that join none pass `&[]` and get `None`.
    /// `number` distinguishes successive splits: all ranks of the parent pass the same, never one used before.
    ///
    /// `cancel` ends the join of the child, once the parent's ranks have met.
    pub fn split(
        &self,
        members: &[Rank],
        number: u64,
        cancel: &Cancel,
    ) -> Result<Option<Bootstrap>, BootstrapError> {
        let my_place = self.place_among(members)?;
        let first = members.first().copied().unwrap_or(self.rank());
        let secret = self.shared.secret.derive(&[b"split", &number.to_le_bytes(), &first.0.to_le_bytes()]);
        let credentials = self.shared.credentials.among(members);
        let config = &self.shared.config;
        // The members join at once or not at all: an unused root need not stay.
        let root_config = BootstrapConfig { unused_root_timeout: config.timeout, ..config.clone() };
        let mine = match my_place {
            Some(Rank(0)) => {
                let addr = UniqueId::create_with((secret, credentials.clone()), &root_config)?.root_addr();
                ListenerAddr { addr }.to_bytes()
            }
            _ => Vec::new(),
        };
        let table = self.all_gather(&mine)?;
        let Some(place) = my_place else { return Ok(None) };
        let bytes = table.get(first.index()).map_or(&[][..], Vec::as_slice);
        let listener = ListenerAddr::from_bytes(bytes).map_err(|_| BootstrapError::Protocol {
            rank: first,
            what: "it is named as first of a child but does not take part as such",
        })?;
        let id = UniqueId::new(listener.addr, secret, RootKind::Created);
        let by = (&id, &credentials);
        let attempt = self.begin_meeting(members, digest(&("split", number, first.0)), cancel, true);
        let child = Bootstrap::connect_by(by, (place, members.len() as u32), config, &attempt);
        let died = child.as_ref().err().and_then(|error| self.who_died(members, error, [&attempt, cancel]));
        self.shared.lock().meeting = None;
        child.map(Some).map_err(|error| match died {
            _ if cancel.is_called() => BootstrapError::Aborted,
            Some(rank) => BootstrapError::PeerLost { rank },
            None => by_numbers_here(error, members, self.nranks()),
        })
    }

    /// From now on the death of a member ends what is made, by the `Cancel` that is returned, as `cancel` does.
    fn begin_meeting(&self, members: &[Rank], tag: u64, cancel: &Cancel, may_leave: bool) -> Cancel {
        let attempt = Cancel::default();
        let ends = attempt.clone();
        cancel.on_call(move || ends.cancel());
        let (members, cancel) = (members.to_vec(), attempt.clone());
        let mut state = self.shared.lock();
        state.meeting = Some(Meeting { members, tag, cancel, ends_at: None, may_leave });
        state.end_hopeless_meeting(Instant::now());
        drop(state);
        // The thread is to see when it ends.
        self.shared.wake();
        attempt
    }

    /// The member whose death is why the child was not made, if it is. Who has left because of it, or had a connection to it, may be known
    /// before the death itself.
    fn who_died(&self, members: &[Rank], error: &BootstrapError, ends: [&Cancel; 2]) -> Option<Rank> {
        use BootstrapError::{PeerAborted, PeerLeft, PeerLost, RootLost, RootUnreachable};
        let [attempt, cancel] = ends;
        let follows = match attempt.is_called() {
            // Not because one has gone on without this rank, or does not come.
            true => self.shared.lock().why_gone(members).is_some(),
            false => matches!(
                error,
                PeerAborted { .. }
                    | PeerLeft { .. }
                    | PeerLost { .. }
                    | RootLost { .. }
                    | RootUnreachable { .. }
            ),
        };
        if cancel.is_called() || !follows {
            return None;
        }
        let known = |state: &mut State| state.who_died(members);
        self.shared.wait_for(&Deadline::after(REASONS_TAKE).outlasting_abort(), known)
    }

    /// Creates a child of `members` without the parent's other ranks, which may be gone, and whatever else has broken the parent: only
    /// the members call it, with the same list and the same `number`, a pair never used before. `cancel` ends the join of the child.
    ///
    /// # Errors
    /// [`BootstrapError::PeerLost`], [`BootstrapError::PeerLeft`]: a member is gone, or goes meanwhile. [`BootstrapError::PeerAborted`]: a member
    /// has cancelled it, and lives. [`BootstrapError::PeerWentOn`]: a
    /// member has finished a meeting that failed on this rank, and does not come. [`BootstrapError::MissingRanks`], by their numbers here: members
    /// have not come in time, and all others get the same error. Those of joining.
    pub fn split_among(
        &self,
        members: &[Rank],
        number: u64,
        cancel: &Cancel,
    ) -> Result<Bootstrap, BootstrapError> {
        if self.place_among(members)?.is_none() {
            return Err(BootstrapError::BadMember { rank: self.rank(), nranks: self.nranks() });
        }
        let (tag, since) = (meeting_tag(members, number), Instant::now());
        // Of this meeting alone: the death of a member ends it, and the caller may call for another.
        let attempt = self.begin_meeting(members, tag, cancel, false);
        let child = self.meet(members, number, &attempt);
        if let Err(error) = &child
            && !attempt.is_called()
            && !cancel.is_called()
        {
            self.say_who_is_missing(members, tag, error);
        }
        let died = child.as_ref().err().and_then(|error| self.who_died(members, error, [&attempt, cancel]));
        let mut state = self.shared.lock();
        if child.is_err() && cancel.is_called() {
            state.ring.withdraw(tag);
        }
        state.meeting = None;
        // A rank that was told twice where to meet has not read the second message.
        state.parked.retain(|parked| (parked.hello.purpose, parked.hello.tag) != (Purpose::Message, tag));
        let child = child.map_err(|error| {
            // Others may have left because one has died.
            let death = died.map(|rank| BootstrapError::PeerLost { rank });
            let (gone, went_on) = (death.or(state.why_gone(members)), state.who_went_on(members));
            match (state.ring.missed(tag), gone, state.ring.withdrew(tag), went_on) {
                _ if cancel.is_called() => BootstrapError::Aborted,
                // All get this one, even if some have ended for it meanwhile.
                (Some(ranks), ..) => {
                    // One that was stopped comes when the others have gone.
                    let nranks = self.nranks();
                    let is_named = ranks.named().contains(&self.rank());
                    let may_be_unnamed = ranks.total() as usize > ranks.named().len();
                    let is_late = is_named || may_be_unnamed && since.elapsed() < Duration::from_secs(1);
                    // That of the rank that gave up first, which may be shorter than this one's.
                    let limit = since.elapsed().min(self.shared.config.timeout);
                    let limit = if is_late { Duration::ZERO } else { limit };
                    BootstrapError::MissingRanks { ranks, nranks, limit, strangers: None, calls: None }
                }
                (None, Some(gone), ..) => gone,
                (None, None, Some(rank), _) => {
                    BootstrapError::PeerAborted { rank, reason: Withdrawal::Aborted.reason() }
                }
                (None, None, None, Some(rank)) if attempt.is_called() => BootstrapError::PeerWentOn { rank },
                _ => error,
            }
        });
        drop(state);
        self.shared.wake();
        child
    }

    /// If the meeting has failed for lack of members whose processes live, all learn it before this rank returns, and perhaps ends: nobody
    /// takes this one for missing.
    fn say_who_is_missing(&self, members: &[Rank], tag: u64, error: &BootstrapError) {
        let is_told = |error: &BootstrapError| matches!(error, BootstrapError::PeerAborted { .. });
        if is_told(error) {
            // Who aborted the child has told the parent why, or does soon.
            let knows = |state: &mut State| {
                let has_ended = state.ring.missed(tag).is_some() || state.ring.withdrew(tag).is_some();
                (has_ended || state.why_gone(members).is_some()).then_some(())
            };
            let _ = self.shared.wait_for(&Deadline::after(REASONS_TAKE).outlasting_abort(), knows);
        }
        let mut state = self.shared.lock();
        let lives = |rank: &Rank| !state.ring.is_gone(*rank);
        let missing: RankList = missing(members, error).into_iter().filter(lives).collect();
        if missing.is_empty() {
            return;
        }
        state.ring.miss(tag, missing);
        drop(state);
        self.shared.flush();
    }

    /// After [`Self::split_among`] by the same members and number, and whatever else its caller needed of them: whether this rank has what
    /// they met for. If so, ranks on which it failed do not wait for this one in their next meeting.
    pub fn conclude(&self, members: &[Rank], number: u64, succeeded: bool) {
        let tag = meeting_tag(members, number);
        let mut state = self.shared.lock();
        if succeeded {
            state.ring.finish(tag);
        } else {
            state.failed_meetings.push(tag);
        }
        drop(state);
        self.shared.wake();
    }

    fn meet(&self, members: &[Rank], number: u64, cancel: &Cancel) -> Result<Bootstrap, BootstrapError> {
        let place = members.iter().position(|rank| *rank == self.rank()).unwrap_or(0) as u32;
        let ranks: Vec<u8> = members.iter().flat_map(|rank| rank.0.to_le_bytes()).collect();
        let secret = self.shared.secret.derive(&[b"among", &number.to_le_bytes(), &ranks]);
        let tag = meeting_tag(members, number);
        let credentials = self.shared.credentials.among(members);
        let config = &self.shared.config;
        let deadline = Deadline::after(config.timeout).or_cancelled(cancel).outlasting_abort();
        let addr = if place == 0 {
            let root_config = BootstrapConfig { unused_root_timeout: config.timeout, ..config.clone() };
            UniqueId::create_with((secret, credentials.clone()), &root_config)?.root_addr()
        } else {
            self.hear_where(members, place, tag, cancel)?
        };
        let id = UniqueId::new(addr, secret, RootKind::Created);
        let bytes = ListenerAddr { addr }.to_bytes();
        let nranks = members.len() as u32;
        let tell = |to: u32| {
            let deadline = deadline.at_most(ANSWERS_WITHIN.min(config.handshake_timeout));
            self.send_among(members[to as usize], members, tag, &bytes, &deadline)
        };
        let mut silent = Vec::new();
        // One member that cannot be reached keeps nobody else from hearing of it; the root would wait for that one. A member that does not
        // answer may be stopped for a moment only. If it does not come, the root names it.
        let is_silence = |error: &BootstrapError| {
            matches!(error, BootstrapError::Timeout { .. } | BootstrapError::Unreachable { .. })
        };
        let mut failed = None;
        for to in told(place, nranks) {
            match tell(to) {
                Ok(()) => {}
                Err(error) if is_silence(&error) => silent.push(to),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        if let Some(error) = failed {
            join::leave_unmet((&id, &credentials), (Rank(place), nranks), config, Withdrawal::Failed);
            return Err(error);
        }
        let connect = || {
            let child = Bootstrap::connect_by((&id, &credentials), (Rank(place), nranks), config, cancel);
            child.map_err(|error| by_numbers_here(error, members, self.nranks()))
        };
        // A member that is stopped, or cut off, or does not come, has not heard of it, and does not tell those after it. So the first one tells
        // all after a while, and a member that got no answer tells again soon.
        let others: Vec<u32> =
            if place == 0 { (1..nranks).filter(|to| !silent.contains(to)).collect() } else { Vec::new() };
        if silent.is_empty() && others.is_empty() {
            return connect();
        }
        std::thread::scope(|scope| {
            let ((over, waits), has_met) = (channel::<()>(), Cancel::default());
            let is_over = has_met.clone();
            let patience = config.timeout / PATIENCE_SHARE;
            let tell_again = move || tell_again(silent, others, patience, (&waits, &is_over), tell);
            let helper = std::thread::Builder::new().name("oxccl-meeting".into());
            if let Err(error) = helper.spawn_scoped(scope, tell_again) {
                tracing::warn!(%error, "cannot start a thread; members that others do not tell of the meeting will miss it");
            }
            let child = connect();
            has_met.cancel();
            drop(over);
            child
        })
    }

    /// Where the members of a meeting meet, as one of them tells this one.
    fn hear_where(
        &self,
        members: &[Rank],
        place: u32,
        tag: u64,
        cancel: &Cancel,
    ) -> Result<SocketAddr, BootstrapError> {
        let timeout = self.shared.config.timeout;
        let patience = timeout.saturating_add(timeout / ROOT_FIRST_SHARE);
        let deadline = Deadline::after(patience).or_cancelled(cancel).outlasting_abort();
        let from = [teller(place), 0].map(|place| members[place as usize]);
        let told = self.recv_among(&from, members, tag, &deadline);
        let (from, bytes) = told.map_err(|error| match error {
            // The first member tells all after a while. No word from it either: it is the one to name.
            BootstrapError::Timeout { calls, by, what, .. } => {
                let ranks = RankList::from_iter([members[0]]);
                BootstrapError::Timeout { calls, by, what, ranks, limit: timeout }
            }
            error => error,
        })?;
        let what = "its address cannot be read";
        Ok(ListenerAddr::from_bytes(&bytes).map_err(|_| BootstrapError::Protocol { rank: from, what })?.addr)
    }

    /// This rank's index among `members`, which must be distinct ranks of this communicator and, unless empty,
    /// contain this rank.
    fn place_among(&self, members: &[Rank]) -> Result<Option<Rank>, BootstrapError> {
        let nranks = self.nranks();
        let mut seen = vec![false; nranks as usize];
        for &rank in members {
            match seen.get_mut(rank.index()) {
                Some(place) if !*place => *place = true,
                _ => return Err(BootstrapError::BadMember { rank, nranks }),
            }
        }
        let place = members.iter().position(|&rank| rank == self.rank());
        if place.is_none() && !members.is_empty() {
            return Err(BootstrapError::BadMember { rank: self.rank(), nranks });
        }
        Ok(place.map(|place| Rank(place as u32)))
    }
}

/// Who tells a member where the root is: members tell each other along a binomial tree, since each telling is a connection of its own.
fn teller(place: u32) -> u32 {
    place & (place - 1)
}

/// Whom a member tells: first those who have the most to tell.
fn told(place: u32, members: u32) -> impl Iterator<Item = u32> {
    let steps = if place == 0 { u32::BITS - 1 } else { place.trailing_zeros() };
    (0..steps).rev().map(move |step| place + (1 << step)).filter(move |to| *to < members)
}

/// Tells those again that were silent, and after `patience` also the others, until each has answered or the meeting is over.
fn tell_again(
    mut untold: Vec<u32>,
    mut others: Vec<u32>,
    patience: Duration,
    (waits, is_over): (&Receiver<()>, &Cancel),
    tell: impl Fn(u32) -> Result<(), BootstrapError>,
) {
    let (began, pause) = (Instant::now(), TELLS_EVERY.min(patience));
    while !(untold.is_empty() && others.is_empty()) {
        let pause = if untold.is_empty() { patience.saturating_sub(began.elapsed()) } else { pause };
        if waits.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
            return;
        }
        if began.elapsed() >= patience {
            untold.append(&mut others);
        }
        // The root names those that never answer.
        untold.retain(|to| !is_over.is_called() && tell(*to).is_err());
    }
}

/// The members that the error of a meeting names as missing. The root is the first member's.
fn missing(members: &[Rank], error: &BootstrapError) -> Vec<Rank> {
    let named = match error {
        BootstrapError::MissingRanks { ranks, .. } => ranks.named(),
        BootstrapError::Timeout { ranks, .. } if !ranks.is_empty() => ranks.named(),
        BootstrapError::Timeout { .. } | BootstrapError::RootUnreachable { errno: libc::ETIMEDOUT, .. } => {
            &members[..1]
        }
        _ => &[],
    };
    named.iter().copied().filter(|rank| members.contains(rank)).collect()
}

/// The error of a child of `members`, which names ranks by their places, with their numbers in the parent of `nranks` ranks.
pub(crate) fn by_numbers_here(error: BootstrapError, members: &[Rank], nranks: u32) -> BootstrapError {
    error.renumbered(|place| members.get(place.index()).copied().unwrap_or(place), nranks)
}

/// Distinguishes the meetings of a communicator's ranks.
pub(super) fn meeting_tag(members: &[Rank], number: u64) -> u64 {
    digest(&("among", number, members.iter().map(|rank| rank.0).collect::<Vec<u32>>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_missing_is_named_by_its_number_here() {
        let members = [Rank(1), Rank(2), Rank(5)];
        let timeout = |ranks| BootstrapError::Timeout {
            calls: None,
            by: None,
            what: "it",
            ranks,
            limit: Duration::ZERO,
        };
        let of_child = timeout(RankList::from_iter([Rank(2)]));
        assert_eq!(missing(&members, &by_numbers_here(of_child, &members, 6)), [Rank(5)]);
        assert_eq!(missing(&members, &timeout(RankList::default())), [Rank(1)], "the root is the first's");
        assert!(missing(&members, &BootstrapError::PeerLost { rank: Rank(5) }).is_empty());
    }

    #[test]
    fn every_member_is_told_once_by_the_one_it_waits_for() {
        for members in [1, 2, 3, 63, 64, 1000] {
            let mut times = vec![0; members as usize];
            for place in 0..members {
                for to in told(place, members) {
                    assert_eq!(teller(to), place, "{to} of {members}");
                    times[to as usize] += 1;
                }
            }
            assert!(times[0] == 0 && times[1..].iter().all(|times| *times == 1), "{times:?}");
        }
    }
}

//! Layer: host / bootstrap, its top.
//! Takes: a connected [`Bootstrap`] and the ranks that form a child.
//! Gives: the child's bootstrap, independent of the parent from then on.
//! Never: sends a secret: parent and child derive the child's from their own.

use std::time::Instant;

use oxccl_shared::abi::Rank;

use super::cancel::Cancel;
use super::config::BootstrapConfig;
use super::endpoint::Bootstrap;
use super::error::BootstrapError;
use super::id::{RootKind, UniqueId};
use super::join;
use super::rendezvous_wire::ListenerAddr;
use super::sock::Deadline;
use super::state::Meeting;
use crate::wire::{Message, digest};

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
        let config = &self.shared.config;
        // The members join at once or not at all: an unused root need not stay.
        let root_config = BootstrapConfig { unused_root_timeout: config.timeout, ..config.clone() };
        let mine = match my_place {
            Some(Rank(0)) => {
                let addr = UniqueId::create_with(secret, &root_config)?.root_addr();
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
        Bootstrap::connect_unless(&id, (place, members.len() as u32), config, cancel).map(Some)
    }

    /// Creates a child of `members` without the parent's other ranks, which may be gone, and whatever else has broken the parent: only
    /// the members call it, with the same list and the same `number`, a pair never used before. `cancel` ends the join of the child.
    ///
    /// # Errors
    /// [`BootstrapError::PeerLost`], [`BootstrapError::PeerLeft`]: a member is gone, or goes meanwhile. [`BootstrapError::PeerWentOn`]: a
    /// member has finished a meeting that failed on this rank, and does not come. Those of joining.
    pub fn split_among(
        &self,
        members: &[Rank],
        number: u64,
        cancel: &Cancel,
    ) -> Result<Bootstrap, BootstrapError> {
        if self.place_among(members)?.is_none() {
            return Err(BootstrapError::BadMember { rank: self.rank(), nranks: self.nranks() });
        }
        // Of this meeting alone: the death of a member ends it, and the caller may call for another.
        let attempt = Cancel::default();
        let ends = attempt.clone();
        cancel.on_call(move || ends.cancel());
        let meeting = Meeting { members: members.to_vec(), cancel: attempt.clone(), ends_at: None };
        let mut state = self.shared.lock();
        state.meeting = Some(meeting);
        state.end_hopeless_meeting(Instant::now());
        drop(state);
        // The thread is to see when it ends.
        self.shared.wake();
        let child = self.meet(members, number, &attempt);
        let mut state = self.shared.lock();
        state.meeting = None;
        child.map_err(|error| match (state.why_gone(members), state.who_went_on(members)) {
            _ if cancel.is_called() => BootstrapError::Aborted,
            (Some(gone), _) => gone,
            (None, Some(rank)) if attempt.is_called() => BootstrapError::PeerWentOn { rank },
            _ => error,
        })
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
        let config = &self.shared.config;
        let deadline = Deadline::after(config.timeout).or_cancelled(cancel).outlasting_abort();
        let addr = if place == 0 {
            let root_config = BootstrapConfig { unused_root_timeout: config.timeout, ..config.clone() };
            UniqueId::create_with(secret, &root_config)?.root_addr()
        } else {
            let what = "its address cannot be read";
            let from = members[teller(place) as usize];
            let bytes = self.recv_among(from, members, tag, &deadline)?;
            ListenerAddr::from_bytes(&bytes).map_err(|_| BootstrapError::Protocol { rank: from, what })?.addr
        };
        let id = UniqueId::new(addr, secret, RootKind::Created);
        let bytes = ListenerAddr { addr }.to_bytes();
        let nranks = members.len() as u32;
        let told = told(place, nranks).map(|to| {
            self.send_among(members[to as usize], members, tag, &bytes, &deadline) //
        });
        // Those who can be reached hear of it even if another cannot; the root would wait for that one.
        let failed = told.filter_map(Result::err).reduce(|first, _| first);
        if let Some(error) = failed {
            join::leave_unmet(&id, Rank(place), nranks, config);
            return Err(error);
        }
        Bootstrap::connect_unless(&id, (Rank(place), nranks), config, cancel)
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

/// Distinguishes the meetings of a communicator's ranks.
fn meeting_tag(members: &[Rank], number: u64) -> u64 {
    digest(&("among", number, members.iter().map(|rank| rank.0).collect::<Vec<u32>>()))
}

#[cfg(test)]
mod tests {
    use super::*;

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

//! Communicators of some of another one's ranks, and of more than those.

use super::builder::assemble;
use super::comm_call::InCommCall;
use super::communicator::Comm;
use super::config::MISSING_ID;
use super::error::Error;
use super::handle::CommHandle;
use super::init::Init;
use super::pending::Pending;
use super::split::{self, Turn};
use super::stalls::Stalls;
use crate::bootstrap::{Bootstrap, BootstrapConfig, BootstrapError, Cancel, UniqueId, Watch};
use crate::connect::ConnectError;
use crate::launch::CommCall;
use oxccl_shared::abi::Rank;
use std::sync::Arc;
use std::time::{Duration, Instant};

impl<M: Init> Comm<M> {
    /// Makes a communicator of this one's ranks without `excluded`, in their order, on a thread of its own. Only the ranks that stay call
    /// it, all with the same ranks; those excluded may be gone, and this communicator [revoked](CommHandle::revoke) or failed, by a death
    /// for example. It stays as it is.
    ///
    /// # Errors
    /// [`Error::Bootstrap`]: an excluded rank is none of this communicator's, or this one. The communicator's error, if this rank aborted
    /// it or its GPU is broken; there is no thread for it. All others come from the [`Pending`]; [`BootstrapError`]s name ranks by their
    /// numbers here, other errors, of the connections of the new communicator, by their numbers there. Of a rank that stays and goes meanwhile
    /// [`BootstrapError::PeerLost`], on all others, which can call it again without that one. [`BootstrapError::MissingRanks`]: ranks whose
    /// processes live have not called it within the bootstrap's timeout, because they are stopped for example. All others get the same error, with
    /// their numbers here, and can call it again without those.
    ///
    /// [`BootstrapError::PeerWentOn`]: the shrink failed on this rank after it had succeeded on the rank that the error names. This happens
    /// if a rank dies, or a connection breaks, at the very end of a shrink. This rank learns it at its next call, within a second, if
    /// the named rank does not call it too. The others have a communicator in which this rank is missing or silent; no further shrink of
    /// this communicator can succeed here. Do one of two things:
    /// - End this process. The others see its death, shrink again without it, and go on.
    /// - Come back as a new rank: drop this communicator, and build one with the id of the others' next [grow](Self::start_grow), with
    ///   the state of a rank that went on.
    pub fn start_shrink(&self, excluded: &[u32]) -> Result<Pending<Comm<M>>, Error> {
        self.can_shrink()?;
        let members = remaining(self.rank(), self.size(), excluded)?;
        let (number, nranks) = (self.member.shrinks.next(&members), self.size());
        let (watch, config, unit) = (self.member.watch().clone(), split::settings(&self.config), self.unit());
        let stalls = self.member.stalls();
        let work = move |handle: &CommHandle| {
            let in_call = InCommCall::enter(stalls, CommCall::Shrink, Some(members.clone()));
            watch.wake();
            let child = in_call.named(watch.bootstrap().split_among(&members, number, handle.cancel()));
            drop(in_call);
            // The parent may be dropped meanwhile.
            let parent = Arc::downgrade(&watch);
            drop(watch);
            let child = child.map_err(Error::from);
            let child = child.and_then(|bootstrap| {
                let child = assemble(bootstrap, config, unit, handle);
                child.map_err(|error| split::by_numbers_in_parent(error, &members, nranks))
            });
            if let Some(watch) = parent.upgrade() {
                watch.bootstrap().conclude(&members, number, child.is_ok());
            }
            child.map_err(|error| handle.failed(error))
        };
        Pending::start(self.member.handle.joining_from(), work)
    }

    /// Makes a communicator of this one's ranks that live, in their order: [`Self::start_shrink`] without those that are
    /// [gone](Self::gone). If another rank goes meanwhile, it tries again without that one. After a death, every rank that lives
    /// calls it.
    ///
    /// # Ranks that come late
    /// A rank that comes when the others have made their communicator without it, and have left this one, takes them for gone: it gets a
    /// communicator of itself alone, and no error. (While they still have this one, it gets an error.) It would go on beside the others, with its
    /// own results, and write the same files. So compare the result's [size](Self::size) with this one's before you go on: at most one
    /// communicator has more than half of the ranks. On a rank whose communicator does not, end the process, or come back as a new rank, as
    /// [`Self::start_shrink`] says.
    ///
    /// # Errors
    /// Those of [`Self::start_shrink`], but for ranks that go. A rank that lives and does not come is not left out: whether to go on without
    /// it is the caller's decision, by [`Self::start_shrink`].
    ///
    /// [`BootstrapError::PeerWentOn`]: a rank went when others had just finished, and they went on without this rank. End this process or
    /// come back as a new rank, as [`Self::start_shrink`] says. The others find their new communicator broken and shrink that one.
    pub fn shrink_to_living(&self) -> Result<Comm<M>, Error> {
        loop {
            let gone = self.gone();
            match self.start_shrink(&gone)?.wait() {
                // All get it, and the first of them may be gone by now because of it.
                Err(error @ Error::Bootstrap(BootstrapError::MissingRanks { .. })) => return Err(error),
                // Another one has gone, before its connections were made or after: the ring says so soon, to all.
                Err(error) if self.hears_of_another(&gone, &error) => {}
                outcome => return outcome,
            }
        }
    }

    /// Whether more ranks than these are gone; or are soon known to be, if the error may come from that.
    fn hears_of_another(&self, gone: &[u32], error: &Error) -> bool {
        let until = Instant::now() + if is_of_a_death(error) { DEATHS_TAKE } else { Duration::ZERO };
        while self.gone().len() == gone.len() {
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// Makes a communicator of this one's ranks, with the same numbers, and of new ones up to `nranks`, on a thread of its own. Every rank
    /// calls it, one of them with an id; the new ranks [build](super::Builder) theirs with that id, as any others. This communicator
    /// stays as it is.
    ///
    /// # Errors
    /// [`Error::Bootstrap`]: `nranks` is below this communicator's number of ranks. The communicator's error; there is no thread for it. All
    /// others come from the [`Pending`]: of a grow without an id [`Error::Config`].
    pub fn start_grow(&self, id: Option<UniqueId>, nranks: u32) -> Result<Pending<Comm<M>>, Error> {
        self.can_regroup()?;
        if nranks < self.size() {
            return Err(BootstrapError::GrowsSmaller { nranks, parent: self.size() }.into());
        }
        let (watch, turn) = (self.member.watch().clone(), self.member.splits.next());
        let (stalls, config, unit) = (self.member.stalls(), split::settings(&self.config), self.unit());
        let work = move |handle: &CommHandle| {
            let grown = grow(&watch, (turn, stalls), id, nranks, &config.bootstrap, handle.cancel());
            drop(watch);
            let grown = grown.and_then(|bootstrap| assemble(bootstrap, config, unit, handle));
            grown.map_err(|error| handle.failed(error))
        };
        Pending::start(self.member.handle.joining_from(), work)
    }
}

/// How long the event of a death may take to come around the bootstrap ring.
const DEATHS_TAKE: Duration = Duration::from_secs(2);

/// Whether ranks could not meet because one was lost, or gave up because it had lost one.
fn is_of_a_death(error: &Error) -> bool {
    let of_bootstrap = |error: &BootstrapError| {
        matches!(
            error,
            BootstrapError::PeerLost { .. }
                | BootstrapError::PeerLeft { .. }
                | BootstrapError::PeerAborted { .. }
                | BootstrapError::RootLost { .. }
                | BootstrapError::RootUnreachable { .. }
        )
    };
    match error {
        Error::Bootstrap(error) | Error::Connect(ConnectError::Bootstrap(error)) => of_bootstrap(error),
        Error::Connect(ConnectError::PeerFailed { .. }) | Error::Operation(_) => true,
        _ => false,
    }
}

/// The ranks of `0..nranks` that are not excluded.
///
/// # Errors
/// [`BootstrapError::BadMember`]: an excluded rank is none of them, or this one.
fn remaining(me: u32, nranks: u32, excluded: &[u32]) -> Result<Vec<Rank>, Error> {
    if let Some(wrong) = excluded.iter().find(|rank| **rank >= nranks || **rank == me) {
        return Err(BootstrapError::BadMember { rank: Rank(*wrong), nranks }.into());
    }
    Ok((0..nranks).filter(|rank| !excluded.contains(rank)).map(Rank).collect())
}

/// Joins the parent's ranks, of which one has the id, with new ones that have it too. Every rank of the parent calls it.
///
/// # Errors
/// Those of the bootstrap; no rank has the id.
fn grow(
    parent: &Watch,
    (turn, stalls): (Turn, Option<Arc<Stalls>>),
    id: Option<UniqueId>,
    nranks: u32,
    settings: &BootstrapConfig,
    cancel: &Cancel,
) -> Result<Bootstrap, Error> {
    turn.wait();
    let mine = id.map_or_else(Vec::new, |id| id.to_bytes().to_vec());
    let in_call = InCommCall::enter(stalls, CommCall::Grow, None);
    let blocks = in_call.gather(parent.bootstrap(), &mine)?;
    let (giver, bytes) = blocks.iter().enumerate().find(|(_, block)| !block.is_empty()).ok_or(MISSING_ID)?;
    let malformed = ConnectError::Malformed { peer: Rank(giver as u32) };
    let bytes = bytes.as_slice().try_into().map_err(|_| malformed.clone())?;
    let id = UniqueId::from_bytes(bytes).map_err(|_| malformed)?;
    Ok(Bootstrap::connect_unless(&id, (parent.bootstrap().rank(), nranks), settings, cancel)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remaining_keep_their_order() {
        assert_eq!(remaining(2, 4, &[0, 3]), Ok(vec![Rank(1), Rank(2)]));
        assert_eq!(remaining(0, 2, &[]), Ok(vec![Rank(0), Rank(1)]));
        for wrong in [4, 2] {
            let error = BootstrapError::BadMember { rank: Rank(wrong), nranks: 4 };
            assert_eq!(remaining(2, 4, &[0, wrong]), Err(error.into()));
        }
    }
}

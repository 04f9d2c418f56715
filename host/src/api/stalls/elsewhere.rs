//! What the process of a rank does in its other communicators.
//!
//! Two processes with two communicators may wait for each other if they call these in different orders: each is late in the one where the other
//! waits. Neither communicator shows that by itself.

use super::Stalls;
use crate::bootstrap::Place;
use crate::launch::{Elsewhere, Standing};
use oxccl_shared::abi::Rank;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError, Weak};
use std::time::Duration;

/// How often, and for how long each time, who lists a communicator tries: a child that was forked while another thread had the lock never gets it.
const TRIES: u32 = 100;
const TRY_EVERY: Duration = Duration::from_millis(1);

/// The communicators of this process, each with the process: a forked child has the memory of its parent's.
static ALL: Mutex<Listed> = Mutex::new(Vec::new());
type Listed = Vec<(u32, Weak<Stalls>)>;

fn lock() -> Option<MutexGuard<'static, Listed>> {
    match ALL.try_lock() {
        Ok(all) => Some(all),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Lists a communicator, as long as it is there. One that cannot be listed is not looked at by others.
pub(super) fn list(stalls: &Arc<Stalls>) {
    for _ in 0..TRIES {
        if let Some(mut all) = lock() {
            all.retain(|(_, stalls)| stalls.strong_count() > 0);
            return all.push((std::process::id(), Arc::downgrade(stalls)));
        }
        std::thread::sleep(TRY_EVERY);
    }
}

/// What a rank says to one that asks, with what its process waits for in another communicator if the rank is in no call of this one. Of
/// several such waits it says rather one for the rank that asks.
pub(super) fn with(of: &Stalls, own: Standing, asker: Rank) -> Standing {
    let is_in_call = own.during.is_some() || own.comm_calls.first().is_some();
    let elsewhere = if is_in_call || !of.is_alone() { None } else { seen_by(of, asker) };
    Standing { elsewhere, ..own }
}

fn seen_by(of: &Stalls, asker: Rank) -> Option<Elsewhere> {
    let process = std::process::id();
    let others: Vec<Arc<Stalls>> = {
        let all = lock()?;
        all.iter().filter(|(its, _)| *its == process).filter_map(|(_, other)| other.upgrade()).collect()
    };
    let others = others.iter().filter(|other| !std::ptr::eq(&***other, of));
    preferred(others.filter_map(|other| seen_from(of, other)), asker)
}

/// A wait for the rank that asks, else the first one.
fn preferred(mut waits: impl Iterator<Item = Elsewhere>, asker: Rank) -> Option<Elsewhere> {
    let first = waits.next()?;
    match first.waits_for == asker {
        true => Some(first),
        false => Some(waits.find(|wait| wait.waits_for == asker).unwrap_or(first)),
    }
}

/// What this process waits for in `other`, if it waits there for the process of a rank of `of`. Where several ranks share a process nobody
/// knows which of them waits.
fn seen_from(of: &Stalls, other: &Stalls) -> Option<Elsewhere> {
    let running = other.running.get().filter(|running| running.is_alone)?;
    // Not what its links do, which is a question to the kernel.
    let polled = running.polled().map(|polled| polled.standing(other.now(std::time::Instant::now())));
    let standing = polled.unwrap_or_else(|| running.probe.standing());
    let (during, waits_for) = (standing.during?, standing.waits_for?);
    let waits_for = only(of.places(), other.places().get(waits_for.index())?)?;
    Some(Elsewhere { func: during.call.func, waits_for })
}

/// Whether no other rank is in the process of this one.
pub(super) fn is_alone(places: &[Place], me: Rank) -> bool {
    places.get(me.index()).and_then(|mine| only(places, mine)).is_some()
}

/// The rank at a place, if there is exactly one.
fn only(places: &[Place], place: &Place) -> Option<Rank> {
    let mut there = (0..).map(Rank).zip(places).filter(|(_, one)| *one == place);
    let (rank, _) = there.next()?;
    there.next().is_none().then_some(rank)
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxccl_shared::abi::Func;

    #[test]
    fn a_process_with_several_ranks_is_none_of_them() {
        let place = |process| Place { host: "node8".into(), process };
        let places = [place(7), place(8), place(7)];
        assert_eq!([7, 8, 9].map(|process| only(&places, &place(process))), [None, Some(Rank(1)), None]);
        assert_eq!([0, 1, 2, 3].map(|rank| is_alone(&places, Rank(rank))), [false, true, false, false]);
    }

    #[test]
    fn of_several_waits_that_for_the_rank_that_asks_is_said() {
        let wait = |rank| Elsewhere { func: Func::Barrier, waits_for: Rank(rank) };
        let said = |asker| preferred([wait(3), wait(1), wait(2)].into_iter(), Rank(asker));
        assert_eq!([3, 1, 2, 0].map(said), [3, 1, 2, 3].map(|rank| Some(wait(rank))));
        assert_eq!(preferred(std::iter::empty(), Rank(0)), None);
    }
}

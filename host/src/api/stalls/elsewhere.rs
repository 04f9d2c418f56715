//! What the process of a rank does in its other communicators.
//!
//! Two processes with two communicators wait for each other if they call these in different orders: each is late in the one where the other
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

/// What a rank does, with what its process waits for in another communicator if the rank is in no call of this one.
pub(super) fn with(of: &Stalls, own: Standing) -> Standing {
    let is_in_call = own.during.is_some() || own.comm_calls.first().is_some();
    let elsewhere = || {
        let process = std::process::id();
        let others: Vec<Arc<Stalls>> = {
            let all = lock()?;
            all.iter().filter(|(its, _)| *its == process).filter_map(|(_, other)| other.upgrade()).collect()
        };
        others.iter().filter(|other| !std::ptr::eq(&***other, of)).find_map(|other| seen_from(of, other))
    };
    Standing { elsewhere: if is_in_call { None } else { elsewhere() }, ..own }
}

/// What this process waits for in `other`, if it waits there for the process of a rank of `of`. Where several ranks share a process nobody
/// knows which of them waits.
fn seen_from(of: &Stalls, other: &Stalls) -> Option<Elsewhere> {
    let running = other.running.get()?;
    let (here, there) = (of.places(), other.places());
    let (mine, its) = (here.get(of.me.index())?, there.get(other.me.index())?);
    only(here, mine)?;
    only(there, its)?;
    // Not what its links do, which is a question to the kernel.
    let polled = running.polled().map(|polled| polled.standing(other.now(std::time::Instant::now())));
    let standing = polled.unwrap_or_else(|| running.probe.standing());
    let waits_for = only(here, there.get(standing.waits_for?.index())?)?;
    Some(Elsewhere { func: standing.during?.call.func, waits_for })
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

    #[test]
    fn a_process_with_several_ranks_is_none_of_them() {
        let place = |process| Place { host: "node8".into(), process };
        let places = [place(7), place(8), place(7)];
        assert_eq!([7, 8, 9].map(|process| only(&places, &place(process))), [None, Some(Rank(1)), None]);
    }
}

//! All that one communicator's waits drive.

use super::coll_links::CollLinks;
use super::drive::{Drive, DriveFailure};
use super::link_error::LinkError;
use super::net_links::NetLinks;
use crate::proxy::ProxyEnd;
use oxccl_device::gpu::Wait;
use oxccl_device::traffic::Traffic;
use oxccl_shared::abi::Rank;
use std::cell::{Cell, RefCell, RefMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A list that is fixed when the communicator is made; most have none.
#[derive(Default)]
pub struct Drives {
    list: RefCell<Vec<Box<dyn Drive>>>,
    /// Whether there is any, and whether any has slots that kernels flush.
    has_any: bool,
    has_slots: bool,
    /// When the first failure was seen.
    broken_since: Cell<Option<Instant>>,
}

impl Drives {
    fn with(mut self, drive: Box<dyn Drive>) -> Drives {
        self.has_any = true;
        self.has_slots |= drive.has_slots();
        self.list.get_mut().push(drive);
        self
    }

    /// None.
    pub fn none() -> Drives {
        Drives::default()
    }

    /// With connections over a network.
    pub fn with_network(self, links: Option<NetLinks>) -> Drives {
        match links {
            Some(links) => self.with(Box::new(links)),
            None => self,
        }
    }

    /// With the connection to a network that reduces.
    pub fn with_reduction(self, links: Option<CollLinks>) -> Drives {
        match links {
            Some(links) => self.with(Box::new(links)),
            None => self,
        }
    }

    /// Whether a wait has nothing to drive.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        !self.has_any
    }

    /// Whether there are connections that kernels flush and lend to.
    #[inline]
    pub(crate) fn has_slots(&self) -> bool {
        self.has_slots
    }

    /// All of them.
    #[inline]
    pub(crate) fn all(&self) -> RefMut<'_, Vec<Box<dyn Drive>>> {
        self.list.borrow_mut()
    }

    /// Tells all of them something.
    #[inline]
    pub(crate) fn each(&self, visit: impl FnMut(&mut Box<dyn Drive>)) {
        if self.has_any {
            self.all().iter_mut().for_each(visit);
        }
    }

    /// Has a connection driven from now on, by the drive of its kind.
    pub(crate) fn add_connection(&self, end: ProxyEnd) {
        let mut end = Some(end);
        self.each(|drive| drive.add_connection(&mut end));
    }

    /// Moves what can be moved without waiting. Returns how much, and the failure of a drive that moved nothing, once nobody is likely
    /// to know better: the monitor may say better what has become of a rank that the network has lost, and what the kernel waits for
    /// may come over another connection. Both have `grace` for it.
    #[inline]
    pub(crate) fn drive(&self, on: Wait, grace: Duration) -> (usize, Option<DriveFailure>) {
        let mut moved = 0;
        for drive in self.list.borrow_mut().iter_mut() {
            let steps = drive.drive(on);
            moved += steps;
            if steps == 0
                && let Some(failure) = drive.failure(on)
                && !self.may_be_told_better(on, &failure, grace)
            {
                return (moved, Some(failure));
            }
        }
        (moved, None)
    }

    #[cold]
    fn may_be_told_better(&self, on: Wait, failure: &DriveFailure, grace: Duration) -> bool {
        let since = self.broken_since.get().unwrap_or_else(Instant::now);
        self.broken_since.set(Some(since));
        (failure.is_of_network || failure.peer != on.peer) && since.elapsed() < grace
    }

    /// What a wait waits for beside ranks, once it has lasted too long.
    #[cold]
    pub(crate) fn beyond(&self, on: Wait, limit: Duration) -> Option<LinkError> {
        self.all().iter_mut().find_map(|drive| drive.beyond(on, limit))
    }

    /// Whether slots to or from the rank may be those of a network.
    #[cold]
    pub(crate) fn stand_for(&self, peer: Rank) -> bool {
        self.all().iter().any(|drive| drive.stands_for(peer))
    }

    /// Whether a wait for the rank in the collective under way is one for a network that reduces.
    #[cold]
    pub(crate) fn are_meant_by(&self, peer: Rank) -> bool {
        self.all().iter().any(|drive| drive.is_meant_by(peer))
    }

    /// The network that reduces, if there is one: the rank that stands for it, and what goes to it and comes from it.
    pub(crate) fn reduction(&self) -> Option<(Rank, Arc<Traffic>)> {
        self.all().iter().find_map(|drive| drive.reduction())
    }

    /// Writes to the log what was under way when a drive failed.
    #[cold]
    pub(crate) fn log_post_mortem(&self) {
        self.each(|drive| {
            if let Some(post_mortem) = drive.post_mortem() {
                tracing::warn!("{post_mortem}");
            }
        });
    }
}

//! A head's part in a network that reduces, driven by whoever waits.

use super::drive::{Collective, Drive, DriveFailure};
use super::link_error::LinkError;
use crate::proxy::{CollEnd, CollFault, CollOp, Cut, Elements, Moves};
use oxccl_device::gpu::Wait;
use oxccl_device::traffic::Traffic;
use oxccl_shared::abi::Rank;
use oxccl_shared::algo::registry::spec_of;
use std::sync::Arc;
use std::time::Duration;

/// The network of a rank that is a head.
pub struct CollLinks {
    end: CollEnd,
    /// The head of the next host, for whom this one waits when it waits for the network: if every head waits so for another, whoever
    /// keeps them all waiting is found by going from one to the next.
    next_head: Rank,
    /// What goes to the network and comes from it.
    traffic: Arc<Traffic>,
    /// Whether the latest collective needs it.
    is_needed: bool,
    failure: Option<DriveFailure>,
}

impl CollLinks {
    /// With that head after this one, over connections that count in `traffic`.
    pub fn new(end: CollEnd, next_head: Rank, traffic: Arc<Traffic>) -> CollLinks {
        CollLinks { end, next_head, traffic, is_needed: false, failure: None }
    }
}

impl Drive for CollLinks {
    fn begin_collective(&mut self, collective: &Collective<'_>) {
        // Other algorithms do without it.
        self.is_needed = spec_of(collective.plan.algorithm).connections.has_network();
        if !self.is_needed {
            return;
        }
        let plan = collective.plan;
        let elements = Elements::new(collective.call.dtype, collective.operator.kind);
        // There is one channel.
        let cut = Cut { part_elems: plan.part(0).len() as u64, slice_elems: plan.slice_elems as u32 };
        let moves = Moves::of(plan.func, cut);
        // This rank's own kernel waits for all of it.
        self.end.begin(CollOp { tag: collective.tag, elements, moves, steps: u64::MAX });
    }

    /// The network's slots are counted like any, and nobody flushes or lends them.
    fn has_slots(&self) -> bool {
        false
    }

    #[inline]
    fn drive(&mut self, _on: Wait) -> usize {
        self.end.do_work()
    }

    #[inline]
    fn failure(&mut self, _on: Wait) -> Option<DriveFailure> {
        if self.failure.is_none() {
            self.failure = self.end.failure().map(|fault| describe(fault, self.next_head));
        }
        self.failure
    }

    fn stands_for(&self, peer: Rank) -> bool {
        peer == self.next_head
    }

    fn is_meant_by(&self, peer: Rank) -> bool {
        self.is_needed && peer == self.next_head
    }

    fn reduction(&self) -> Option<(Rank, Arc<Traffic>)> {
        Some((self.next_head, self.traffic.clone()))
    }

    /// Every head has its reductions under way: nobody but the network can end them.
    fn beyond(&mut self, on: Wait, limit: Duration) -> Option<LinkError> {
        let awaited = self.end.awaited().filter(|_| on.peer == self.next_head)?;
        Some(LinkError::unreduced(&awaited, limit))
    }
}

/// A failure as the communicator's health has it.
#[cold]
fn describe(fault: &CollFault, peer: Rank) -> DriveFailure {
    let reason: &'static str = Box::leak(fault.to_string().into_boxed_str());
    DriveFailure {
        peer,
        is_of_network: matches!(fault, CollFault::Net(_)),
        is_mismatch: matches!(fault, CollFault::Mismatch { .. }),
        error: LinkError::Coll { reason },
    }
}

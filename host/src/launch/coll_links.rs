//! A head's part in a network that reduces, driven by whoever waits.

use super::net_links::NetFailure;
use crate::net::stream::LinkError;
use crate::proxy::progress::{CollEnd, CollFault, CollOp};
use oxccl_shared::abi::{DataType, Rank, RedOp};
use oxccl_shared::reduce::{CombineKind, Resolved};

/// The network of a rank that is a head.
pub struct CollLinks {
    end: CollEnd,
    /// The head of the next host, for whom this one waits when it waits for the network: if every head waits so for another, whoever
    /// keeps them all waiting is found by going from one to the next.
    next_head: Rank,
    failure: Option<NetFailure>,
}

impl CollLinks {
    /// With that head after this one.
    pub fn new(end: CollEnd, next_head: Rank) -> CollLinks {
        CollLinks { end, next_head, failure: None }
    }

    /// A collective along the chain begins.
    pub(crate) fn begin(&mut self, dtype: DataType, operator: &Resolved, tag: u32) {
        let op = match operator.kind {
            CombineKind::Sum => RedOp::Sum,
            CombineKind::Prod => RedOp::Prod,
            CombineKind::Max => RedOp::Max,
            CombineKind::Min => RedOp::Min,
        };
        self.end.begin(CollOp { tag, dtype, op });
    }

    /// Moves what can be moved without waiting. Returns how much went on.
    #[inline]
    pub(super) fn do_work(&mut self) -> usize {
        self.end.do_work()
    }

    /// The failure, if there is one.
    #[inline]
    pub(super) fn failure(&mut self) -> Option<NetFailure> {
        if self.failure.is_none() {
            self.failure = self.end.failure().map(|fault| describe(fault, self.next_head));
        }
        self.failure
    }
}

/// A failure as the communicator's health has it.
#[cold]
fn describe(fault: &CollFault, peer: Rank) -> NetFailure {
    let reason: &'static str = Box::leak(fault.to_string().into_boxed_str());
    NetFailure {
        peer,
        is_of_network: matches!(fault, CollFault::Net(_)),
        is_mismatch: matches!(fault, CollFault::Mismatch { .. }),
        error: LinkError::Coll { reason },
    }
}

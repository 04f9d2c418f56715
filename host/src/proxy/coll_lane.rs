//! A head's end of in-network reduction among the connections of a proxy.

use super::coll::Reduced;
use super::coll::{CollEnd, CollOp};
use super::counters::{Counters, SubOp};
use super::error::{EndError, EndFault, EndId, Outstanding};
use oxccl_shared::abi::ConnLayout;
use std::sync::Arc;

/// An end of a network that reduces, driven by orders. It sends and receives; to the proxy it is a connection on which the rank sends.
pub struct CollLane {
    end: CollEnd,
    place: EndId,
    /// The operation in progress.
    sub: Option<SubOp>,
}

impl CollLane {
    /// The end of the connection `place`, whose peer is the next head.
    pub fn new(end: CollEnd, place: EndId) -> CollLane {
        CollLane { end, place, sub: None }
    }

    pub(super) fn place(&self) -> EndId {
        self.place
    }

    pub(super) fn layout(&self) -> &ConnLayout {
        self.end.layout()
    }

    pub(super) fn begin(&mut self, sub: SubOp, reduced: Reduced) {
        self.sub = Some(sub);
        let Reduced { elements, moves } = reduced;
        self.end.begin(CollOp { tag: sub.tag, elements, moves, steps: sub.steps });
    }

    pub(super) fn is_idle(&self) -> bool {
        self.end.is_idle()
    }

    /// Makes progress without blocking. Returns the number of transitions.
    pub(super) fn progress(&mut self) -> Result<usize, Arc<EndError>> {
        let moved = self.end.do_work();
        match self.end.failure() {
            None => Ok(moved),
            Some(fault) => {
                let (place, outstanding, why) =
                    (self.place, self.outstanding(), EndFault::Coll(fault.clone()));
                Err(Arc::new(EndError { place, outstanding, why }))
            }
        }
    }

    pub(super) fn outstanding(&self) -> Option<Outstanding> {
        let sub = self.sub.filter(|_| !self.end.is_idle())?;
        let (first, begun, done) = self.end.progress();
        let counters =
            Counters { posted: sub.steps, received: begun, flushed: begun, transmitted: begun, done };
        Some(Outstanding { sub, first, counters })
    }

    /// What reductions in flight wait for.
    pub(super) fn awaited(&self) -> String {
        self.end.awaited().unwrap_or_default()
    }
}

//! An end whose communicator is not there yet: it keeps the first sub-operation until it is, while others go on.

use super::counters::{Counters, SubOp};
use super::engine::ProxyEnd;
use super::error::{EndError, EndFault, EndId, Outstanding};
use super::order::Elements;
use crate::net::NetError;
use oxccl_shared::abi::{ConnLayout, Step};
use std::sync::Arc;

/// Gives the end once it can be made; asked again and again, without waiting.
pub type OpenEnd = Box<dyn FnMut() -> Result<Option<ProxyEnd>, NetError> + Send>;

/// An end that opens.
pub struct OpeningEnd {
    place: EndId,
    layout: ConnLayout,
    open: OpenEnd,
    waiting: Option<(SubOp, Elements)>,
    failed: Option<Arc<EndError>>,
}

impl OpeningEnd {
    /// The end `place`, of slots of this layout, which `open` gives.
    pub fn new(place: EndId, layout: ConnLayout, open: OpenEnd) -> OpeningEnd {
        OpeningEnd { place, layout, open, waiting: None, failed: None }
    }

    pub(super) fn place(&self) -> EndId {
        self.place
    }

    pub(super) fn layout(&self) -> &ConnLayout {
        &self.layout
    }

    pub(super) fn begin(&mut self, sub: SubOp, elements: Elements) {
        self.waiting = Some((sub, elements));
    }

    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_none()
    }

    pub(super) fn outstanding(&self) -> Option<Outstanding> {
        self.waiting.map(|(sub, _)| Outstanding { sub, first: Step(0), counters: Counters::default() })
    }

    /// The open end with what has waited for it, if it is there.
    ///
    /// # Errors
    /// It cannot be had; the same from then on.
    pub(super) fn poll(&mut self) -> Result<Option<ProxyEnd>, Arc<EndError>> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        match (self.open)() {
            Ok(opened) => Ok(opened.map(|mut end| {
                self.waiting.take().into_iter().for_each(|(sub, elements)| end.begin(sub, elements));
                end
            })),
            Err(error) => {
                let (place, outstanding) = (self.place, self.outstanding());
                let error = Arc::new(EndError { place, outstanding, why: EndFault::Net(error) });
                self.failed = Some(error.clone());
                Err(error)
            }
        }
    }
}

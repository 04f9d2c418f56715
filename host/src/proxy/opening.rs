//! An end whose communicator is not there yet: it keeps the first sub-operation until it is, while others go on.

use super::block::ProxyBlock;
use super::coll::Reduced;
use super::counters::{Counters, SubOp};
use super::error::{EndError, EndFault, EndId, Outstanding};
use crate::net::NetError;
use oxccl_shared::abi::{ConnLayout, Step};
use oxccl_shared::fifo::split_over;
use oxccl_shared::proto;
use std::sync::Arc;

/// Gives the end once it can be made; asked again and again, without waiting.
pub type OpenEnd<E> = Box<dyn FnMut() -> Result<Option<E>, NetError> + Send>;

/// An end that is open, and the sub-operation that has waited for it.
pub(super) type Opened<E> = (E, Option<(SubOp, Reduced)>);

/// When an end that is not open waits for the other one, and not for this rank's kernel.
#[derive(Clone, Copy, Debug)]
pub enum Patience {
    /// As soon as an operation has begun: its kernel runs.
    None,
    /// Once the kernel has filled a slot of this block, which nobody has consumed from yet. It may be queued behind hours of other work.
    UntilFilled(ProxyBlock),
    /// Never: it is the kernel that waits, and that counts the time.
    OfKernel,
}

/// An end that opens and is an `E` then.
pub struct OpeningEnd<E> {
    place: EndId,
    layout: ConnLayout,
    open: OpenEnd<E>,
    waiting: Option<(SubOp, Reduced)>,
    /// When it waits for the other end.
    patience: Patience,
    failed: Option<Arc<EndError>>,
}

impl<E> OpeningEnd<E> {
    /// The end `place`, of slots of this layout, which `open` gives.
    pub fn new(place: EndId, layout: ConnLayout, open: OpenEnd<E>) -> OpeningEnd<E> {
        OpeningEnd { place, layout, open, waiting: None, patience: Patience::None, failed: None }
    }

    /// The same for kernels that may run much later than their operations begin.
    pub fn with_patience(self, patience: Patience) -> OpeningEnd<E> {
        OpeningEnd { patience, ..self }
    }

    /// Whether an operation has begun that waits for the other end.
    pub(super) fn waits_for_peer(&self) -> bool {
        match (self.patience, &self.waiting) {
            (_, None) | (Patience::OfKernel, _) => false,
            (Patience::None, _) => true,
            (Patience::UntilFilled(block), Some((SubOp { protocol, .. }, _))) => {
                let mut looking = split_over(block.words()).1;
                // SAFETY: the block vouches for its memory; a consumer that begins at the first step, as the end will.
                unsafe { proto::ready(*protocol, block.layout(), block.base(*protocol), &mut looking) }
                    .is_some()
            }
        }
    }

    pub(super) fn place(&self) -> EndId {
        self.place
    }

    pub(super) fn layout(&self) -> &ConnLayout {
        &self.layout
    }

    pub(super) fn begin(&mut self, sub: SubOp, reduced: Reduced) {
        self.waiting = Some((sub, reduced));
    }

    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_none()
    }

    pub(super) fn outstanding(&self) -> Option<Outstanding> {
        self.waiting.map(|(sub, _)| Outstanding { sub, first: Step(0), counters: Counters::default() })
    }

    /// The open end and what has waited for it, if it is there.
    ///
    /// # Errors
    /// It cannot be had; the same from then on.
    pub(super) fn poll(&mut self) -> Result<Option<Opened<E>>, Arc<EndError>> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        match (self.open)() {
            Ok(opened) => Ok(opened.map(|end| (end, self.waiting.take()))),
            Err(error) => {
                let (place, outstanding) = (self.place, self.outstanding());
                let error = Arc::new(EndError { place, outstanding, why: EndFault::Net(error) });
                self.failed = Some(error.clone());
                Err(error)
            }
        }
    }
}

//! Host memory of a proxy end beside its block: what it says of itself on the wire, and where line slots are received.

use crate::net::{Comm, NetError, NetMemory, NetMemoryKind, Registration};
use oxccl_shared::fifo::STEPS;

/// 128 bytes, aligned like a slot.
#[repr(C, align(128))]
#[derive(Clone, Copy)]
struct Line([u8; LINE_BYTES]);

const LINE_BYTES: usize = 128;

/// One line for a prologue, then a place for each slot of a block.
pub(super) struct Annex {
    lines: Box<[Line]>,
    slot_bytes: usize,
}

impl Annex {
    /// With places of `slot_bytes`, a multiple of a line (0: none).
    pub(super) fn new(slot_bytes: usize) -> Annex {
        debug_assert!(slot_bytes.is_multiple_of(LINE_BYTES));
        let count = 1 + STEPS * slot_bytes / LINE_BYTES;
        Annex { lines: vec![Line([0; LINE_BYTES]); count].into_boxed_slice(), slot_bytes }
    }

    /// # Safety
    /// 1. The communicator is dropped before this annex.
    pub(super) unsafe fn register<C: Comm + ?Sized>(
        &mut self,
        comm: &mut C,
    ) -> Result<Registration, NetError> {
        let memory = NetMemory {
            start: self.lines.as_mut_ptr().cast(),
            len_bytes: size_of_val(&*self.lines),
            kind: NetMemoryKind::Host,
        };
        // SAFETY: obligation 1.
        unsafe { comm.register(memory) }
    }

    /// Where a prologue leaves from or arrives. Raw, because a network may be using it.
    pub(super) fn prologue(&mut self) -> *mut u8 {
        self.lines.as_mut_ptr().cast()
    }

    /// Where the slot of this index is received.
    pub(super) fn slot(&mut self, index: usize) -> *mut u8 {
        self.lines.as_mut_ptr().cast::<u8>().wrapping_add(LINE_BYTES + index * self.slot_bytes)
    }
}

//! Host memory of a proxy end beside its block: the operation header, and bounce buffers for line slots.

use crate::net::{Comm, NetError, NetMemory, NetMemoryKind, Registration};
use oxccl_shared::fifo::STEPS;

/// 128 bytes, with the alignment of a slot.
#[repr(C, align(128))]
#[derive(Clone, Copy)]
struct Line([u8; LINE_BYTES]);

const LINE_BYTES: usize = 128;

/// One line for an operation header, then a bounce buffer for each slot of a block.
pub(super) struct UnpackBuffer {
    lines: Box<[Line]>,
    slot_bytes: usize,
}

impl UnpackBuffer {
    /// Bounce buffers of `slot_bytes`, a multiple of a line (0: none).
    pub(super) fn new(slot_bytes: usize) -> UnpackBuffer {
        debug_assert!(slot_bytes.is_multiple_of(LINE_BYTES));
        let count = 1 + STEPS * slot_bytes / LINE_BYTES;
        UnpackBuffer { lines: vec![Line([0; LINE_BYTES]); count].into_boxed_slice(), slot_bytes }
    }

    /// # Safety
    /// 1. The communicator is dropped before this unpack buffer.
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

    /// The operation header to be sent or received. Raw, because a network may be accessing it.
    pub(super) fn op_header(&mut self) -> *mut u8 {
        self.lines.as_mut_ptr().cast()
    }

    /// The bounce buffer of the slot with this index.
    pub(super) fn slot(&mut self, index: usize) -> *mut u8 {
        self.lines.as_mut_ptr().cast::<u8>().wrapping_add(LINE_BYTES + index * self.slot_bytes)
    }
}

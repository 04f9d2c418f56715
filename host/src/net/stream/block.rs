//! The local half of a connection, as a link end sees it.

use oxccl_shared::abi::{ConnControl, ConnLayout, Protocol, Step};
use oxccl_shared::fifo::STEPS;
use oxccl_shared::proto;
use std::marker::PhantomData;
use std::ptr::NonNull;

/// A connection in this process's memory.
#[derive(Clone, Copy)]
pub(super) struct Block<'m> {
    base: NonNull<u8>,
    layout: ConnLayout,
    memory: PhantomData<&'m ConnControl>,
}

// SAFETY: the memory that `new` vouches for is reachable from every thread; who may touch it when is promised there too.
unsafe impl Send for Block<'_> {}

impl<'m> Block<'m> {
    /// # Safety
    /// 1. `base` is 128-byte aligned and starts `layout.total_bytes()` bytes, zeroed when the connection began, that stay
    ///    mapped for `'m`.
    /// 2. `layout` is valid.
    pub(super) unsafe fn new(base: NonNull<u8>, layout: ConnLayout) -> Self {
        debug_assert!(base.cast::<ConnControl>().is_aligned() && layout.is_valid());
        Block { base, layout, memory: PhantomData }
    }

    pub(super) fn layout(&self) -> &ConnLayout {
        &self.layout
    }

    pub(super) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    pub(super) fn control(&self) -> &'m ConnControl {
        // SAFETY: obligation 1 of `new`; zeroes are a valid ConnControl, whose words may change under a reference.
        unsafe { self.base.cast().as_ref() }
    }

    /// The first byte of the slot that `step` occupies.
    pub(super) fn slot(&self, protocol: Protocol, step: Step) -> *mut u8 {
        let offset = proto::slot_offset(protocol, &self.layout, step.slot());
        // SAFETY: obligations 1 and 2 of `new`: a layout's slots lie within its total.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// Which Simple slot begins at `address`.
    pub(super) fn simple_slot(&self, address: *const u8) -> Option<usize> {
        let slot_bytes = self.layout.simple_slot_bytes as usize;
        let offset = address.addr().checked_sub(self.base.as_ptr().addr() + self.layout.simple_offset())?;
        let slot = offset / slot_bytes;
        (slot < STEPS && offset.is_multiple_of(slot_bytes)).then_some(slot)
    }
}

//! A connection block as its proxy sees it: control words and slots, which need not lie together.

use crate::net::{Comm, NetError, NetMemory, NetMemoryKind, Registration};
use oxccl_shared::abi::{ConnControl, ConnLayout, Protocol, Step};
use oxccl_shared::fifo::{ConnWords, STEPS};
use oxccl_shared::proto;
use std::ops::Range;
use std::ptr::NonNull;

/// Where one connection's half lies on this host.
///
/// Slots of line protocols always lie in host memory, because the proxy reads their flags (sending) or writes their lines
/// (receiving). Slots that a counter announces are bytes to the proxy, and may be device memory that the NIC reaches.
#[derive(Clone, Copy, Debug)]
pub struct ProxyBlock {
    producer_side: NonNull<ConnControl>,
    consumer_side: NonNull<ConnControl>,
    /// What the layout's offsets count from, for slots whose lines carry flags.
    lines: NonNull<u8>,
    /// The same for slots that a counter announces.
    bulk: NonNull<u8>,
    bulk_is_device: bool,
    layout: ConnLayout,
}

// SAFETY: the memory that the constructors vouch for is reachable from every thread; who may touch it when is promised there.
unsafe impl Send for ProxyBlock {}

/// Counted slots that do not lie behind their control words.
#[derive(Clone, Copy, Debug)]
pub struct BulkSlots {
    /// What the layout's offsets count from: the first counted slot lies at this address plus its offset in the layout.
    pub base: NonNull<u8>,
    /// Whether that is an address of a CUDA device.
    pub is_device: bool,
}

/// What a proxy registered of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockRegistrations {
    lines: Registration,
    bulk: Registration,
}

impl ProxyBlock {
    /// A whole connection in host memory.
    ///
    /// # Safety
    /// 1. `base` is 128-byte aligned and starts `layout.total_bytes()` bytes of this process, zeroed when the connection began,
    ///    that stay mapped as long as the proxy end lives.
    /// 2. `layout` is valid.
    pub unsafe fn in_host(base: NonNull<u8>, layout: ConnLayout) -> ProxyBlock {
        debug_assert!(base.cast::<ConnControl>().is_aligned() && layout.is_valid());
        let control = base.cast();
        ProxyBlock {
            producer_side: control,
            consumer_side: control,
            lines: base,
            bulk: base,
            bulk_is_device: false,
            layout,
        }
    }

    /// The same, with the producer's word (`head`) elsewhere: where the producer polls it.
    ///
    /// # Safety
    /// 1. `control` is a zeroed [`ConnControl`] that this process can read and write and that outlives the proxy end.
    pub unsafe fn with_producer_side(self, control: NonNull<ConnControl>) -> ProxyBlock {
        ProxyBlock { producer_side: control, ..self }
    }

    /// The same, with counted slots elsewhere.
    ///
    /// # Safety
    /// 1. The addresses that `bulk` gives to counted slots of this layout stay valid, for whom `is_device` says, as long as the
    ///    proxy end lives.
    pub unsafe fn with_bulk(self, bulk: BulkSlots) -> ProxyBlock {
        ProxyBlock { bulk: bulk.base, bulk_is_device: bulk.is_device, ..self }
    }

    /// Slot sizes.
    pub fn layout(&self) -> &ConnLayout {
        &self.layout
    }

    pub(super) fn words(&self) -> ConnWords<'static> {
        // SAFETY: obligations of the constructors: live as long as the end that holds this block, and zeroes are valid words.
        // The end keeps the references to itself, so that `'static` is not believed longer than it is true.
        let (producer_side, consumer_side) =
            unsafe { (self.producer_side.as_ref(), self.consumer_side.as_ref()) };
        ConnWords { producer_side, consumer_side }
    }

    /// What the layout's offsets count from under `protocol`.
    pub(super) fn base(&self, protocol: Protocol) -> *mut u8 {
        if proto::is_flagged(protocol) { self.lines.as_ptr() } else { self.bulk.as_ptr() }
    }

    /// Which counted slot begins at `address`.
    pub(super) fn counted_slot(&self, address: *const u8) -> Option<usize> {
        let at = |slot| proto::slot_offset(Protocol::Simple, &self.layout, slot);
        let (first, slot_bytes) = (at(0), at(1) - at(0));
        let offset = address.addr().checked_sub(self.bulk.as_ptr().addr() + first)?;
        let slot = offset / slot_bytes;
        (slot < STEPS && offset.is_multiple_of(slot_bytes)).then_some(slot)
    }

    /// The first byte of the slot that `step` occupies.
    pub(super) fn slot(&self, protocol: Protocol, step: Step) -> *mut u8 {
        self.base(protocol).wrapping_add(proto::slot_offset(protocol, &self.layout, step.slot()))
    }

    /// Whether a slot received in place must be flushed before its consumer, a device, may look.
    pub(super) fn needs_flush(&self, protocol: Protocol) -> bool {
        self.bulk_is_device && !proto::is_flagged(protocol)
    }

    /// The longest line slot.
    pub(super) fn line_slot_bytes_max(&self) -> usize {
        let flagged = Protocol::ALL.iter().filter(|protocol| proto::is_flagged(**protocol));
        flagged.map(|protocol| proto::slot_bytes(*protocol, &self.layout)).max().unwrap_or(0)
    }

    /// Bytes of the layout that slots of either kind cover.
    fn extent(&self, flagged: bool) -> Range<usize> {
        let of_kind = Protocol::ALL.iter().filter(|protocol| proto::is_flagged(**protocol) == flagged);
        let at =
            |slot| of_kind.clone().map(move |protocol| proto::slot_offset(*protocol, &self.layout, slot));
        at(0).min().unwrap_or(0)..at(STEPS).max().unwrap_or(0)
    }

    /// Makes the slots known to a communicator: once, where they lie together.
    ///
    /// # Safety
    /// 1. The communicator is dropped before the memory of this block is unmapped.
    pub(super) unsafe fn register<C: Comm + ?Sized>(
        &self,
        comm: &mut C,
    ) -> Result<BlockRegistrations, NetError> {
        let (lines, bulk) = (self.extent(true), self.extent(false));
        let mut register = |base: NonNull<u8>, range: Range<usize>, is_device: bool| {
            let memory = NetMemory {
                start: base.as_ptr().wrapping_add(range.start).cast(),
                len_bytes: range.len(),
                kind: if is_device { NetMemoryKind::Cuda } else { NetMemoryKind::Host },
            };
            // SAFETY: obligation 1 and those of the constructors: mapped until then.
            unsafe { comm.register(memory) }
        };
        if self.bulk == self.lines && !self.bulk_is_device {
            let both = lines.start.min(bulk.start)..lines.end.max(bulk.end);
            let one = register(self.lines, both, false)?;
            return Ok(BlockRegistrations { lines: one, bulk: one });
        }
        let lines = register(self.lines, lines, false)?;
        Ok(BlockRegistrations { lines, bulk: register(self.bulk, bulk, self.bulk_is_device)? })
    }
}

impl BlockRegistrations {
    /// What the slots of `protocol` belong to.
    pub(super) fn of(&self, protocol: Protocol) -> Registration {
        if proto::is_flagged(protocol) { self.lines } else { self.bulk }
    }
}

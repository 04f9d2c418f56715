//! A connection block as its proxy sees it: control words and slots, which may be in different memory.

use crate::net::{Comm, NetError, NetMemory, NetMemoryKind, Registration};
use oxccl_shared::abi::{ConnControl, ConnLayout, Protocol, Step};
use oxccl_shared::fifo::{ConnWords, STEPS};
use oxccl_shared::proto;
use std::ops::Range;
use std::ptr::NonNull;

/// The memory of one connection's half on this host.
///
/// Line slots are always in host memory, because the proxy reads their flags (sending) or writes their lines
/// (receiving). Simple slots are opaque bytes to the proxy, and may be in device memory that the NIC accesses.
#[derive(Clone, Copy, Debug)]
pub struct ProxyBlock {
    control: NonNull<ConnControl>,
    /// Base of the layout's offsets of line slots.
    lines: NonNull<u8>,
    /// The same for Simple slots; the address itself may be outside any memory of this process.
    bulk: *mut u8,
    /// Registration of the Simple slots, if they are in device memory.
    device: Option<OfDevice>,
    layout: ConnLayout,
}

// SAFETY: the constructors' memory is reachable from every thread; their obligations state who may access it.
unsafe impl Send for ProxyBlock {}

/// Simple slots in device memory, which the network accesses and the proxy does not.
#[derive(Clone, Copy, Debug)]
pub struct DeviceSlots {
    /// The first one.
    pub first: NonNull<u8>,
    /// Their registration with the communicator of the block's end.
    pub registration: Registration,
    /// Whether received data must be flushed before it is published to the device's kernel.
    pub needs_flush: bool,
}

#[derive(Clone, Copy, Debug)]
struct OfDevice {
    registration: Registration,
    needs_flush: bool,
}

/// Registrations of a block's slots.
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
    ///    that stay mapped as long as the proxy end lives; or those before the counted slots, if [`Self::with_counted_slots`] follows.
    /// 2. `layout` is valid.
    pub unsafe fn in_host(base: NonNull<u8>, layout: ConnLayout) -> ProxyBlock {
        debug_assert!(base.cast::<ConnControl>().is_aligned() && layout.is_valid());
        let control = base.cast();
        ProxyBlock { control, lines: base, bulk: base.as_ptr(), device: None, layout }
    }

    /// The same, with Simple slots on a device.
    ///
    /// # Safety
    /// 1. The device has memory for the Simple slots of this layout, from the first one on, as long as the proxy end
    ///    lives.
    /// 2. The end is created with the communicator that issued the registration, which covers all of them.
    pub unsafe fn with_counted_slots(self, slots: DeviceSlots) -> ProxyBlock {
        let DeviceSlots { first, registration, needs_flush } = slots;
        let bulk = first.as_ptr().wrapping_sub(self.extent(false).start);
        ProxyBlock { bulk, device: Some(OfDevice { registration, needs_flush }), ..self }
    }

    /// Slot sizes.
    pub fn layout(&self) -> &ConnLayout {
        &self.layout
    }

    pub(super) fn words(&self) -> ConnWords<'static> {
        // SAFETY: obligations of the constructors: live as long as the end that holds this block, and zeroes are valid words.
        // The end keeps the references to itself, so that `'static` is not believed longer than it is true.
        let control = unsafe { self.control.as_ref() };
        ConnWords { producer_side: control, consumer_side: control }
    }

    /// What the layout's offsets count from under `protocol`.
    pub(super) fn base(&self, protocol: Protocol) -> *mut u8 {
        if protocol.is_flagged() { self.lines.as_ptr() } else { self.bulk }
    }

    /// Which counted slot begins at `address`.
    pub(super) fn counted_slot(&self, address: *const u8) -> Option<usize> {
        let at = |slot| proto::simple::slot_offset(&self.layout, slot);
        let (first, slot_bytes) = (at(0), at(1) - at(0));
        let offset = address.addr().checked_sub(self.bulk.addr() + first)?;
        let slot = offset / slot_bytes;
        (slot < STEPS && offset.is_multiple_of(slot_bytes)).then_some(slot)
    }

    /// The first byte of the slot that `step` occupies.
    pub(super) fn slot(&self, protocol: Protocol, step: Step) -> *mut u8 {
        self.base(protocol).wrapping_add(proto::slot_offset(protocol, &self.layout, step.slot_of(protocol)))
    }

    /// The first byte of the counted slot that `step` occupies.
    pub(super) fn counted(&self, step: Step) -> *mut u8 {
        self.bulk.wrapping_add(proto::simple::slot_offset(&self.layout, step.slot()))
    }

    /// Whether a slot received in place must be flushed before its consumer, a device, may read it.
    pub(super) fn needs_flush(&self, protocol: Protocol) -> bool {
        self.device.is_some_and(|device| device.needs_flush) && !protocol.is_flagged()
    }

    /// The longest line slot.
    pub(super) fn line_slot_bytes_max(&self) -> usize {
        let flagged = Protocol::ALL.iter().filter(|protocol| protocol.is_flagged());
        flagged.map(|protocol| proto::slot_bytes(*protocol, &self.layout)).max().unwrap_or(0)
    }

    /// Bytes of the layout that slots of either kind cover.
    fn extent(&self, flagged: bool) -> Range<usize> {
        let of_kind = Protocol::ALL.iter().filter(|protocol| protocol.is_flagged() == flagged);
        let at = |slot: fn(Protocol) -> usize| {
            let offset =
                move |protocol: &Protocol| proto::slot_offset(*protocol, &self.layout, slot(*protocol));
            of_kind.clone().map(offset)
        };
        at(|_| 0).min().unwrap_or(0)..at(Protocol::slots).max().unwrap_or(0)
    }

    /// Registers the slots with a communicator.
    ///
    /// # Safety
    /// 1. The communicator is dropped before the memory of this block is unmapped.
    pub(super) unsafe fn register<C: Comm + ?Sized>(
        &self,
        comm: &mut C,
    ) -> Result<BlockRegistrations, NetError> {
        let (lines, bulk) = (self.extent(true), self.extent(false));
        let in_host = match self.device {
            Some(_) => lines,
            None => lines.start.min(bulk.start)..lines.end.max(bulk.end),
        };
        let memory = NetMemory {
            start: self.lines.as_ptr().wrapping_add(in_host.start).cast(),
            len_bytes: in_host.len(),
            kind: NetMemoryKind::Host,
        };
        // SAFETY: obligation 1 and those of the constructors: mapped until then.
        let lines = unsafe { comm.register(memory)? };
        Ok(BlockRegistrations { lines, bulk: self.device.map_or(lines, |device| device.registration) })
    }
}

impl BlockRegistrations {
    /// The registration of counted slots.
    pub(super) fn counted(&self) -> Registration {
        self.bulk
    }

    /// The registration of the slots of `protocol`.
    pub(super) fn of(&self, protocol: Protocol) -> Registration {
        if protocol.is_flagged() { self.lines } else { self.bulk }
    }
}

//! Unpacking of slots received from a network: from a bounce buffer into a slot that a kernel may already be polling.
//!
//! A receiver (the operating system, a NIC) writes the bytes of a message in any order. If the lines of a slot carry
//! flags, a kernel that polls them could see a flag before its data. So such a slot is received in a bounce buffer
//! and unpacked line by line. A Simple slot is received in place: no kernel reads it before the counter announces it.

use super::{ll, ll128, slot_bytes, travel_bytes};
use crate::abi::{ConnLayout, Protocol, SlotHeader, Step};

/// Copies the slot of `step` from a bounce buffer, so that a polling consumer sees each line whole or not at all.
/// Returns `None` and writes nothing unless the bytes are a received slot of that step: on a wrong length, a line
/// without the step's flag, or a protocol that is not [flagged](Protocol::is_flagged).
///
/// # Safety
/// 1. `from` is readable for `len_bytes`, nobody writes it meanwhile, and it is 16-byte aligned.
/// 2. `slot` is this step's slot in a connection of this layout, 128-byte aligned; the slot is empty, and concurrent
///    accesses only read it through `sync`.
pub unsafe fn unpack(
    protocol: Protocol,
    layout: &ConnLayout,
    step: Step,
    from: *const u8,
    len_bytes: usize,
    slot: *mut u8,
) -> Option<SlotHeader> {
    // SAFETY: obligations 1 and 2.
    let header = unsafe {
        match protocol {
            Protocol::Simple => None,
            Protocol::LL => received_ll(layout, step, from, len_bytes),
            Protocol::LL128 => received_ll128(layout, step, from, len_bytes),
        }
    }?;
    // SAFETY: obligation 2: the received bytes end with the slot. The lines were checked to be of this step.
    unsafe {
        match protocol {
            Protocol::Simple => {}
            Protocol::LL => unpack_ll(step, from, len_bytes, slot),
            Protocol::LL128 => unpack_ll128(step, from, len_bytes, slot),
        }
    }
    Some(header)
}

/// Whether `len_bytes` is the wire length of a slot with this header, which must not claim more than the slot holds.
fn is_whole(
    protocol: Protocol,
    layout: &ConnLayout,
    step: Step,
    header: SlotHeader,
    len_bytes: usize,
) -> bool {
    header.len_bytes as usize <= super::payload_bytes(protocol, layout)
        && travel_bytes(protocol, layout, step, header) == len_bytes
}

/// # Safety
/// 1. As [`unpack`], its first.
unsafe fn received_ll(
    layout: &ConnLayout,
    step: Step,
    from: *const u8,
    len_bytes: usize,
) -> Option<SlotHeader> {
    if len_bytes < ll::LINE_BYTES || len_bytes > slot_bytes(Protocol::LL, layout) {
        return None;
    }
    // SAFETY: obligation 1: whole lines below `len_bytes`.
    let line = |index: usize| unsafe { from.cast::<[u64; 2]>().add(index).read() };
    let open = |index| ll::LlLine::open(line(index), ll::flag(step));
    let header = SlotHeader::from_word(open(0)?);
    let lines = len_bytes / ll::LINE_BYTES;
    (is_whole(Protocol::LL, layout, step, header, len_bytes) && (1..lines).all(|i| open(i).is_some()))
        .then_some(header)
}

/// # Safety
/// 1. As [`unpack`], its second; `from` holds checked lines of `step`.
unsafe fn unpack_ll(step: Step, from: *const u8, len_bytes: usize, slot: *mut u8) {
    for index in 0..len_bytes / ll::LINE_BYTES {
        // SAFETY: obligation 1.
        let data = ll::LlLine::data(unsafe { from.cast::<[u64; 2]>().add(index).read() });
        // SAFETY: obligation 1: a line is words only, and this is the slot's only writer.
        unsafe { &*slot.cast::<ll::LlLine>().add(index) }.store(data, ll::flag(step));
    }
}

/// # Safety
/// 1. As [`unpack`], its first.
unsafe fn received_ll128(
    layout: &ConnLayout,
    step: Step,
    from: *const u8,
    len_bytes: usize,
) -> Option<SlotHeader> {
    if len_bytes < ll128::LINE_BYTES || len_bytes > slot_bytes(Protocol::LL128, layout) {
        return None;
    }
    let words = from.cast::<u64>();
    // SAFETY: obligation 1: whole lines below `len_bytes`.
    let flag = |line: usize| unsafe { words.add((line + 1) * ll128::LINE_WORDS - 1).read() };
    // SAFETY: obligation 1.
    let header = SlotHeader::from_word(unsafe { words.read() });
    let lines = len_bytes / ll128::LINE_BYTES;
    ((0..lines).all(|line| flag(line) == ll128::flag(step))
        && is_whole(Protocol::LL128, layout, step, header, len_bytes))
    .then_some(header)
}

/// # Safety
/// 1. As [`unpack`], its second; `from` holds checked lines of `step`.
unsafe fn unpack_ll128(step: Step, from: *const u8, len_bytes: usize, slot: *mut u8) {
    for index in 0..len_bytes / ll128::LINE_BYTES {
        // SAFETY: obligation 1: the data words of a whole line.
        let data = unsafe { from.add(index * ll128::LINE_BYTES).cast::<[u64; ll128::DATA_WORDS]>().read() };
        // SAFETY: obligation 1: a line is words only, and this is the slot's only writer.
        unsafe { &*slot.cast::<ll128::Ll128Line>().add(index) }.store(&data, ll128::flag(step));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const LAYOUT: ConnLayout =
        ConnLayout { ll_slot_bytes: 256, ll128_slot_bytes: 512, simple_slot_bytes: 256 };

    #[repr(C, align(128))]
    struct Bytes([u64; 64]);

    /// A slot of 100 payload bytes in its wire form.
    fn travelling(protocol: Protocol, step: Step) -> (Bytes, usize) {
        let mut bytes = Bytes([0; 64]);
        let header = SlotHeader { tag: 9, len_bytes: 100 };
        let base = core::ptr::from_mut(&mut bytes.0).cast_const();
        let len = travel_bytes(protocol, &LAYOUT, step, header);
        for index in 0..len / if protocol == Protocol::LL { 16 } else { 128 } {
            // SAFETY: lines are words, as the array is, and lie within it.
            unsafe {
                match (protocol, index) {
                    (Protocol::LL, 0) => {
                        (*base.cast::<ll::LlLine>()).store_header(header, ll::flag(step));
                    }
                    (Protocol::LL, i) => {
                        (*base.cast::<ll::LlLine>().add(i)).store(i as u64 * 7, ll::flag(step));
                    }
                    (_, 0) => (*base.cast::<ll128::Ll128Line>()).store_header(header, ll128::flag(step)),
                    (_, i) => {
                        (*base.cast::<ll128::Ll128Line>().add(i)).store(&[i as u64; 15], ll128::flag(step));
                    }
                }
            }
        }
        (bytes, len)
    }

    fn land_into(
        protocol: Protocol,
        step: Step,
        from: &Bytes,
        len: usize,
        to: &mut Bytes,
    ) -> Option<SlotHeader> {
        let (from, to) = (from.0.as_ptr().cast(), to.0.as_mut_ptr().cast());
        // SAFETY: both are as long as a slot and aligned like one.
        unsafe { unpack(protocol, &LAYOUT, step, from, len, to) }
    }

    #[test]
    fn a_landed_slot_is_the_slot_that_left() {
        for protocol in [Protocol::LL, Protocol::LL128] {
            for step in [Step(0), Step(13), Step(1 << 30)] {
                let (sent, len) = travelling(protocol, step);
                let mut slot = Bytes([0; 64]);
                let header = land_into(protocol, step, &sent, len, &mut slot);
                assert_eq!(header, Some(SlotHeader { tag: 9, len_bytes: 100 }), "{protocol} {step:?}");
                assert_eq!(slot.0[..len / 8], sent.0[..len / 8]);
                assert!(slot.0[len / 8..].iter().all(|word| *word == 0));
            }
        }
    }

    /// Another step's slot (a replay), a missing flag, a byte too few or too many: nothing is written.
    #[test]
    fn what_is_not_the_slot_of_this_step_changes_nothing() {
        for protocol in [Protocol::LL, Protocol::LL128] {
            let (sent, len) = travelling(protocol, Step(5));
            let mut slot = Bytes([0; 64]);
            assert_eq!(land_into(protocol, Step(13), &sent, len, &mut slot), None);
            for wrong in [0, 8, len - 16, len - 1, len + 1, 4096] {
                assert_eq!(land_into(protocol, Step(5), &sent, wrong, &mut slot), None, "{wrong}");
            }
            let line = if protocol == Protocol::LL { 2 } else { 16 };
            for at in (line - 1..len / 8).step_by(line) {
                let mut torn = Bytes(sent.0);
                torn.0[at] ^= 1 << 32;
                assert_eq!(land_into(protocol, Step(5), &torn, len, &mut slot), None, "word {at}");
            }
            let mut wild = Bytes(sent.0);
            wild.0[0] |= 0xffff_ffff;
            assert_eq!(land_into(protocol, Step(5), &wild, len, &mut slot), None, "a wild length");
            assert!(slot.0.iter().all(|word| *word == 0));
        }
        let (sent, len) = travelling(Protocol::LL, Step(5));
        assert_eq!(land_into(Protocol::Simple, Step(5), &sent, len, &mut Bytes([0; 64])), None);
    }
}

//! A slot as proxies and networks see it, which carry slots without reading the payload. They ask here whether a slot
//! is full, how many of its bytes must travel and how to announce a received one, independent of the protocol.

use super::{ll, ll128, slot_offset, wire_bytes};
use crate::abi::{ConnLayout, Protocol, SlotHeader, Step};
use crate::fifo::{StepConsumer, StepProducer};
use crate::sync::fence_acquire;

/// The header of the consumer's next slot, once all bytes that must travel are there.
///
/// # Safety
/// 1. `connection` is the base of the layout's offsets of this protocol's slots. If their lines carry flags, they are
///    128-byte aligned, readable, and written meanwhile only through `sync`; other slots are not accessed, and may be
///    on a device.
/// 2. `consumer` is an end of that connection.
pub unsafe fn ready(
    protocol: Protocol,
    layout: &ConnLayout,
    connection: *const u8,
    consumer: &mut StepConsumer<'_>,
) -> Option<SlotHeader> {
    let step = consumer.step();
    let slot = connection.wrapping_add(slot_offset(protocol, layout, step.slot_of(protocol)));
    match protocol {
        Protocol::Simple => consumer.poll(),
        Protocol::LL => {
            let slot = slot.cast::<ll::LlLine>();
            let flag = ll::flag(step);
            // SAFETY: obligation 1; line 0 is there in every valid layout.
            let header = unsafe { &*slot }.load_header(flag)?;
            let lines = travel_bytes(protocol, layout, step, header) / ll::LINE_BYTES;
            // SAFETY: obligation 1; travel_bytes ends with the slot.
            let arrived = |line| unsafe { &*slot.add(line) }.load(flag).is_some();
            all_lines(lines, arrived).then_some(header)
        }
        Protocol::LL128 => {
            let slot = slot.cast::<ll128::Ll128Line>();
            let flag = ll128::flag(step);
            // SAFETY: obligation 1; line 0 is there in every valid layout.
            let header = unsafe { &*slot }.load_header(flag)?;
            let lines = travel_bytes(protocol, layout, step, header) / ll128::LINE_BYTES;
            // SAFETY: obligation 1; travel_bytes ends with the slot.
            let arrived = |line| unsafe { &*slot.add(line) }.load(&mut [], flag);
            all_lines(lines, arrived).then_some(header)
        }
    }
}

/// Bytes of a slot, from its start, that must travel so that the other end's copy means the same. Never more than the
/// slot has, whatever the header claims.
#[inline]
pub const fn travel_bytes(protocol: Protocol, layout: &ConnLayout, step: Step, header: SlotHeader) -> usize {
    let (slot_bytes, is_whole) = match protocol {
        Protocol::LL => (layout.ll_slot_bytes as usize, ll::must_clean(step)),
        Protocol::LL128 => (layout.ll128_slot_bytes as usize, false),
        Protocol::Simple => (layout.simple_slot_bytes as usize, false),
    };
    let used_bytes = wire_bytes(protocol, header.len_bytes as usize);
    if is_whole || used_bytes > slot_bytes { slot_bytes } else { used_bytes }
}

/// Announces the producer's next slot, whose bytes are in place: through the counter, or not at all if its lines
/// carry flags.
#[inline]
pub fn publish(protocol: Protocol, producer: &mut StepProducer<'_>, header: SlotHeader) {
    match protocol {
        Protocol::Simple => producer.publish(header),
        Protocol::LL | Protocol::LL128 => producer.advance(),
    }
}

/// Whether all `lines` have arrived. Checks the last one first: while a slot is being filled, that one fails at once.
fn all_lines(lines: usize, arrived: impl Fn(usize) -> bool) -> bool {
    let all = arrived(lines - 1) && (1..lines).all(&arrived);
    // ACQUIRE fence: later reads of the slot, other than through its lines, see the data that the flags announced.
    // Not modelled: those reads are a NIC's or the operating system's, and a model has lines only.
    fence_acquire();
    all
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::abi::ConnControl;
    use crate::fifo::split;

    const LAYOUT: ConnLayout =
        ConnLayout { ll_slot_bytes: 256, ll128_slot_bytes: 384, simple_slot_bytes: 256 };

    #[repr(C, align(128))]
    struct Connection {
        control: ConnControl,
        ll: [[ll::LlLine; 16]; 8],
        ll128: [[ll128::Ll128Line; 3]; Protocol::LL128.slots()],
        simple: [u8; 8 * 256],
    }

    fn connection() -> Connection {
        let ll = core::array::from_fn(|_| core::array::from_fn(|_| ll::LlLine::default()));
        let ll128 = core::array::from_fn(|_| core::array::from_fn(|_| ll128::Ll128Line::default()));
        let connection = Connection { control: ConnControl::default(), ll, ll128, simple: [0; 2048] };
        assert_eq!(size_of_val(&connection), LAYOUT.total_bytes());
        connection
    }

    fn probe(
        protocol: Protocol,
        connection: &Connection,
        consumer: &mut StepConsumer<'_>,
    ) -> Option<SlotHeader> {
        let base = core::ptr::from_ref(connection).cast();
        // SAFETY: a whole connection of this layout, and its own consumer.
        unsafe { ready(protocol, &LAYOUT, base, consumer) }
    }

    #[test]
    fn a_line_slot_is_ready_with_its_last_line_whichever_that_is() {
        let header = SlotHeader { tag: 3, len_bytes: 100 };
        for late in 0..3 {
            let connection = connection();
            let (_, mut consumer) = split(&connection.control);
            let store_ll = |line: usize| match line {
                0 => connection.ll[0][0].store_header(header, ll::flag(Step(0))),
                _ => connection.ll[0][line].store(9, ll::flag(Step(0))),
            };
            (0..14).filter(|line| *line != late * 6).for_each(store_ll);
            assert_eq!(probe(Protocol::LL, &connection, &mut consumer), None, "line {late} is missing");
            store_ll(late * 6);
            assert_eq!(probe(Protocol::LL, &connection, &mut consumer), Some(header));
        }
        for late in 0..2 {
            let connection = connection();
            let (_, mut consumer) = split(&connection.control);
            let store_ll128 = |line: usize| match line {
                0 => connection.ll128[0][0].store_header(header, ll128::flag(Step(0))),
                _ => connection.ll128[0][line].store(&[9; 15], ll128::flag(Step(0))),
            };
            store_ll128(1 - late);
            assert_eq!(probe(Protocol::LL128, &connection, &mut consumer), None, "line {late} is missing");
            store_ll128(late);
            assert_eq!(probe(Protocol::LL128, &connection, &mut consumer), Some(header));
        }
    }

    #[test]
    fn a_simple_slot_is_ready_when_published() {
        let connection = connection();
        let (mut producer, mut consumer) = split(&connection.control);
        assert_eq!(probe(Protocol::Simple, &connection, &mut consumer), None);
        let header = SlotHeader { tag: 3, len_bytes: 0 };
        publish(Protocol::Simple, &mut producer, header);
        assert_eq!(probe(Protocol::Simple, &connection, &mut consumer), Some(header));
    }

    #[test]
    fn what_travels_is_what_was_written() {
        let bytes = |protocol, step, len_bytes| {
            travel_bytes(protocol, &LAYOUT, Step(step), SlotHeader { tag: 0, len_bytes })
        };
        assert_eq!(bytes(Protocol::LL, 5, 1), 32);
        assert_eq!(bytes(Protocol::LL, 1 << 30, 1), 256, "a cleaning step writes the whole slot");
        assert_eq!(bytes(Protocol::LL128, 1 << 30, 121), 384);
        assert_eq!(bytes(Protocol::Simple, 5, 7), 7);
        for protocol in Protocol::ALL {
            assert!(bytes(*protocol, 5, u32::MAX) <= 384, "a wild length stays within the slot");
        }
    }
}

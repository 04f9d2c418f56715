//! The peer maps the memory of a connection and may write anything: numbers of types and operators, slot headers,
//! lines.

use oxccl_shared::abi::{Algorithm, ConnLayout, DataType, Func, Protocol, RedOp, SlotHeader, Step};
use oxccl_shared::proto::ll::{self, LlLine};
use oxccl_shared::proto::{self, ll128};

/// Reads a layout, a header and an LL line that a peer made.
pub fn slots(data: &[u8]) {
    let Some(words) = words(data) else { return };
    let layout =
        ConnLayout { ll_slot_bytes: words[0], ll128_slot_bytes: words[1], simple_slot_bytes: words[2] };
    if layout.is_valid() {
        check_layout(&layout);
    }
    for word in words {
        check_numbers(word);
    }
    let step = Step(u64::from(words[3]) << 32 | u64::from(words[4]));
    let header = SlotHeader { tag: words[5], len_bytes: words[6] };
    assert_eq!(SlotHeader::from_word(header.to_word()), header);
    let line = LlLine::default();
    line.store(header.to_word(), words[7]);
    // A line shows its data under exactly the flag that it carries, and a fresh line under none of ours.
    assert_eq!(line.load_header(words[7]), Some(header));
    assert_eq!(line.load(ll::flag(step)).is_some(), words[7] == ll::flag(step));
    assert_ne!(ll::flag(step), 0);
    if step.0 < u64::MAX {
        assert_ne!(ll128::flag(step), 0);
    }
}

fn words(data: &[u8]) -> Option<[u32; 8]> {
    let mut words = [0; 8];
    for (word, bytes) in words.iter_mut().zip(data.get(..32)?.chunks_exact(4)) {
        *word = u32::from_le_bytes(bytes.try_into().ok()?);
    }
    Some(words)
}

/// A layout that passes for valid keeps every slot inside the connection and every payload inside its slot.
fn check_layout(layout: &ConnLayout) {
    for protocol in [Protocol::LL, Protocol::LL128, Protocol::Simple] {
        let payload = proto::payload_bytes(protocol, layout);
        for slot in 0..protocol.slots() {
            let start = proto::slot_offset(protocol, layout, slot);
            assert!(start + proto::wire_bytes(protocol, payload) <= layout.total_bytes());
        }
        assert!(payload > 0 && payload.is_multiple_of(8));
    }
}

fn check_numbers(word: u32) {
    fn same<T: Copy + PartialEq + std::fmt::Debug>(value: Option<T>, number: impl Fn(T) -> u32, word: u32) {
        if let Some(value) = value {
            assert_eq!(number(value), word, "{value:?}");
        }
    }
    same(DataType::try_from(word).ok(), |v| v as u32, word);
    same(RedOp::try_from(word).ok(), |v| v as u32, word);
    same(Func::try_from(word).ok(), |v| v as u32, word);
    same(Algorithm::try_from(word).ok(), |v| v as u32, word);
    same(Protocol::try_from(word).ok(), |v| v as u32, word);
}

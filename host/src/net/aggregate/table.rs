//! The fragments of a job that are in flight: inputs of the heads, and results that not all heads have. No sockets.
//!
//! Entry `seq % WINDOW` belongs to fragment `seq` from the first head that sends it until every head has the result.
//! A head's input is combined once those of all heads before it have been: the result does not depend on who came
//! first. Buffers are made when first needed and stay, so a job's memory is bounded by [`job_bytes`].

use super::frame::{FRAGMENT_MAX, Header, Kind, WINDOW};
use core::ptr::null_mut;
use oxccl_device::gpu::cpu::reduce::{Flags, table};
use oxccl_shared::abi::{DataType, RedOp};
use oxccl_shared::reduce::{OpArg, resolve};

/// Most bytes of buffers of a job with so many heads.
pub fn job_bytes(nheads: u32) -> u64 {
    u64::from(nheads) * WINDOW * FRAGMENT_MAX as u64
}

/// A job's fragments in flight.
#[derive(Debug)]
pub struct Table {
    nheads: u32,
    entries: Vec<Entry>,
}

/// Why a head's fragment is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refused {
    /// Another head has sent another of this number; this is what it has said.
    #[error("another head {0}: not all do the same")]
    Differs(Header),
    /// It is none, or does not lie in the heads' blocks.
    #[error("which is not within the heads' blocks")]
    Outside,
}

#[derive(Debug)]
struct Entry {
    fragment: Option<Fragment>,
    /// The heads' inputs; the first becomes the result. Of a gather there is but that, in which each head has its share.
    inputs: Vec<Vec<u8>>,
    has_come: Vec<bool>,
}

#[derive(Clone, Copy, Debug)]
struct Fragment {
    header: Header,
    /// The first so many heads' inputs are combined.
    combined: usize,
    /// Heads without the result.
    owed: u32,
}

impl Table {
    /// Of a job with so many heads, at least one.
    pub fn new(nheads: u32) -> Table {
        let nheads = nheads.max(1);
        let entry = || Entry {
            fragment: None,
            inputs: (0..nheads).map(|_| Vec::new()).collect(),
            has_come: vec![false; nheads as usize],
        };
        Table { nheads, entries: (0..WINDOW).map(|_| entry()).collect() }
    }

    fn entry(&self, seq: u64) -> &Entry {
        &self.entries[(seq % WINDOW) as usize]
    }

    fn entry_mut(&mut self, seq: u64) -> &mut Entry {
        &mut self.entries[(seq % WINDOW) as usize]
    }

    /// Whether fragment `seq` has an entry: not while some head lacks the result of the one before it there.
    pub fn has_room(&self, seq: u64) -> bool {
        self.entry(seq).fragment.is_none_or(|fragment| fragment.header.seq == seq)
    }

    /// A head begins to send a fragment that [has room](Self::has_room). Every head sends each once.
    ///
    /// # Errors
    /// Another head's fragment of that number differs, or this is no fragment of these heads, or there is no room.
    pub fn begin(&mut self, head: u32, header: Header) -> Result<(), Refused> {
        let nheads = self.nheads;
        if !header.kind.is_fragment() || !header.is_inside(nheads) {
            return Err(Refused::Outside);
        }
        let entry = self.entry_mut(header.seq);
        let fragment = Fragment { header, combined: 0, owed: nheads };
        let expected = entry.fragment.get_or_insert(fragment).header;
        if expected != header {
            return Err(Refused::Differs(expected));
        }
        entry.inputs[holder(&header, head)].resize(header.len_bytes as usize, 0);
        Ok(())
    }

    /// Where a head's bytes of a fragment that it has begun belong; none, if nothing of a gather is the head's.
    pub fn input(&mut self, head: u32, seq: u64) -> &mut [u8] {
        let entry = self.entry_mut(seq);
        let Some(Fragment { header, .. }) = entry.fragment else { return &mut [] };
        &mut entry.inputs[holder(&header, head)][header.input(head)]
    }

    /// A head's fragment is whole. Combines what can be.
    pub fn has_come(&mut self, head: u32, seq: u64) {
        let entry = self.entry_mut(seq);
        let Some(fragment) = &mut entry.fragment else { return };
        entry.has_come[head as usize] = true;
        while fragment.combined < entry.has_come.len() && entry.has_come[fragment.combined] {
            if let (Some(last), Kind::Reduce(dtype, op) | Kind::Scatter(dtype, op, _)) =
                (fragment.combined.checked_sub(1), fragment.header.kind)
            {
                let (first, rest) = entry.inputs.split_at_mut(1);
                combine(&mut first[0], &rest[last], dtype, op);
            }
            fragment.combined += 1;
        }
    }

    /// What a head gets of a fragment, once all heads' inputs have come.
    pub fn result(&self, head: u32, seq: u64) -> Option<&[u8]> {
        let entry = self.entry(seq);
        let fragment = entry.fragment.filter(|fragment| fragment.header.seq == seq)?;
        let is_complete = fragment.combined == self.nheads as usize;
        is_complete.then(|| &entry.inputs[0][fragment.header.output(head)])
    }

    /// One more head has the result. After the last one the entry is free.
    pub fn is_sent(&mut self, seq: u64) {
        let entry = self.entry_mut(seq);
        let Some(fragment) = &mut entry.fragment else { return };
        fragment.owed -= 1;
        if fragment.owed == 0 {
            entry.fragment = None;
            entry.has_come.fill(false);
        }
    }
}

/// Which buffer takes a head's input.
fn holder(header: &Header, head: u32) -> usize {
    if matches!(header.kind, Kind::Gather(_)) { 0 } else { head as usize }
}

/// `first = first op next`.
fn combine(first: &mut [u8], next: &[u8], dtype: DataType, op: RedOp) {
    let combine = table(dtype, resolve(op, dtype, 1, 0).kind).combine;
    let count = first.len().min(next.len()) / dtype.size_bytes();
    let into = first.as_mut_ptr();
    // SAFETY: both slices hold `count` elements, and this call alone has them; the result replaces the first operand.
    unsafe { combine(into, null_mut(), into, next.as_ptr(), count, &OpArg::NONE, Flags::empty()) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::aggregate::frame::Span;
    use proptest::prelude::*;

    fn fragment(seq: u64, values: &[f32]) -> (Header, Vec<u8>) {
        let kind = Kind::Reduce(DataType::F32, RedOp::Sum);
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        (Header { kind, len_bytes: bytes.len() as u32, seq }, bytes)
    }

    fn come(table: &mut Table, head: u32, (header, bytes): &(Header, Vec<u8>)) {
        table.begin(head, *header).expect("room and the same operation");
        table.input(head, header.seq).copy_from_slice(bytes);
        table.has_come(head, header.seq);
    }

    proptest! {
        /// Sums of floats depend on their order: that of the heads, not that in which they arrive.
        #[test]
        fn the_order_of_arrival_changes_no_bit(
            values in proptest::collection::vec(-1e9f32..1e9, 5),
            order in Just(vec![0u32, 1, 2, 3, 4]).prop_shuffle(),
        ) {
            let mut table = Table::new(5);
            for head in order {
                prop_assert!(table.result(head, 3).is_none());
                come(&mut table, head, &fragment(3, &[values[head as usize]]));
            }
            let sum = values.iter().copied().reduce(|a, b| a + b).expect("five");
            prop_assert_eq!(table.result(4, 3), Some(&sum.to_le_bytes()[..]));
        }
    }

    #[test]
    fn an_entry_is_free_when_all_have_the_result() {
        let mut table = Table::new(2);
        for seq in 0..3 * WINDOW {
            assert!(table.has_room(seq));
            come(&mut table, 1, &fragment(seq, &[1.0]));
            assert!(!table.has_room(seq + WINDOW) && table.has_room(seq));
            come(&mut table, 0, &fragment(seq, &[2.0]));
            assert_eq!(table.result(1, seq), Some(&3f32.to_le_bytes()[..]));
            table.is_sent(seq);
            assert!(!table.has_room(seq + WINDOW));
            table.is_sent(seq);
            assert!(table.has_room(seq + WINDOW) && table.result(0, seq).is_none());
        }
    }

    #[test]
    fn heads_that_differ_are_found() {
        let mut table = Table::new(2);
        let (first, _) = fragment(0, &[1.0]);
        table.begin(0, first).expect("it is the first");
        let (longer, _) = fragment(0, &[1.0, 2.0]);
        assert_eq!(table.begin(1, longer), Err(Refused::Differs(first)));
        let span = Span { head_bytes: 4, start: 4 };
        let beyond = Header { kind: Kind::Gather(span), len_bytes: 5, seq: 1 };
        assert_eq!(table.begin(0, beyond), Err(Refused::Outside));
        assert_eq!(table.begin(0, Header { kind: Kind::Welcome, ..first }), Err(Refused::Outside));
        assert_eq!(table.begin(0, Header { len_bytes: 4, ..beyond }), Ok(()));
    }

    /// Bytes 1 to 7 of three blocks of three bytes.
    #[test]
    fn heads_send_or_get_what_is_theirs() {
        let span = Span { head_bytes: 3, start: 1 };
        let mut table = Table::new(3);
        let gather = Header { kind: Kind::Gather(span), len_bytes: 6, seq: 0 };
        let shares: [&[u8]; 3] = [&[1, 2], &[3, 4, 5], &[6]];
        for head in [2, 0, 1] {
            table.begin(head, gather).expect("it lies in the blocks");
            table.input(head, 0).copy_from_slice(shares[head as usize]);
            table.has_come(head, 0);
        }
        assert!((0..3).all(|head| table.result(head, 0) == Some(&[1, 2, 3, 4, 5, 6])));
        let scatter = Header { kind: Kind::Scatter(DataType::U8, RedOp::Max, span), len_bytes: 6, seq: 1 };
        for head in [1, 2, 0] {
            table.begin(head, scatter).expect("it lies in the blocks");
            table.input(head, 1).copy_from_slice(&[1, 2, 3, 4, 5, 6].map(|byte| byte + head as u8));
            table.has_come(head, 1);
        }
        let expected: [&[u8]; 3] = [&[3, 4], &[5, 6, 7], &[8]];
        assert!((0..3).all(|head| table.result(head, 1) == Some(expected[head as usize])));
    }
}

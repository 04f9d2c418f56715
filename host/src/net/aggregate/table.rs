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
    nheads: usize,
    entries: Vec<Entry>,
}

/// A head's fragment differs from an earlier head's of the same number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Differs {
    /// What the first head that sent it has said.
    pub expected: Header,
}

#[derive(Debug)]
struct Entry {
    fragment: Option<Fragment>,
    /// The heads' inputs; that of head 0 becomes the result.
    inputs: Vec<Vec<u8>>,
    has_come: Vec<bool>,
}

#[derive(Clone, Copy, Debug)]
struct Fragment {
    header: Header,
    dtype: DataType,
    op: RedOp,
    /// The first so many heads' inputs are combined.
    combined: usize,
    /// Heads without the result.
    owed: usize,
}

impl Table {
    /// Of a job with so many heads, at least one.
    pub fn new(nheads: u32) -> Table {
        let nheads = nheads.max(1) as usize;
        let entry = || Entry {
            fragment: None,
            inputs: (0..nheads).map(|_| Vec::new()).collect(),
            has_come: vec![false; nheads],
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
    /// Another head's fragment of that number differs, or this is no fragment, or there is no room.
    pub fn begin(&mut self, head: usize, header: Header) -> Result<(), Differs> {
        let nheads = self.nheads;
        let Kind::Reduce(dtype, op) = header.kind else { return Err(Differs { expected: header }) };
        let entry = self.entry_mut(header.seq);
        let fragment = Fragment { header, dtype, op, combined: 0, owed: nheads };
        let expected = entry.fragment.get_or_insert(fragment).header;
        if expected != header {
            return Err(Differs { expected });
        }
        entry.inputs[head].resize(header.len_bytes as usize, 0);
        Ok(())
    }

    /// Where a head's bytes of a fragment that it has begun belong.
    pub fn input(&mut self, head: usize, seq: u64) -> &mut [u8] {
        &mut self.entry_mut(seq).inputs[head]
    }

    /// A head's fragment is whole. Combines what can be.
    pub fn has_come(&mut self, head: usize, seq: u64) {
        let entry = self.entry_mut(seq);
        let Some(fragment) = &mut entry.fragment else { return };
        entry.has_come[head] = true;
        while fragment.combined < entry.has_come.len() && entry.has_come[fragment.combined] {
            if fragment.combined > 0 {
                let (first, rest) = entry.inputs.split_at_mut(1);
                combine(&mut first[0], &rest[fragment.combined - 1], fragment);
            }
            fragment.combined += 1;
        }
    }

    /// The result of a fragment, once all heads' inputs have come.
    pub fn result(&self, seq: u64) -> Option<&[u8]> {
        let entry = self.entry(seq);
        let fragment = entry.fragment.filter(|fragment| fragment.header.seq == seq)?;
        (fragment.combined == self.nheads).then_some(&entry.inputs[0][..])
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

/// `first = first op next`.
fn combine(first: &mut [u8], next: &[u8], fragment: &Fragment) {
    let kind = resolve(fragment.op, fragment.dtype, 1, 0).kind;
    let combine = table(fragment.dtype, kind).combine;
    let count = first.len().min(next.len()) / fragment.dtype.size_bytes();
    let into = first.as_mut_ptr();
    // SAFETY: both slices hold `count` elements, and this call alone has them; the result replaces the first operand.
    unsafe { combine(into, null_mut(), into, next.as_ptr(), count, &OpArg::NONE, Flags::empty()) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fragment(seq: u64, values: &[f32]) -> (Header, Vec<u8>) {
        let kind = Kind::Reduce(DataType::F32, RedOp::Sum);
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        (Header { kind, len_bytes: bytes.len() as u32, seq }, bytes)
    }

    fn come(table: &mut Table, head: usize, (header, bytes): &(Header, Vec<u8>)) {
        table.begin(head, *header).expect("room and the same operation");
        table.input(head, header.seq).copy_from_slice(bytes);
        table.has_come(head, header.seq);
    }

    proptest! {
        /// Sums of floats depend on their order: that of the heads, not that in which they arrive.
        #[test]
        fn the_order_of_arrival_changes_no_bit(
            values in proptest::collection::vec(-1e9f32..1e9, 5),
            order in Just(vec![0usize, 1, 2, 3, 4]).prop_shuffle(),
        ) {
            let mut table = Table::new(5);
            for head in order {
                prop_assert!(table.result(3).is_none());
                come(&mut table, head, &fragment(3, &[values[head]]));
            }
            let sum = values.iter().copied().reduce(|a, b| a + b).expect("five");
            prop_assert_eq!(table.result(3), Some(&sum.to_le_bytes()[..]));
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
            assert_eq!(table.result(seq), Some(&3f32.to_le_bytes()[..]));
            table.is_sent(seq);
            assert!(!table.has_room(seq + WINDOW));
            table.is_sent(seq);
            assert!(table.has_room(seq + WINDOW) && table.result(seq).is_none());
        }
    }

    #[test]
    fn heads_that_differ_are_found() {
        let mut table = Table::new(2);
        let (first, _) = fragment(0, &[1.0]);
        table.begin(0, first).expect("it is the first");
        let (longer, _) = fragment(0, &[1.0, 2.0]);
        assert_eq!(table.begin(1, longer), Err(Differs { expected: first }));
    }
}

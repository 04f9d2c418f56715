//! The fragments of a job that are in flight: inputs of the heads, and results that not all heads have. No sockets.
//!
//! Entry `seq % WINDOW` belongs to fragment `seq` from the first head that sends it until every head has the result.
//! A head's input is combined as far as those of all heads before it have been: the result does not depend on who came
//! first. It grows as the inputs come, so that heads get its beginning while they send the rest. Buffers are made when first needed and stay, so
//! a job's memory is bounded by [`job_bytes`].

use super::frame::{FRAGMENT_MAX, Header, Kind, WINDOW};
use core::ops::Range;
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
    /// Bytes of each head's input that have come.
    come: Vec<usize>,
    /// Bytes that are combined of all heads up to each.
    combined: Vec<usize>,
}

#[derive(Clone, Copy, Debug)]
struct Fragment {
    header: Header,
    /// Heads that have begun it.
    begun: u32,
    /// Heads without the result.
    owed: u32,
}

/// What a head gets of a fragment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome<'a> {
    /// The beginning, which does not change any more.
    pub ready: &'a [u8],
    /// Bytes of all of it.
    pub len_bytes: usize,
}

impl Outcome<'_> {
    /// Whether that is all.
    pub fn is_whole(&self) -> bool {
        self.ready.len() == self.len_bytes
    }
}

impl Table {
    /// Of a job with so many heads, at least one.
    pub fn new(nheads: u32) -> Table {
        let nheads = nheads.max(1);
        let entry = || Entry {
            fragment: None,
            inputs: (0..nheads).map(|_| Vec::new()).collect(),
            come: vec![0; nheads as usize],
            combined: vec![0; nheads as usize],
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
        let fragment = entry.fragment.get_or_insert(Fragment { header, begun: 0, owed: nheads });
        if fragment.header != header {
            return Err(Refused::Differs(fragment.header));
        }
        fragment.begun += 1;
        // Buffers do not shrink: to grow again costs as much as a copy.
        let (buffer, len_bytes) = (&mut entry.inputs[holder(&header, head)], header.len_bytes as usize);
        buffer.resize(len_bytes.max(buffer.len()), 0);
        Ok(())
    }

    /// Where a head's bytes of a fragment that it has begun belong; none, if nothing of a gather is the head's.
    pub fn input(&mut self, head: u32, seq: u64) -> &mut [u8] {
        let entry = self.entry_mut(seq);
        let Some(Fragment { header, .. }) = entry.fragment else { return &mut [] };
        &mut entry.inputs[holder(&header, head)][header.input(head)]
    }

    /// The first `len_bytes` of a head's input have come. Combines what can be.
    pub fn has_come(&mut self, head: u32, seq: u64, len_bytes: usize) {
        let entry = self.entry_mut(seq);
        let Some(Fragment { header, .. }) = entry.fragment else { return };
        entry.come[head as usize] = len_bytes.min(header.input(head).len());
        if let Kind::Reduce(dtype, op) | Kind::Scatter(dtype, op, _) = header.kind {
            entry.combine(dtype, op);
        }
    }

    /// What a head gets of a fragment, once all heads have begun it.
    pub fn result(&self, head: u32, seq: u64) -> Option<Outcome<'_>> {
        let entry = self.entry(seq);
        let fragment = entry.fragment.filter(|fragment| fragment.header.seq == seq)?;
        if fragment.begun < self.nheads {
            return None;
        }
        let header = fragment.header;
        let done = if matches!(header.kind, Kind::Gather(_)) {
            gathered(&header, &entry.come)
        } else {
            *entry.combined.last()?
        };
        let Range { start, end } = header.output(head);
        // Nothing, of a scatter, comes with the rest.
        if start == end && done < header.len_bytes as usize {
            return None;
        }
        let ready = &entry.inputs[0][start..done.clamp(start, end)];
        Some(Outcome { ready, len_bytes: end - start })
    }

    /// One more head has the result. After the last one the entry is free.
    pub fn is_sent(&mut self, seq: u64) {
        let entry = self.entry_mut(seq);
        let Some(fragment) = &mut entry.fragment else { return };
        fragment.owed -= 1;
        if fragment.owed == 0 {
            entry.fragment = None;
            entry.come.fill(0);
            entry.combined.fill(0);
        }
    }
}

impl Entry {
    /// Combines each head's input as far as it has come, and the combination of those before it goes.
    fn combine(&mut self, dtype: DataType, op: RedOp) {
        let size_bytes = dtype.size_bytes();
        let mut before = self.come[0] / size_bytes * size_bytes;
        self.combined[0] = before;
        let Some((first, rest)) = self.inputs.split_first_mut() else { return };
        for ((input, come), done) in rest.iter().zip(&self.come[1..]).zip(&mut self.combined[1..]) {
            let upto = before.min(come / size_bytes * size_bytes);
            if upto > *done {
                combine(&mut first[*done..upto], &input[*done..upto], dtype, op);
                *done = upto;
            }
            before = *done;
        }
    }
}

/// How many bytes of a gather's fragment have come without a gap: each head's share follows that of the head before it.
fn gathered(header: &Header, come: &[usize]) -> usize {
    for (head, come) in (0..).zip(come) {
        let share = header.input(head);
        if *come < share.len() {
            return share.start + come;
        }
    }
    header.len_bytes as usize
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
        table.has_come(head, header.seq, bytes.len());
    }

    /// What a head gets, once all of it is there.
    fn whole(table: &Table, head: u32, seq: u64) -> Option<&[u8]> {
        table.result(head, seq).filter(Outcome::is_whole).map(|result| result.ready)
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
            prop_assert_eq!(whole(&table, 4, 3), Some(&sum.to_le_bytes()[..]));
        }

        /// What is ready are whole elements of which every head's has come, however the bytes come; and it does not change any more.
        #[test]
        fn a_result_grows_with_the_inputs(steps in proptest::collection::vec((0u32..3, 1usize..30), 1..60)) {
            let values: Vec<Vec<f32>> =
                (0..3).map(|head| (0..16).map(|i| (i * 7 + head) as f32 * 1.37e7).collect()).collect();
            let sums = (0..16).map(|i| values[0][i] + values[1][i] + values[2][i]);
            let expected: Vec<u8> = sums.flat_map(f32::to_le_bytes).collect();
            let inputs: Vec<(Header, Vec<u8>)> = values.iter().map(|values| fragment(0, values)).collect();
            let (mut table, mut come) = (Table::new(3), [0; 3]);
            (0..3).for_each(|head| table.begin(head, inputs[head as usize].0).expect("it is the first"));
            for (head, len_bytes) in steps {
                let (bytes, done) = (&inputs[head as usize].1, &mut come[head as usize]);
                let upto = (*done + len_bytes).min(64);
                table.input(head, 0)[*done..upto].copy_from_slice(&bytes[*done..upto]);
                table.has_come(head, 0, upto);
                *done = upto;
                let least = come.iter().min().expect("three") / 4 * 4;
                let result = table.result(head, 0).expect("all have begun");
                prop_assert_eq!(result, Outcome { ready: &expected[..least], len_bytes: 64 });
            }
        }
    }

    #[test]
    fn an_entry_is_free_when_all_have_the_result() {
        let mut table = Table::new(2);
        for seq in 0..3 * WINDOW {
            assert!(table.has_room(seq));
            come(&mut table, 1, &fragment(seq, &[1.0]));
            assert!(!table.has_room(seq + WINDOW) && table.has_room(seq));
            assert!(table.result(1, seq).is_none());
            come(&mut table, 0, &fragment(seq, &[2.0]));
            assert_eq!(whole(&table, 1, seq), Some(&3f32.to_le_bytes()[..]));
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
            assert!(table.result(1, 0).is_none());
            table.begin(head, gather).expect("it lies in the blocks");
            table.input(head, 0).copy_from_slice(shares[head as usize]);
            // Head 1 sends its last byte later.
            table.has_come(head, 0, shares[head as usize].len() - usize::from(head == 1));
        }
        let begin = Outcome { ready: &[1, 2, 3, 4], len_bytes: 6 };
        assert!((0..3).all(|head| table.result(head, 0) == Some(begin)));
        table.has_come(1, 0, 3);
        assert!((0..3).all(|head| whole(&table, head, 0) == Some(&[1, 2, 3, 4, 5, 6])));
        let scatter = Header { kind: Kind::Scatter(DataType::U8, RedOp::Max, span), len_bytes: 6, seq: 1 };
        for head in [1, 2, 0] {
            table.begin(head, scatter).expect("it lies in the blocks");
            table.input(head, 1).copy_from_slice(&[1, 2, 3, 4, 5, 6].map(|byte| byte + head as u8));
            table.has_come(head, 1, 3 * (1 + usize::from(head > 0)));
        }
        // Half of head 0's has come, which is all of what it gets and a byte of what the next one does.
        assert_eq!(whole(&table, 0, 1), Some(&[3, 4][..]));
        assert_eq!(table.result(1, 1), Some(Outcome { ready: &[5], len_bytes: 3 }));
        assert_eq!(table.result(2, 1), Some(Outcome { ready: &[], len_bytes: 1 }));
        table.has_come(0, 1, 6);
        let expected: [&[u8]; 3] = [&[3, 4], &[5, 6, 7], &[8]];
        assert!((0..3).all(|head| whole(&table, head, 1) == Some(expected[head as usize])));
    }
}

//! All-to-all-v with random blocks: data, layouts with gaps, and what every rank must hold afterwards.

use crate::guarded::bytes_of;
use crate::model::{Model, Sample};
use crate::oracle::all_to_all_v;
use oxccl::{Blocks, RedOp};
use proptest::prelude::*;

/// What ranks exchange, and how it lies in their buffers.
#[derive(Clone, Debug)]
pub struct Uneven {
    /// Ranks.
    pub nranks: usize,
    /// Elements from rank i to rank j at `i * nranks + j`.
    pub counts: Vec<usize>,
    /// Elements left free before a block, of the send buffers and then of the receive buffers.
    pub gaps: Vec<usize>,
    /// Whether the last rank's block comes first.
    pub reversed: bool,
    /// Which data.
    pub seed: u64,
}

/// Counts and displacements by rank.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Elements of each block.
    pub counts: Vec<usize>,
    /// Where each begins.
    pub displs: Vec<usize>,
    /// Elements of the buffer.
    len: usize,
}

/// One rank's part.
#[derive(Clone, Debug)]
pub struct Part<T> {
    /// Input.
    pub send: Vec<T>,
    /// Its blocks.
    pub sent: Layout,
    /// Output, which holds something before.
    pub recv: Vec<T>,
    /// Its blocks.
    pub received: Layout,
    expected: Vec<T>,
}

impl Layout {
    /// As calls take it.
    pub fn blocks(&self) -> Blocks<'_> {
        Blocks { counts: &self.counts, displs: &self.displs }
    }

    /// Elements of block `rank` of a buffer.
    pub fn block<'a, T>(&self, buffer: &'a [T], rank: usize) -> &'a [T] {
        &buffer[self.displs[rank]..][..self.counts[rank]]
    }
}

impl Uneven {
    /// Any among so many ranks. Many blocks are empty, some wrap the slots of a connection.
    pub fn any(nranks: usize) -> impl Strategy<Value = Uneven> {
        let count = prop_oneof![3 => Just(0), 5 => 1..40usize, 2 => 500..3000usize, 1 => 20_000..40_000usize];
        let gap = prop_oneof![2 => Just(0), 1 => 1..9usize];
        let counts = proptest::collection::vec(count, nranks * nranks);
        let gaps = proptest::collection::vec(gap, 2 * nranks * nranks);
        (counts, gaps, any::<bool>(), any::<u64>()).prop_map(move |(counts, gaps, reversed, seed)| Uneven {
            nranks,
            counts,
            gaps,
            reversed,
            seed,
        })
    }

    fn layout(&self, counts: Vec<usize>, gaps: &[usize]) -> Layout {
        let (mut displs, mut len) = (vec![0; self.nranks], 0);
        for at in 0..self.nranks {
            let rank = if self.reversed { self.nranks - 1 - at } else { at };
            displs[rank] = len + gaps[rank];
            len = displs[rank] + counts[rank];
        }
        Layout { counts, displs, len }
    }

    /// Every rank's part.
    pub fn parts<T: Model>(&self) -> Vec<Part<T>> {
        let n = self.nranks;
        let data = |rank: usize, elems: usize, salt| -> Vec<T> {
            let (nranks, rank, seed) = (n as u32, rank as u32, self.seed ^ salt);
            (0..elems).map(|index| T::sample(Sample { op: RedOp::Sum, nranks, rank, index, seed })).collect()
        };
        let (send_gaps, recv_gaps) = self.gaps.split_at(n * n);
        let mut parts: Vec<Part<T>> = (0..n)
            .map(|rank| {
                let to = self.counts[rank * n..][..n].to_vec();
                let from = (0..n).map(|peer| self.counts[peer * n + rank]).collect();
                let sent = self.layout(to, &send_gaps[rank * n..][..n]);
                let received = self.layout(from, &recv_gaps[rank * n..][..n]);
                let (send, recv) = (data(rank, sent.len, 0), data(rank, received.len, 1));
                Part { send, sent, recv, received, expected: Vec::new() }
            })
            .collect();
        for rank in 0..n {
            parts[rank].expected = all_to_all_v(&parts, rank);
        }
        parts
    }
}

impl<T: Model> Part<T> {
    /// Compares the output, gaps included, and says which rank's block is wrong.
    ///
    /// # Errors
    /// What is wrong.
    pub fn compare(&self) -> Result<(), String> {
        if bytes_of(&self.recv) == bytes_of(&self.expected) {
            return Ok(());
        }
        let block = |buffer, rank| bytes_of(self.received.block(buffer, rank));
        let is_wrong = |rank: &usize| block(&self.recv, *rank) != block(&self.expected, *rank);
        let wrong: Vec<usize> = (0..self.received.counts.len()).filter(is_wrong).collect();
        Err(format!("wrong are the blocks of {wrong:?} (none: a gap was written)"))
    }
}

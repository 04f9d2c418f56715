//! What a rank's receive buffer must hold after each collective.

use super::pattern::Pattern;
use super::scalar::{ForScalar, Scalar, dispatch};
use crate::collective::{Collective, Shape, Transfer};
use std::ops::Range;

/// What consecutive elements of a buffer are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// `rank`'s input from element `first` on.
    Input { rank: u32, first: u64 },
    /// The reduction of all inputs from element `first` on.
    Reduced { first: u64 },
}

impl Content {
    /// What follows after `elems` elements.
    pub fn after(self, elems: usize) -> Content {
        match self {
            Content::Input { rank, first } => Content::Input { rank, first: first + elems as u64 },
            Content::Reduced { first } => Content::Reduced { first: first + elems as u64 },
        }
    }
}

/// Elements of a receive buffer and what they must be.
pub type Part = (Range<usize>, Content);

/// What `rank` must hold in its receive buffer. Nothing where the call gives this rank nothing: the buffer must then be as it
/// was.
pub fn expected_parts(collective: Collective, shape: Shape, rank: u32, ranks: u32, root: u32) -> Vec<Part> {
    let Shape { count, recv, .. } = shape;
    let whole = |content| vec![(0..recv, content)];
    let own_block = rank as u64 * count as u64;
    let gathered = |rank: u32| {
        let start = rank as usize * count;
        (start..start + count, Content::Input { rank, first: 0 })
    };
    match collective {
        Collective::Reduce if rank != root => Vec::new(),
        Collective::AllReduce | Collective::Reduce => whole(Content::Reduced { first: 0 }),
        Collective::ReduceScatter => whole(Content::Reduced { first: own_block }),
        Collective::ReduceScatterV => {
            let block = Collective::uneven_block(count, rank);
            vec![(0..block.len(), Content::Reduced { first: block.start as u64 })]
        }
        Collective::Broadcast => whole(Content::Input { rank: root, first: 0 }),
        Collective::AllGather => (0..ranks).map(gathered).collect(),
        _ => {
            let messages = |rank| collective.transfers(count, rank, ranks, root).into_iter();
            let received = messages(rank).filter(|message| !message.is_send);
            let content = |Transfer { peer, first, count, .. }| {
                let sent = messages(peer).find(|message| message.is_send && message.peer == rank);
                let sent = sent.expect("every receive has its send");
                (first..first + count, Content::Input { rank: peer, first: sent.first as u64 })
            };
            received.map(content).collect()
        }
    }
}

impl Pattern {
    /// Writes a rank's input from element `first` on.
    pub fn fill(&self, rank: u32, first: u64, bytes: &mut [u8]) {
        dispatch(self.dtype, Fill { pattern: self, rank, first, bytes });
    }

    /// Elements of `bytes` that are not `content`.
    pub fn wrong(&self, content: Content, bytes: &[u8]) -> u64 {
        dispatch(self.dtype, Wrong { pattern: self, content, bytes })
    }
}

struct Fill<'a> {
    pattern: &'a Pattern,
    rank: u32,
    first: u64,
    bytes: &'a mut [u8],
}

impl ForScalar for Fill<'_> {
    type Output = ();
    fn with<S: Scalar>(self) {
        for (i, element) in (self.first..).zip(self.bytes.chunks_exact_mut(S::SIZE)) {
            element.copy_from_slice(&self.pattern.input::<S>(self.rank, i).to_le_bytes()[..S::SIZE]);
        }
    }
}

struct Wrong<'a> {
    pattern: &'a Pattern,
    content: Content,
    bytes: &'a [u8],
}

impl ForScalar for Wrong<'_> {
    type Output = u64;
    fn with<S: Scalar>(self) -> u64 {
        let Wrong { pattern, content, bytes } = self;
        let count = |first: u64, right: &dyn Fn(u64, u64) -> bool| {
            let elements = (first..).zip(bytes.chunks_exact(S::SIZE));
            elements.filter(|(i, element)| !right(*i, load(element))).count() as u64
        };
        match content {
            Content::Input { rank, first } => count(first, &|i, bits| {
                pattern.input::<S>(rank, i).to_le_bytes()[..S::SIZE] == bits.to_le_bytes()[..S::SIZE]
            }),
            Content::Reduced { first } => {
                // A pattern without an operator has no reduction: every element is wrong.
                count(first, &|i, bits| pattern.op.is_some_and(|op| pattern.reduced_is::<S>(op, i, bits)))
            }
        }
    }
}

fn load(element: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..element.len()].copy_from_slice(element);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxccl_shared::abi::{DataType, RedOp};

    #[test]
    fn a_changed_element_is_counted_once() {
        let pattern = Pattern { repetition: 7, ranks: 3, op: None, dtype: DataType::F16 };
        let mut bytes = vec![0; 40];
        pattern.fill(2, 5, &mut bytes);
        let content = Content::Input { rank: 2, first: 5 };
        assert_eq!(pattern.wrong(content, &bytes), 0);
        bytes[7] ^= 1;
        assert_eq!(pattern.wrong(content, &bytes), 1);
        assert_eq!(pattern.wrong(Content::Input { rank: 1, first: 5 }, &bytes), 20);
    }

    #[test]
    fn an_input_is_not_the_reduction() {
        let pattern = Pattern { repetition: 7, ranks: 2, op: Some(RedOp::Sum), dtype: DataType::F32 };
        let mut bytes = vec![0; 4000];
        pattern.fill(0, 0, &mut bytes);
        assert!(pattern.wrong(Content::Reduced { first: 0 }, &bytes) > 990);
    }

    #[test]
    fn blocks_lie_where_nccl_puts_them() {
        let shape = Collective::AllToAll.shape(12, 3);
        let parts = expected_parts(Collective::AllToAll, shape, 1, 3, 0);
        assert_eq!(parts[2], (8..12, Content::Input { rank: 2, first: 4 }));
        let shape = Collective::ReduceScatter.shape(12, 3);
        assert_eq!(
            expected_parts(Collective::ReduceScatter, shape, 2, 3, 0),
            [(0..4, Content::Reduced { first: 8 })]
        );
        assert!(expected_parts(Collective::Reduce, shape, 2, 3, 0).is_empty());
    }
}

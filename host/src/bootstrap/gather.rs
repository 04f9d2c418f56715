//! Layer: host / bootstrap.
//! Takes: blocks of all-gathers, in any order of ranks.
//! Gives: [`Gathers`]: the complete table of the current all-gather.
//! Never: holds more than two all-gathers: no rank can be further ahead than one, because each needs all others.

use std::collections::VecDeque;
use std::ops::Range;

use oxccl_shared::abi::Rank;

/// The largest sum of all ranks' blocks in one all-gather.
pub const GATHER_BYTES_MAX: usize = 16 << 20;
const AHEAD_MAX: u64 = 1;

/// What has come of one all-gather: as little memory as that takes, since most of a large job's tables are nearly empty until they are complete.
#[derive(Debug, Default)]
struct Table {
    /// A bit for each rank whose block has come.
    come: Vec<u64>,
    /// The blocks in the order of their coming, and what they consist of.
    blocks: Vec<(Rank, Range<u32>)>,
    bytes: Vec<u8>,
    len_bytes: usize,
}

impl Table {
    fn has(&self, rank: usize) -> bool {
        self.come.get(rank / 64).is_some_and(|bits| bits >> (rank % 64) & 1 == 1)
    }

    fn into_blocks(self) -> Vec<Vec<u8>> {
        let mut sorted = vec![Vec::new(); self.blocks.len()];
        for (origin, range) in self.blocks {
            sorted[origin.index()] = self.bytes[range.start as usize..range.end as usize].to_vec();
        }
        sorted
    }
}

/// Result of an all-gather: every rank's block, or the total size if it is too large. All ranks see the same blocks,
/// so all get the same result.
pub(crate) type Gathered = Result<Vec<Vec<u8>>, usize>;

/// The all-gathers in progress.
#[derive(Debug)]
pub(crate) struct Gathers {
    nranks: usize,
    current: u64,
    tables: VecDeque<Table>,
}

impl Gathers {
    pub fn new(nranks: u32) -> Gathers {
        Gathers { nranks: nranks as usize, current: 0, tables: VecDeque::new() }
    }

    /// The number of the next all-gather to complete, which is also the number of complete ones.
    pub fn current(&self) -> u64 {
        self.current
    }

    /// How far the all-gather of this number is ahead of the current one; an error describes the mistake.
    pub fn ahead(&self, number: u64) -> Result<usize, &'static str> {
        let ahead = number.checked_sub(self.current).filter(|&ahead| ahead <= AHEAD_MAX);
        ahead.map(|ahead| ahead as usize).ok_or("a block of an all-gather that is over or cannot have begun")
    }

    /// Stores the block of `origin`; an error describes the mistake.
    pub fn deposit(&mut self, number: u64, origin: Rank, block: &[u8]) -> Result<(), &'static str> {
        let ahead = self.ahead(number)?;
        while self.tables.len() <= ahead {
            self.tables.push_back(Table { come: vec![0; self.nranks.div_ceil(64)], ..Table::default() });
        }
        let table = &mut self.tables[ahead];
        let rank = origin.index();
        if rank >= self.nranks {
            return Err("a block of a rank that does not exist");
        }
        if table.has(rank) {
            return Err("a block that was already there");
        }
        table.come[rank / 64] |= 1 << (rank % 64);
        table.len_bytes = table.len_bytes.saturating_add(block.len());
        // Over the limit the sizes still count, so that every rank reports the same total, but no more data is kept.
        let kept = if table.len_bytes <= GATHER_BYTES_MAX { block } else { &[] };
        let start = table.bytes.len() as u32;
        table.bytes.extend_from_slice(kept);
        table.blocks.push((origin, start..start + kept.len() as u32));
        Ok(())
    }

    /// The current table, once it is complete; the next becomes current.
    pub fn take(&mut self) -> Option<Gathered> {
        if self.tables.front()?.blocks.len() < self.nranks {
            return None;
        }
        let table = self.tables.pop_front()?;
        self.current += 1;
        if table.len_bytes > GATHER_BYTES_MAX {
            return Some(Err(table.len_bytes));
        }
        Some(Ok(table.into_blocks()))
    }

    /// The ranks whose block of the current all-gather is missing.
    pub fn missing(&self) -> impl Iterator<Item = Rank> {
        let has_come = |rank: usize| self.tables.front().is_some_and(|table| table.has(rank));
        (0..self.nranks).filter(move |rank| !has_come(*rank)).map(|rank| Rank(rank as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_given_when_complete_and_the_next_may_fill_before() {
        let mut gathers = Gathers::new(2);
        assert!(gathers.missing().eq([Rank(0), Rank(1)]));
        gathers.deposit(0, Rank(1), b"b0").expect("fits");
        gathers.deposit(1, Rank(1), b"b1").expect("fits");
        assert!(gathers.missing().eq([Rank(0)]));
        assert_eq!(gathers.take(), None);
        gathers.deposit(0, Rank(0), b"a0").expect("fits");
        assert_eq!(gathers.take(), Some(Ok(vec![b"a0".to_vec(), b"b0".to_vec()])));
        gathers.deposit(1, Rank(0), b"").expect("fits");
        assert_eq!(gathers.take(), Some(Ok(vec![vec![], b"b1".to_vec()])));
        assert_eq!((gathers.take(), gathers.current()), (None, 2));
    }

    #[test]
    fn nonsense_is_refused() {
        let mut gathers = Gathers::new(2);
        assert!(gathers.deposit(2, Rank(0), b"").is_err());
        assert!(gathers.deposit(0, Rank(2), b"").is_err());
        gathers.deposit(0, Rank(0), b"").expect("fits");
        assert!(gathers.deposit(0, Rank(0), b"").is_err());
    }

    #[test]
    fn too_much_is_the_same_error_in_any_order() {
        let half = vec![0; GATHER_BYTES_MAX / 2 + 1];
        for order in [[0, 1, 2], [2, 1, 0]] {
            let mut gathers = Gathers::new(3);
            for rank in order {
                let block = if rank == 1 { &[][..] } else { &half };
                gathers.deposit(0, Rank(rank), block).expect("a new block");
            }
            assert_eq!(gathers.take(), Some(Err(2 * half.len())));
        }
    }
}

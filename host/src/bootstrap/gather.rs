//! Layer: host / bootstrap.
//! Takes: blocks of all-gathers from the ring, in any order of ranks.
//! Gives: [`Gathers`]: the complete table of the current all-gather.
//! Never: holds more than two all-gathers: no rank can be further ahead than one, because each needs all others.

use std::collections::VecDeque;

use oxccl_shared::abi::Rank;

use super::error::RankList;

/// The largest sum of all ranks' blocks in one all-gather.
pub const GATHER_BYTES_MAX: usize = 16 << 20;
const AHEAD_MAX: u64 = 1;

#[derive(Debug)]
struct Table {
    blocks: Vec<Option<Vec<u8>>>,
    have: usize,
    len_bytes: usize,
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

    /// Stores the block of `origin`; an error describes the mistake.
    pub fn deposit(&mut self, number: u64, origin: Rank, block: &[u8]) -> Result<(), &'static str> {
        let ahead = number.checked_sub(self.current).filter(|&ahead| ahead <= AHEAD_MAX);
        let ahead = ahead.ok_or("a block of an all-gather that is over or cannot have begun")? as usize;
        while self.tables.len() <= ahead {
            self.tables.push_back(Table { blocks: vec![None; self.nranks], have: 0, len_bytes: 0 });
        }
        let table = &mut self.tables[ahead];
        let place = table.blocks.get_mut(origin.index()).ok_or("a block of a rank that does not exist")?;
        if place.is_some() {
            return Err("a block that was already there");
        }
        table.len_bytes = table.len_bytes.saturating_add(block.len());
        table.have += 1;
        // Over the limit the sizes still count, so that every rank reports the same total, but no more data is kept.
        let keep = table.len_bytes <= GATHER_BYTES_MAX;
        *place = Some(if keep { block.to_vec() } else { Vec::new() });
        Ok(())
    }

    /// The current table, once it is complete; the next becomes current.
    pub fn take(&mut self) -> Option<Gathered> {
        if self.tables.front()?.have < self.nranks {
            return None;
        }
        let table = self.tables.pop_front()?;
        self.current += 1;
        if table.len_bytes > GATHER_BYTES_MAX {
            return Some(Err(table.len_bytes));
        }
        Some(Ok(table.blocks.into_iter().flatten().collect()))
    }

    /// The ranks whose block of the current all-gather is missing.
    pub fn missing(&self) -> RankList {
        let blocks = self.tables.front().map_or(&[][..], |table| &table.blocks);
        (0..self.nranks)
            .filter(|&i| blocks.get(i).is_none_or(Option::is_none))
            .map(|i| Rank(i as u32))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_given_when_complete_and_the_next_may_fill_before() {
        let mut gathers = Gathers::new(2);
        assert_eq!(gathers.missing().to_string(), "ranks 0 and 1");
        gathers.deposit(0, Rank(1), b"b0").expect("fits");
        gathers.deposit(1, Rank(1), b"b1").expect("fits");
        assert_eq!(gathers.missing().to_string(), "rank 0");
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

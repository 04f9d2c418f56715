//! Layer: host / bootstrap.
//! Takes: this rank's blocks, and the parts of all-gathers that its neighbours in the tree send.
//! Gives: [`TreeGather`]: the parts for the neighbours, and the complete tables. Sans-IO.
//! Never: sends a block twice over one connection, waits, or reads a clock.
//!
//! What a rank sends over an edge of the tree are the blocks of all ranks on its side of that edge. It does so when it has them all: its own
//! and those of its other neighbours. So an all-gather takes one message each way for each edge, however many ranks there are, and is as
//! deep as the longest path: twice the depth of the tree. A ring would need half as many steps as there are ranks, and each block would
//! wake every rank. Long parts go in pieces, which are passed on as they come.
//!
//! A rank that holds blocks back does not tell the others whose have come. One that has waited for long therefore hurries: from then on
//! every rank passes on what it has at once, and each knows who is missing.

use std::collections::VecDeque;

use oxccl_shared::abi::Rank;

use super::gather::{Gathered, Gathers};
use super::ring_wire::{BlockHead, PartHead};
use super::side::{BRANCHES_MAX, Branch, Side, branches};
use crate::wire::Message;

/// Blocks of this length are passed on before the rest of the part has come.
pub const PIECE_BYTES: usize = 64 << 10;

/// A piece of a part, for the neighbour on this side: its head, its blocks.
pub(crate) type Piece = (Side, PartHead, Vec<u8>);

/// What goes between this rank and one neighbour in one all-gather.
#[derive(Debug, Default)]
struct Way {
    /// Whether all of the neighbour's part has come.
    has_come: bool,
    /// Whether all of the part for the neighbour was sent.
    is_sent: bool,
    /// Blocks for the neighbour, each behind its head.
    pending: Vec<u8>,
}

#[derive(Debug, Default)]
struct Round {
    has_own: bool,
    is_hurried: bool,
    ways: [Way; BRANCHES_MAX],
}

/// One rank's part in all-gathers over the tree.
#[derive(Debug)]
pub(crate) struct TreeGather {
    me: Rank,
    branches: heapless::Vec<Branch, BRANCHES_MAX>,
    gathers: Gathers,
    /// The all-gathers in progress, from the current one on.
    rounds: VecDeque<Round>,
    out: Vec<Piece>,
}

impl TreeGather {
    pub fn new(me: Rank, nranks: u32) -> TreeGather {
        TreeGather {
            me,
            branches: branches(me, nranks),
            gathers: Gathers::new(nranks),
            rounds: VecDeque::new(),
            out: Vec::new(),
        }
    }

    /// The number of the next all-gather to complete, which is also the number of complete ones.
    pub fn current(&self) -> u64 {
        self.gathers.current()
    }

    /// All-gathers for which this rank has given its block: those that are complete here, and the current one if it has.
    pub fn given(&self) -> u64 {
        self.current() + u64::from(self.rounds.front().is_some_and(|round| round.has_own))
    }

    /// The ranks whose block of the current all-gather has not come. It is exact once all have [hurried](Self::hurry).
    pub fn missing(&self) -> impl Iterator<Item = Rank> {
        self.gathers.missing()
    }

    /// This rank's block of the current all-gather.
    ///
    /// # Errors
    /// It was given before.
    pub fn submit(&mut self, block: &[u8]) -> Result<(), &'static str> {
        let number = self.gathers.current();
        self.gathers.deposit(number, self.me, block)?;
        self.round(0).has_own = true;
        let head = BlockHead { origin: self.me, len_bytes: block.len() as u32 };
        self.pass_on(0, None, &[&head.to_bytes(), block].concat());
        self.settle(0);
        Ok(())
    }

    /// Takes a piece from the neighbour on this side.
    ///
    /// # Errors
    /// The neighbour's mistake.
    pub fn receive(&mut self, side: Side, payload: &[u8]) -> Result<(), &'static str> {
        let stranger = "a part of an all-gather, which is for neighbours in the tree";
        let from = self.branches.iter().position(|branch| branch.side == side).ok_or(stranger)?;
        let unreadable = "a part of an all-gather that cannot be read";
        let (head, mut rest) = PartHead::split_from(payload).map_err(|_| unreadable)?;
        let is_nudge = head.is_hurried && rest.is_empty();
        if is_nudge && head.gather < self.current() {
            return Ok(());
        }
        let ahead = self.gathers.ahead(head.gather)?;
        if self.round(ahead).ways[from].has_come && !is_nudge {
            return Err("a part of an all-gather after its end");
        }
        while !rest.is_empty() {
            let (block, bytes) = BlockHead::split_from(rest).map_err(|_| unreadable)?;
            let (bytes, behind) = bytes.split_at_checked(block.len_bytes as usize).ok_or(unreadable)?;
            self.gathers.deposit(head.gather, block.origin, bytes)?;
            self.pass_on(ahead, Some(from), &rest[..rest.len() - behind.len()]);
            rest = behind;
        }
        self.round(ahead).ways[from].has_come |= head.is_last;
        if head.is_hurried {
            self.hurry_in(ahead, Some(from));
        }
        self.settle(ahead);
        Ok(())
    }

    /// Has every rank pass on at once what has come of the current all-gather, and what comes.
    pub fn hurry(&mut self) {
        self.hurry_in(0, None);
    }

    /// The current table, once it is complete; the next becomes current.
    pub fn take(&mut self) -> Option<Gathered> {
        let table = self.gathers.take()?;
        self.rounds.pop_front();
        Some(table)
    }

    /// Takes what is to be sent.
    pub fn take_output(&mut self) -> Vec<Piece> {
        std::mem::take(&mut self.out)
    }

    fn round(&mut self, ahead: usize) -> &mut Round {
        while self.rounds.len() <= ahead {
            self.rounds.push_back(Round::default());
        }
        &mut self.rounds[ahead]
    }

    fn hurry_in(&mut self, ahead: usize, from: Option<usize>) {
        if std::mem::replace(&mut self.round(ahead).is_hurried, true) {
            return;
        }
        // Even those for whom there is nothing, or nothing more: they are to hurry too.
        for to in (0..self.branches.len()).filter(|to| Some(*to) != from) {
            self.send(ahead, to, false);
        }
    }

    /// Adds a block, behind its head, to the parts of all neighbours but the one that it came from.
    fn pass_on(&mut self, ahead: usize, from: Option<usize>, block: &[u8]) {
        for to in (0..self.branches.len()).filter(|to| Some(*to) != from) {
            let pending = &mut self.round(ahead).ways[to].pending;
            pending.extend_from_slice(block);
            if pending.len() >= PIECE_BYTES {
                self.send(ahead, to, false);
            }
        }
    }

    /// Sends the parts that are complete; in a hurry, all that there is.
    fn settle(&mut self, ahead: usize) {
        for to in 0..self.branches.len() {
            let count = self.branches.len();
            let round = self.round(ahead);
            let is_complete = round.has_own && (0..count).all(|from| from == to || round.ways[from].has_come);
            let Way { is_sent, pending, .. } = &round.ways[to];
            if !is_sent && (is_complete || round.is_hurried && !pending.is_empty()) {
                self.send(ahead, to, is_complete);
            }
        }
    }

    fn send(&mut self, ahead: usize, to: usize, is_last: bool) {
        let gather = self.gathers.current() + ahead as u64;
        let round = self.round(ahead);
        let head = PartHead { gather, is_last, is_hurried: round.is_hurried };
        let way = &mut round.ways[to];
        way.is_sent |= is_last;
        let blocks = std::mem::take(&mut way.pending);
        self.out.push((self.branches[to].side, head, blocks));
    }
}

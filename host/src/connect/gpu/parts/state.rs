//! What a rank knows of each part.

use super::note::ROUNDS;
use crate::connect::gpu::part::Part;
use crate::launch::Fault;
use crate::transport::p2p::Arena;
use oxccl_shared::abi::Rank;
use std::collections::HashMap;

/// How far a part is on this rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Another rank has started it.
    Heard,
    /// This rank is making it.
    Running,
    /// Its members have it.
    Ready,
    /// It cannot be had.
    Failed(Fault),
}

/// A part as this rank knows it.
#[derive(Debug)]
pub(super) struct Known {
    pub phase: Phase,
    /// What each rank said in each round.
    pub said: [Vec<Option<Vec<u8>>>; ROUNDS],
    /// The first rank that gave up, and why.
    pub given_up: Option<(Rank, String)>,
}

/// All parts.
#[derive(Default)]
pub(super) struct State {
    pub parts: HashMap<Part, Known>,
    /// The memory of those that are ready; the first is that of the part which all ranks have from init on.
    pub arenas: Vec<Arena>,
    /// Steps under way.
    pub running: usize,
    /// The communicator ends: steps are given up.
    pub is_closing: bool,
}

impl Known {
    pub fn new(phase: Phase, nranks: u32) -> Known {
        let said = std::array::from_fn(|_| vec![None; nranks as usize]);
        Known { phase, said, given_up: None }
    }

    /// What all of these ranks said in a round, by rank, once all have.
    pub fn round(&self, round: usize, members: &[Rank]) -> Option<Vec<Vec<u8>>> {
        let said = &self.said[round];
        let all_have = members.iter().all(|member| said[member.index()].is_some());
        all_have.then(|| said.iter().map(|block| block.clone().unwrap_or_default()).collect())
    }

    /// The first of these members for which `me`, one of them, waits: it has not spoken in a round in which `me` has.
    pub fn awaited(&self, me: Rank, members: &[Rank]) -> Option<Rank> {
        let spoken = (0..ROUNDS).filter(|round| self.said[*round][me.index()].is_some());
        spoken.filter_map(|round| self.missing(round, members)).next()
    }

    /// The first of these ranks that has not spoken in a round.
    pub fn missing(&self, round: usize, members: &[Rank]) -> Option<Rank> {
        members.iter().copied().find(|member| self.said[round][member.index()].is_none())
    }
}

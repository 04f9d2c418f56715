//! The members of a part, who vote by notes.

use super::note::{PartNote, ROUNDS, Said};
use super::side::Parts;
use crate::bootstrap::{Agreement, BootstrapError, RankList};
use crate::connect::gpu::part::Part;
use crate::transport::p2p::{Circle, P2pError};
use crate::wire::Message;
use oxccl_shared::abi::Rank;
use std::cell::Cell;
use std::time::{Duration, Instant};

/// How often a member that waits says again where it is, and asks the others: who joins the ring of the bootstrap anew misses notes.
const ASKS_EVERY: Duration = Duration::from_millis(250);
/// How soon the end of a rank or of the communicator is seen.
const LOOKS_EVERY: Duration = Duration::from_millis(10);

/// One part's members.
pub(super) struct Members<'a> {
    pub parts: &'a Parts,
    pub part: Part,
    pub members: &'a [Rank],
    /// Votes so far.
    rounds: Cell<usize>,
}

impl<'a> Members<'a> {
    pub fn new(parts: &'a Parts, part: Part, members: &'a [Rank]) -> Members<'a> {
        Members { parts, part, members, rounds: Cell::new(0) }
    }

    fn wait(&self, round: usize, note: &PartNote) -> Result<Vec<Vec<u8>>, BootstrapError> {
        let (started, mut asked) = (Instant::now(), Instant::now());
        loop {
            let blocks = self.parts.wait_for(LOOKS_EVERY, |state| match state.parts.get(&self.part) {
                Some(known) if known.given_up.is_some() => Some(None),
                known => known?.round(round, self.members).map(Some),
            });
            if let Some(Some(blocks)) = blocks {
                return Ok(blocks);
            }
            self.check_whole()?;
            let missing = {
                let state = self.parts.lock();
                state.parts.get(&self.part).and_then(|known| known.missing(round, self.members))
            };
            if let Some(rank) = missing.filter(|rank| self.parts.has_left(*rank)) {
                return Err(BootstrapError::PeerLeft { rank });
            }
            let waited = started.elapsed();
            let limit = self.parts.timeout();
            if waited > limit {
                let ranks = RankList::from_iter(missing);
                let what = "connections that an operation needs for the first time";
                return Err(BootstrapError::Timeout { calls: None, by: None, what, ranks, limit });
            }
            if asked.elapsed() > ASKS_EVERY {
                asked = Instant::now();
                self.parts.say(&PartNote { asks: true, ..note.clone() }.to_bytes());
            }
        }
    }
}

impl Circle for Members<'_> {
    fn agree(&self, mine: Result<&[u8], &P2pError>) -> Result<Agreement, BootstrapError> {
        let round = self.rounds.replace(self.rounds.get() + 1);
        debug_assert!(round < ROUNDS);
        match mine {
            Ok(block) => {
                let said = Said::Done { round: round as u8, block: block.to_vec() };
                let note = PartNote { part: self.part, said, asks: false };
                self.parts.heard(self.parts.rank(), &note);
                self.parts.say(&note.to_bytes());
                self.wait(round, &note).map(Agreement::All)
            }
            Err(error) => {
                let (peer, why) = (self.parts.rank(), error.to_string());
                self.abort(&why);
                Ok(Agreement::Failed { peer, why, may_retry: false })
            }
        }
    }

    fn abort(&self, reason: &str) {
        self.parts.gives_up(self.part, reason);
    }

    fn check_whole(&self) -> Result<(), BootstrapError> {
        if self.parts.is_over() {
            return Err(BootstrapError::Aborted);
        }
        let given_up = self.parts.lock().parts.get(&self.part).and_then(|known| known.given_up.clone());
        given_up.map_or(Ok(()), |(rank, reason)| Err(BootstrapError::PeerAborted { rank, reason }))
    }
}

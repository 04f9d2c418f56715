//! Calls that the ranks of a communicator make together about it, such as a split: what this rank says of them while they last, and whether
//! all ranks make the same one.

use super::stalls::Stalls;
use crate::bootstrap::{Bootstrap, BootstrapError};
use crate::launch::CommCall;
use crate::wire::Message;
use oxccl_shared::abi::Rank;
use std::sync::Arc;

impl Message for CommCall {
    const VERSION: u8 = 1;
    const BYTES_MAX: usize = 2;
}

/// A rank is in such a call until this is dropped.
pub(super) struct InCommCall {
    stalls: Option<Arc<Stalls>>,
    call: CommCall,
    id: u64,
}

impl InCommCall {
    /// This rank enters it, of all ranks or of these. The bootstrap's thread, once it wakes, sees when it has lasted for long.
    pub fn enter(stalls: Option<Arc<Stalls>>, call: CommCall, members: Option<Vec<Rank>>) -> InCommCall {
        let id = stalls.as_ref().map_or(0, |stalls| stalls.enter(call, members));
        InCommCall { stalls, call, id }
    }

    /// All-gathers the ranks' blocks.
    ///
    /// # Errors
    /// [`BootstrapError::CallsDiffer`], on every rank: they do not make the same call. Those of the all-gather, which name the call.
    pub fn gather(&self, bootstrap: &Bootstrap, block: &[u8]) -> Result<Vec<Vec<u8>>, BootstrapError> {
        let mine = [&self.call.to_bytes(), block].concat();
        blocks_of(self.call, self.named(bootstrap.all_gather(&mine))?)
    }

    /// The same, with the call in the words of a timeout, and with that of the rank that did not come, if that one said that it makes another.
    ///
    /// A shrink and a call of all ranks never meet: who stays exchanges messages, as the others may be gone, and all ranks gather blocks. Nor
    /// does the one exclude the other: a program may have begun both, and its ranks in any order. So neither can say at once that calls
    /// differ, and the time-out of each names both.
    pub fn named<T>(&self, met: Result<T, BootstrapError>) -> Result<T, BootstrapError> {
        met.map_err(|error| {
            let theirs = error.missed().and_then(|rank| self.stalls.as_ref()?.other_comm_call(self.id, rank));
            error.in_call(self.call.name(), theirs.map(CommCall::name))
        })
    }
}

impl Drop for InCommCall {
    fn drop(&mut self) {
        self.stalls.iter().for_each(|stalls| stalls.leave_comm_call(self.id));
    }
}

/// Each rank's block, without what says which call it is of.
fn blocks_of(call: CommCall, blocks: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, BootstrapError> {
    let mut calls = Vec::with_capacity(blocks.len());
    for (rank, block) in (0..).map(Rank).zip(&blocks) {
        let what = "which call it makes cannot be read";
        let (theirs, rest) =
            CommCall::split_from(block).map_err(|_| BootstrapError::Protocol { rank, what })?;
        calls.push((theirs, rest.to_vec()));
    }
    let other = (0..).map(Rank).zip(&calls).find(|(_, (theirs, _))| *theirs != call);
    match other {
        Some((rank, (theirs, _))) => {
            Err(BootstrapError::CallsDiffer { rank, theirs: theirs.name(), ours: call.name() })
        }
        None => Ok(calls.into_iter().map(|(_, rest)| rest).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_hears_which_calls_differ() {
        let blocks = |calls: &[CommCall]| -> Vec<Vec<u8>> {
            calls.iter().map(|call| [&call.to_bytes(), &[7, 8][..]].concat()).collect()
        };
        let (split, finalize) = (CommCall::Split, CommCall::Finalize);
        assert_eq!(blocks_of(split, blocks(&[split, split])), Ok(vec![vec![7, 8]; 2]));
        let differ = |call, rank| {
            let error = blocks_of(call, blocks(&[split, split, finalize])).unwrap_err();
            let BootstrapError::CallsDiffer { rank: found, .. } = error else { panic!("{error}") };
            assert_eq!(found, Rank(rank));
            error.to_string()
        };
        let text = differ(split, 2);
        assert!(text.starts_with("rank 2 calls finalize, and this rank calls split"), "{text}");
        let text = differ(finalize, 0);
        assert!(text.starts_with("rank 0 calls split, and this rank calls finalize"), "{text}");
        let wrong = blocks_of(split, vec![split.to_bytes(), vec![9, 9]]);
        assert!(matches!(wrong, Err(BootstrapError::Protocol { rank: Rank(1), .. })), "{wrong:?}");
    }
}

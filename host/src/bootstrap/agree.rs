//! Layer: host / bootstrap, its top.
//! Takes: a connected [`Bootstrap`], and whether a step succeeded on this rank.
//! Gives: [`Agreement`], the same on every rank: all succeeded, with what each says, or the first that failed and why.
//! Never: lets one rank go on where another cannot.

use super::endpoint::Bootstrap;
use super::error::BootstrapError;
use crate::wire::{Message, cut};
use oxccl_shared::abi::Rank;
use serde::{Deserialize, Serialize};
use std::fmt::Display;

/// Bytes of an error's text that the other ranks get.
const TEXT_BYTES_MAX: usize = 512;

/// What precedes a rank's block.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Verdict {
    Succeeded,
    Failed { why: String, may_retry: bool },
}

impl Message for Verdict {
    const VERSION: u8 = 1;
    const BYTES_MAX: usize = 16 + TEXT_BYTES_MAX;

    fn is_sound(&self) -> bool {
        !matches!(self, Verdict::Failed { why, .. } if why.len() > TEXT_BYTES_MAX)
    }
}

/// How a step went on all ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Agreement {
    /// It succeeded everywhere: what each rank says.
    All(Vec<Vec<u8>>),
    /// It failed somewhere.
    Failed {
        /// The first rank on which it failed.
        peer: Rank,
        /// What that rank says of it.
        why: String,
        /// Whether every rank on which it failed would try it in another way.
        may_retry: bool,
    },
}

impl Bootstrap {
    /// Every rank learns whether every rank succeeded, and what it says. Every rank calls it at the same time.
    ///
    /// # Errors
    /// A rank was lost.
    pub fn agree<E: Display>(&self, mine: Result<&[u8], &E>) -> Result<Agreement, BootstrapError> {
        self.agree_or_retry(mine, |_| false)
    }

    /// As [`Self::agree`], with errors after which this rank would try another way.
    ///
    /// # Errors
    /// A rank was lost.
    pub fn agree_or_retry<E: Display>(
        &self,
        mine: Result<&[u8], &E>,
        may_retry: impl Fn(&E) -> bool,
    ) -> Result<Agreement, BootstrapError> {
        let block = match mine {
            Ok(bytes) => [&Verdict::Succeeded.to_bytes(), bytes].concat(),
            Err(error) => {
                let why = cut(&error.to_string(), TEXT_BYTES_MAX).to_owned();
                Verdict::Failed { why, may_retry: may_retry(error) }.to_bytes()
            }
        };
        self.all_gather(&block).map(agreement)
    }
}

/// What the ranks' blocks mean together.
fn agreement(blocks: Vec<Vec<u8>>) -> Agreement {
    let (mut said, mut first, mut all_may_retry) = (Vec::with_capacity(blocks.len()), None, true);
    for (peer, block) in (0..).map(Rank).zip(&blocks) {
        let (why, may_retry) = match Verdict::split_from(block) {
            Ok((Verdict::Succeeded, rest)) => {
                said.push(rest.to_vec());
                continue;
            }
            Ok((Verdict::Failed { why, may_retry }, _)) => (why, may_retry),
            Err(error) => (error.to_string(), false),
        };
        first.get_or_insert((peer, why));
        all_may_retry &= may_retry;
    }
    match first {
        None => Agreement::All(said),
        Some((peer, why)) => Agreement::Failed { peer, why, may_retry: all_may_retry },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::WireError;

    #[test]
    fn all_succeed_or_the_first_that_failed_is_named() {
        let fine = |said: &[u8]| [&Verdict::Succeeded.to_bytes(), said].concat();
        let all = agreement(vec![fine(b"a"), fine(b"")]);
        assert_eq!(all, Agreement::All(vec![b"a".to_vec(), Vec::new()]));
        let said = |may_retry| Verdict::Failed { why: "no".into(), may_retry }.to_bytes();
        let failed = |peer, why: &str, may_retry| Agreement::Failed { peer, why: why.to_owned(), may_retry };
        assert_eq!(agreement(vec![fine(b"a"), said(true)]), failed(Rank(1), "no", true));
        assert_eq!(agreement(vec![said(true), said(false)]), failed(Rank(0), "no", false));
        let nothing = WireError::Version { expected: Verdict::VERSION, found: None }.to_string();
        assert_eq!(
            agreement(vec![fine(b""), Vec::new()]),
            failed(Rank(1), &nothing, false),
            "a message of nothing"
        );
    }

    #[test]
    fn what_is_no_verdict_is_a_failure_of_who_sent_it() {
        let long = Verdict::Failed { why: "x".repeat(TEXT_BYTES_MAX + 1), may_retry: true }.to_bytes();
        for wrong in [vec![9], vec![1, 2], long] {
            let agreed = agreement(vec![Verdict::Succeeded.to_bytes(), wrong]);
            assert!(
                matches!(agreed, Agreement::Failed { peer: Rank(1), may_retry: false, .. }),
                "{agreed:?}"
            );
        }
    }
}

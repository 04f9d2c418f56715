//! Steps that all ranks take or none does.

use super::endpoint::Bootstrap;
use super::error::BootstrapError;
use std::fmt::Display;

/// What a rank's message begins with.
const FINE: u8 = 0;
const MAY_RETRY: u8 = 1;
const FAILED: u8 = 2;

/// Bytes of an error's text that the other ranks get.
const TEXT_BYTES_MAX: usize = 512;

/// How a step went on all ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Agreement {
    /// It succeeded everywhere: what each rank says.
    All(Vec<Vec<u8>>),
    /// It failed somewhere.
    Failed {
        /// The first rank on which it failed.
        peer: u32,
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
            Ok(bytes) => [&[FINE], bytes].concat(),
            Err(error) => {
                let said = error.to_string();
                let verdict = if may_retry(error) { MAY_RETRY } else { FAILED };
                [&[verdict], &said.as_bytes()[..said.len().min(TEXT_BYTES_MAX)]].concat()
            }
        };
        self.all_gather(&block).map(agreement)
    }
}

/// What the ranks' messages mean together.
fn agreement(blocks: Vec<Vec<u8>>) -> Agreement {
    let verdict = |block: &Vec<u8>| block.first().copied().unwrap_or(FAILED);
    let Some(peer) = blocks.iter().position(|block| verdict(block) != FINE) else {
        return Agreement::All(blocks.into_iter().map(|block| block[1..].to_vec()).collect());
    };
    let may_retry = blocks.iter().all(|block| matches!(verdict(block), FINE | MAY_RETRY));
    let why = String::from_utf8_lossy(blocks[peer].get(1..).unwrap_or_default()).into_owned();
    Agreement::Failed { peer: peer as u32, why, may_retry }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_succeed_or_the_first_that_failed_is_named() {
        let fine = |said: &[u8]| [&[FINE], said].concat();
        let all = agreement(vec![fine(b"a"), fine(b"")]);
        assert_eq!(all, Agreement::All(vec![b"a".to_vec(), Vec::new()]));
        let said = |verdict: u8| [&[verdict], b"no" as &[u8]].concat();
        let failed = |peer, why: &str, may_retry| Agreement::Failed { peer, why: why.to_owned(), may_retry };
        assert_eq!(agreement(vec![fine(b"a"), said(MAY_RETRY)]), failed(1, "no", true));
        assert_eq!(agreement(vec![said(MAY_RETRY), said(FAILED)]), failed(0, "no", false));
        assert_eq!(agreement(vec![fine(b""), Vec::new()]), failed(1, "", false), "a message of nothing");
    }
}

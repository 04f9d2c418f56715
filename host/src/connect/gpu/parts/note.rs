//! What members of a part tell each other, each in one note.

use crate::connect::gpu::part::Part;
use crate::wire::{Message, cut};
use serde::{Deserialize, Serialize};

/// A rank's note about a part.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct PartNote {
    pub part: Part,
    pub said: Said,
    /// Whether the sender still waits in this round, and may have missed the receiver's note.
    pub asks: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Said {
    /// The sender has done what comes before this round, with a message.
    Done { round: u8, block: Vec<u8> },
    /// The sender gives up.
    Failed { why: String },
}

/// The longest message of a round: the description of memory.
const BLOCK_BYTES_MAX: usize = 160;
const WHY_BYTES_MAX: usize = 200;
/// Of an arena's two memories two each, and one for the tables.
pub(super) const ROUNDS: usize = 5;

impl PartNote {
    pub fn failed(part: Part, why: &str) -> PartNote {
        let why = cut(why, WHY_BYTES_MAX).to_owned();
        PartNote { part, said: Said::Failed { why }, asks: false }
    }
}

impl Message for PartNote {
    /// Other notes have other numbers.
    const VERSION: u8 = 102;
    const BYTES_MAX: usize = 256;

    fn is_sound(&self) -> bool {
        match &self.said {
            Said::Done { round, block } => usize::from(*round) < ROUNDS && block.len() <= BLOCK_BYTES_MAX,
            Said::Failed { why } => why.len() <= WHY_BYTES_MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connect::gpu::part::FIRST;
    use crate::launch::Notice;
    use crate::machine::ConnKind;
    use oxccl_shared::abi::Rank;

    #[test]
    fn the_longest_notes_fit_and_are_no_notices() {
        let pair = Some([Rank(u32::MAX - 1), Rank(u32::MAX)]);
        let part = Part { kind: ConnKind::Pair, pair, ..FIRST };
        let block = vec![7; BLOCK_BYTES_MAX];
        let longest = PartNote { part, said: Said::Done { round: 4, block }, asks: true };
        for note in [longest, PartNote::failed(part, &"ä".repeat(500))] {
            let bytes = note.to_bytes();
            assert!(!bytes.is_empty());
            assert_eq!(PartNote::from_bytes(&bytes), Ok(note));
            assert!(Notice::from_bytes(&bytes).is_err());
        }
        let late = PartNote { part, said: Said::Done { round: 5, block: Vec::new() }, asks: false };
        assert!(PartNote::from_bytes(&late.to_bytes()).is_err());
    }
}

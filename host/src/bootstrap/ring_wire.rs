//! Layer: host / bootstrap.
//! Takes: the payloads of frames between neighbours in the ring.
//! Gives: [`MembershipEvent`], [`MeetingEnd`], [`LongWait`], [`PartHead`] and [`BlockHead`], [`Note`].
//! Never: decides which ranks receive one; that is `ring`.

use std::time::Duration;

use oxccl_shared::abi::Rank;
use serde::{Deserialize, Serialize};

use super::error::{ANOTHERS_WAIT, BootstrapError};
use super::rank_list::RankList;
use crate::wire::Message;

/// Frame kind: a [`PartHead`], then blocks, each behind its [`BlockHead`].
pub(super) const KIND_PART: u8 = 1;
/// Frame kind: a [`MembershipEvent`].
pub(super) const KIND_EVENT: u8 = 2;
/// Frame kind: the first frame on a new connection, without content.
pub(super) const KIND_GREETING: u8 = 3;
/// Frame kind: a [`Note`].
pub(super) const KIND_NOTE: u8 = 4;

/// Frame kind: a [`MeetingEnd`].
pub(super) const KIND_MEETING: u8 = 5;
/// Frame kind: a [`LongWait`].
pub(super) const KIND_WAIT: u8 = 6;

/// The longest reason that an abort carries.
pub const REASON_BYTES_MAX: usize = 256;
/// The longest note that a rank sends to all others.
pub const NOTE_BYTES_MAX: usize = 336;

/// A change of membership, for every rank.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum MembershipEvent {
    /// A rank ended without goodbye.
    Died {
        /// The rank.
        rank: Rank,
    },
    /// A rank aborted.
    Aborted {
        /// The rank.
        rank: Rank,
        /// Its reason.
        reason: String,
        /// If it gave up waiting: for which ranks, and the limit that was over.
        in_vain: Option<(RankList, Duration)>,
    },
    /// A rank left.
    Left {
        /// The rank.
        rank: Rank,
        /// All-gathers that it had completed.
        gathers: u64,
    },
}

impl MembershipEvent {
    /// The rank concerned.
    pub fn rank(&self) -> Rank {
        match *self {
            MembershipEvent::Died { rank }
            | MembershipEvent::Aborted { rank, .. }
            | MembershipEvent::Left { rank, .. } => rank,
        }
    }

    /// For whom that rank gave up waiting, if it did.
    pub(super) fn awaited(&self) -> &[Rank] {
        match self {
            MembershipEvent::Aborted { in_vain: Some((ranks, _)), .. } => ranks.named(),
            _ => &[],
        }
    }

    /// The error for a caller that waits for that rank.
    pub fn to_error(&self) -> BootstrapError {
        match self {
            MembershipEvent::Died { rank } => BootstrapError::PeerLost { rank: *rank },
            MembershipEvent::Aborted { rank, in_vain: Some((ranks, limit)), .. } => BootstrapError::Timeout {
                calls: None,
                by: Some(*rank),
                what: ANOTHERS_WAIT,
                ranks: *ranks,
                limit: *limit,
            },
            MembershipEvent::Aborted { rank, reason, .. } => {
                BootstrapError::PeerAborted { rank: *rank, reason: reason.clone() }
            }
            MembershipEvent::Left { rank, .. } => BootstrapError::PeerLeft { rank: *rank },
        }
    }
}

impl Message for MembershipEvent {
    const VERSION: u8 = 2;
    const BYTES_MAX: usize = 96 + REASON_BYTES_MAX;

    fn is_sound(&self) -> bool {
        !matches!(self, MembershipEvent::Aborted { reason, .. } if reason.len() > REASON_BYTES_MAX)
    }
}

/// How a meeting of survivors has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum MeetingEnd {
    /// A rank has finished it: it has the communicator that they met for, and comes to no other meeting by itself.
    Finished {
        /// The rank.
        rank: Rank,
        /// The meeting's tag.
        meeting: u64,
    },
    /// A rank has left it before its end, and lives: its program aborted or dropped what it waited with.
    Withdrew {
        /// The rank.
        rank: Rank,
        /// The meeting's tag.
        meeting: u64,
    },
    /// These ranks did not come in time, so it has failed for all.
    Missed {
        /// The ranks, by their numbers in the communicator whose ranks met.
        missing: RankList,
        /// The meeting's tag.
        meeting: u64,
    },
}

impl Message for MeetingEnd {
    const VERSION: u8 = 3;
    const BYTES_MAX: usize = 72;
}

/// A rank's report of whom it has been waiting for, for long.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LongWait {
    /// The rank.
    pub rank: Rank,
    /// Serial number among its reports.
    pub serial: u64,
    /// Those that it knows it waits for; `None`: it does not wait.
    pub awaited: Option<RankList>,
    /// All-gathers for which it has given its block.
    pub given: u64,
}

impl Message for LongWait {
    const VERSION: u8 = 2;
    const BYTES_MAX: usize = 84;
}

/// Header of a piece of what a neighbour in the tree is sent in an all-gather.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PartHead {
    /// Number of the all-gather.
    pub gather: u64,
    /// Whether all blocks for the receiver have been sent with this piece.
    pub is_last: bool,
    /// Whether every rank is to pass on at once what it has, because one has waited for long.
    pub is_hurried: bool,
}

impl Message for PartHead {
    const VERSION: u8 = 1;
    const BYTES_MAX: usize = 24;
}

/// Header of a block of an all-gather.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BlockHead {
    /// The rank whose block it is.
    pub origin: Rank,
    /// Length of the block that follows.
    pub len_bytes: u32,
}

impl Message for BlockHead {
    const VERSION: u8 = 2;
    const BYTES_MAX: usize = 16;
}

/// A rank's note to all others.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Note {
    /// The sender.
    pub origin: Rank,
    /// Serial number among this rank's notes.
    pub serial: u64,
    /// The content; the owners define its meaning.
    pub content: heapless::Vec<u8, NOTE_BYTES_MAX>,
}

impl Message for Note {
    const VERSION: u8 = 1;
    const BYTES_MAX: usize = 24 + NOTE_BYTES_MAX;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::WireError;
    use proptest::prelude::*;

    #[test]
    fn events_survive_the_trip() {
        for event in [
            MembershipEvent::Died { rank: Rank(3) },
            MembershipEvent::Aborted {
                rank: Rank(4),
                reason: "the GPU fell off the bus: Überhitzung".into(),
                in_vain: None,
            },
            MembershipEvent::Left { rank: Rank(5), gathers: 17 },
        ] {
            assert_eq!(MembershipEvent::from_bytes(&event.to_bytes()), Ok(event));
        }
    }

    #[test]
    fn the_longest_messages_are_sent_and_longer_reasons_are_refused() {
        let rank = Rank(u32::MAX);
        let ranks: RankList = (0..9).map(|rank| Rank(u32::MAX - rank)).collect();
        let in_vain = Some((ranks, Duration::MAX));
        let aborted = |len| MembershipEvent::Aborted { rank, reason: "x".repeat(len), in_vain };
        let longest = aborted(REASON_BYTES_MAX);
        assert_eq!(MembershipEvent::from_bytes(&longest.to_bytes()), Ok(longest));
        let longer = aborted(REASON_BYTES_MAX + 1).to_bytes();
        assert_eq!(MembershipEvent::from_bytes(&longer), Err(WireError::Unsound));
        let left = MembershipEvent::Left { rank, gathers: u64::MAX };
        assert_eq!(MembershipEvent::from_bytes(&left.to_bytes()), Ok(left));
        let content = heapless::Vec::from_slice(&[255; NOTE_BYTES_MAX]).expect("room");
        let note = Note { origin: rank, serial: u64::MAX, content };
        assert_eq!(Note::from_bytes(&note.to_bytes()), Ok(note));
        let head = BlockHead { origin: rank, len_bytes: u32::MAX };
        assert_eq!(BlockHead::from_bytes(&head.to_bytes()), Ok(head));
        let wait = LongWait { rank, serial: u64::MAX, awaited: Some(ranks), given: u64::MAX };
        assert_eq!(LongWait::from_bytes(&wait.to_bytes()), Ok(wait));
        let missed = MeetingEnd::Missed { missing: ranks, meeting: u64::MAX };
        assert_eq!(MeetingEnd::from_bytes(&missed.to_bytes()), Ok(missed));
        let part = PartHead { gather: u64::MAX, is_last: true, is_hurried: true };
        assert_eq!(PartHead::from_bytes(&part.to_bytes()), Ok(part));
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..300), honest: bool) {
            let mut bytes = bytes;
            if let (true, Some(version)) = (honest, bytes.first_mut()) {
                *version = MembershipEvent::VERSION;
            }
            if let Ok(event) = MembershipEvent::from_bytes(&bytes) {
                prop_assert_eq!(event.to_bytes(), bytes);
            }
        }
    }
}

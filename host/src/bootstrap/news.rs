//! Layer: host / bootstrap.
//! Takes: what happened to a rank.
//! Gives: [`News`], as it is flooded round the ring.
//! Never: decides whom to tell.

use oxccl_shared::abi::Rank;

use super::error::BootstrapError;
use super::wire::{Malformed, Reader};

/// The longest reason that an abort carries.
pub const REASON_BYTES_MAX: usize = 256;

/// Something that every rank should know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum News {
    /// A rank is gone and had not said goodbye.
    Died {
        /// Who.
        rank: Rank,
    },
    /// A rank gave up.
    Aborted {
        /// Who.
        rank: Rank,
        /// Why, for people.
        reason: String,
    },
    /// A rank said goodbye.
    Left {
        /// Who.
        rank: Rank,
        /// How many all-gathers it had completed.
        gathers: u64,
    },
}

impl News {
    /// Whom it is about.
    pub fn rank(&self) -> Rank {
        match *self {
            News::Died { rank } | News::Aborted { rank, .. } | News::Left { rank, .. } => rank,
        }
    }

    /// What it means to somebody who was waiting for that rank.
    pub fn to_error(&self) -> BootstrapError {
        match self {
            News::Died { rank } => BootstrapError::PeerLost { rank: *rank },
            News::Aborted { rank, reason } => {
                BootstrapError::PeerAborted { rank: *rank, reason: reason.clone() }
            }
            News::Left { rank, .. } => BootstrapError::PeerLeft { rank: *rank },
        }
    }

    /// The payload of a frame.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (tag, rest): (u8, Vec<u8>) = match self {
            News::Died { .. } => (0, Vec::new()),
            News::Aborted { reason, .. } => (1, reason.as_bytes().to_vec()),
            News::Left { gathers, .. } => (2, gathers.to_le_bytes().to_vec()),
        };
        [&[tag][..], &self.rank().0.to_le_bytes(), &rest].concat()
    }

    /// Reads a payload.
    pub fn from_bytes(bytes: &[u8]) -> Result<News, Malformed> {
        let mut reader = Reader::new(bytes);
        let (tag, rank) = (reader.u8()?, Rank(reader.u32()?));
        match tag {
            0 => reader.finish().map(|()| News::Died { rank }),
            1 => {
                let text = reader.rest();
                let short = text.len() <= REASON_BYTES_MAX;
                let reason = short.then(|| str::from_utf8(text).ok()).flatten().ok_or(Malformed)?;
                Ok(News::Aborted { rank, reason: reason.to_owned() })
            }
            2 => {
                let gathers = reader.u64()?;
                reader.finish().map(|()| News::Left { rank, gathers })
            }
            _ => Err(Malformed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn news_survive_the_trip() {
        for news in [
            News::Died { rank: Rank(3) },
            News::Aborted { rank: Rank(4), reason: "the GPU fell off the bus: Überhitzung".into() },
            News::Left { rank: Rank(5), gathers: 17 },
        ] {
            assert_eq!(News::from_bytes(&news.to_bytes()), Ok(news));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(news) = News::from_bytes(&bytes) {
                prop_assert_eq!(news.to_bytes(), bytes);
            }
        }
    }
}

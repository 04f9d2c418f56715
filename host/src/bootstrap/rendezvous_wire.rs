//! Layer: host / bootstrap.
//! Takes: the payloads of frames between a rank and the root.
//! Gives: [`Register`] and [`Reply`], and [`ListenerAddr`].
//! Never: decides anything; that is `rendezvous`.

use std::net::SocketAddr;
use std::time::Duration;

use oxccl_shared::abi::Rank;
use serde::{Deserialize, Serialize};

use super::error::RankList;
use crate::os::NoDescriptor;
use crate::wire::Message;

/// Frame kind: a rank registers.
pub const KIND_REGISTER: u8 = 1;
/// Frame kind: the root answers.
pub const KIND_REPLY: u8 = 2;
/// No frame between a rank and the root is longer.
pub const ROOT_PAYLOAD_MAX: usize = 128;

/// What a rank tells the root.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Register {
    /// How many ranks it believes there are.
    pub nranks: u32,
    /// Where the other ranks can reach it.
    pub listener: SocketAddr,
}

/// Where a rank, or the root of a child, listens: a block of an all-gather.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ListenerAddr {
    /// The address.
    pub addr: SocketAddr,
}

/// What the root answers, once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// All ranks are there; this one is the next in the ring.
    Assigned {
        /// The next rank.
        successor: Rank,
        /// Where it listens.
        listener: SocketAddr,
    },
    /// There will be no communicator.
    Failed(Failure),
}

/// Why a rendezvous failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Failure {
    /// These ranks did not come in time.
    Missing {
        /// Who is missing.
        ranks: RankList,
        /// Of how many.
        nranks: u32,
        /// For how long the root waited.
        waited: Duration,
    },
    /// One rank came twice.
    Duplicate {
        /// The rank.
        rank: Rank,
        /// From where first.
        first: SocketAddr,
        /// From where again.
        second: SocketAddr,
    },
    /// The ranks disagree on how many they are.
    WorldSize {
        /// Who disagrees.
        rank: Rank,
        /// What it says.
        nranks: u32,
        /// What the first rank said.
        expected: u32,
        /// Who that was.
        expected_by: Rank,
    },
    /// A rank is not below the number of ranks, or the number is absurd.
    OutOfRange {
        /// The rank.
        rank: Rank,
        /// How many ranks it says there are.
        nranks: u32,
    },
    /// The root's process has no descriptor left for further ranks.
    Starved {
        /// What ran out.
        why: NoDescriptor,
    },
    /// A rank registered and its process died.
    Lost {
        /// The rank.
        rank: Rank,
    },
}

impl Message for Register {
    const VERSION: u8 = 1;
    const BYTES_MAX: usize = ROOT_PAYLOAD_MAX;
}

impl Message for ListenerAddr {
    const VERSION: u8 = 1;
    const BYTES_MAX: usize = 32;
}

impl Message for Reply {
    const VERSION: u8 = 1;
    const BYTES_MAX: usize = ROOT_PAYLOAD_MAX;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::WireError;
    use proptest::prelude::*;

    #[test]
    fn replies_survive_the_trip() {
        let addr: SocketAddr = "[2001:db8::1]:9".parse().expect("an address");
        let v4: SocketAddr = "10.0.0.1:65535".parse().expect("an address");
        let rank = Rank(7);
        let replies = [
            Reply::Assigned { successor: rank, listener: addr },
            Reply::Failed(Failure::Missing {
                ranks: (0..20).map(Rank).collect(),
                nranks: 40,
                waited: Duration::from_millis(1500),
            }),
            Reply::Failed(Failure::Duplicate { rank, first: addr, second: v4 }),
            Reply::Failed(Failure::WorldSize { rank, nranks: 1, expected: 2, expected_by: Rank(3) }),
            Reply::Failed(Failure::OutOfRange { rank, nranks: 7 }),
            Reply::Failed(Failure::Lost { rank }),
            Reply::Failed(Failure::Starved { why: NoDescriptor::Process { limit: 1024 } }),
            Reply::Failed(Failure::Starved { why: NoDescriptor::Host }),
        ];
        for reply in replies {
            let bytes = reply.to_bytes();
            assert!(bytes.len() <= ROOT_PAYLOAD_MAX);
            assert_eq!(Reply::from_bytes(&bytes), Ok(reply));
            assert_eq!(Reply::from_bytes(&bytes[..bytes.len() - 1]), Err(WireError::Form));
        }
        let register = Register { nranks: 4, listener: v4 };
        assert_eq!(Register::from_bytes(&register.to_bytes()), Ok(register));
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            if let Ok(reply) = Reply::from_bytes(&bytes) {
                prop_assert_eq!(reply.to_bytes(), bytes.as_slice());
            }
            let _ = Register::from_bytes(&bytes);
        }
    }
}

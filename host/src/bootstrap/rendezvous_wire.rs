//! Layer: host / bootstrap.
//! Takes: the payloads of frames between a rank and the root.
//! Gives: [`Register`] and [`Reply`], with their bytes.
//! Never: decides anything; that is `rendezvous`.

use std::net::SocketAddr;
use std::time::Duration;

use oxccl_shared::abi::Rank;

use super::error::{RANKS_NAMED_MAX, RankList};
use super::wire::{Malformed, Reader, addr_bytes};
use crate::os::NoDescriptor;

/// Frame kind: a rank registers.
pub const KIND_REGISTER: u8 = 1;
/// Frame kind: the root answers.
pub const KIND_REPLY: u8 = 2;
/// No frame between a rank and the root is longer.
pub const ROOT_PAYLOAD_MAX: usize = 128;

/// What a rank tells the root.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Register {
    /// How many ranks it believes there are.
    pub nranks: u32,
    /// Where the other ranks can reach it.
    pub listener: SocketAddr,
}

/// What the root answers, once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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

impl Register {
    /// The payload of a [`KIND_REGISTER`] frame.
    pub fn to_bytes(&self) -> Vec<u8> {
        [&self.nranks.to_le_bytes()[..], &addr_bytes(self.listener)].concat()
    }

    /// Reads a payload.
    pub fn from_bytes(bytes: &[u8]) -> Result<Register, Malformed> {
        let mut reader = Reader::new(bytes);
        let register = Register { nranks: reader.u32()?, listener: reader.addr()? };
        reader.finish()?;
        Ok(register)
    }
}

impl Reply {
    /// The payload of a [`KIND_REPLY`] frame.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(ROOT_PAYLOAD_MAX);
        let mut put = |tag: u8, numbers: &[u32], addrs: &[SocketAddr]| {
            out.push(tag);
            numbers.iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
            addrs.iter().for_each(|addr| out.extend_from_slice(&addr_bytes(*addr)));
        };
        match *self {
            Reply::Assigned { successor, listener } => put(0, &[successor.0], &[listener]),
            Reply::Failed(Failure::Missing { ranks, nranks, waited }) => {
                let waited_ms = u32::try_from(waited.as_millis()).unwrap_or(u32::MAX);
                put(1, &[nranks, waited_ms, ranks.total(), ranks.named().len() as u32], &[]);
                ranks.named().iter().for_each(|rank| out.extend_from_slice(&rank.0.to_le_bytes()));
            }
            Reply::Failed(Failure::Duplicate { rank, first, second }) => put(2, &[rank.0], &[first, second]),
            Reply::Failed(Failure::WorldSize { rank, nranks, expected, expected_by }) => {
                put(3, &[rank.0, nranks, expected, expected_by.0], &[])
            }
            Reply::Failed(Failure::OutOfRange { rank, nranks }) => put(4, &[rank.0, nranks], &[]),
            Reply::Failed(Failure::Lost { rank }) => put(5, &[rank.0], &[]),
            Reply::Failed(Failure::Starved { why: NoDescriptor::Process { limit } }) => {
                put(6, &[u32::try_from(limit).unwrap_or(u32::MAX)], &[])
            }
            Reply::Failed(Failure::Starved { why: NoDescriptor::Host }) => put(7, &[], &[]),
        }
        out
    }

    /// Reads a payload.
    pub fn from_bytes(bytes: &[u8]) -> Result<Reply, Malformed> {
        let mut reader = Reader::new(bytes);
        let reply = match reader.u8()? {
            0 => Reply::Assigned { successor: Rank(reader.u32()?), listener: reader.addr()? },
            1 => Reply::Failed(missing(&mut reader)?),
            2 => Reply::Failed(Failure::Duplicate {
                rank: Rank(reader.u32()?),
                first: reader.addr()?,
                second: reader.addr()?,
            }),
            3 => Reply::Failed(Failure::WorldSize {
                rank: Rank(reader.u32()?),
                nranks: reader.u32()?,
                expected: reader.u32()?,
                expected_by: Rank(reader.u32()?),
            }),
            4 => Reply::Failed(Failure::OutOfRange { rank: Rank(reader.u32()?), nranks: reader.u32()? }),
            5 => Reply::Failed(Failure::Lost { rank: Rank(reader.u32()?) }),
            6 => {
                let why = NoDescriptor::Process { limit: reader.u32()?.into() };
                Reply::Failed(Failure::Starved { why })
            }
            7 => Reply::Failed(Failure::Starved { why: NoDescriptor::Host }),
            _ => return Err(Malformed),
        };
        reader.finish()?;
        Ok(reply)
    }
}

fn missing(reader: &mut Reader<'_>) -> Result<Failure, Malformed> {
    let nranks = reader.u32()?;
    let waited = Duration::from_millis(u64::from(reader.u32()?));
    let total = reader.u32()?;
    let named_len = reader.u32()? as usize;
    if named_len > RANKS_NAMED_MAX {
        return Err(Malformed);
    }
    let mut named = [Rank::default(); RANKS_NAMED_MAX];
    for place in &mut named[..named_len] {
        *place = Rank(reader.u32()?);
    }
    Ok(Failure::Missing { ranks: RankList::from_parts(&named[..named_len], total), nranks, waited })
}

#[cfg(test)]
mod tests {
    use super::*;
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
            assert_eq!(Reply::from_bytes(&bytes[..bytes.len() - 1]), Err(Malformed));
        }
        let register = Register { nranks: 4, listener: v4 };
        assert_eq!(Register::from_bytes(&register.to_bytes()), Ok(register));
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            if let Ok(reply) = Reply::from_bytes(&bytes) {
                let again = reply.to_bytes();
                prop_assert_eq!(Reply::from_bytes(&again), Ok(reply));
            }
            let _ = Register::from_bytes(&bytes);
        }
    }
}

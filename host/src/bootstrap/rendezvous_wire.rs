//! Layer: host / bootstrap.
//! Takes: the payloads of frames between a rank and the root.
//! Gives: [`Register`], [`Withdrawal`] and [`Reply`], [`ListenerAddr`] and [`Introduction`].
//! Never: decides anything; that is `rendezvous`.

use std::net::SocketAddr;
use std::time::Duration;

use oxccl_shared::abi::Rank;
use serde::{Deserialize, Serialize};

use super::error::{Claimant, Strangers};
use super::rank_list::RankList;
use crate::os::NoDescriptor;
use crate::wire::Message;

/// Frame kind: a rank registers.
pub const KIND_REGISTER: u8 = 1;
/// Frame kind: the root answers.
pub const KIND_REPLY: u8 = 2;
/// Most bytes of a frame between a rank and the root.
pub const ROOT_PAYLOAD_MAX: usize = 320;
/// Longest text by which a process says why it cannot join.
pub const SAID_BYTES_MAX: usize = 200;

/// What a process says of its own settings, to be read by the users of other ranks: cut where it is too long, without control characters.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "SaidForm", from = "SaidForm")]
pub struct Said {
    bytes: [u8; SAID_BYTES_MAX],
    len_bytes: usize,
}

/// How a [`Said`] travels.
type SaidForm = heapless::String<SAID_BYTES_MAX>;

impl Said {
    /// Nothing.
    pub const NOTHING: Said = Said { bytes: [0; SAID_BYTES_MAX], len_bytes: 0 };

    /// The start of `text`.
    pub fn of(text: &str) -> Said {
        let mut said = Said::NOTHING;
        for letter in text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }) {
            let end = said.len_bytes + letter.len_utf8();
            let Some(place) = said.bytes.get_mut(said.len_bytes..end) else { break };
            letter.encode_utf8(place);
            said.len_bytes = end;
        }
        said
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.len_bytes]).unwrap_or_default()
    }
}

impl std::fmt::Debug for Said {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_str().fmt(f)
    }
}

impl From<Said> for SaidForm {
    fn from(said: Said) -> SaidForm {
        SaidForm::try_from(said.as_str()).unwrap_or_default()
    }
}

impl From<SaidForm> for Said {
    fn from(form: SaidForm) -> Said {
        Said::of(&form)
    }
}

/// A rank's registration with the root.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Register {
    /// Its number of ranks.
    pub nranks: u32,
    /// Its listener, for the other ranks.
    pub listener: SocketAddr,
    /// The number of its process.
    pub process: u32,
    /// The number of the process that started that one.
    pub parent: u32,
    /// How long it waits for the others: its own timeout, which need not be the root's.
    pub patience: Duration,
    /// It is a rank 0 that would be the root itself, and found the address in use.
    pub wants_root: bool,
    /// It does not join after all, though its process lives: the others need not wait for it.
    pub withdraws: Option<Withdrawal>,
}

/// Why a rank that lives does not join.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[expect(clippy::large_enum_variant, reason = "a process has few, and copies them")]
pub enum Withdrawal {
    /// Its program aborted it, or dropped what it waited with.
    Aborted,
    /// Something failed there.
    Failed,
    /// It has settings or arguments by which it cannot join, of which it says this.
    Misconfigured(Said),
}

impl Withdrawal {
    /// For the errors of the others.
    pub fn reason(&self) -> String {
        let said = match self {
            Withdrawal::Aborted => "its program aborted or dropped it before all ranks had come",
            Withdrawal::Failed => "it could not join, and its own error says why",
            Withdrawal::Misconfigured(said) if !said.as_str().is_empty() => {
                return format!("its settings or arguments are wrong: {}", said.as_str());
            }
            Withdrawal::Misconfigured(_) => {
                "its settings or arguments are wrong, and its own error says which"
            }
        };
        said.to_owned()
    }

    /// Whether it is wrong from its start, when others may still be on their way.
    pub fn is_early(&self) -> bool {
        matches!(self, Withdrawal::Misconfigured(_))
    }
}

impl Register {
    /// The registration of this process.
    pub fn of_this_process(nranks: u32, listener: SocketAddr, patience: Duration) -> Register {
        let parent = rustix::process::getppid().map_or(0, |parent| parent.as_raw_nonzero().get() as u32);
        let process = std::process::id();
        Register { nranks, listener, process, parent, patience, wants_root: false, withdraws: None }
    }
}

/// Listener address of a rank, or of the root of a child communicator: a block of an all-gather.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ListenerAddr {
    /// The address.
    pub addr: SocketAddr,
}

/// What a rank says of itself to all others: a block of an all-gather.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Introduction {
    /// Its listener.
    pub addr: SocketAddr,
    /// The number of its process, for messages.
    pub process: u32,
    /// The name of its host, for messages.
    pub host: String,
    /// A random number. The first rank's names the communicator.
    pub number: u64,
}

impl Introduction {
    /// The longest name of a host.
    pub const HOST_BYTES_MAX: usize = 64;
}

/// The root's only answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// All ranks have registered; this one is the next in the ring.
    Assigned {
        /// The next rank.
        successor: Rank,
        /// Its listener.
        listener: SocketAddr,
        /// The listener of the parent in the tree, if that is no neighbour in the ring.
        parent: Option<SocketAddr>,
    },
    /// The rendezvous failed.
    Failed(Failure),
    /// To a rank 0 that would be the root: this root will have left its address soon.
    Leaving,
}

/// Why a rendezvous failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Failure {
    /// These ranks did not register in time.
    Missing {
        /// The missing ranks.
        ranks: RankList,
        /// Number of ranks.
        nranks: u32,
        /// How long the root waits, from the first rank on.
        limit: Duration,
        /// Who was refused meanwhile.
        strangers: Option<Strangers>,
    },
    /// Two processes claim one rank.
    Duplicate {
        /// The rank.
        rank: Rank,
        /// The process that came first.
        first: Claimant,
        /// The process that came second.
        second: Claimant,
    },
    /// The ranks disagree on the number of ranks.
    WorldSize {
        /// The rank with another number.
        rank: Rank,
        /// Its number.
        nranks: u32,
        /// Its process.
        second: Claimant,
        /// The first rank's number.
        expected: u32,
        /// The first rank.
        expected_by: Rank,
        /// Its process.
        first: Claimant,
    },
    /// A rank that has the job's secret speaks another version of the bootstrap protocol.
    Version {
        /// The rank.
        rank: Rank,
        /// Its address.
        addr: SocketAddr,
        /// Its version.
        theirs: u16,
        /// The root's.
        ours: u16,
    },
    /// A rank is not below the number of ranks, or the number is too large.
    OutOfRange {
        /// The rank.
        rank: Rank,
        /// Its number of ranks.
        nranks: u32,
    },
    /// The root's process has no descriptor left for further ranks.
    Starved {
        /// The exhausted limit.
        why: NoDescriptor,
    },
    /// A rank registered and its process died.
    Lost {
        /// The rank.
        rank: Rank,
    },
    /// A rank does not join, and lives.
    Withdrew {
        /// The rank.
        rank: Rank,
        /// Why.
        why: Withdrawal,
    },
    /// A process that does not know its rank does not join, and lives.
    Unplaced {
        /// The process.
        process: Claimant,
        /// Why.
        why: Withdrawal,
    },
}

impl Message for Register {
    const VERSION: u8 = 5;
    const BYTES_MAX: usize = ROOT_PAYLOAD_MAX;
}

impl Message for ListenerAddr {
    const VERSION: u8 = 1;
    const BYTES_MAX: usize = 32;
}

impl Message for Introduction {
    const VERSION: u8 = 1;
    const BYTES_MAX: usize = 64 + Introduction::HOST_BYTES_MAX;

    fn is_sound(&self) -> bool {
        self.host.len() <= Introduction::HOST_BYTES_MAX
    }
}

impl Message for Reply {
    const VERSION: u8 = 7;
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
        let longest = Said::of(&"\u{e4}".repeat(SAID_BYTES_MAX));
        let claimant = |addr: SocketAddr| Claimant { ip: addr.ip(), process: u32::MAX };
        let replies = [
            Reply::Assigned { successor: rank, listener: addr, parent: None },
            Reply::Assigned { successor: rank, listener: addr, parent: Some(addr) },
            Reply::Failed(Failure::Missing {
                ranks: (u32::MAX - 20..u32::MAX).map(Rank).collect(),
                nranks: u32::MAX,
                limit: Duration::new(u64::MAX, 999_999_999),
                strangers: Some(Strangers { count: u32::MAX, last: addr }),
            }),
            Reply::Failed(Failure::Duplicate { rank, first: claimant(addr), second: claimant(v4) }),
            Reply::Failed(Failure::WorldSize {
                rank: Rank(u32::MAX),
                nranks: u32::MAX,
                second: claimant(addr),
                expected: u32::MAX,
                expected_by: Rank(u32::MAX),
                first: claimant(addr),
            }),
            Reply::Failed(Failure::Version { rank: Rank(u32::MAX), addr, theirs: u16::MAX, ours: u16::MAX }),
            Reply::Failed(Failure::OutOfRange { rank, nranks: 7 }),
            Reply::Failed(Failure::Lost { rank }),
            Reply::Failed(Failure::Withdrew { rank, why: Withdrawal::Aborted }),
            Reply::Failed(Failure::Withdrew { rank, why: Withdrawal::Failed }),
            Reply::Failed(Failure::Withdrew { rank, why: Withdrawal::Misconfigured(Said::NOTHING) }),
            Reply::Failed(Failure::Withdrew { rank, why: Withdrawal::Misconfigured(longest) }),
            Reply::Failed(Failure::Unplaced {
                process: claimant(addr),
                why: Withdrawal::Misconfigured(longest),
            }),
            Reply::Leaving,
            Reply::Failed(Failure::Starved { why: NoDescriptor::Process { limit: 1024 } }),
            Reply::Failed(Failure::Starved { why: NoDescriptor::Host }),
        ];
        for reply in replies {
            let bytes = reply.to_bytes();
            assert!(bytes.len() <= ROOT_PAYLOAD_MAX);
            assert_eq!(Reply::from_bytes(&bytes), Ok(reply));
            assert_eq!(Reply::from_bytes(&bytes[..bytes.len() - 1]), Err(WireError::Form));
        }
        let register = Register::of_this_process(4, v4, Duration::MAX);
        let why = [Withdrawal::Aborted, Withdrawal::Failed, Withdrawal::Misconfigured(longest)];
        for withdraws in why.map(Some).into_iter().chain([None]) {
            let register = Register { withdraws, ..register };
            assert_eq!(Register::from_bytes(&register.to_bytes()), Ok(register));
        }
    }

    #[test]
    fn what_is_said_is_cut_between_letters_and_has_no_control_characters() {
        assert_eq!(Said::of("a\n\x1b[31mb").as_str(), "a  [31mb");
        assert_eq!(Said::of(&"\u{20ac}".repeat(100)).as_str(), "\u{20ac}".repeat(66));
        assert_eq!(
            Withdrawal::Misconfigured(Said::of("X is 1")).reason(),
            "its settings or arguments are wrong: X is 1"
        );
        let raw = postcard::to_allocvec(&Reply::Failed(Failure::Withdrew {
            rank: Rank(1),
            why: Withdrawal::Misconfigured(Said::of("a b")),
        }))
        .expect("it fits");
        let raw: Vec<u8> = [Reply::VERSION].into_iter().chain(raw).collect();
        assert!(Reply::from_bytes(&raw).is_ok());
        let spoilt: Vec<u8> = raw.iter().map(|byte| if *byte == b' ' { 0x1b } else { *byte }).collect();
        assert_eq!(Reply::from_bytes(&spoilt), Err(WireError::Form));
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

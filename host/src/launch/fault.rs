//! Why a communicator stopped, in words.

use super::link_error::LinkError;
use crate::bootstrap::{RankList, limit_secs};
use crate::gpu::{CuResult, DeviceId};
use crate::plan::CallRecord;
use core::fmt;
use oxccl_shared::abi::{Func, Rank};
use std::time::Duration;

/// Why a communicator stopped. The first fault is permanent; nothing runs afterwards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// This process called abort.
    Aborted,
    /// This process revoked the communicator: its operations are stopped, and other ranks were not told.
    Revoked,
    /// A rank called abort.
    PeerAborted {
        /// Which.
        rank: Rank,
    },
    /// A rank's process or host has died.
    PeerDied {
        /// Which.
        rank: Rank,
    },
    /// A rank closed its communicator while this one was waiting for it.
    PeerLeft {
        /// Which.
        rank: Rank,
    },
    /// A rank finalized its communicator without its part in what others wait for.
    PeerFinalized {
        /// Which.
        rank: Rank,
        /// The collectives that it made.
        collectives: u64,
    },
    /// This rank finalized while another waited for its part.
    FinalizedEarly {
        /// Who waited.
        rank: Rank,
    },
    /// Ranks finalized, and had not made the same collectives.
    CallsDiffer {
        /// The first that differs from this one.
        rank: Rank,
        /// How many others differ.
        more: u32,
        /// Its first collective that differs, if it made that and it is known.
        theirs: Option<CallRecord>,
    },
    /// Ranks finalized, and a message was never received, or never sent.
    MessagesDiffer {
        /// The other rank of the two; of a rank that is neither, the receiver.
        rank: Rank,
        /// Who sent.
        sender: Rank,
        /// To whom.
        receiver: Rank,
        /// The sender's sends to the receiver.
        sent: u64,
        /// The receiver's receives from the sender.
        received: u64,
        /// How many other pairs differ.
        more: u32,
    },
    /// A peer made no progress before the timeout.
    Timeout {
        /// The peer.
        rank: Rank,
        /// How long it may make none.
        limit: Duration,
    },
    /// A rank did not come to where another waited for it outside of operations (while ranks join, or finalize), until that one gave up.
    PeerTimeout {
        /// For whom that one waited; the first, if for several.
        rank: Rank,
        /// For how many others it waited.
        more: u32,
        /// Which one waited.
        by: Rank,
        /// How long that one waits at most.
        limit: Duration,
    },
    /// A peer made another call than this rank.
    Mismatch {
        /// Which peer.
        rank: Rank,
        /// Its call, if known.
        theirs: Option<CallRecord>,
    },
    /// A peer's buffer lies elsewhere in a symmetric window than this rank's, or in none while this rank's does.
    Placement {
        /// Which peer.
        rank: Rank,
    },
    /// This rank's sends to itself and its receives from itself, in one group, do not match.
    SelfMessages,
    /// An operation of this rank ended in a panic, of an algorithm from outside the library for example. Its slots are half done.
    Panicked,
    /// The network link to or from a peer failed.
    Link {
        /// Which, and why.
        error: LinkError,
    },
    /// A kernel broke this process's context on the GPU, and all that was in it; or the driver refused a part of what other ranks wait for.
    Gpu {
        /// Which GPU.
        device: DeviceId,
        /// The driver's error.
        result: CuResult,
    },
}

impl Fault {
    /// The rank whose process or host has died.
    pub(crate) fn dead(&self) -> Option<Rank> {
        if let Fault::PeerDied { rank } = *self { Some(rank) } else { None }
    }

    /// The fault if rank `by` says that it gave up: if that one waited for others than `me` in vain, they are at fault.
    pub(crate) fn of_abort(me: Rank, by: Rank, in_vain: Option<(RankList, Duration)>) -> Fault {
        let others = in_vain.filter(|(ranks, _)| !ranks.named().contains(&me));
        let first =
            others.and_then(|(ranks, limit)| Some((*ranks.named().first()?, ranks.total() - 1, limit)));
        match first {
            Some((rank, more, limit)) => Fault::PeerTimeout { rank, more, by, limit },
            None => Fault::PeerAborted { rank: by },
        }
    }

    /// The rank whose reason explains it.
    pub(crate) fn speaker(&self) -> Option<Rank> {
        if let Fault::PeerTimeout { by, .. } = *self { Some(by) } else { self.guilty() }
    }

    /// The other rank that it names.
    pub fn guilty(&self) -> Option<Rank> {
        match *self {
            Fault::PeerAborted { rank }
            | Fault::PeerDied { rank }
            | Fault::PeerLeft { rank }
            | Fault::PeerFinalized { rank, .. }
            | Fault::FinalizedEarly { rank }
            | Fault::CallsDiffer { rank, .. }
            | Fault::MessagesDiffer { rank, .. }
            | Fault::Timeout { rank, .. }
            | Fault::PeerTimeout { rank, .. }
            | Fault::Mismatch { rank, .. }
            | Fault::Placement { rank } => Some(rank),
            Fault::Link { error } => error.peer(),
            Fault::Aborted | Fault::Revoked | Fault::SelfMessages | Fault::Panicked | Fault::Gpu { .. } => {
                None
            }
        }
    }
}

/// The operation during which a fault was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outstanding {
    /// The operation.
    pub during: Option<CallRecord>,
    /// The fault.
    pub fault: Fault,
}

impl fmt::Display for Outstanding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.fault {
            Fault::Aborted => write!(f, "aborted by this process")?,
            Fault::Revoked => {
                write!(f, "revoked by this process; its ranks can make another one (shrink, split)")?
            }
            Fault::PeerAborted { rank } => write!(
                f,
                "rank {rank} aborted the communicator, or gave up for a reason that its own error names"
            )?,
            Fault::PeerDied { rank } => write!(f, "rank {rank} died: its process or host is gone")?,
            Fault::PeerLeft { rank } => {
                write!(f, "rank {rank} closed its communicator while others wait for it")?
            }
            Fault::PeerFinalized { rank, collectives } => write!(
                f,
                "rank {rank} has finalized its communicator after {collectives} collectives, without its part in what others wait for: \
                 every rank makes its last call before it finalizes"
            )?,
            Fault::FinalizedEarly { rank } => return self.write_finalized_early(f, rank),
            Fault::CallsDiffer { rank, more, theirs } => {
                return self.write_difference(f, (rank, more), theirs);
            }
            Fault::MessagesDiffer { sender, receiver, sent, received, more, .. } => {
                return self.write_messages(f, (sender, receiver), [sent, received], more);
            }
            Fault::Timeout { rank, limit } => write!(
                f,
                "rank {rank} did not do its part within {} s (raise OXCCL_TIMEOUT if it may take longer)",
                limit_secs(&limit)
            )?,
            Fault::PeerTimeout { rank, more, by, limit } => {
                let others = and_more(more);
                write!(
                    f,
                    "rank {by} waited {} s for rank {rank}{others} outside of operations (as when ranks join, or finalize), and gave \
                     up: see whether rank {rank} still runs, or raise OXCCL_BOOTSTRAP_TIMEOUT if it may take longer",
                    limit_secs(&limit)
                )?;
            }
            Fault::Mismatch { rank, theirs: Some(theirs) } => {
                write!(f, "rank {rank} called another operation: {theirs}")?
            }
            Fault::Mismatch { rank, theirs: None } => write!(
                f,
                "rank {rank} called another operation, or the same with another count, type, operator or root"
            )?,
            Fault::Placement { rank } => write!(
                f,
                "rank {rank}'s buffer lies at another offset of a symmetric window than this rank's, in another window, or only one of \
                 the two lies in any: every rank passes the same place of the same window, or none"
            )?,
            Fault::Panicked => write!(f, "an operation of this rank ended in a panic")?,
            Fault::SelfMessages => write!(
                f,
                "this rank's sends to itself and its receives from itself differ in number or length; both belong into one group"
            )?,
            Fault::Link { error } => error.fmt(f)?,
            Fault::Gpu { device, result } if !result.is_fault() => {
                write!(f, "{device}: the driver refused a part of what other ranks wait for: {result}")?;
            }
            Fault::Gpu { device, result } => write!(
                f,
                "{device} faulted: {result}; a kernel of this process touched what it may not, or the hardware failed"
            )?,
        }
        let Some(during) = &self.during else { return Ok(()) };
        write!(f, "; outstanding here: {during}")?;
        match self.fault {
            Fault::Timeout { rank, .. } if during.call.func == Func::Send && during.call.root == rank => {
                write!(
                    f,
                    " (if rank {rank} sends to this rank too: sends that face each other belong into one group with their receives)"
                )
            }
            _ => Ok(()),
        }
    }
}

impl Outstanding {
    fn write_finalized_early(&self, f: &mut fmt::Formatter<'_>, rank: Rank) -> fmt::Result {
        write!(f, "this rank finalized the communicator while rank {rank} waited for its part")?;
        self.during.iter().try_for_each(|theirs| write!(f, "; outstanding there: {theirs}"))
    }

    fn write_difference(
        &self,
        f: &mut fmt::Formatter<'_>,
        (rank, more): (Rank, u32),
        theirs: Option<CallRecord>,
    ) -> fmt::Result {
        let others = and_more(more);
        write!(f, "at finalize, rank {rank}{others} had not made the same collectives as this rank: ")?;
        match (self.during, theirs) {
            (Some(ours), Some(theirs)) => write!(f, "rank {rank} called {theirs}, this rank {ours}"),
            (Some(ours), None) => write!(f, "rank {rank} did not call {ours}"),
            (None, Some(theirs)) => write!(f, "this rank did not call {theirs} of rank {rank}"),
            (None, None) => write!(f, "the first that differs is long ago"),
        }
    }

    fn write_messages(
        &self,
        f: &mut fmt::Formatter<'_>,
        (sender, receiver): (Rank, Rank),
        [sent, received]: [u64; 2],
        more: u32,
    ) -> fmt::Result {
        let sends = if sent == 1 { "1 send".to_owned() } else { format!("{sent} sends") };
        let receives = if received == 1 { "1 receive".to_owned() } else { format!("{received} receives") };
        write!(
            f,
            "at finalize, rank {sender} had made {sends} to rank {receiver}, and that one {receives} from it"
        )?;
        if let Some(first) = &self.during {
            write!(f, "; the first without the other half is rank {sender}'s {first}")?;
        }
        match more {
            0 => {}
            1 => f.write_str("; 1 more pair of ranks differs")?,
            _ => write!(f, "; {more} more pairs of ranks differ")?,
        }
        f.write_str(": every send needs its receive")
    }

    /// In the words of which other ranks are told: what is outstanding is so at this one.
    pub fn told(&self) -> String {
        let fault = Outstanding { during: None, ..*self };
        match &self.during {
            Some(during) => format!("{fault}; outstanding there: {during}"),
            None => fault.to_string(),
        }
    }
}

fn and_more(more: u32) -> String {
    if more > 0 { format!(" and {more} more") } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Call;
    use oxccl_shared::abi::{DataType, Func, RedOp};

    /// The sender of a message that was too short read "outstanding here" of the receiver's call.
    #[test]
    fn what_others_are_told_is_outstanding_there() {
        let call = Call { func: Func::Recv, dtype: DataType::F32, op: RedOp::Sum, root: Rank(0), count: 8 };
        let during = Some(CallRecord { seq: 2, call });
        let fault = Outstanding { during, fault: Fault::Aborted };
        assert!(fault.to_string().ends_with("; outstanding here: receive of 8 float from rank 0"));
        assert!(fault.told().ends_with("; outstanding there: receive of 8 float from rank 0"));
        assert_eq!(Outstanding { during: None, ..fault }.told(), "aborted by this process");
    }

    #[test]
    fn a_wait_in_vain_is_the_fault_of_whom_it_was_for() {
        let of = |ranks: &[u32]| {
            let ranks = ranks.iter().map(|rank| Rank(*rank)).collect();
            Fault::of_abort(Rank(0), Rank(3), Some((ranks, Duration::from_secs(2))))
        };
        let text = |fault| Outstanding { during: None, fault }.to_string();
        for (ranks, named) in [
            (vec![5], "rank 5"),
            (vec![6, 5], "rank 6 and 1 more"),
            ((4..19).collect(), "rank 4 and 14 more"),
        ] {
            let fault = of(&ranks);
            assert_eq!((fault.guilty(), fault.speaker()), (Some(Rank(ranks[0])), Some(Rank(3))));
            assert_eq!(
                text(fault),
                format!(
                    "rank 3 waited 2 s for {named} outside of operations (as when ranks join, or finalize), and gave up: see whether rank {} \
                     still runs, or raise OXCCL_BOOTSTRAP_TIMEOUT if it may take longer",
                    ranks[0]
                )
            );
        }
        // This rank does not blame itself, nor others that were as late.
        for fault in [of(&[0]), of(&[5, 0]), of(&[]), Fault::of_abort(Rank(0), Rank(3), None)] {
            assert_eq!(fault, Fault::PeerAborted { rank: Rank(3) });
            assert_eq!(fault.speaker(), Some(Rank(3)));
        }
    }

    #[test]
    fn a_finalize_is_told_apart_by_who_did_it() {
        let call = Call { func: Func::Recv, dtype: DataType::F32, op: RedOp::Sum, root: Rank(0), count: 8 };
        let record = CallRecord { seq: 2, call };
        let text = |fault, during| Outstanding { during, fault }.to_string();
        assert_eq!(
            text(Fault::FinalizedEarly { rank: Rank(1) }, Some(record)),
            "this rank finalized the communicator while rank 1 waited for its part; outstanding there: receive of 8 float from rank 0"
        );
        let reduce =
            |root| CallRecord { seq: 2, call: Call { func: Func::Reduce, root: Rank(root), ..call } };
        let differs = |more, theirs| Fault::CallsDiffer { rank: Rank(1), more, theirs };
        assert_eq!(
            text(differs(2, Some(reduce(3))), Some(reduce(0))),
            "at finalize, rank 1 and 2 more had not made the same collectives as this rank: rank 1 called reduce of 8 float, sum, root 3 \
             (operation 2), this rank reduce of 8 float, sum, root 0 (operation 2)"
        );
        assert!(text(differs(0, None), None).ends_with("the first that differs is long ago"));
    }
}

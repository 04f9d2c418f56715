//! What a rank says of itself.

use super::comm_call::CommCalls;
use super::kernels::Kernels;
use super::links::LinkUse;
use super::report::Stall;
use crate::launch::mark::Mark;
use crate::plan::CallRecord;
use oxccl_shared::abi::{Func, Rank};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// What a rank does at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Standing {
    /// Calls made so far.
    pub begun: u64,
    /// Of those, how many are done.
    pub done: u64,
    /// The latest collective.
    pub latest: Option<CallRecord>,
    /// The call under way.
    pub during: Option<CallRecord>,
    /// Its tag and stream.
    pub mark: Mark,
    /// The rank that it has been waiting for, if it is known and has been for a while.
    pub waits_for: Option<Rank>,
    /// Whether that rank, the next head, stands for a network that reduces.
    pub is_for_network: bool,
    /// For how long it has been without progress, in milliseconds.
    pub waited_ms: u64,
    /// Bytes of slots sent and received in the call under way, where they are counted.
    pub moved: Option<[u64; 2]>,
    /// Of those, what was sent to the rank that it waits for, and received from it.
    pub with_peer: Option<[u64; 2]>,
    /// How long the call under way has lasted, with or without progress, in milliseconds; 0 where that is not known.
    pub lasted_ms: u64,
    /// How much of the call it has spent waiting, since somebody first looked.
    pub idle: Option<Idle>,
    /// The busiest links on which it sends in the call under way, since somebody first looked; none where they are not known.
    pub links: Option<[Option<LinkUse>; 2]>,
    /// What its kernels do, of a rank on a GPU.
    pub kernels: Option<Kernels>,
    /// Its calls about the communicator, such as a split.
    pub comm_calls: CommCalls,
    /// Of a rank that is in no call here: what its process waits for in another communicator.
    pub elsewhere: Option<Elsewhere>,
}

/// Where the process of a rank waits in another communicator.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Elsewhere {
    /// In what.
    pub func: Func,
    /// For whom, by its number in this communicator.
    pub waits_for: Rank,
}

impl fmt::Display for Elsewhere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Elsewhere { func, waits_for } = self;
        write!(f, "its process is in {func} of another communicator and waits there for rank {waits_for}")
    }
}

/// What may be wrong if that is a rank that waits here. It is not known: a request or a kernel waits while its program goes on, and a program
/// may call each communicator by a thread of its own.
const PERHAPS_ORDERS_DIFFER: &str =
    "perhaps the two wait for each other, as processes do that call their communicators in different orders";

impl Elsewhere {
    /// In words, beside a rank that waits here for this one.
    pub fn beside(self, waiter: Rank) -> String {
        match self.waits_for == waiter {
            true => format!("{self}; {PERHAPS_ORDERS_DIFFER}"),
            false => self.to_string(),
        }
    }
}

/// How a rank divides its time in a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Idle {
    /// The rank that it waits for most.
    pub peer: Rank,
    /// Per cent of the time that it waits for that rank.
    pub for_peer: u8,
    /// Per cent of the time that it waits for any rank.
    pub for_all: u8,
}

impl Standing {
    /// For how long it has been without progress.
    pub fn waited(&self) -> Duration {
        Duration::from_millis(self.waited_ms)
    }

    /// How long the call under way has lasted.
    pub fn lasted(&self) -> Duration {
        Duration::from_millis(self.lasted_ms)
    }

    /// Whether the collective of this number is the latest, or, of a rank that enqueues calls, under way.
    pub(super) fn is_in(&self, seq: u64) -> bool {
        [self.latest, self.during].into_iter().flatten().any(|call| call.seq == seq)
    }

    /// Whether it has come further than it was before.
    pub(super) fn has_moved_since(&self, before: &Standing) -> bool {
        (self.begun, self.done, self.moved) != (before.begun, before.done, before.moved)
    }

    /// Whether its kernels have come further. Calls that are only enqueued count for nothing, and a kernel that waited has begun another wait.
    pub(super) fn has_run_since(&self, before: &Standing) -> bool {
        let at = |standing: &Standing| standing.kernels.and_then(|kernels| kernels.waits).map(|at| at.launch);
        self.done != before.done || at(self) != at(before) || self.waited_ms < before.waited_ms
    }
}

/// What ranks tell each other about a stall.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum StallNotice {
    /// The sender asks all others what they do.
    Ask(Standing),
    /// What the sender does.
    Answer(Standing),
    /// What the sender has found, and logged.
    Found(Stall),
    /// What the sender had found is over.
    Over,
}

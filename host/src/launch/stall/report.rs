//! What is found.

use super::comm_call::CommCall;
use super::kernels::KernelAt;
use super::links::LinkUse;
use super::standing::Elsewhere;
use crate::launch::mark::Mark;
use crate::plan::CallRecord;
use core::fmt;
use oxccl_shared::abi::{Func, Rank};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// In which way the rank at fault does not do its part.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub enum StallClass {
    /// Its process does not answer: stopped, frozen, or cut off.
    NoAnswer,
    /// It has not called the operation that others wait in.
    MissingEnter,
    /// It has called the operation, and its kernel does not run: the stream has other work before it, or it has not launched the graph.
    MissingStart,
    /// It called another operation, or the ranks wait for each other in different ones.
    Mismatch,
    /// It entered the operation and makes no progress in it, or what it sent does not arrive.
    MissingExit,
    /// It makes progress, too little of it.
    Slow,
    /// The link from it to the rank that waits makes progress, too little of it.
    SlowLink,
    /// No rank is at fault: a network that reduces for them owes the ranks a result. [`Stall::rank`] is a head that waits for it.
    Network,
}

impl StallClass {
    /// Its name in log lines.
    pub fn name(self) -> &'static str {
        match self {
            StallClass::NoAnswer => "no answer",
            StallClass::MissingEnter => "missing enter",
            StallClass::MissingStart => "missing start",
            StallClass::Mismatch => "mismatch",
            StallClass::MissingExit => "missing exit",
            StallClass::Slow => "slow",
            StallClass::SlowLink => "slow link",
            StallClass::Network => "network",
        }
    }
}

impl fmt::Display for StallClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An operation without progress, and the rank at fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Stall {
    /// In which way that rank does not do its part.
    pub class: StallClass,
    /// The rank at fault; the head that waits, if it is a network.
    pub rank: Rank,
    /// A rank that waits for it.
    pub waiter: Rank,
    /// The operation that the waiting rank is in.
    pub during: CallRecord,
    /// That rank's tag and stream of it.
    pub mark: Mark,
    /// How long that has been without progress when it was found. Zero: it makes progress, and the rank at fault is slow.
    pub waited: Duration,
    /// How long that has lasted when it was found; zero where that is not known.
    pub lasted: Duration,
    /// The latest collective of the rank at fault, as far as it answers.
    pub latest: Option<CallRecord>,
    /// The call that it is in, as far as it answers.
    pub is_in: Option<CallRecord>,
    /// The call about the communicator that it is in, such as a split, as far as it answers.
    pub in_comm_call: Option<CommCall>,
    /// If it is in no call: what its process waits for in another communicator, as far as it answers.
    pub elsewhere: Option<Elsewhere>,
    /// Bytes that it has sent and received in that call, where they are counted. Of one that does not answer: what the ranks that wait for
    /// it have had from it and sent to it.
    pub moved: Option<[u64; 2]>,
    /// Of a slow link, how it has been used.
    pub link: Option<LinkUse>,
    /// Where the kernel of the rank that waits stands, of ranks on GPUs.
    pub waits_at: Option<KernelAt>,
    /// Where the kernel of the rank at fault waits, if it does.
    pub stands_at: Option<KernelAt>,
    /// How many ranks do not answer.
    pub silent: u32,
}

impl Stall {
    /// Whether the operation goes on, and lasts.
    pub(super) fn is_lasting(&self) -> bool {
        self.waited.is_zero()
    }

    /// Whether two ranks send to each other, each before it receives. Long messages wait for their receives.
    fn is_face_to_face(&self) -> bool {
        let sends = |call: Option<CallRecord>, to| {
            call.is_some_and(|CallRecord { call, .. }| call.func == Func::Send && call.root == to)
        };
        sends(Some(self.during), self.rank) && sends(self.is_in, self.waiter)
    }

    /// What the rank at fault does or does not, as the end of a sentence about it.
    pub fn finding(&self) -> impl fmt::Display + '_ {
        Finding(self)
    }
}

/// What helps then.
const FACE_TO_FACE: &str = "Both send to each other first: a send and a receive that face each other belong into one group \
                            (`group`, ncclGroupStart)";

/// What is said of a rank that does not answer.
pub(super) const DOES_NOT_ANSWER: &str = "does not answer: its process is stopped, frozen or cut off";

struct Finding<'a>(&'a Stall);

impl fmt::Display for Finding<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stall { class, latest, is_in, .. } = self.0;
        match class {
            StallClass::NoAnswer => {
                f.write_str(DOES_NOT_ANSWER)?;
                match self.0.moved {
                    Some([0, _]) => write!(f, "; nothing of its part has arrived")?,
                    Some([sent, _]) => write!(f, "; it has entered it, and stopped after {sent} bytes")?,
                    None => {}
                }
                let more = self.0.silent.saturating_sub(1);
                return if more == 0 { Ok(()) } else { write!(f, " (nor do {more} more ranks)") };
            }
            StallClass::MissingEnter => write!(f, "has not entered it")?,
            StallClass::MissingStart if is_in.is_none() => {
                return write!(
                    f,
                    "has not launched the graph with it, or its stream has other work before that"
                );
            }
            StallClass::MissingStart => {
                write!(
                    f,
                    "has enqueued it, and its kernel does not run: its stream has other work before it"
                )?;
            }
            StallClass::Mismatch => write!(f, "does something else")?,
            StallClass::MissingExit if is_in.is_none() => {
                return write!(f, "has completed it: what it sent does not arrive");
            }
            StallClass::MissingExit => {
                write!(f, "entered it and makes no progress")?;
                if let Some(at) = self.0.stands_at {
                    write!(f, "; its own kernel waits: {at}")?;
                }
            }
            StallClass::SlowLink => {
                let Some(link) = self.0.link else { return write!(f, "has a slow link") };
                return write!(
                    f,
                    "has a slow link to rank {}: bytes were under way on it for {} % of the time, and {:.1} MB/s arrived, with {} \
                     segments sent again, while other links carried as much and can carry more",
                    link.peer,
                    link.busy,
                    link.rate(),
                    link.retransmits,
                );
            }
            StallClass::Slow => write!(f, "is slow")?,
            StallClass::Network => write!(f, "waits for a network that reduces")?,
        }
        if let Some([sent, received]) = self.0.moved {
            write!(f, "; it has sent {sent} and received {received} bytes")?;
        }
        match is_in {
            Some(call) if *call == self.0.during => Ok(()),
            _ => {
                Doing { latest: *latest, is_in: *is_in, in_comm_call: self.0.in_comm_call }.fmt(f)?;
                if let Some(elsewhere) = self.0.elsewhere {
                    write!(f, "; {}", elsewhere.beside(self.0.waiter))?;
                }
                if self.0.is_face_to_face() {
                    write!(f, ". {FACE_TO_FACE}")?;
                }
                Ok(())
            }
        }
    }
}

/// What a rank does instead, as the end of a sentence about it.
pub(super) struct Doing {
    pub latest: Option<CallRecord>,
    pub is_in: Option<CallRecord>,
    pub in_comm_call: Option<CommCall>,
}

impl fmt::Display for Doing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.is_in, self.in_comm_call, self.latest) {
            (Some(call), ..) => write!(f, "; it is in {call}"),
            (None, Some(of_comm), Some(call)) => {
                write!(f, "; its latest was {call}, and it is in {of_comm}")
            }
            (None, Some(of_comm), None) => {
                write!(f, "; it has made no collective call, and it is in {of_comm}")
            }
            (None, None, Some(call)) => write!(f, "; its latest was {call}, and it is in no call"),
            (None, None, None) => write!(f, "; it has made no collective call"),
        }
    }
}

//! Layer: host / status.
//! Takes: what communicators of this process say of themselves when they are asked (`Subject`); questions of other processes.
//! Gives: one thread per process that answers them (`registry`); flight records as files; [`ask`]: the questions of `oxccl status`.
//! Never: keeps a communicator, its memory or its connections alive, touches the path of operations, or answers another user.
//!
//! The thread sleeps until somebody asks. It is no monitor thread of a communicator because it writes files and serves strangers'
//! sockets, and a slow file system must not keep anybody from hearing of a death.
//!
//! ```text
//! oxccl status                                            a rank's process
//!   finds @oxccl-status-PID-... in /proc/net/unix
//!   connects, compares the credentials       <->          compares the credentials
//!   one line, a [`Question`]                  ->          asks its communicators, and through them the other ranks
//!                                             <-          a [`ProcessReport`] as JSON, and the end
//! ```

mod report;
mod flight;
mod question;
mod session;
mod name;
mod ras;
mod ras_port;
mod settings;
mod server;
mod registry;
mod signal;
mod allowance;
pub mod ask;

pub use flight::{FLIGHT_VERSION, FlightFile};
pub use question::{LINE_BYTES_MAX, Question};
pub use ras::{RAS_LINE_BYTES_MAX, RAS_PROTOCOL, RasClient, RasReply};
pub(crate) use registry::{Ticket, register, told};
pub use report::{
    CommunicatorReport, NetworkReport, OperationReport, PeerReport, ProcessReport, REPORT_FORMAT, RankReport,
    RecordReport, State, TotalReport,
};
pub(crate) use settings::{RAS_ADDRESS, Settings};

use crate::launch::Recorded;
use std::time::Duration;

/// A rank's latest operations.
#[derive(Clone, Debug, Default)]
pub(crate) struct Records {
    /// They, oldest first.
    pub list: Vec<Recorded>,
    /// Of all that there have been, how many are done.
    pub done: u64,
    /// Whether an operation goes on when its call has returned.
    pub is_stream: bool,
}

impl Records {
    /// How far an operation is, in PyTorch's words.
    pub fn state(&self, found: &Recorded) -> &'static str {
        match found.ended_ns {
            Some(_) => "completed",
            None if self.is_stream && found.index < self.done => "completed",
            None if self.is_stream && found.started_ns.is_none() => "scheduled",
            None => "started",
        }
    }
}

/// One rank of a communicator in this process, as the status thread asks it. It answers without waiting.
pub(crate) trait Subject: Send + Sync {
    /// What it does now, with so many of its latest operations; with what the other ranks have answered, if they were asked.
    fn report(&self, recent_max: usize, were_asked: bool) -> CommunicatorReport;

    /// Its latest operations.
    fn records(&self) -> Records;

    /// How long an operation may take before it fails.
    fn timeout(&self) -> Duration;

    /// The rank's number among all of its job, as far as it is known: that of the communicator from which it was split.
    fn world_rank(&self) -> u32;

    /// Asks the other ranks what they do; their answers come with the next reports.
    fn inquire(&self, number: u64);

    /// Whether every rank that is there has answered this inquiry.
    fn has_heard(&self, number: u64) -> bool;
}

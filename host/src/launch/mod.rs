//! Layer: host / launch.
//! Takes: calls with their buffers, in order, and a communicator's channels.
//! Gives: an [`Engine`] that runs them to their end on the caller's thread.
//! Never: chooses algorithms (`plan` did), makes connections (`channel` did).
//!
//! One communicator's operations run one after another. A group over several communicators of one thread gives each a
//! fiber, and a kernel that waits hands the thread to the next: ranks that share a thread cannot deadlock each other.

mod engine;
mod history;
pub(crate) mod messages;
mod channel;
mod fiber;
mod lend;
mod net_links;
mod coll_links;
mod wait;
mod health;
mod blame;
mod told;

pub use channel::Channel;
pub use coll_links::CollLinks;
pub(crate) use engine::RawCall;
pub use engine::{Engine, EngineParts};
pub use fiber::GROUP_COMMUNICATORS_MAX;
pub(crate) use fiber::{Job, run_together};
pub use health::{Fault, Health, Outstanding};
pub(crate) use history::History;
pub use net_links::NetLinks;
pub use told::Told;
pub(crate) use wait::{LEFT_GRACE, NAP, REPLY_TIME, announce};
pub use wait::{Tell, WaitContext};

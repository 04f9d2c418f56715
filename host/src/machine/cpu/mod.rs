//! Layer: host / machine / cpu.
//! Takes: calls, the connections of a rank on CPUs.
//! Gives: [`Cpu`], which runs kernels on the caller's thread and returns when they are complete.
//! Never: chooses algorithms (`plan` did), creates connections (`crate::connect` does).
//!
//! A group over several communicators of one thread gives each a fiber (`fiber`), and a waiting kernel yields the
//! thread to the next: ranks that share a thread cannot deadlock each other. Operations that were started, and are not waited for
//! yet, have one fiber for each communicator (`in_flight`), which any wait of the thread resumes.
//!
//! From below: `queue`, operations in flight; `far` and `state`, what a rank consists of; `connect`, what calls need of connections to
//! other hosts; `pair`, `exchange` and `reading`, short cuts of two ranks; `collective` and `messages`, with `joined` for those of several
//! operations; `fiber` and `in_flight`; `machine`.

mod queue;
mod far;
mod state;
mod connect;
mod pair;
mod exchange;
mod reading;
mod collective;
mod outputs;
mod messages;
mod joined;
mod fiber;
mod in_flight;
mod machine;

pub use far::{Far, FarConnector, FarEnds, FarNeed, FarRefused, NOT_MADE};
pub use fiber::GROUP_COMMUNICATORS_MAX;
pub use in_flight::{Flights, InFlight};
pub use queue::{Failure, IN_FLIGHT_MAX, Over, Owner, Ticket};
pub use state::{Cpu, CpuParts};

//! Layer: host / launch.
//! Takes: calls with their buffers, in order.
//! Gives: an [`Engine`] that runs them on any [`Machine`]; how a kernel on the caller's thread waits.
//! Never: chooses algorithms (`plan` did), makes connections (`connect` did).
//!
//! One communicator's operations run one after another.

mod call;
mod messages;
mod history;
mod machine;
mod planned;
mod planned_traffic;
mod engine;
mod cell;
mod group;
mod channel;
mod lend;
mod custom;
mod wait;
pub(crate) mod in_flight;
mod drives;
mod net_links;
mod coll_links;
mod collective_order;
mod drive;
mod ticks;
mod mark;
mod recorder;
mod fault;
mod health;
mod probe;
mod link_error;
mod blame;
mod finalized;
mod calls_made;
mod stall;
mod notice;

pub(crate) use blame::Circle;
pub use call::RawCall;
pub use calls_made::{
    CallsMade, LatestCalls, MessageSums, MessagesMade, MessagesWith, NamedCall, PeersMade, SEARCHED_PAIRS_MAX,
};
pub use cell::{Behind, BehindError, EngineCell, Occupied, StartError};
pub use channel::{Channel, HostPlaces};
pub use coll_links::CollLinks;
pub(crate) use collective_order::collective_order;
pub use custom::CustomAlgorithm;
pub(crate) use custom::CustomCut;
pub(crate) use drive::{Collective, NetMessage};
pub use drives::Drives;
pub use engine::Engine;
pub use fault::{Fault, Outstanding};
pub use finalized::{Finalized, Finished, LastPart};
pub use group::{GroupMachine, Job};
pub use health::Health;
pub(crate) use health::SlowWait;
pub(crate) use lend::LendingBlock;
pub use link_error::{Direction, LinkError};
pub use machine::{Machine, RawQueue, RunError, StreamMachine};
pub use mark::Mark;
pub use messages::{Message, OwnCopy};
pub(crate) use messages::{split as messages_of, tag as message_tag};
pub use net_links::NetLinks;
pub use notice::Notice;
pub use planned_traffic::{ChannelPlaces, PeerTraffic, PlannedTraffic};
pub use probe::{Probe, Progress, Slept};
pub use recorder::{RECORDS, Recorded, Recorder};
pub use stall::{
    Act, CommAct, CommCall, CommCallNow, CommCallWatch, CommCalls, CommStall, Detector, Elsewhere, Idle,
    KernelAt, Kernels, LinkUse, LinkWindow, Stall, StallClass, StallNotice, Standing,
};
pub use ticks::Scale;
pub(crate) use wait::{BACK_OFF, FiberYielder, LAST_LOOKS, LEFT_GRACE, REPLY_TIME, announce};
pub use wait::{Notify, WaitContext};

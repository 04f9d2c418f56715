//! Layer: host / proxy.
//! Takes: connection blocks whose other end is on the network, communicators of a [`crate::net::Net`],
//! sub-operations.
//! Gives: [`SendEnd`], the consumer of the block that a local kernel fills, and [`RecvEnd`], the producer of the
//! block that a local kernel empties: together one connection whose two halves are on two hosts. [`CollEnd`], both of
//! these for in-network reduction. [`Progress`], which drives all ends of a rank by [`ProxyOrders`], on a
//! [`ProxyThread`] or wherever [`Progress::do_work`] is called.
//! [`OpeningEnd`] stands for an end whose communicator is still to come.
//! Never: blocks; allocates or locks after construction, except for an end that is added or opens; names a line protocol (it asks `shared::proto`).
//!
//! ```text
//! host of the producer                                   host of the consumer
//! kernel -> block -> SendEnd -> isend ~~ Net ~~ irecv -> RecvEnd -> block -> kernel
//!             head <-'  when the send is complete          '-> tail, or lines one by one
//! ```
//! One message is one slot, sent from the block and received into it. See docs/proxy.md.

mod op_header;
mod order;
mod counters;
mod error;
mod unpack_buffer;
mod block;
mod send;
mod recv;
mod coll;
mod coll_lane;
mod opening;
mod end;
mod overflow;
mod arrivals;
mod pattern;
mod volume;
mod expansion;
mod pool;
mod trace;
mod engine;
mod share;
mod memory;
mod orders;
mod idle;
mod thread;

#[cfg(test)]
mod tests;

pub use block::{DeviceSlots, ProxyBlock};
pub use coll::{CHECKED, CollEnd, CollFault, CollOp, Cut, Moves, Reduced};
pub use coll_lane::CollLane;
pub use counters::{Counters, SubOp};
pub use end::ProxyEnd;
pub use engine::{ORDERS_OPEN_MAX, Progress, ProxyParts};
pub use error::{EndError, EndFault, EndId, Outstanding, ProxyFailure};
pub use idle::Idle;
pub use op_header::OpHeader;
pub use opening::{OpenEnd, OpeningEnd, Patience};
pub use order::{Elements, Keep, ORDERS_WAITING_MAX, ProxyOrder, ProxyShared};
pub use orders::{ProxyOrders, Ticket, attach_orders, attach_proxy, driven_proxy, proxy};
pub use pattern::{ProxyChannel, ProxyPlace};
pub use recv::RecvEnd;
pub use send::SendEnd;
pub use share::{Concerns, share};
pub use thread::{ProxyOwner, ProxyThread, ProxyThreadConfig};
pub use volume::{Volume, volumes};

//! Layer: host / plan / device, the plans of GPU kernels.
//! Takes: a call and what the ranks found out about their devices at init.
//! Gives: a [`DevicePlan`]: which kernel, how many blocks and threads, chunk sizes; for sends and receives the launches and
//! lanes that they go into. The same on every rank for the same call.
//! Never: I/O, a clock, unsafe code, a device.
//!
//! From below: `kernel`, what there is; `tuning`, numbers that were measured; `count`, channels of rings; `facts`, what the ranks agreed on; `choose`; `collective` and
//! `messages`; `repertoire`, all kernels that these may choose.

mod kernel;
mod tuning;
mod count;
mod facts;
mod choose;
mod collective;
mod messages;
mod repertoire;

pub use collective::{DevicePlan, plan_device};
pub use facts::DeviceFacts;
pub use kernel::{KernelId, MESH_PEERS_MAX};
pub use messages::{Arrangement, Batch, MessageWant, Placed, arrange, message_kernels};
pub use tuning::{ChannelLimits, DeviceTuning, MessageClass};

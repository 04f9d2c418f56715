//! Layer: host / plan / device, the plans of GPU kernels.
//! Takes: a call and the ranks' facts about their devices.
//! Gives: a [`DevicePlan`]: kernel, number of blocks and threads, chunk sizes; for sends and receives the launches
//! and lanes. The same on every rank for the same call.
//! Never: I/O, a clock, unsafe code, a device.
//!
//! From below: `kernel`, the available kernels; `tuning`, measured numbers; `count`, channels of rings; `facts`, what
//! the ranks agreed on; `choose`; `collective` and `messages`; `repertoire`, the set of kernels that these may
//! choose.

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

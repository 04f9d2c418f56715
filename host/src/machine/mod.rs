//! Layer: host / machine, what runs kernels.
//! Takes: calls with their buffers, connections and facts that were agreed on at init.
//! Gives: one folder for each kind of [`Machine`](crate::launch::Machine). [`cpu`]: the caller's thread; [`cuda`]: GPUs of NVIDIA. Beside
//! them, what all GPUs have: their tables of connections, kernels' arguments, the proxy of connections over a network.
//! Never: chooses algorithms (`plan` did), makes connections (`connect` did).
//!
//! From below: `conns`, addresses of connections, and who makes those that are needed later; `args`, of kernels; `verdict`, who caused a stop; `net`, the proxy, which orders
//! of calls and graphs reach through the `order_gate`; the machines.

mod conns;
mod args;
mod verdict;
mod order_gate;
mod net;
pub mod cpu;
pub mod cuda;

pub(crate) use args::collective_args;
pub use conns::{ConnKind, ConnLists, ConnTables, Connector, Need, NetEnds};
pub(crate) use net::Issue;
pub use net::{NetChannels, NetParts, NetProxy};
use verdict::Verdict;

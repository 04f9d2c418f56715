//! Layer: host / machine, what runs kernels.
//! Takes: calls with their buffers, connections and facts that were agreed on at init.
//! Gives: one folder for each kind of [`Machine`](crate::launch::Machine). [`cpu`]: the caller's thread; [`cuda`]: GPUs of NVIDIA. Beside
//! them, what all GPUs have: their tables of connections, what a kernel is told, the proxy of connections over a network.
//! Never: chooses algorithms (`plan` did), makes connections (`channel` did).
//!
//! From below: `conns`, addresses of connections; `args`, what kernels are told; `verdict`, whose fault a stop is; `net`, the proxy, which
//! calls and graphs reach through one `door`; the machines.

mod conns;
mod args;
mod verdict;
mod door;
mod net;
pub mod cpu;
pub mod cuda;

pub(crate) use args::collective_args;
pub use conns::{ConnLists, ConnTables};
pub(crate) use net::Telling;
pub use net::{NetChannels, NetParts, NetProxy};
use verdict::Verdict;

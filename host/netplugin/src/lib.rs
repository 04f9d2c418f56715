//! Layer: beside the library, as `host/capi`; what stock NCCL loads as `libnccl-net-oxccl.so`.
//! Takes: NCCL's calls through the tables `ncclNetPlugin_v8` to `_v12` and `ncclCollNetPlugin_v8` to `_v12`.
//! Gives: messages over the library's sockets, and reductions and gathers through the servers of `OXCCL_AGGREGATOR`.
//! Never: lets a panic cross into C, waits for a peer (but in CollNet's `connect`, which NCCL calls once), or uses a pointer that is
//! not one of its own objects.
//!
//! From below: `plugin`, what the process has opened; `object`, what NCCL holds pointers to; `net` and `coll`, the functions;
//! `tables`, the exported symbols. The layouts are those by which the library itself loads plugins (`oxccl::net::plugin::abi`).

mod plugin;
mod object;
mod net;
mod coll;
mod tables;

pub use tables::*;

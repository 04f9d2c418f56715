//! Layer: device / kernel, above `coll`.
//! Takes: the arguments that the host launched with.
//! Gives: the entry points, one for each function, algorithm, protocol and element type. Instantiation only: what they do is
//! in `coll`, `prims` and `gpu`.
//! Never: compiled for a CPU.
//!
//! An entry is named `oxccl_<function>_<algorithm>_<protocol>_<type>`, without the type where data only move, and
//! `oxccl_send_recv_<protocol>`. The grid has one block for each channel.

mod entry;
mod run;
mod shared_conns;

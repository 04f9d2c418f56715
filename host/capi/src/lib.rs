//! `libnccl.so.2`: OxCCL behind the C interface of NCCL 2.32.3.
//!
//! Layer: host / capi, above everything: one crate, one shared library.
//! Takes: calls of C programs: handles, addresses and numbers that nobody has checked.
//! Gives: NCCL's results, with a text in `ncclGetLastError` for each failure that says what to do.
//! Never: exports another name than NCCL's, trusts a handle that it has not made, lets a panic out.
//!
//! From below: `types`; `result`; `pointer`; `registry`; `comm`; what one family of functions does; `exports`, the table of names.

mod types;
mod result;
mod pointer;
mod registry;
mod config;
mod comm;
mod encryption;
mod unique_id;
mod group;
mod init;
mod end;
mod regroup;
mod query;
mod operator;
mod operations;
mod coll_config;
mod memory;
mod one_sided;
mod window;
mod suspend;
mod simulate;
mod params;
mod unsupported;
mod exports;

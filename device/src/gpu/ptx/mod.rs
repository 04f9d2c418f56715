//! Layer: device / gpu / ptx, the GPU backend of the kernel DSL.
//! Takes: a thread block of an NVIDIA GPU (sm_70 or later).
//! Gives: [`PtxBlock`]: barriers, bounded waits and bulk loops as PTX.
//! Never: unordered access to a word that another device touches; those go through `oxccl_shared::sync`.

mod arith;
mod barrier;
mod block;
mod bulk;

pub use barrier::{block_index, block_threads, sync_all, thread_index};
pub use block::PtxBlock;

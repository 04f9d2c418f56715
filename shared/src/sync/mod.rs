//! Layer: shared / sync, the only access to atomics in the workspace.
//! Takes: an address that other threads, processes or devices access too.
//! Gives: [`Word`], whose type states who else may access it and whose methods state the order; [`Line128`] padding;
//! bounded spinning.
//! Never: a read-modify-write. Every shared word has one writer, because a GPU's `atom.add` loses order and scope
//! (see docs/memory-model.md).

mod arch;
#[cfg(not(loom))]
mod cell;
mod line;
mod pair;
mod scope;
mod word;

#[cfg(loom)]
pub use arch::SharedCell;
#[cfg(not(any(target_arch = "nvptx64", target_arch = "amdgpu")))]
pub use arch::fence_full;
pub use arch::{cpu_relax, fence_acquire, fence_release};
#[cfg(target_arch = "nvptx64")]
pub use arch::{fence_release_kernels, fence_release_loads};
#[cfg(not(loom))]
pub use cell::SharedCell;
pub use line::Line128;
pub use pair::Pair;
pub use scope::{Block, Gpu, Level, Scope, Sys};
pub use word::{Primitive, Word};
#[cfg(not(target_arch = "nvptx64"))]
pub use {fence_release as fence_release_kernels, fence_release as fence_release_loads};

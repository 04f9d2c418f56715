//! Layer: shared / sync, the only door to atomics in the workspace.
//! Takes: an address that other threads, processes or devices touch too.
//! Gives: [`Word`], whose type says who else may touch it and whose methods say in which order; [`Line128`] padding;
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
pub use arch::{cpu_relax, fence_acquire, fence_release};
#[cfg(not(loom))]
pub use cell::SharedCell;
pub use line::Line128;
pub use pair::Pair;
pub use scope::{Block, Gpu, Level, Scope, Sys};
pub use word::{Primitive, Word};

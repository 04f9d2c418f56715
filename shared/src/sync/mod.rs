//! Layer: shared / sync, the only door to atomics in the workspace.
//! Takes: an address that other threads, processes or devices touch too.
//! Gives: [`Word`], whose type says who else may touch it and whose methods say in which order; [`Line128`] padding;
//! bounded spinning.
//! Never: a read-modify-write. Every shared word has one writer, because a GPU's `atom.add` loses order and scope
//! (see docs/memory-model.md).

mod arch;
mod line;
mod pair;
mod scope;
mod word;

pub use arch::{SharedCell, cpu_relax, fence_acquire, fence_release};
pub use line::Line128;
pub use pair::Pair;
pub use scope::{Block, Gpu, Scope, Sys};
pub use word::{Primitive, Word};

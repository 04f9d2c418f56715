//! One file per machine; the rest of the workspace sees only what `sync` re-exports.

#[cfg(not(loom))]
mod host;
#[cfg(not(loom))]
pub use host::*;

#[cfg(loom)]
mod loom;
#[cfg(loom)]
pub use self::loom::*;

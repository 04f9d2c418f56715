//! The threads that may access a word. On a CPU all scopes are the same; in PTX a scope becomes the `.cta`, `.gpu` or
//! `.sys` qualifier.

mod sealed {
    pub trait Sealed {}
}

/// A scope as a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    /// See [`Block`].
    Block,
    /// See [`Gpu`].
    Gpu,
    /// See [`Sys`].
    Sys,
}

/// A set of threads that see each other's accesses to a word in order.
pub trait Scope: sealed::Sealed + 'static {
    /// Its value.
    const LEVEL: Level;
}

/// Threads of one block (`.cta`).
pub struct Block;
/// Threads of one GPU (`.gpu`).
pub struct Gpu;
/// All agents: other GPUs, CPUs, NICs (`.sys`).
pub struct Sys;

impl sealed::Sealed for Block {}
impl sealed::Sealed for Gpu {}
impl sealed::Sealed for Sys {}
impl Scope for Block {
    const LEVEL: Level = Level::Block;
}
impl Scope for Gpu {
    const LEVEL: Level = Level::Gpu;
}
impl Scope for Sys {
    const LEVEL: Level = Level::Sys;
}

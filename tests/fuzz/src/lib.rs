//! Layer: beside the tests.
//! Takes: bytes that somebody else chose.
//! Gives: one function per thing that OxCCL reads from outside; each panics if the library breaks a promise on them.
//! Never: depends on libFuzzer: the same functions run under it (`fuzz_targets/`) and without it (`replay`).

mod slots;

pub use slots::slots;

/// A target's name and what it runs.
pub type Target = (&'static str, fn(&[u8]));

/// Every target, by the name of its file in `fuzz_targets/`.
pub const TARGETS: &[Target] = &[("slots", slots)];

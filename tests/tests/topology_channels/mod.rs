//! Layer: tests.
//! Takes: made-up machines and many hosts.
//! Gives: proof that whatever the machine, rings visit each rank once and trees span, and that this scales.
//! Never: real machines; those are compared with NCCL's own answers elsewhere.

mod checks;
mod recipe;
mod joins;
mod hostile;
mod odd;
mod times;
mod machines;
mod trees;
mod scale;

//! Layer: host / machine / cuda / copies.
//! Takes: calls whose buffers lie in symmetric windows, and the words between the ranks of the host.
//! Gives: [`CopyEngines`], which enqueues copies into the other ranks' windows, ordered by words that streams write and wait for. No
//! kernel runs.
//! Never: waits on the host; decides which calls go so (`plan` did, but for where their buffers lie).
//!
//! Words are host memory: the driver lets streams of every GPU write them, and the processor ends the waits of a communicator that has
//! failed (`watch`). `choices` compares what the ranks have chosen, before any of them enqueues.
//!
//! From below: `words`; `choices`, `watch` and `windows`; `engines`, a rank's side; `calls`, which of its machine's go so.

mod words;
mod choices;
mod watch;
mod windows;
mod engines;
mod calls;

pub(super) use engines::CopyEngines;
pub(crate) use words::SLOTS;

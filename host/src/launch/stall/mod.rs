//! Layer: host / launch / stall.
//! Takes: what each rank says of itself when one of them has waited for a while, and the time.
//! Gives: [`Detector`]: which rank an operation without progress waits for, and why, reported by one rank.
//! Never: reads a clock, touches a socket, or says anything while operations go on.
//!
//! ```text
//! rank that waits                                     all others
//!   before the warn time: Ask, with its own standing   ->  Answer, each with its standing
//!   half way to it: Ask once more                      ->  Answer
//!   warn time: diagnose, log, Found                    ->  kept for `CommHandle::stall`
//!   it moves again: log, Over                          ->  forgotten
//! ```
//! An operation whose waits are all short, and which lasts for the warn time all the same, is looked at in the same way: a rank that all others
//! wait for most of the time is slow.
//!
//! The lowest of the ranks that ask at the same time goes on; the others wait for what it finds.

mod comm_call;
mod kernels;
mod standing;
mod idle;
mod links;
mod report;
mod diagnose;
mod slow;
mod detector;
mod comm_watch;

pub use comm_call::{CommCall, CommCallNow, CommCalls};
pub use comm_watch::{CommAct, CommCallWatch, CommStall};
pub use detector::{Act, Detector};
pub(super) use idle::IdleWindow;
pub use kernels::{KernelAt, Kernels};
pub use links::{LinkUse, LinkWindow};
pub use report::{Stall, StallClass};
pub use standing::{Elsewhere, Idle, StallNotice, Standing};

//! Layer: host / connect / gpu / parts.
//! Takes: a communicator's layout, its first part, what its ranks agreed on for that, what connects over a network; later, what launches need.
//! Gives: [`Parts`]: memory and connections when an operation first needs them, on all ranks that they concern, whatever the threads of
//! their users do meanwhile.
//! Never: waits for a user's thread on another rank, changes a connection that a kernel may use, frees anything before the end.
//!
//! A rank whose operation needs a part starts a step, on a thread of its own, and says so in a note to all ranks (the bootstrap's: they
//! go round both sides of its ring). A member that hears the first note of a part starts the same step. So nobody's call is needed but
//! the one that needs the part; steps of different parts do not know of each other, and run in any order. In a step the members vote by
//! notes, as often as an arena does and once more for the tables: then whoever asked launches its kernel.
//!
//! That is for ranks that share memory: where there are several hosts, those of each make their own. Connections over a network need no
//! step: whoever launches an operation makes its half (`far`).
//!
//! From below: `note`, what members say, pure; `state`, what is known of each part; `far`; `side`, what a rank has and hears; `vote`;
//! `waiting`, what others see of who waits; `step`.

mod note;
mod state;
mod far;
mod side;
mod vote;
mod waiting;
mod step;
#[cfg(test)]
mod tests;

pub use far::FarParts;
pub use side::{Parts, PartsMade, PartsOpen};

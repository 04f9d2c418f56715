//! Layer: host / net, slots whose bytes never lie in them.
//! Takes: where the user has the bytes of a slot that is sent, or wants those of one that is to come.
//! Gives: [`Loans`] and [`Arrivals`], which the two ends of a connection ask before they ask the slot.
//! Never: moves a byte.
//!
//! ```text
//! user's buffer -> slot -> wire -> slot -> user's buffer      each arrow is a pass over memory
//! user's buffer ---------> wire ---------> user's buffer      what is left of it
//! ```
//! The slots are counted as ever, so that kernels, flow control and what travels are the same.

mod loans;
mod arrivals;

#[cfg(test)]
pub(crate) use arrivals::EXPECTED_MAX;
pub(crate) use arrivals::{Arrivals, Expected};
pub(crate) use loans::Loans;

/// From here on a slot's bytes are worth the account that is kept of where they are. Below, a copy is as cheap.
pub(crate) const BYPASS_MIN_BYTES: usize = 8 << 10;

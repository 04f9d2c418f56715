//! Layer: host / net, zero-copy.
//! Takes: the user's memory of a slot that is sent, or of one that is expected.
//! Gives: [`Loans`] and [`Arrivals`], which the two ends of a connection consult before the slot.
//! Never: moves a byte.
//!
//! ```text
//! user's buffer -> slot -> wire -> slot -> user's buffer      each arrow is a pass over memory
//! user's buffer ---------> wire ---------> user's buffer      with zero-copy
//! ```
//! Slots are counted as without it, so kernels, flow control and messages are the same.

mod loans;
mod arrivals;

#[cfg(test)]
pub(crate) use arrivals::EXPECTED_MAX;
pub(crate) use arrivals::{Arrivals, Expected};
pub(crate) use loans::Loans;

/// From this size on zero-copy is worth its bookkeeping. Below, a copy is as cheap.
pub(crate) const BYPASS_MIN_BYTES: usize = 8 << 10;

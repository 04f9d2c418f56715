//! Layer: perf / data.
//! Takes: a collective, an element type, an operator, and the number of a repetition.
//! Gives: every rank's input and what each rank must hold afterwards, computed here from the same formula and from no code of
//! the libraries measured.
//! Never: rounds. Inputs are chosen so that the result, and every partial result in whatever order, is exact in the element
//! type; only the average over a number of ranks that is not a power of two is compared with a tolerance.
//!
//! # The formula
//! `w(rank, i)` is the splitmix64 of `seed + rank * 2^40 + i`, where `seed` is a hash of the repetition's number.
//!
//! - Collectives that only copy: element i of a rank is the low bytes of `w`, so every bit pattern occurs, NaNs too.
//! - Integers: the low bytes of `w`; sums and products wrap, and wrapping is exact. Averages: 0 to M with n M below the maximum.
//! - Floats with p significant bits, L = 2^p (all integers up to L are exact):
//!   - max, min: an integer in -L to L.
//!   - sum: an integer in -M to M, where the number of ranks that contribute to an element (others give 0) times M is at most L.
//!     Rank r contributes to element i when (r + i) mod n is below that number, so that all ranks take part in every buffer of
//!     n elements or more. The same for averages; for pre-multiplied sums, whose scalar is 2 on odd ranks and 1 on even ones,
//!     L counts half.
//!   - product: plus or minus 1, times 2^-1, 1 or 2 on at most six ranks.

mod scalar;
mod pattern;
mod expect;

pub use expect::{Content, expected_parts};
pub use pattern::{Pattern, scalar_bits};

//! Layer: words.
//! Takes: numbers.
//! Gives: them with the word that they count, in its right form.
//! Never: anything of one page's.

use std::fmt::Display;

/// `1 GPU`, `2 GPUs`
pub fn count<N: Display + PartialEq + From<u8>>(count: N, what: &str) -> String {
    format!("{count} {what}{}", if count == N::from(1) { "" } else { "s" })
}

//! The library by concept, one page each. What one item does is documented at the item.
//!
//! Layer: host / guide, documentation only.
//! Takes: nothing; the examples of its pages are compiled and run as tests.
//! Gives: where to read first: [`starting`], [`operations`], [`groups`], [`overlap`], [`gpus`], [`life`], [`errors`], [`settings`], [`algorithms`].
//! Never: has code that a program uses.

#[doc = include_str!("starting.md")]
pub mod starting {}

#[doc = include_str!("operations.md")]
pub mod operations {}

#[doc = include_str!("groups.md")]
pub mod groups {}

#[doc = include_str!("overlap.md")]
pub mod overlap {}

#[doc = include_str!("gpus.md")]
pub mod gpus {}

#[doc = include_str!("life.md")]
pub mod life {}

#[doc = include_str!("errors.md")]
pub mod errors {}

#[doc = include_str!("settings.md")]
pub mod settings {}

#[doc = include_str!("algorithms.md")]
pub mod algorithms {}

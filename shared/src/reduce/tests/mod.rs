//! The arithmetic against definitions written out slowly.

extern crate std;

mod formats;
mod operators;

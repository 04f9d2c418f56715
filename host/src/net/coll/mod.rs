//! Layer: host / net / coll, networks that reduce.
//! Takes: a plugin whose network has such switches (or the program's own), the handles of all heads.
//! Gives: [`CollNet`], and [`find`], which finds one.
//! Never: sends from rank to rank (that is [`super::Net`]), knows hosts or chains, blocks.

mod contract;
mod choose;

pub use choose::{CollConfig, find};
pub use contract::{CollComm, CollConnector, CollListener, CollNet, CollPart, Head, Reduction};

//! Layer: host / net / coll, in-network reduction.
//! Takes: a plugin with a CollNet table (or the program's own network), the handles of all heads.
//! Gives: [`CollNet`], and [`find`], which selects one.
//! Never: sends from rank to rank (that is [`super::Net`]), knows hosts or chains, blocks.

mod contract;
mod config;
mod choose;

pub use choose::{carriage, find};
pub use config::CollConfig;
pub use contract::{
    CollComm, CollConnector, CollListener, CollNet, CollPart, Head, Reduction, Started, Window, Windows,
};

//! Layer: tune / found.
//! Takes: the measurements of all ranks.
//! Gives: the input of the table and of the file.
//! Never: measures.

use super::pick::{Row, Way};
use crate::collective::Collective;
use crate::report::machine::Machine;
use oxccl::plan::tuning::{Backend, Candidate};

/// Everything that was measured.
pub struct Found {
    pub backend: Backend,
    pub ranks: u32,
    pub machine: Machine,
    pub ways: Vec<Way>,
    pub collectives: Vec<(Collective, Vec<Row>)>,
    /// What the library chooses by itself, by collective and size.
    pub untuned: Vec<Vec<Option<Candidate>>>,
}

//! Layer: host / topology / xml.
//! Takes: text in NCCL's two formats, of a topology (`NCCL_TOPO_FILE`) and of graphs (`NCCL_GRAPH_FILE`); files are not trusted.
//! Gives: an [`Inventory`](super::Inventory) or the search's graphs, and such text; or an error that names line and attribute.
//! Never: entities, document types or other ways to make much of little; more than the limits below.

mod element;
mod attribute;
mod topology;
mod graphs;
mod write;

pub use graphs::{read_graphs, write_graphs};
pub use topology::read_topology;
pub use write::write_topology;

use crate::os::open_regular;
use std::io::Read;
use std::path::Path;
use thiserror::Error;

/// Bytes of a file.
pub const FILE_BYTES_MAX: usize = 16 << 20;
/// Elements of a file.
pub const ELEMENTS_MAX: usize = 65_536;
/// Elements inside each other.
pub const DEPTH_MAX: usize = 32;
/// Attributes of an element.
pub const ATTRIBUTES_MAX: usize = 32;
/// Characters of an attribute's value: NCCL's reader takes no more.
pub const VALUE_CHARS_MAX: usize = 255;

/// A file's text, for [`read_topology`] or [`read_graphs`]. Of one that is too long, or has no end, they are given enough to refuse it.
///
/// # Errors
/// The system's; that it is no regular file.
pub fn read_text(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    open_regular(path)?.take(FILE_BYTES_MAX as u64 + 1).read_to_string(&mut text)?;
    Ok(text)
}

/// Why a file cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum XmlError {
    /// No XML, or XML with a document type or entities of its own.
    #[error("line {line}: not well-formed: {what}")]
    Syntax {
        /// From 1.
        line: u32,
        /// What the parser says.
        what: String,
    },
    /// More than a topology needs.
    #[error("line {line}: too many or too long {what}: at most {max} are read")]
    Limit {
        /// From 1.
        line: u32,
        /// What there is too much of.
        what: &'static str,
        /// The limit.
        max: usize,
    },
    /// Another kind of file.
    #[error("line {line}: the root element is <{found}>, expected <{expected}>")]
    Root {
        /// From 1.
        line: u32,
        /// Name of the root element; empty if there is none.
        found: String,
        /// The name expected.
        expected: &'static str,
    },
    /// An attribute that must be there is not.
    #[error("line {line}: <{element}> lacks the attribute {attribute}")]
    Missing {
        /// From 1.
        line: u32,
        /// The element.
        element: String,
        /// The attribute.
        attribute: &'static str,
    },
    /// An attribute's value is of another type or out of range.
    #[error("line {line}: <{element} {attribute}=\"{value}\">: expected {expected}")]
    Value {
        /// From 1.
        line: u32,
        /// The element.
        element: String,
        /// The attribute.
        attribute: &'static str,
        /// What it says.
        value: String,
        /// What was expected.
        expected: &'static str,
    },
    /// Two elements claim the same identity.
    #[error("line {line}: {attribute}=\"{value}\" was already given on line {first}")]
    Duplicate {
        /// From 1.
        line: u32,
        /// The attribute that tells elements apart.
        attribute: &'static str,
        /// Its value.
        value: String,
        /// Where it was first.
        first: u32,
    },
}

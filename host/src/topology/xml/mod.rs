//! Layer: host / topology / xml.
//! Takes: text in NCCL's two formats, of a topology (`NCCL_TOPO_FILE`) and of graphs (`NCCL_GRAPH_FILE`). Files are
//! not trusted.
//! Gives: an [`Inventory`](super::Inventory) or the search's graphs, and such text; or an error that names line and
//! attribute.
//! Never: expands entities or reads document types; exceeds the limits below.

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

/// Most bytes of a file.
pub const FILE_BYTES_MAX: usize = 16 << 20;
/// Most elements of a file.
pub const ELEMENTS_MAX: usize = 65_536;
/// Deepest nesting of elements.
pub const DEPTH_MAX: usize = 32;
/// Most attributes of an element.
pub const ATTRIBUTES_MAX: usize = 32;
/// Most characters of an attribute's value: NCCL's reader takes no more.
pub const VALUE_CHARS_MAX: usize = 255;

/// Reads a file for [`read_topology`] or [`read_graphs`]. Of a file that is too long or endless, it returns enough
/// for them to refuse it.
///
/// # Errors
/// The operating system's, or that it is no regular file.
pub fn read_text(path: &Path) -> std::io::Result<String> {
    read_text_from(open_regular(path)?)
}

/// As [`read_text`], from a pipe or whatever else.
///
/// # Errors
/// The source's, or that it is no UTF-8, with the line.
pub fn read_text_from(source: impl Read) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    source.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > FILE_BYTES_MAX {
        // Too long, wherever a character was cut.
        return Ok(String::from_utf8_lossy(&bytes).into_owned());
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let line = error.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count() + 1;
        let what = format!(
            "line {line}: the byte {:#04x} is no UTF-8, in which topology files are",
            error.as_bytes()[at]
        );
        std::io::Error::new(std::io::ErrorKind::InvalidData, what)
    })
}

/// Why a file is unusable.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum XmlError {
    /// No XML, or XML with a document type or its own entities.
    #[error("line {line}: not well-formed: {what}")]
    Syntax {
        /// Counted from 1.
        line: u32,
        /// The parser's message.
        what: String,
    },
    /// More than a topology needs.
    #[error("line {line}: too many or too long {what}: at most {max} are read")]
    Limit {
        /// Counted from 1.
        line: u32,
        /// What is counted.
        what: &'static str,
        /// The limit.
        max: usize,
    },
    /// Nothing, or nothing but comments.
    #[error("line 1: the file is empty or has no element, expected <{expected}>")]
    Empty {
        /// The name expected.
        expected: &'static str,
    },
    /// Another root element.
    #[error("line {line}: the root element is <{found}>, expected <{expected}>")]
    Root {
        /// Counted from 1.
        line: u32,
        /// Name of the root element.
        found: String,
        /// The name expected.
        expected: &'static str,
    },
    /// A required attribute is missing.
    #[error("line {line}: <{element}> lacks the attribute {attribute}")]
    Missing {
        /// Counted from 1.
        line: u32,
        /// The element.
        element: String,
        /// The attribute.
        attribute: &'static str,
    },
    /// An attribute's value has another type or is out of range.
    #[error("line {line}: <{element} {attribute}=\"{value}\">: expected {expected}")]
    Value {
        /// Counted from 1.
        line: u32,
        /// The element.
        element: String,
        /// The attribute.
        attribute: &'static str,
        /// The value.
        value: String,
        /// The expected form.
        expected: &'static str,
    },
    /// A network device that is given twice, and not as the same: NCCL writes one without a PCI device below the CPU of every rank.
    #[error(
        "line {line}: dev=\"{dev}\" was already given on line {first}, where its {attribute} is {before} instead of {now}"
    )]
    Contradiction {
        /// Counted from 1.
        line: u32,
        /// The network device.
        dev: u32,
        /// Line of the first.
        first: u32,
        /// The attribute that differs.
        attribute: &'static str,
        /// Its value on the first line.
        before: String,
        /// Its value on this line.
        now: String,
    },
    /// Two elements with the same identity.
    #[error("line {line}: {attribute}=\"{value}\" was already given on line {first}")]
    Duplicate {
        /// Counted from 1.
        line: u32,
        /// The attribute that identifies elements.
        attribute: &'static str,
        /// Its value.
        value: String,
        /// Line of the first.
        first: u32,
    },
}

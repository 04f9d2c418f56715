//! The header and the index of the file.
//!
//! ```text
//! 0    "OXCCLPTX"
//! 8    format, u32, little endian
//! 12   length of the index, u32, little endian
//! 16   the index, JSON
//! ..   zeros up to a multiple of 64: the first image, from which offsets count
//! ```

use super::error::Defect;
use serde::Deserialize;
use std::collections::HashSet;

pub const HEADER_BYTES: u64 = 16;
const MAGIC: [u8; 8] = *b"OXCCLPTX";
const FORMAT: u32 = 1;
const ALIGN: u64 = 64;
/// A hundred times that of 500 kernels for four generations.
const INDEX_BYTES_MAX: u64 = 64 << 20;
/// Most bytes of one read.
const IMAGE_BYTES_MAX: u64 = 256 << 20;

/// A defect and its offset.
type Located = (u64, Defect);

/// The first 16 bytes.
#[derive(Debug)]
pub struct Header {
    pub index_bytes: u64,
}

impl Header {
    /// Parses the first [`HEADER_BYTES`] of a file of `file_bytes`.
    pub fn parse(head: &[u8], file_bytes: u64) -> Result<Header, Located> {
        let short = || (head.len() as u64, Defect::Truncated { wanted_bytes: HEADER_BYTES });
        let (magic, rest) = head.split_first_chunk::<8>().ok_or_else(short)?;
        let (format, rest) = rest.split_first_chunk::<4>().ok_or_else(short)?;
        let (length, _) = rest.split_first_chunk::<4>().ok_or_else(short)?;
        if *magic != MAGIC {
            return Err((0, Defect::Magic { found: *magic }));
        }
        let found = u32::from_le_bytes(*format);
        if found != FORMAT {
            return Err((8, Defect::Version { found, expected: FORMAT }));
        }
        let index_bytes = u64::from(u32::from_le_bytes(*length));
        if index_bytes > INDEX_BYTES_MAX {
            return Err((12, Defect::IndexTooLong { bytes: index_bytes, bytes_max: INDEX_BYTES_MAX }));
        }
        if HEADER_BYTES + index_bytes > file_bytes {
            return Err((file_bytes, Defect::Truncated { wanted_bytes: HEADER_BYTES + index_bytes }));
        }
        Ok(Header { index_bytes })
    }
}

/// The content of the file.
#[derive(Debug, Deserialize)]
pub struct Index {
    pub compiler: String,
    pub commit: String,
    /// `ABI_DIGEST` of the build, in hexadecimal; early bundles have none.
    #[serde(default)]
    pub abi: String,
    pub modules: Vec<ModuleRecord>,
    /// Offset of the first image in the file.
    #[serde(skip)]
    pub images_start: u64,
}

/// One module for one generation.
#[derive(Debug, Deserialize)]
pub struct ModuleRecord {
    pub name: String,
    pub sm: u32,
    pub entries: Vec<EntryFacts>,
    pub ptx: Span,
    pub cubin: Option<Span>,
}

/// The build's facts about a kernel. Figures from the assembler are 0 if the build had none.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct EntryFacts {
    /// The driver's name of it.
    pub name: String,
    /// Most threads of a block; 0 if the kernel states no bound.
    #[serde(default)]
    pub max_threads: u32,
    /// Registers of each thread.
    #[serde(default)]
    pub registers: u32,
    /// Static shared memory of each block, in bytes.
    #[serde(default)]
    pub shared_bytes: u32,
    /// Stack of each thread, in bytes.
    #[serde(default)]
    pub stack_bytes: u32,
}

/// The place of an image.
#[derive(Debug, Deserialize)]
pub struct Span {
    /// Offset from the first image.
    pub offset: u64,
    pub bytes: u64,
    #[serde(deserialize_with = "hash")]
    pub sha256: [u8; 32],
}

impl Index {
    /// Parses the bytes after the header.
    pub fn parse(text: &[u8], header: &Header, file_bytes: u64) -> Result<Index, Located> {
        let mut index: Index = serde_json::from_slice(text).map_err(|error| {
            // The column counts from 1, and the index is one line.
            let offset = HEADER_BYTES + (error.column() as u64).saturating_sub(1);
            (offset, Defect::Index(error.to_string()))
        })?;
        index.images_start = (HEADER_BYTES + header.index_bytes).next_multiple_of(ALIGN);
        let mut names = HashSet::new();
        for module in &index.modules {
            let twice = |name: &str| (HEADER_BYTES, Defect::Twice { name: name.into(), sm: module.sm });
            if !names.insert((module.sm, "module", module.name.as_str())) {
                return Err(twice(&module.name));
            }
            for entry in &module.entries {
                if !names.insert((module.sm, "entry", entry.name.as_str())) {
                    return Err(twice(&entry.name));
                }
            }
            for span in [Some(&module.ptx), module.cubin.as_ref()].into_iter().flatten() {
                index.check_span(module, span, file_bytes)?;
            }
        }
        Ok(index)
    }

    fn check_span(&self, module: &ModuleRecord, span: &Span, file_bytes: u64) -> Result<(), Located> {
        let Span { offset, bytes, .. } = *span;
        let end = self.images_start.checked_add(offset).and_then(|start| start.checked_add(bytes));
        if bytes <= IMAGE_BYTES_MAX && end.is_some_and(|end| end <= file_bytes) {
            return Ok(());
        }
        let (name, sm) = (module.name.clone(), module.sm);
        Err((HEADER_BYTES, Defect::Outside { module: name, sm, offset, bytes, file_bytes }))
    }
}

/// 64 hexadecimal digits.
fn hash<'de, D: serde::Deserializer<'de>>(from: D) -> Result<[u8; 32], D::Error> {
    let text = std::borrow::Cow::<str>::deserialize(from)?;
    let wrong = || serde::de::Error::custom("a SHA-256 was expected, 64 hexadecimal digits");
    let digits: Option<Vec<u8>> = text.chars().map(|c| c.to_digit(16).map(|digit| digit as u8)).collect();
    let digits = digits.filter(|digits| digits.len() == 64).ok_or_else(wrong)?;
    Ok(std::array::from_fn(|i| digits[2 * i] << 4 | digits[2 * i + 1]))
}

//! Bundle errors, with advice for the user.

use std::fmt;
use std::io::ErrorKind;
use std::path::PathBuf;

/// Why a kernel is unavailable.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BundleError {
    /// No bundle was found.
    #[error(
        "no GPU kernels: {} not there; build them with `cargo xtask build-ptx`, or say where they are with \
         OXCCL_PTX_PATH; a program that carries its kernels is built with the feature embed-kernels, or gives a bundle to the builder",
        Listed(tried)
    )]
    NotFound {
        /// The paths tried, in order.
        tried: Vec<PathBuf>,
    },
    /// The operating system could not read it.
    #[error("{}, byte {offset}: {kind}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The offset of the read.
        offset: u64,
        /// The system's error.
        kind: ErrorKind,
    },
    /// The file is not in the format of `cargo xtask build-ptx`.
    #[error("{}, byte {offset}: {defect}; build it again with `cargo xtask build-ptx`", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Offset of the defect.
        offset: u64,
        /// The defect.
        defect: Defect,
    },
    /// Kernels of another version of this library, with other memory layouts.
    #[error(
        "{} is of another version of this library: built from commit {commit} with the memory layouts {}, where this library has {expected}; \
         build it again with `cargo xtask build-ptx`",
        path.display(), if found.is_empty() { "of before they were numbered" } else { found }
    )]
    OtherAbi {
        /// The file.
        path: PathBuf,
        /// Its digest of layouts.
        found: String,
        /// The library's.
        expected: String,
        /// The commit that the file was built from.
        commit: String,
    },
    /// The kernel is in no module.
    #[error(
        "{} has no kernel {entry}: it was built from other sources than this library, or with --only; \
         build it again with `cargo xtask build-ptx`",
        path.display()
    )]
    NoEntry {
        /// The file.
        path: PathBuf,
        /// The kernel.
        entry: String,
    },
    /// The kernel exists for later GPUs only.
    #[error(
        "{} has {entry} for {} and later; the device is sm_{sm}: `cargo xtask build-ptx --sm {sm}`{}",
        path.display(), Generations(built), TooOld(*sm)
    )]
    NoTarget {
        /// The file.
        path: PathBuf,
        /// The kernel.
        entry: String,
        /// The device's compute capability: 90 is 9.0.
        sm: u32,
        /// The capabilities for which the file has it.
        built: Vec<u32>,
    },
}

/// A defect of a file.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Defect {
    /// It ends early.
    #[error("the file ends here, where {wanted_bytes} bytes were expected")]
    Truncated {
        /// The number of expected bytes, from the start of the missing part.
        wanted_bytes: u64,
    },
    /// Another kind of file.
    #[error("not a bundle of kernels (it starts with {found:02x?})")]
    Magic {
        /// Its first bytes.
        found: [u8; 8],
    },
    /// Written by another version.
    #[error("format {found}, this library reads {expected}")]
    Version {
        /// The file's.
        found: u32,
        /// The library's.
        expected: u32,
    },
    /// The index is longer than any real one.
    #[error("an index of {bytes} bytes, at most {bytes_max} are allowed")]
    IndexTooLong {
        /// Its length.
        bytes: u64,
        /// The limit.
        bytes_max: u64,
    },
    /// The index is malformed.
    #[error("the index: {0}")]
    Index(String),
    /// An image lies outside the file, or is longer than any real one.
    #[error(
        "module {module} for sm_{sm}: its image of {bytes} bytes at {offset} does not fit a file of {file_bytes}"
    )]
    Outside {
        /// The module.
        module: String,
        /// Its generation.
        sm: u32,
        /// Relative to the first image.
        offset: u64,
        /// Its length.
        bytes: u64,
        /// The file's.
        file_bytes: u64,
    },
    /// Two modules or kernels of one name.
    #[error("{name} is there twice for sm_{sm}")]
    Twice {
        /// The name.
        name: String,
        /// Its generation.
        sm: u32,
    },
    /// An image's bytes do not match the hash.
    #[error("module {module} for sm_{sm}: the bytes have changed since they were written")]
    Hash {
        /// The module.
        module: String,
        /// Its generation.
        sm: u32,
    },
    /// PTX without its zero byte.
    #[error("module {module}: its PTX has no zero byte at the end")]
    Unterminated {
        /// The module.
        module: String,
    },
}

struct Listed<'a>(&'a [PathBuf]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, path) in self.0.iter().enumerate() {
            write!(f, "{}{}", if i == 0 { "" } else { ", " }, path.display())?;
        }
        f.write_str(if self.0.len() == 1 { " is" } else { " are" })
    }
}

struct Generations<'a>(&'a [u32]);

impl fmt::Display for Generations<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, sm) in self.0.iter().enumerate() {
            write!(f, "{}sm_{sm}", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// The oldest generation whose loads and stores have an order.
const SM_MIN: u32 = 70;

struct TooOld(u32);

impl fmt::Display for TooOld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 < SM_MIN {
            true => f.write_str(" will not help: the oldest that can run them is sm_70"),
            false => Ok(()),
        }
    }
}

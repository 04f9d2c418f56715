//! Layer: host / gpu / bundle, a leaf.
//! Takes: the file that `cargo xtask build-ptx` writes, with every kernel for every GPU generation.
//! Gives: where that file is, and from it the images that hold a kernel for a device, best first, each read when asked for.
//! Never: calls the driver; trusts the file: what lies outside it, or is not what was written, is an error with an offset.
//!
//! An image is read with `pread` and not mapped: it is copied once by the driver anyway, and a file that somebody truncates
//! is then an error instead of a signal.

mod error;
#[cfg(any(feature = "embed-kernels", test))]
#[cfg_attr(not(test), allow(dead_code, reason = "the build script encodes"))]
mod renumber;
#[cfg(any(feature = "embed-kernels", test))]
#[cfg_attr(not(test), allow(dead_code, reason = "the build script packs"))]
mod packed;
mod embedded;
mod find;
mod index;

pub use error::{BundleError, Defect};
pub use find::find_bundle;
pub use index::EntryFacts;

use index::{HEADER_BYTES, Header, Index, ModuleRecord, Span};
use oxccl_shared::abi::ABI_DIGEST;
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The kernels that a process may load.
#[derive(Debug)]
pub struct Bundle {
    path: PathBuf,
    source: Source,
    index: Index,
    digest: [u8; 32],
}

#[derive(Debug)]
enum Source {
    File(File),
    Bytes(Cow<'static, [u8]>),
}

/// The form of an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ImageForm {
    /// For one major compute capability; loads without compilation.
    MachineCode,
    /// For a compute capability and all later ones; the driver compiles it, which takes seconds, and caches the result.
    Ptx,
}

/// An image that contains a kernel for a device; [`Bundle::read`] reads it.
#[derive(Clone, Copy, Debug)]
pub struct Image<'a> {
    module: &'a ModuleRecord,
    span: &'a Span,
    form: ImageForm,
}

impl<'a> Image<'a> {
    /// The module, for example `all_reduce_ring_ll_f32`: kernels of one module are loaded together.
    pub fn module(&self) -> &'a str {
        &self.module.name
    }

    /// The compute capability it was built for: 90 is 9.0.
    pub fn sm(&self) -> u32 {
        self.module.sm
    }

    /// Its form.
    pub fn form(&self) -> ImageForm {
        self.form
    }

    /// Its length. PTX ends with a zero byte, which is included.
    pub fn bytes(&self) -> u64 {
        self.span.bytes
    }

    /// The build's facts about one of its kernels. Registers and memory are those of this generation's machine code.
    pub fn entry(&self, name: &str) -> Option<&'a EntryFacts> {
        self.module.entries.iter().find(|entry| entry.name == name)
    }
}

impl Bundle {
    /// Opens a file and checks its index; images are read later.
    ///
    /// # Errors
    /// [`BundleError::Io`], [`BundleError::Malformed`].
    pub fn open(path: &Path) -> Result<Bundle, BundleError> {
        let io = |offset: u64, error: &std::io::Error| BundleError::Io {
            path: path.into(),
            offset,
            kind: error.kind(),
        };
        let file = File::open(path).map_err(|error| io(0, &error))?;
        let file_bytes = file.metadata().map_err(|error| io(0, &error))?.len();
        Bundle::parse(path.into(), Source::File(file), file_bytes)
    }

    /// The same from memory, for programs that embed their kernels (`include_bytes!`). `name` replaces the path in
    /// errors.
    ///
    /// # Errors
    /// [`BundleError::Malformed`].
    pub fn from_bytes(name: &str, bytes: impl Into<Cow<'static, [u8]>>) -> Result<Bundle, BundleError> {
        let bytes = bytes.into();
        let file_bytes = bytes.len() as u64;
        Bundle::parse(name.into(), Source::Bytes(bytes), file_bytes)
    }

    fn parse(path: PathBuf, source: Source, file_bytes: u64) -> Result<Bundle, BundleError> {
        let malformed = |(offset, defect)| BundleError::Malformed { path: path.clone(), offset, defect };
        if file_bytes < HEADER_BYTES {
            return Err(malformed((file_bytes, Defect::Truncated { wanted_bytes: HEADER_BYTES })));
        }
        let head = source.read(&path, 0, HEADER_BYTES)?;
        let header = Header::parse(&head, file_bytes).map_err(malformed)?;
        let text = source.read(&path, HEADER_BYTES, header.index_bytes)?;
        let index = Index::parse(&text, &header, file_bytes).map_err(malformed)?;
        let digest = Sha256::digest(&text).into();
        Ok(Bundle { path, source, index, digest })
    }

    /// The same bundle, if its kernels have this library's memory layouts. Others would read one field as another.
    ///
    /// # Errors
    /// [`BundleError::OtherAbi`].
    pub fn for_this_library(self) -> Result<Bundle, BundleError> {
        self.check_abi().map(|()| self)
    }

    /// Whether its kernels have this library's memory layouts.
    ///
    /// # Errors
    /// [`BundleError::OtherAbi`].
    pub fn check_abi(&self) -> Result<(), BundleError> {
        let expected = format!("{ABI_DIGEST:016x}");
        if self.index.abi == expected {
            return Ok(());
        }
        let (path, found, commit) = (self.path.clone(), self.index.abi.clone(), self.index.commit.clone());
        Err(BundleError::OtherAbi { path, found, expected, commit })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// SHA-256 of the index, which has that of every image, in hexadecimal digits: two bundles with the same have the same kernels.
    pub fn digest(&self) -> String {
        self.digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The compiler that made the kernels, as `rustc --version` prints it.
    pub fn compiler(&self) -> &str {
        &self.index.compiler
    }

    /// The commit of the sources, with `-dirty` if they had changes.
    pub fn commit(&self) -> &str {
        &self.index.commit
    }

    /// Every kernel for every generation: name and compute capability.
    pub fn entries(&self) -> impl Iterator<Item = (&str, u32)> {
        let modules = self.index.modules.iter();
        modules.flat_map(|module| module.entries.iter().map(|entry| (entry.name.as_str(), module.sm)))
    }

    /// The images that contain the kernel `entry` and run on a device of compute capability `sm` (90 is 9.0), best
    /// first: machine code, which runs on its own major capability from its own minor one up, then PTX, which runs on
    /// anything later. The loader tries them in turn: a driver older than the assembler refuses machine code that
    /// fits.
    ///
    /// # Errors
    /// [`BundleError::NoEntry`], [`BundleError::NoTarget`].
    pub fn images(&self, entry: &str, sm: u32) -> Result<Vec<Image<'_>>, BundleError> {
        let holds = |module: &&ModuleRecord| module.entries.iter().any(|known| known.name == entry);
        let holders: Vec<&ModuleRecord> = self.index.modules.iter().filter(holds).collect();
        let built: Vec<u32> = holders.iter().map(|module| module.sm).collect();
        let (path, entry) = (|| self.path.clone(), || entry.to_owned());
        if holders.is_empty() {
            return Err(BundleError::NoEntry { path: path(), entry: entry() });
        }
        let mut fitting: Vec<&ModuleRecord> = holders.into_iter().filter(|module| module.sm <= sm).collect();
        fitting.sort_by_key(|module| std::cmp::Reverse(module.sm));
        let code = fitting.iter().filter(|module| module.sm / 10 == sm / 10).filter_map(|module| {
            let span = module.cubin.as_ref()?;
            Some(Image { module, span, form: ImageForm::MachineCode })
        });
        let ptx = fitting.iter().map(|module| Image { module, span: &module.ptx, form: ImageForm::Ptx });
        let images: Vec<Image> = code.chain(ptx).collect();
        if images.is_empty() {
            return Err(BundleError::NoTarget { path: path(), entry: entry(), sm, built });
        }
        Ok(images)
    }

    /// An image's bytes, compared with the hash in the index.
    ///
    /// # Errors
    /// [`BundleError::Io`], [`BundleError::Malformed`].
    pub fn read(&self, image: &Image<'_>) -> Result<Vec<u8>, BundleError> {
        let Span { offset, bytes, sha256 } = image.span;
        let at = self.index.images_start + offset;
        let contents = self.source.read(&self.path, at, *bytes)?.into_owned();
        let malformed = |defect| BundleError::Malformed { path: self.path.clone(), offset: at, defect };
        if Sha256::digest(&contents)[..] != sha256[..] {
            return Err(malformed(Defect::Hash { module: image.module.name.clone(), sm: image.module.sm }));
        }
        // The driver reads PTX up to a zero byte.
        if image.form == ImageForm::Ptx && contents.last() != Some(&0) {
            return Err(malformed(Defect::Unterminated { module: image.module.name.clone() }));
        }
        Ok(contents)
    }
}

impl Source {
    /// `bytes` from `offset` on; the caller has checked that they lie in the file.
    fn read(&self, path: &Path, offset: u64, bytes: u64) -> Result<Cow<'_, [u8]>, BundleError> {
        let short = || BundleError::Io { path: path.into(), offset, kind: std::io::ErrorKind::UnexpectedEof };
        let length = usize::try_from(bytes).map_err(|_| short())?;
        match self {
            Source::Bytes(all) => {
                let start = usize::try_from(offset).map_err(|_| short())?;
                let part = start.checked_add(length).and_then(|end| all.get(start..end));
                part.map(Cow::Borrowed).ok_or_else(short)
            }
            Source::File(file) => {
                let mut contents = vec![0; length];
                let read = file.read_exact_at(&mut contents, offset);
                read.map_err(|error| BundleError::Io { path: path.into(), offset, kind: error.kind() })?;
                Ok(Cow::Owned(contents))
            }
        }
    }
}

#[cfg(test)]
mod tests;

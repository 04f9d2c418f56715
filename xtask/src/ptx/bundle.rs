//! Layer: xtask / ptx.
//! Takes: modules with their PTX and machine code.
//! Gives: `oxccl.oxptx`, the one file that the library opens at run time; docs/ptx.md has its form.
//! Never: reads one; `host/src/gpu/bundle` does, and a test here makes the two meet.

use super::manifest::{Entry, Origin};
use super::ptxas::hex;
use anyhow::{Context, Result};
use serde::Serialize;
use sha2::{Digest, Sha256};

const MAGIC: &[u8; 8] = b"OXCCLPTX";
const VERSION: u32 = 1;
/// Magic, version, length of the index.
const HEADER_BYTES: usize = 16;
/// Each image starts at a multiple of this; the driver wants machine code aligned.
const ALIGN: usize = 64;

/// A module to pack.
pub struct Packed<'a> {
    pub name: &'a str,
    pub sm: u32,
    pub entries: &'a [Entry],
    pub ptx: &'a str,
    pub cubin: Option<&'a [u8]>,
}

#[derive(Serialize)]
struct Index<'a> {
    #[serde(flatten)]
    origin: &'a Origin,
    modules: Vec<Module<'a>>,
}

#[derive(Serialize)]
struct Module<'a> {
    name: &'a str,
    sm: u32,
    entries: &'a [Entry],
    ptx: Image,
    cubin: Option<Image>,
}

/// Where bytes lie, counted from the first image.
#[derive(Serialize)]
struct Image {
    offset: u64,
    bytes: u64,
    sha256: String,
}

/// The file's contents.
pub fn pack(origin: &Origin, modules: &[Packed]) -> Result<Vec<u8>> {
    let mut images = Vec::new();
    let mut put = |contents: &[&[u8]]| {
        images.resize(images.len().next_multiple_of(ALIGN), 0);
        let offset = images.len();
        contents.iter().for_each(|part| images.extend_from_slice(part));
        let sha256 = hex(&Sha256::digest(&images[offset..]));
        Image { offset: offset as u64, bytes: (images.len() - offset) as u64, sha256 }
    };
    let modules = modules
        .iter()
        .map(|module| Module {
            name: module.name,
            sm: module.sm,
            entries: module.entries,
            // The driver takes PTX as a C string.
            ptx: put(&[module.ptx.as_bytes(), b"\0"]),
            cubin: module.cubin.map(|code| put(&[code])),
        })
        .collect();
    let index = serde_json::to_vec(&Index { origin, modules })?;
    let index_bytes = u32::try_from(index.len()).context("the index is longer than 4 GiB")?;
    let mut file = Vec::with_capacity(HEADER_BYTES + index.len() + ALIGN + images.len());
    file.extend_from_slice(MAGIC);
    file.extend_from_slice(&VERSION.to_le_bytes());
    file.extend_from_slice(&index_bytes.to_le_bytes());
    file.extend_from_slice(&index);
    file.resize(file.len().next_multiple_of(ALIGN), 0);
    file.extend_from_slice(&images);
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ptx::usage::Usage;
    use oxccl::cuda::bundle::{Bundle, ImageForm};

    fn origin() -> Origin {
        Origin {
            compiler: "rustc 1.97".into(),
            llvm: "22.1".into(),
            ptxas: None,
            commit: "abc-dirty".into(),
            source_sha256: hex(&[7; 32]),
            abi: format!("{:016x}", oxccl_shared::abi::ABI_DIGEST),
        }
    }

    #[test]
    fn the_library_reads_what_is_written() {
        let usage = Usage {
            name: "oxccl_reduce_ring_ll_f32".into(),
            registers: 40,
            shared_bytes: 1024,
            stack_bytes: 8,
            max_threads: 640,
            ..Usage::default()
        };
        let (entries, named) =
            ([Entry::Assembled(usage)], [Entry::Named { name: "oxccl_send_recv_ll".into(), max_threads: 0 }]);
        let packed = |sm, cubin| Packed { name: "reduce_f32", sm, entries: &entries, ptx: ".version", cubin };
        let other = Packed { name: "send_recv", sm: 90, entries: &named, ptx: "// no code", cubin: None };
        let file = pack(&origin(), &[packed(70, None), packed(90, Some(b"code")), other]).unwrap();
        let bundle = Bundle::from_bytes("made here", file).unwrap();
        assert_eq!((bundle.compiler(), bundle.commit()), ("rustc 1.97", "abc-dirty"));
        let images = bundle.images("oxccl_reduce_ring_ll_f32", 90).unwrap();
        let read: Vec<(ImageForm, Vec<u8>)> =
            images.iter().map(|image| (image.form(), bundle.read(image).unwrap())).collect();
        let ptx = || (ImageForm::Ptx, b".version\0".to_vec());
        assert_eq!(read, [(ImageForm::MachineCode, b"code".to_vec()), ptx(), ptx()]);
        let facts = images[0].entry("oxccl_reduce_ring_ll_f32").unwrap();
        assert_eq!(
            (facts.registers, facts.shared_bytes, facts.stack_bytes, facts.max_threads),
            (40, 1024, 8, 640)
        );
        assert_eq!(bundle.images("oxccl_send_recv_ll", 90).unwrap()[0].module(), "send_recv");
    }
}

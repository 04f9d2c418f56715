//! The kernels: whether they fit this library, and which they are.

use anyhow::{Context, Result, ensure};
use oxccl_shared::abi::ABI_DIGEST;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::fmt;

/// Magic, version, length of the index.
const HEADER_BYTES: usize = 16;

/// What a bundle says of itself.
pub struct Facts {
    /// Of the index, which has a hash of every image.
    pub digest: String,
    commit: String,
    compiler: String,
    generations: BTreeSet<u32>,
}

#[derive(Deserialize)]
struct Index {
    abi: String,
    commit: String,
    compiler: String,
    modules: Vec<Module>,
}

#[derive(Deserialize)]
struct Module {
    sm: u32,
}

/// Of a bundle with this checkout's memory layouts; another would be refused by the library that is packed with it.
pub fn facts(file: &[u8]) -> Result<Facts> {
    ensure!(file.starts_with(b"OXCCLPTX") && file.len() >= HEADER_BYTES, "it is no bundle of kernels");
    let bytes = u32::from_le_bytes(file[12..HEADER_BYTES].try_into().expect("four bytes")) as usize;
    let text = file.get(HEADER_BYTES..HEADER_BYTES + bytes).context("its index is cut off")?;
    let index: Index = serde_json::from_slice(text).context("its index")?;
    let ours = format!("{ABI_DIGEST:016x}");
    ensure!(
        index.abi == ours,
        "its kernels have other memory layouts ({}) than this library ({ours}); `cargo xtask build-ptx` makes new ones",
        index.abi
    );
    let digest = crate::ptx::hex(&Sha256::digest(text));
    let generations = index.modules.iter().map(|module| module.sm).collect();
    Ok(Facts { digest, commit: index.commit, compiler: index.compiler, generations })
}

impl fmt::Display for Facts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let generations: Vec<String> = self.generations.iter().map(|sm| format!("sm_{sm}")).collect();
        write!(
            f,
            "kernels {}\nkernels' GPUs {}\nkernels' compiler {}\nkernels' commit {}",
            self.digest,
            generations.join(", "),
            self.compiler,
            self.commit
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bundle(abi: &str) -> Vec<u8> {
        let index = format!(r#"{{"compiler":"none","commit":"test","abi":"{abi}","modules":[{{"sm":90}}]}}"#);
        let mut file = b"OXCCLPTX\x01\0\0\0".to_vec();
        file.extend_from_slice(&(index.len() as u32).to_le_bytes());
        file.extend_from_slice(index.as_bytes());
        file
    }

    #[test]
    fn kernels_of_another_layout_are_refused() {
        let ours = format!("{ABI_DIGEST:016x}");
        let facts = facts(&bundle(&ours)).unwrap();
        assert!(facts.digest.len() == 64 && facts.to_string().contains("sm_90"));
        let file = crate::ptx::without_kernels().unwrap();
        let read = oxccl::cuda::bundle::Bundle::from_bytes("made here", file.clone()).unwrap();
        assert_eq!(super::facts(&file).unwrap().digest, read.digest());
        for (wrong, why) in [(bundle("0"), "memory layouts"), (b"nothing".to_vec(), "no bundle")] {
            assert!(super::facts(&wrong).err().expect("refused").to_string().contains(why));
        }
        let whole = bundle(&ours);
        assert!(super::facts(&whole[..40]).is_err());
    }
}

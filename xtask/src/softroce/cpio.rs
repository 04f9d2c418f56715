//! An initramfs: a cpio archive in the "newc" format, which the kernel unpacks (Documentation/driver-api/early-userspace).

use anyhow::{Context, Result, bail};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Component, Path};

/// An archive being written. Parents of what is added are added before it.
pub struct Archive<W> {
    to: W,
    written_bytes: u64,
    entries: u32,
    paths: BTreeSet<String>,
}

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;

impl<W: Write> Archive<W> {
    pub fn new(to: W) -> Archive<W> {
        Archive { to, written_bytes: 0, entries: 0, paths: BTreeSet::new() }
    }

    /// Whether there is something at `path`.
    pub fn has(&self, path: &str) -> bool {
        self.paths.contains(path.trim_start_matches('/'))
    }

    pub fn directory(&mut self, path: &str) -> Result<()> {
        self.ancestors(&format!("{path}/its-content"))
    }

    /// A file of these bytes that may be run.
    pub fn text(&mut self, path: &str, bytes: &[u8]) -> Result<()> {
        self.ancestors(path)?;
        self.entry(path, PROGRAM, bytes.len() as u64, bytes)
    }

    /// The host's file `from`, that may be run; nothing if `path` is taken.
    pub fn file(&mut self, path: &str, from: &Path) -> Result<()> {
        if self.has(path) {
            return Ok(());
        }
        let file = File::open(from).with_context(|| format!("cannot read {}", from.display()))?;
        let len = file.metadata()?.len();
        self.ancestors(path)?;
        self.entry(path, PROGRAM, len, file).with_context(|| format!("cannot pack {}", from.display()))
    }

    /// Ends the archive.
    pub fn finish(mut self) -> Result<()> {
        self.entry("TRAILER!!!", 0, 0, &[][..])?;
        Ok(self.to.flush()?)
    }

    fn ancestors(&mut self, path: &str) -> Result<()> {
        let parents: Vec<_> = Path::new(path).ancestors().skip(1).collect();
        for parent in parents.into_iter().rev() {
            let name = parent.to_str().context("a path is not text")?;
            if parent.components().any(|part| matches!(part, Component::Normal(_))) && !self.has(name) {
                self.entry(name, DIRECTORY, 0, &[][..])?;
            }
        }
        Ok(())
    }

    fn entry(&mut self, path: &str, mode: u32, len_bytes: u64, mut from: impl Read) -> Result<()> {
        let name = path.trim_start_matches('/');
        if !self.paths.insert(name.to_owned()) {
            bail!("{path} is in the archive twice");
        }
        let Ok(len) = u32::try_from(len_bytes) else { bail!("{path} has {len_bytes} bytes, too many") };
        self.entries += 1;
        let nlink = if mode == DIRECTORY { 2 } else { 1 };
        // Magic, inode, mode, owner, group, links, time, size, four device numbers, length of the name, no checksum.
        let numbers = [self.entries, mode, 0, 0, nlink, 0, len, 0, 0, 0, 0, name.len() as u32 + 1, 0];
        let mut header = String::from("070701");
        numbers.iter().for_each(|number| header.push_str(&format!("{number:08X}")));
        self.put(header.as_bytes())?;
        self.put(name.as_bytes())?;
        self.put(&[0])?;
        self.pad()?;
        let copied = std::io::copy(&mut from, &mut self.to)?;
        if copied != len_bytes {
            bail!("{path} changed while it was read");
        }
        self.written_bytes += copied;
        self.pad()
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.written_bytes += bytes.len() as u64;
        Ok(self.to.write_all(bytes)?)
    }

    fn pad(&mut self) -> Result<()> {
        let missing = self.written_bytes.next_multiple_of(4) - self.written_bytes;
        self.put(&[0; 4][..missing as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Paths, modes and contents of a newc archive.
    fn read(mut bytes: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let mut entries = Vec::new();
        loop {
            assert_eq!(&bytes[..6], b"070701");
            let field = |i: usize| {
                let text = std::str::from_utf8(&bytes[6 + 8 * i..14 + 8 * i]).expect("hexadecimal");
                u32::from_str_radix(text, 16).expect("hexadecimal")
            };
            let (mode, len, name_len) = (field(1), field(6) as usize, field(11) as usize);
            let name = String::from_utf8(bytes[110..110 + name_len - 1].to_vec()).expect("a name");
            let body = (110 + name_len).next_multiple_of(4);
            if name == "TRAILER!!!" {
                return entries;
            }
            entries.push((name, mode, bytes[body..body + len].to_vec()));
            bytes = &bytes[body + len.next_multiple_of(4)..];
        }
    }

    #[test]
    fn files_come_after_their_directories_and_keep_their_bytes() {
        let mut bytes = Vec::new();
        let mut archive = Archive::new(&mut bytes);
        archive.text("/init", b"hello").unwrap();
        archive.text("/a/b/c", b"xy").unwrap();
        archive.directory("/a/d").unwrap();
        assert!(archive.has("/a/b") && !archive.has("/a/c"));
        archive.finish().unwrap();
        let entries = read(&bytes);
        let names: Vec<&str> = entries.iter().map(|entry| entry.0.as_str()).collect();
        assert_eq!(names, ["init", "a", "a/b", "a/b/c", "a/d"]);
        assert_eq!(entries[3], ("a/b/c".to_owned(), PROGRAM, b"xy".to_vec()));
        assert_eq!(entries[4].1, DIRECTORY);
    }

    #[test]
    fn the_same_path_twice_is_an_error() {
        let mut archive = Archive::new(Vec::new());
        archive.text("/x", b"").unwrap();
        assert!(archive.text("x", b"").is_err());
    }
}

//! Archives that hold the same bytes whoever makes them, and when.

use super::tree::{Node, Tree};
use crate::cmd::Cmd;
use crate::tools::root;
use anyhow::{Context, Result};
use lzma_rust2::{XzOptions, XzWriter};
use std::io::Write;
use tar::{Builder, EntryType, Header};

/// Of xz. More takes longer for a hundredth.
const PRESET: u32 = 6;
/// 1980, the first year that zip files know.
const TIME_MIN: u64 = 315_532_800;

/// The time that all files get: `SOURCE_DATE_EPOCH`, else that of the commit, else the least.
pub fn time() -> Result<u64> {
    if let Ok(text) = std::env::var("SOURCE_DATE_EPOCH") {
        let seconds: u64 = text.parse().context("SOURCE_DATE_EPOCH: seconds since 1970 were expected")?;
        return Ok(seconds.max(TIME_MIN));
    }
    let commit = Cmd::new("git").args("log -1 --format=%ct").probe(&root());
    Ok(commit.and_then(|text| text.trim().parse().ok()).unwrap_or(TIME_MIN).max(TIME_MIN))
}

/// A tar archive, its folders first. All belongs to root.
pub fn tar(tree: &Tree, time: u64) -> Result<Vec<u8>> {
    let mut builder = Builder::new(Vec::new());
    let header = |kind: EntryType, mode: u32, bytes: usize| {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_mtime(time);
        header.set_uid(0);
        header.set_gid(0);
        header.set_size(bytes as u64);
        header
    };
    for folder in tree.folders() {
        builder.append_data(&mut header(EntryType::Directory, 0o755, 0), format!("{folder}/"), &[][..])?;
    }
    for (path, node) in &tree.0 {
        match node {
            Node::File { contents, is_program } => {
                let mode = if *is_program { 0o755 } else { 0o644 };
                builder.append_data(
                    &mut header(EntryType::Regular, mode, contents.len()),
                    path,
                    &contents[..],
                )?;
            }
            Node::Link(target) => {
                builder.append_link(&mut header(EntryType::Symlink, 0o777, 0), path, target)?;
            }
        }
    }
    Ok(builder.into_inner()?)
}

/// Compressed as tar and dpkg of every distribution read it.
pub fn xz(contents: &[u8]) -> Result<Vec<u8>> {
    let mut writer = XzWriter::new(Vec::new(), XzOptions::with_preset(PRESET))?;
    writer.write_all(contents)?;
    Ok(writer.finish()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> Tree<'static> {
        let mut tree = Tree::default();
        tree.program("a/bin/tool", b"code");
        tree.text("a/README", "words");
        tree.link("a/latest", "README");
        tree
    }

    #[test]
    fn the_same_files_make_the_same_bytes() {
        let (first, second) =
            (xz(&tar(&tree(), 1_700_000_000).unwrap()), xz(&tar(&tree(), 1_700_000_000).unwrap()));
        assert_eq!(first.unwrap(), second.unwrap());
        assert_ne!(tar(&tree(), 1_700_000_000).unwrap(), tar(&tree(), 1_700_000_001).unwrap());
    }

    #[test]
    fn entries_have_roots_numbers_and_their_modes() {
        let bytes = tar(&tree(), TIME_MIN).unwrap();
        let mut archive = tar::Archive::new(&bytes[..]);
        let mut seen = Vec::new();
        for entry in archive.entries().unwrap() {
            let entry = entry.unwrap();
            let header = entry.header();
            assert_eq!((header.uid().unwrap(), header.mtime().unwrap()), (0, TIME_MIN));
            seen.push((entry.path().unwrap().display().to_string(), header.mode().unwrap()));
        }
        let expected = [
            ("a/", 0o755),
            ("a/bin/", 0o755),
            ("a/README", 0o644),
            ("a/bin/tool", 0o755),
            ("a/latest", 0o777),
        ];
        assert_eq!(seen, expected.map(|(path, mode)| (String::from(path), mode)));
    }
}

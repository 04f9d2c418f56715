//! Layer: xtask / tidy.
//! Takes: a checkout.
//! Gives: its text files by path, Rust files prepared for searching.
//! Never: looks at what git ignores.

use super::source::Source;
use crate::cmd::Cmd;
use anyhow::{Context, Result};
use std::path::Path;

/// The library crates' sources.
pub const LIBRARY: &[&str] = &["shared/src/", "device/src/", "host/src/"];

/// Every text file of the repository.
pub struct Tree {
    pub files: Vec<File>,
    /// Every path, text or not.
    pub paths: Vec<String>,
}

/// One text file.
pub struct File {
    /// From the root, with `/`.
    pub path: String,
    pub text: String,
    /// Of a `.rs` file.
    pub rust: Option<Source>,
}

impl Tree {
    pub fn read(root: &Path) -> Result<Tree> {
        let list = Cmd::new("git")
            .args("ls-files --cached --others --exclude-standard --deduplicate")
            .probe(root)
            .context("`git ls-files` failed: tidy needs a git checkout and git")?;
        // A file deleted but not yet committed is still listed.
        let paths: Vec<String> =
            list.lines().filter(|path| root.join(path).exists()).map(String::from).collect();
        let mut files = Vec::new();
        for path in &paths {
            let bytes = std::fs::read(root.join(path)).with_context(|| format!("cannot read {path}"))?;
            // Files that are not UTF-8 are no source text.
            if let Ok(text) = String::from_utf8(bytes) {
                files.push(File::new(path, text));
            }
        }
        Ok(Tree { files, paths })
    }

    /// A tree that exists only in a test.
    #[cfg(test)]
    pub fn of(files: &[(&str, &str)]) -> Tree {
        Tree {
            files: files.iter().map(|(path, text)| File::new(path, text.to_string())).collect(),
            paths: files.iter().map(|(path, _)| path.to_string()).collect(),
        }
    }

    /// The Rust files below any of `folders` (each with its closing `/`).
    pub fn rust_below<'a>(&'a self, folders: &'a [&str]) -> impl Iterator<Item = (&'a str, &'a Source)> {
        self.files.iter().filter_map(move |file| {
            let source = file.rust.as_ref()?;
            folders.iter().any(|folder| file.path.starts_with(folder)).then_some((file.path.as_str(), source))
        })
    }

    pub fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    /// Whether a file, or a folder with a file in it, has this path.
    pub fn exists(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        self.paths.iter().any(|known| {
            known.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    }
}

impl File {
    fn new(path: &str, text: String) -> File {
        let rust = path.ends_with(".rs").then(|| Source::new(&text));
        // `mod tests;` under `#[cfg(test)]`, by the name that every crate here gives it.
        let rust = rust.map(|source| if is_tests_module(path) { source.all_tests() } else { source });
        File { path: path.into(), text, rust }
    }
}

fn is_tests_module(path: &str) -> bool {
    path.ends_with("/tests.rs") || path.contains("/tests/") || path.starts_with("tests/")
}

//! Layer: tune.
//! Takes: where the file is to be, and its text.
//! Gives: the file, whole: until the new one is complete the old one stays, with the tables of other runs in it.
//! Never: waits for the end of a run to find out that nothing can be written there.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Whether a file can be put there.
pub fn probe(path: &Path) -> io::Result<()> {
    let (_, beside) = open_beside(path)?;
    std::fs::remove_file(beside)
}

/// Writes a file, replacing an older one at once.
pub fn replace(path: &Path, text: &str) -> io::Result<()> {
    let (mut file, beside) = open_beside(path)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    let done = written.and_then(|()| std::fs::rename(&beside, target(path)));
    if done.is_err() {
        // Half a file is of no use; the error says what happened.
        let _ = std::fs::remove_file(&beside);
    }
    done
}

/// Where a link leads.
fn target(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// A new file in the same directory, and its name.
fn open_beside(path: &Path) -> io::Result<(File, PathBuf)> {
    let target = target(path);
    let name = target.file_name().ok_or_else(|| io::Error::other("it has no file name"))?;
    let name = format!(".{}.{}", name.to_string_lossy(), std::process::id());
    let beside = target.with_file_name(name);
    let file = OpenOptions::new().write(true).create(true).truncate(true).open(&beside)?;
    Ok((file, beside))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<String> = entries.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_replaced_whole_and_nothing_else_stays() {
        let directory = tempfile::tempdir().unwrap();
        let (file, link) = (directory.path().join("a.toml"), directory.path().join("link.toml"));
        probe(&file).unwrap();
        assert!(names(directory.path()).is_empty());
        replace(&file, "one").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        replace(&link, "two").unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "two");
        assert!(link.is_symlink());
        // A folder: no file can replace it.
        let taken = directory.path().join("taken");
        std::fs::create_dir_all(taken.join("inside")).unwrap();
        assert!(replace(&taken, "three").is_err());
        assert_eq!(names(directory.path()), ["a.toml", "link.toml", "taken"]);
    }
}

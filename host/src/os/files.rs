//! Files that a user names.

use super::with_room;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens a regular file, or where a link leads to one, to read it. Anything else may have no end, or nobody who writes it.
///
/// # Errors
/// The system's; [`io::ErrorKind::InvalidInput`] for what is no regular file.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    // Else the call would wait for a pipe's writer; a regular file does not mind.
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = with_room(|| OpenOptions::new().read(true).custom_flags(flags).open(path))?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file, and nothing else is read"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use std::io::Read;
    use std::os::unix::fs::symlink;

    #[test]
    fn only_regular_files_are_opened_and_nothing_is_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        std::fs::write(at("file"), "text").unwrap();
        symlink(at("file"), at("link")).unwrap();
        mknodat(CWD, at("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        symlink(at("pipe"), at("link to the pipe")).unwrap();
        for name in ["file", "link"] {
            let mut text = String::new();
            open_regular(&at(name)).unwrap().read_to_string(&mut text).unwrap();
            assert_eq!(text, "text");
        }
        for path in [at("pipe"), at("link to the pipe"), at(""), "/dev/null".into(), "/dev/zero".into()] {
            let error = open_regular(&path).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{}", path.display());
        }
        assert_eq!(open_regular(&at("nothing")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}

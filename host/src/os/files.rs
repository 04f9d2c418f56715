//! Files named by the user.

use super::with_room;
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens a regular file, possibly through a link, for reading. Other files may be endless, or have no writer.
///
/// # Errors
/// The operating system's; [`io::ErrorKind::InvalidInput`] if it is no regular file.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    // Otherwise the call would wait for a pipe's writer; regular files ignore the flag.
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = with_room(|| OpenOptions::new().read(true).custom_flags(flags).open(path))?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file, and nothing else is read"))
}

/// Creates or empties a file for writing. A pipe that nobody reads is refused: opening it would wait for a reader.
///
/// # Errors
/// The operating system's.
pub(crate) fn create_at_once(path: &Path) -> io::Result<File> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let open = || OpenOptions::new().write(true).create(true).truncate(true).custom_flags(flags).open(path);
    let file = with_room(open)?;
    // Writing waits as usual.
    rustix::fs::fcntl_setfl(&file, rustix::fs::fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use std::io::{Read, Write};
    use std::os::unix::fs::symlink;

    #[test]
    fn a_pipe_that_nobody_reads_is_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("pipe");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).unwrap();
        assert!(create_at_once(&pipe).is_err());
        let reader = rustix::fs::open(&pipe, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty());
        let written = create_at_once(&pipe).and_then(|mut file| file.write_all(b"line\n"));
        assert!(reader.is_ok() && written.is_ok(), "{written:?}");
        assert!(create_at_once(&directory.path().join("file")).is_ok());
    }

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

//! File descriptors, and advice when they run out.

use super::file_limit;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io;
use std::os::fd::OwnedFd;

/// No file descriptor is left for another file or socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error, serde::Serialize, serde::Deserialize)]
pub enum NoDescriptor {
    /// This process has reached its limit.
    #[error(
        "no file descriptor is left: this process may have {limit} open (RLIMIT_NOFILE); raise the limit (ulimit -n, LimitNOFILE= of a \
         systemd unit, --ulimit nofile= of a container) or close some of the program's own"
    )]
    Process {
        /// Its limit.
        limit: u64,
    },
    /// The operating system has reached its limit for all processes.
    #[error("no file descriptor is left on this host, for any process; raise fs.file-max (sysctl)")]
    Host,
}

impl NoDescriptor {
    /// Recognises such an error.
    pub fn of(error: &io::Error) -> Option<NoDescriptor> {
        match error.raw_os_error()? {
            libc::EMFILE => Some(NoDescriptor::Process { limit: limit() }),
            libc::ENFILE => Some(NoDescriptor::Host),
            _ => None,
        }
    }
}

/// An error of the operating system as text, with advice if there is any.
pub fn describe(error: &io::Error) -> String {
    let advice = NoDescriptor::of(error).map(|none| none.to_string()).or_else(|| file_limit::advice(error));
    advice.unwrap_or_else(|| error.to_string())
}

/// This process's limit of descriptors.
pub(crate) fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Raises the soft limit of open files to the hard one; returns whether that made room. A root holds one connection
/// per rank, and the usual soft limit of 1024 is below the size of a large job.
pub(crate) fn raise_limit() -> bool {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return false;
    }
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).is_ok()
}

/// An error that may mean that descriptors ran out.
pub(crate) trait MayLackRoom {
    /// Whether this process has reached its limit of descriptors.
    fn lacks_room(&self) -> bool;
}

impl MayLackRoom for Errno {
    fn lacks_room(&self) -> bool {
        *self == Errno::MFILE
    }
}

impl MayLackRoom for io::Error {
    fn lacks_room(&self) -> bool {
        self.raw_os_error() == Some(libc::EMFILE)
    }
}

/// Makes a call that needs a descriptor. If none is left, raises the limit and repeats the call, even if the limit is
/// already maximal: another thread may just have raised it.
pub(crate) fn with_room<T, E: MayLackRoom>(mut call: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    match call() {
        Err(error) if error.lacks_room() => {
            raise_limit();
            call()
        }
        done => done,
    }
}

/// Whether so many more files can be opened at this moment.
///
/// # Errors
/// That of the first that cannot.
pub(crate) fn room_for(files: usize) -> io::Result<()> {
    let open = |_| with_room(|| eventfd(0, EventfdFlags::CLOEXEC)).map_err(io::Error::from);
    (0..files).map(open).collect::<io::Result<Vec<OwnedFd>>>().map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_and_the_remedy_are_said() {
        let text = describe(&io::Error::from_raw_os_error(libc::EMFILE));
        assert!(text.contains(&limit().to_string()) && text.contains("ulimit -n"), "{text}");
        assert!(describe(&io::Error::from_raw_os_error(libc::ENFILE)).contains("fs.file-max"));
        let other = io::Error::from_raw_os_error(libc::EACCES);
        assert_eq!((describe(&other), NoDescriptor::of(&other)), (other.to_string(), None));
    }
}

//! File descriptors, and what to do when there is none left.

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io;

/// There is no file descriptor for one more file or socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoDescriptor {
    /// This process has as many as it may.
    #[error(
        "no file descriptor is left: this process may have {limit} open (RLIMIT_NOFILE); raise the limit (ulimit -n, LimitNOFILE= of a \
         systemd unit, --ulimit nofile= of a container) or close some of the program's own"
    )]
    Process {
        /// How many it may have.
        limit: u64,
    },
    /// The operating system has as many as it may, for all processes.
    #[error("no file descriptor is left on this host, for any process; raise fs.file-max (sysctl)")]
    Host,
}

impl NoDescriptor {
    /// Whether that is what an error says.
    pub fn of(error: &io::Error) -> Option<NoDescriptor> {
        match error.raw_os_error()? {
            libc::EMFILE => Some(NoDescriptor::Process { limit: limit() }),
            libc::ENFILE => Some(NoDescriptor::Host),
            _ => None,
        }
    }
}

/// An error of the operating system in words that say what to do, if that is known.
pub(crate) fn said(error: &io::Error) -> String {
    NoDescriptor::of(error).map_or_else(|| error.to_string(), |none| none.to_string())
}

/// How many descriptors this process may have.
fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Raises the soft limit of open files to the hard one; whether that made room. A root holds one connection per rank,
/// and the usual soft limit of 1024 is below the size of a large job.
pub(crate) fn raise_limit() -> bool {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return false;
    }
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).is_ok()
}

/// An error that may be the want of a descriptor.
pub(crate) trait MayLackRoom {
    /// Whether this process has as many descriptors as it may.
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

/// Makes a call that needs a descriptor; again, with a higher limit, if there is none. Again too if the limit is as high as it can
/// be: another thread may just have raised it.
pub(crate) fn with_room<T, E: MayLackRoom>(mut call: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    match call() {
        Err(error) if error.lacks_room() => {
            raise_limit();
            call()
        }
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_and_the_remedy_are_said() {
        let text = said(&io::Error::from_raw_os_error(libc::EMFILE));
        assert!(text.contains(&limit().to_string()) && text.contains("ulimit -n"), "{text}");
        assert!(said(&io::Error::from_raw_os_error(libc::ENFILE)).contains("fs.file-max"));
        let other = io::Error::from_raw_os_error(libc::EACCES);
        assert_eq!((said(&other), NoDescriptor::of(&other)), (other.to_string(), None));
    }
}

//! Where a process is asked: an abstract Unix socket whose name begins with the process's number and ends at random, so that no other
//! user can take it before, and no file is left behind. Who is at the other end, both sides learn from the kernel.

use rustix::net::sockopt::socket_peercred;
use std::io;
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

/// How names begin.
const PREFIX: &str = "oxccl-status-";
/// Where the kernel lists the names of Unix sockets.
const TABLE: &str = "/proc/net/unix";

/// Listens under a new name of this process.
///
/// # Errors
/// The system's.
pub(super) fn listen() -> io::Result<UnixListener> {
    let random = getrandom::u64().map_err(|error| io::Error::other(error.to_string()))?;
    let name = format!("{PREFIX}{}-{random:016x}", std::process::id());
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// The names under which processes of this network namespace listen, each with its address.
///
/// # Errors
/// The kernel's table cannot be read.
pub(super) fn all() -> io::Result<Vec<SocketAddr>> {
    let table = std::fs::read_to_string(TABLE)?;
    // Columns: address, references, protocol, flags, type, state (01: it listens), inode, name. Connections have the listener's name.
    let listening = |line: &str| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let [.., "01", _, name] = columns.as_slice() else { return None };
        Some(name.strip_prefix('@').filter(|name| name.starts_with(PREFIX))?.to_owned())
    };
    let mut names: Vec<String> = table.lines().filter_map(listening).collect();
    names.sort();
    names.dedup();
    Ok(names.into_iter().filter_map(|name| SocketAddr::from_abstract_name(name).ok()).collect())
}

/// The other end of a connection, or who listened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Peer {
    pub uid: u32,
    /// In this process's PID namespace; 0 if it is in another.
    pub pid: u32,
}

/// Who is there.
///
/// # Errors
/// The system's.
pub(super) fn peer(stream: impl AsFd) -> io::Result<Peer> {
    let credentials = socket_peercred(stream)?;
    Ok(Peer { uid: credentials.uid.as_raw(), pid: credentials.pid.as_raw_nonzero().get() as u32 })
}

/// Whether this user may ask: this process's own, or root.
pub(super) fn may_ask(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_listener_is_found_and_both_ends_are_known() {
        let listener = listen().unwrap();
        let own = listener.local_addr().unwrap();
        let name = own.as_abstract_name().unwrap();
        let found = all().unwrap();
        let found =
            found.iter().find(|addr| addr.as_abstract_name() == Some(name)).expect("it is in the table");
        let stream = UnixStream::connect_addr(found).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        let me = Peer { uid: rustix::process::geteuid().as_raw(), pid: std::process::id() };
        assert_eq!((peer(&stream).unwrap(), peer(&accepted).unwrap()), (me, me));
        assert!(may_ask(me.uid) && may_ask(0));
        assert!(!may_ask(me.uid.wrapping_add(1).max(1)));
    }
}

//! Connections to a host and a port that somebody has named, within a time.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Connects to the first of an address's hosts that answers. All of them together have `patience`; looking up the name has no limit but the
/// system's.
pub(crate) fn connect_any(address: impl ToSocketAddrs, patience: Duration) -> io::Result<TcpStream> {
    let mut failed =
        io::Error::new(io::ErrorKind::InvalidInput, "HOST:PORT was expected, of a host that has an address");
    let hosts = address.to_socket_addrs()?;
    let since = Instant::now();
    for at in hosts {
        let left = patience.saturating_sub(since.elapsed());
        if left.is_zero() {
            break;
        }
        match TcpStream::connect_timeout(&at, left) {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

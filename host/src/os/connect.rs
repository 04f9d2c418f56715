//! Connections to a host and a port that somebody has named, within a time.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Connects to the first of these addresses that answers. All of them together have `patience`.
pub(crate) fn connect_any(addresses: &[SocketAddr], patience: Duration) -> io::Result<TcpStream> {
    let mut failed = io::Error::from(io::ErrorKind::TimedOut);
    let since = Instant::now();
    for at in addresses {
        let left = patience.saturating_sub(since.elapsed());
        if left.is_zero() {
            break;
        }
        match TcpStream::connect_timeout(at, left) {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

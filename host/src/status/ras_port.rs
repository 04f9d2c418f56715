//! NCCL's RAS port, which the processes of a user on a host share: the kernel gives each connection to one of them.

use crate::os::{look_up_at, preferred};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen as start, socket_with, sockopt};
use std::io;
use std::net::TcpListener;
use std::time::Duration;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;
/// How long the name may take to be looked up, by the thread that answers everybody.
const LOOK_UP_TAKES: Duration = Duration::from_secs(2);

/// Listens there, beside other processes of this user.
///
/// # Errors
/// The address is none, or another user has the port.
pub(super) fn listen(address: &str) -> io::Result<TcpListener> {
    let address = look_up_at(address, LOOK_UP_TAKES).and_then(preferred)?;
    let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sockopt::set_socket_reuseport(&socket, true)?;
    bind(&socket, &address)?;
    start(&socket, BACKLOG)?;
    Ok(TcpListener::from(socket))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;

    #[test]
    fn two_listen_at_one_port() {
        let first = listen("localhost:0").unwrap();
        let address = first.local_addr().unwrap();
        assert!(address.ip().is_loopback());
        let second = listen(&address.to_string()).unwrap();
        drop(first);
        let _stream = TcpStream::connect(address).unwrap();
        assert!(second.local_addr().unwrap() == address);
        assert!(listen("nowhere").is_err() && listen("").is_err());
    }
}

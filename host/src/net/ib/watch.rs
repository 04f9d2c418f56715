//! The setup socket stays open, without traffic: when it closes, the peer's process is gone. A receiver would never
//! learn that from a device, and a sender only after many seconds of retries.

use std::io;
use std::net::{Shutdown, TcpStream};

/// State of the peer.
#[derive(Debug)]
pub(super) enum PeerState {
    Alive,
    Closed,
    /// It sent something, which violates the protocol.
    UnexpectedData,
    /// The socket failed, for example because the peer's host no longer answers.
    Lost(io::Error),
}

/// The setup socket of a connection.
#[derive(Debug)]
pub(super) struct PeerWatch(TcpStream);

impl PeerWatch {
    /// Watches a non-blocking socket.
    pub(super) fn new(stream: TcpStream) -> PeerWatch {
        PeerWatch(stream)
    }

    pub(super) fn state(&self) -> PeerState {
        match self.0.peek(&mut [0]) {
            Ok(0) => PeerState::Closed,
            Ok(_) => PeerState::UnexpectedData,
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => PeerState::Alive,
                io::ErrorKind::ConnectionReset => PeerState::Closed,
                _ => PeerState::Lost(error),
            },
        }
    }

    /// Closes the socket, so that the peer sees that this end is finished.
    pub(super) fn end(&self) {
        // If the socket is no longer connected, the peer knows already.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn pair() -> (PeerWatch, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let stream = TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
        stream.set_nonblocking(true).expect("an option");
        (PeerWatch::new(stream), listener.accept().expect("a connection").0)
    }

    /// The state that the peer's last action leads to, once the kernel has carried it over.
    fn last_state(watch: &PeerWatch) -> PeerState {
        (0..1000)
            .map(|_| std::thread::sleep(std::time::Duration::from_millis(1)))
            .map(|()| watch.state())
            .find(|state| !matches!(state, PeerState::Alive))
            .expect("something within a second")
    }

    #[test]
    fn a_silent_peer_is_alive_and_a_closed_one_is_not() {
        let (watch, peer) = pair();
        assert!(matches!(watch.state(), PeerState::Alive));
        drop(peer);
        assert!(matches!(last_state(&watch), PeerState::Closed));
    }

    #[test]
    fn a_peer_that_talks_breaks_the_rules() {
        let (watch, mut peer) = pair();
        io::Write::write_all(&mut peer, b"hello").expect("room");
        assert!(matches!(last_state(&watch), PeerState::UnexpectedData));
    }

    #[test]
    fn the_end_of_one_side_is_seen_by_the_other() {
        let (watch, peer) = pair();
        watch.end();
        peer.set_nonblocking(true).expect("an option");
        assert!(matches!(last_state(&PeerWatch::new(peer)), PeerState::Closed));
    }
}

//! The socket on which a connection was made stays open, and nothing is sent on it any more: its end tells that the peer's
//! process is gone, which a receiver would never learn from a device, and a sender only after many seconds of retries.

use std::io;
use std::net::{Shutdown, TcpStream};

/// How the peer seems to be.
#[derive(Debug)]
pub(super) enum Pulse {
    Alive,
    Closed,
    /// It said something, which is against the rules.
    Chatty,
    /// The socket failed, for example because the peer's host no longer answers.
    Lost(io::Error),
}

/// The other end's socket.
#[derive(Debug)]
pub(super) struct PeerWatch(TcpStream);

impl PeerWatch {
    /// Of a socket that does not block.
    pub(super) fn new(stream: TcpStream) -> PeerWatch {
        PeerWatch(stream)
    }

    pub(super) fn pulse(&self) -> Pulse {
        match self.0.peek(&mut [0]) {
            Ok(0) => Pulse::Closed,
            Ok(_) => Pulse::Chatty,
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Pulse::Alive,
                io::ErrorKind::ConnectionReset => Pulse::Closed,
                _ => Pulse::Lost(error),
            },
        }
    }

    /// Lets the peer see that this end is finished.
    pub(super) fn end(&self) {
        // A socket that is no longer connected has told the peer already.
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

    /// What is told once the kernel has carried it over.
    fn last_pulse(watch: &PeerWatch) -> Pulse {
        (0..1000)
            .map(|_| std::thread::sleep(std::time::Duration::from_millis(1)))
            .map(|()| watch.pulse())
            .find(|pulse| !matches!(pulse, Pulse::Alive))
            .expect("something within a second")
    }

    #[test]
    fn a_silent_peer_is_alive_and_a_closed_one_is_not() {
        let (watch, peer) = pair();
        assert!(matches!(watch.pulse(), Pulse::Alive));
        drop(peer);
        assert!(matches!(last_pulse(&watch), Pulse::Closed));
    }

    #[test]
    fn a_peer_that_talks_breaks_the_rules() {
        let (watch, mut peer) = pair();
        io::Write::write_all(&mut peer, b"hello").expect("room");
        assert!(matches!(last_pulse(&watch), Pulse::Chatty));
    }

    #[test]
    fn the_end_of_one_side_is_seen_by_the_other() {
        let (watch, peer) = pair();
        watch.end();
        peer.set_nonblocking(true).expect("an option");
        assert!(matches!(last_pulse(&PeerWatch::new(peer)), Pulse::Closed));
    }
}

//! A connection to a listener's port without its token is refused, and delays no other.

use super::{LIMIT, sockets};
use oxccl::net::NetHandle;
use oxccl::wire::fixed::Reader;
use oxccl_tests::deadline::Deadline;
use oxccl_tests::net::until;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

/// The address in a handle of the network over sockets.
fn address(handle: &NetHandle) -> SocketAddr {
    let mut reader = Reader::new(&handle.0[6..]);
    reader.addr().expect("a handle of this network")
}

#[test]
fn strangers_are_refused_and_delay_nobody() {
    let _deadline = Deadline::start("strangers_are_refused_and_delay_nobody", LIMIT);
    let net = sockets(2, false);
    let (handle, mut listener) = net.listen(0).expect("device 0 listens");
    let there = address(&handle);
    let strangers: Vec<TcpStream> = (0..40u8)
        .map(|i| {
            let mut stream = TcpStream::connect(there).expect("the port is open");
            // Some send nothing, some garbage, some the beginning of a correct handshake.
            let said: &[u8] = match i % 4 {
                0 => b"",
                1 => b"GET / HTTP/1.1\r\n\r\n",
                2 => b"OxBs\x01\x00",
                _ => &[0xff; 4000],
            };
            // It may have been refused before the last byte.
            let _ = stream.write_all(said);
            stream
        })
        .collect();
    let mut wrong = handle;
    // The last byte of the token.
    wrong.0[56] ^= 1;
    let mut impostor = net.connect(0, &wrong).expect("it looks like a handle");
    let refused = until("the impostor's refusal", || {
        assert!(listener.poll_accept().expect("strangers are no error").is_none());
        impostor.poll_connect().map(|connected| assert!(connected.is_none())).err()
    });
    assert!(refused.to_string().contains(&there.to_string()), "{refused}");

    let mut connector = net.connect(0, &handle).expect("the handle is good");
    let (mut send, mut recv) = (None, None);
    until("the honest connection", || {
        recv = recv.take().or(listener.poll_accept().expect("strangers are no error"));
        if send.is_none() {
            send = connector.poll_connect().expect("the listener is there");
        }
        (send.is_some() && recv.is_some()).then_some(())
    });
    drop(listener);
    for mut stranger in strangers {
        stranger.set_read_timeout(Some(std::time::Duration::from_secs(10))).expect("an option");
        let mut told = Vec::new();
        // Closed or reset. At most it received a challenge with a nonce before.
        let _ = stranger.read_to_end(&mut told);
        assert!(told.len() <= 40, "a stranger was told {} bytes", told.len());
    }
}

#[test]
fn what_a_connection_said_cannot_be_said_again() {
    let _deadline = Deadline::start("what_a_connection_said_cannot_be_said_again", LIMIT);
    let net = sockets(0, false);
    let (handle, mut listener) = net.listen(0).expect("device 0 listens");
    // A man in the middle: passes everything on between an honest connector and the listener, and keeps it.
    let middle = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut diverted = handle;
    let port = middle.local_addr().expect("an address").port();
    diverted.0[7..9].copy_from_slice(&port.to_le_bytes());
    let mut connector = net.connect(0, &diverted).expect("it looks like a handle");
    let (near, _) = middle.accept().expect("the connector came");
    let far = TcpStream::connect(address(&handle)).expect("the port is open");
    for stream in [&near, &far] {
        stream.set_nonblocking(true).expect("an option");
    }
    let (mut kept, mut send, mut recv) = (Vec::new(), None, None);
    let mut pass = |mut from: &TcpStream, mut to: &TcpStream, keep: bool| {
        let mut bytes = [0; 256];
        if let Ok(len @ 1..) = from.read(&mut bytes) {
            to.write_all(&bytes[..len]).expect("a few bytes");
            if keep {
                kept.extend_from_slice(&bytes[..len]);
            }
        }
    };
    until("the connection through the middle", || {
        pass(&near, &far, true);
        pass(&far, &near, false);
        recv = recv.take().or(listener.poll_accept().expect("it is honest"));
        if send.is_none() {
            send = connector.poll_connect().expect("it is honest");
        }
        (send.is_some() && recv.is_some()).then_some(())
    });
    // The same words again: the challenge is another, so the proof in them opens under no key of it.
    let mut replay = TcpStream::connect(address(&handle)).expect("the port is still open");
    replay.write_all(&kept).expect("a few bytes");
    replay.set_read_timeout(Some(std::time::Duration::from_millis(10))).expect("an option");
    let mut received = Vec::new();
    until("the replay's refusal", || {
        assert!(listener.poll_accept().expect("strangers are no error").is_none());
        replay.read_to_end(&mut received).is_ok().then_some(())
    });
    // A challenge of 56 bytes, then the verdict: zeros, which open for nobody.
    assert_eq!(received.get(56..), Some([0; 17].as_slice()), "{received:?}");
}

//! A relay between the two ends of a connection keeps and changes their bytes.

use super::*;
use crate::bootstrap::InterfaceFilter;
use crate::net::{RecvComm, Registration, Request, SendComm};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// HELLO and PROOF of the handshake: what the connecting side says before its first record.
const HANDSHAKE_BYTES: usize = 80 + 16;
const PATIENCE: Duration = Duration::from_secs(20);

fn network(encrypt: bool) -> Arc<dyn Net> {
    let interfaces = InterfaceFilter::parse("=lo");
    let config = SocketConfig { interfaces, ipv6: Some(false), encrypt, ..SocketConfig::default() };
    open(&config).expect("the kernel lists its interfaces")
}

/// A relay before a listener: it forwards one connection both ways, keeps what the connecting side says, and changes one bit of it
/// where told to.
struct Relay {
    addr: SocketAddr,
    seen: Arc<Mutex<Vec<u8>>>,
}

impl Relay {
    fn before(listener: SocketAddr, flip_at: Option<usize>) -> Relay {
        let gate = TcpListener::bind("127.0.0.1:0").expect("a port");
        let (addr, seen) = (gate.local_addr().expect("an address"), Arc::<Mutex<Vec<u8>>>::default());
        let kept = seen.clone();
        std::thread::spawn(move || {
            let near = gate.accept().expect("a connection").0;
            let far = TcpStream::connect(listener).expect("it listens");
            let back = (far.try_clone().expect("one more"), near.try_clone().expect("one more"));
            std::thread::spawn(move || forward(back.0, back.1, None, &Mutex::default()));
            forward(near, far, flip_at, &kept);
        });
        Relay { addr, seen }
    }

    fn saw(&self, bytes: &[u8]) -> bool {
        self.seen.lock().unwrap().windows(bytes.len()).any(|window| window == bytes)
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream, flip_at: Option<usize>, seen: &Mutex<Vec<u8>>) {
    let (mut buffer, mut forwarded) = ([0; 4096], 0);
    while let Ok(got @ 1..) = from.read(&mut buffer) {
        let bytes = &mut buffer[..got];
        seen.lock().unwrap().extend_from_slice(bytes);
        if let Some(byte) = flip_at.and_then(|at| bytes.get_mut(at.checked_sub(forwarded)?)) {
            *byte ^= 0x10;
        }
        forwarded += got;
        if to.write_all(bytes).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

/// A connection past a relay.
fn connect(net: &dyn Net, flip_at: Option<usize>) -> (Box<dyn SendComm>, Box<dyn RecvComm>, Relay) {
    let (handle, mut listener) = net.listen(0).expect("a device");
    let magic = if net.encrypts() { SEALED_MAGIC } else { MAGIC };
    let invitation = Invitation::from_handle(&handle, magic).expect("its own handle");
    let relay = Relay::before(invitation.addr, flip_at);
    let past_relay = Invitation { addr: relay.addr, ..invitation }.to_handle(magic);
    let mut connector = net.connect(0, &past_relay).expect("a handle");
    let (mut send, mut recv) = (None, None);
    while send.is_none() || recv.is_none() {
        send = send.or_else(|| connector.poll_connect().expect("the relay forwards"));
        recv = recv.or_else(|| listener.poll_accept().expect("the relay forwards"));
    }
    (send.expect("both"), recv.expect("both"), relay)
}

fn isend(comm: &mut dyn SendComm, bytes: &[u8]) -> Request {
    // SAFETY: every test keeps the bytes as long as the communicator.
    unsafe { comm.isend(bytes.as_ptr(), bytes.len(), Registration(0)) }.expect("connected").expect("room")
}

fn irecv(comm: &mut dyn RecvComm, room: &mut [u8]) -> Request {
    // SAFETY: every test keeps the room as long as the communicator.
    unsafe { comm.irecv(room.as_mut_ptr(), room.len(), Registration(0)) }.expect("connected").expect("room")
}

/// Sends and receives messages in turn, until an error of the receiving end.
fn exchange(
    (send, recv): (&mut dyn SendComm, &mut dyn RecvComm),
    messages: &[Vec<u8>],
) -> Result<Vec<Vec<u8>>, NetError> {
    let began = Instant::now();
    let mut received = Vec::new();
    for message in messages {
        let mut room = vec![0; message.len()];
        let (sent, due) = (isend(send, message), irecv(recv, &mut room));
        let (mut is_sent, mut is_here) = (false, false);
        while !(is_sent && is_here) {
            // The sender hears of the receiver's error by its socket.
            is_sent = is_sent || send.test(sent).map_or(true, |done| done.is_some());
            is_here = is_here || recv.test(due)?.is_some();
            assert!(began.elapsed() < PATIENCE, "nothing after {PATIENCE:?}");
        }
        received.push(room);
    }
    Ok(received)
}

fn payload(number: u8, len_bytes: usize) -> Vec<u8> {
    (0..len_bytes).map(|i| (i * i / 7 + i * 13) as u8 ^ number).collect()
}

/// The same relay reads everything of a connection in the clear, so that it is the encryption which blinds it.
#[test]
fn a_relay_reads_nothing_of_an_encrypted_connection() {
    let messages: Vec<Vec<u8>> =
        (1..).zip([100, 5000, 300_000]).map(|(number, len)| payload(number, len)).collect();
    for encrypt in [false, true] {
        let (mut send, mut recv, relay) = connect(&*network(encrypt), None);
        assert_eq!(exchange((&mut *send, &mut *recv), &messages).as_ref(), Ok(&messages));
        let whole: usize = messages.iter().map(Vec::len).sum();
        assert!(relay.seen.lock().unwrap().len() > HANDSHAKE_BYTES + whole);
        for message in &messages {
            for part in [&message[..32], &message[40..72]] {
                assert_eq!(relay.saw(part), !encrypt, "encrypt {encrypt}");
            }
        }
        // Nor lengths: headers are in the records.
        assert_eq!(relay.saw(b"On\x02\0"), !encrypt, "encrypt {encrypt}");
    }
}

/// In the head of a record, in its content, in either tag, in the first record and in later ones.
#[test]
fn a_relay_changes_nothing_without_being_found_out() {
    let messages = [payload(1, 1000), payload(2, 100_000)];
    for at in [0, 3, 4, 19, 20, 500, 1035, 1036, 1052, 1056, 60_000, 90_000] {
        let (mut send, mut recv, _relay) = connect(&*network(true), Some(HANDSHAKE_BYTES + at));
        let error = exchange((&mut *send, &mut *recv), &messages).expect_err("a bit was changed");
        assert!(matches!(error, NetError::Altered { .. }), "byte {at}: {error}");
        assert!(error.peer().is_some(), "the connection is not blamed: {error}");
    }
}

/// A listener waits 5 s for a peer to prove itself; a network may be silent for longer.
#[test]
fn who_was_let_go_by_a_listener_connects_again() {
    let (net, gate) = (network(false), TcpListener::bind("127.0.0.1:0").expect("a port"));
    let (handle, mut listener) = net.listen(0).expect("a device");
    let invitation = Invitation::from_handle(&handle, MAGIC).expect("its own handle");
    let at_gate = Invitation { addr: gate.local_addr().expect("an address"), ..invitation }.to_handle(MAGIC);
    std::thread::spawn(move || {
        let first = gate.accept().expect("a connection");
        std::thread::sleep(Duration::from_millis(300));
        drop(first);
        let near = gate.accept().expect("another").0;
        let far = TcpStream::connect(invitation.addr).expect("it listens");
        let back = (far.try_clone().expect("one more"), near.try_clone().expect("one more"));
        std::thread::spawn(move || forward(back.0, back.1, None, &Mutex::default()));
        forward(near, far, None, &Mutex::default());
    });
    let mut connector = net.connect(0, &at_gate).expect("a handle");
    let (mut send, mut recv) = (None, None);
    let deadline = Instant::now() + PATIENCE;
    while send.is_none() || recv.is_none() {
        send = send.or_else(|| connector.poll_connect().expect("it is let go, and comes again"));
        recv = recv.or_else(|| listener.poll_accept().expect("nobody else comes"));
        assert!(Instant::now() < deadline);
    }
}

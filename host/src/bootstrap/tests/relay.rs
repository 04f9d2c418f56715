//! Somebody between two ranks who sees, keeps, changes and repeats their bytes.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::super::{AuthFailure, UNIQUE_ID_BYTES};
use super::*;

/// A relay before a listener. It forwards both ways, keeps what it forwards, and changes one bit where told to.
struct Relay {
    addr: SocketAddr,
    seen: Arc<Mutex<Vec<u8>>>,
    connections: Arc<AtomicUsize>,
    is_over: Arc<AtomicBool>,
}

/// A bit to change: in the bytes from the connecting side or to it, at this place.
#[derive(Clone, Copy, Debug)]
struct Flip {
    towards_listener: bool,
    at: usize,
}

impl Relay {
    fn before(listener: SocketAddr, flip: Option<Flip>) -> Relay {
        let gate = TcpListener::bind("127.0.0.1:0").expect("a port");
        gate.set_nonblocking(true).expect("an option");
        let addr = gate.local_addr().expect("an address");
        let (seen, connections, is_over) =
            <(Arc<Mutex<Vec<u8>>>, Arc<AtomicUsize>, Arc<AtomicBool>)>::default();
        let relay =
            Relay { addr, seen: seen.clone(), connections: connections.clone(), is_over: is_over.clone() };
        std::thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                let Ok((near, _)) = gate.accept() else {
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                };
                near.set_nonblocking(false).expect("an option");
                let Ok(far) = TcpStream::connect(listener) else { continue };
                connections.fetch_add(1, Ordering::Relaxed);
                for (from, to, towards_listener) in [(&near, &far, true), (&far, &near, false)] {
                    let flip = flip.filter(|flip| flip.towards_listener == towards_listener);
                    let (from, to) = (from.try_clone().expect("one more"), to.try_clone().expect("one more"));
                    let seen = seen.clone();
                    std::thread::spawn(move || forward(from, to, flip.map(|flip| flip.at), &seen));
                }
            }
        });
        relay
    }

    fn saw(&self, bytes: &[u8]) -> bool {
        self.seen.lock().expect("no panic").windows(bytes.len()).any(|window| window == bytes)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream, flip_at: Option<usize>, seen: &Mutex<Vec<u8>>) {
    let mut buffer = [0; 4096];
    let mut forwarded = 0;
    while let Ok(got @ 1..) = from.read(&mut buffer) {
        let bytes = &mut buffer[..got];
        seen.lock().expect("no panic").extend_from_slice(bytes);
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

/// Two ranks, to whom each other's listener is a relay's port; and for `body` the relays.
fn with_relays<T: Send>(flip: Option<Flip>, body: impl Fn(&Bootstrap) -> T + Sync) -> (Vec<T>, Vec<Relay>) {
    let relays = Mutex::new(Vec::new());
    let results = with_ranks(2, |boot| {
        let peer = Rank(1 - boot.rank().0);
        let relay = Relay::before(boot.listener_addr(peer).expect("a rank"), flip);
        boot.shared.lock().addrs[peer.index()] = relay.addr;
        relays.lock().expect("no panic").push(relay);
        boot.barrier().expect("both are there");
        let result = body(&boot);
        // Who leaves at once would be the reason why the other's connection ends.
        boot.barrier().expect("the ring goes past the relays");
        boot.close();
        result
    });
    (results, relays.into_inner().expect("no panic"))
}

#[test]
fn who_records_between_ranks_finds_no_token_and_no_id() {
    let token = [0x5a, 0xa5].repeat(16);
    let id = Secret::from_seed(b"another communicator");
    let id =
        UniqueId::new("127.0.0.1:4711".parse().expect("an address"), id, super::super::id::RootKind::Created);
    let id: [u8; UNIQUE_ID_BYTES] = id.to_bytes();
    let (_, relays) = with_relays(None, |boot| {
        let peer = Rank(1 - boot.rank().0);
        for secret in [&token[..], &id] {
            boot.send(peer, 3, secret).expect("the relay forwards");
            assert_eq!(boot.recv(peer, 3).as_deref(), Ok(secret));
        }
    });
    for relay in relays {
        assert_eq!(relay.connections.load(Ordering::Relaxed), 2);
        // Every part of them that is no accident.
        assert!(!relay.saw(&token[..8]), "a token went by in the clear");
        assert!(
            !id.windows(8).filter(|part| *part != [0; 8]).any(|part| relay.saw(part)),
            "parts of an id went by"
        );
    }
}

/// HELLO has 80 bytes, CHALLENGE 56, PROOF 16, VERDICT 17; then come records.
#[test]
fn a_bit_changed_on_the_way_ends_in_an_error_with_a_name() {
    let began = Instant::now();
    let places = [(true, 7), (true, 20), (true, 79), (true, 85), (true, 96), (true, 110), (true, 150)];
    let back = [(false, 6), (false, 30), (false, 55), (false, 60)];
    for (towards_listener, at) in places.into_iter().chain(back) {
        let flip = Flip { towards_listener, at };
        let (results, _relays) = with_relays(Some(flip), |boot| match boot.rank() {
            Rank(0) => boot.send(Rank(1), 3, &[0x11; 64]).err(),
            // Where the sender's error ends it, nobody comes: a bounded wait.
            _ if at < 96 => None,
            _ => boot.recv(Rank(0), 3).err(),
        });
        let named = |error: &BootstrapError| match error {
            BootstrapError::AuthFailed { why, .. } => {
                matches!(why, AuthFailure::Altered | AuthFailure::WrongSecret | AuthFailure::NotOxccl)
            }
            BootstrapError::Altered { rank } => *rank == Rank(0),
            _ => false,
        };
        assert!(results.iter().flatten().any(named), "{flip:?}: {results:?}");
        assert!(results.iter().flatten().all(named), "{flip:?}: {results:?}");
    }
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
}

/// The ring, which is long-lived: the bit is changed after all ranks have joined.
#[test]
fn a_bit_changed_in_the_ring_names_the_neighbour() {
    use super::super::ring::{Ring, Side};
    let mut ring = Ring::new(Rank(0), 3);
    ring.attach(Side::Prev, Rank(2));
    ring.attach(Side::Next, Rank(1));
    ring.altered(Side::Next);
    assert_eq!(ring.peer(Side::Next), None);
    assert_eq!(ring.submit(&[]), Err(BootstrapError::Altered { rank: Rank(1) }));
}

/// All that one side said is said again: the message is not received twice.
#[test]
fn a_recorded_connection_played_back_is_refused() {
    let recorded = Mutex::new(Vec::new());
    with_ranks(2, |boot| {
        if boot.rank() == Rank(0) {
            let (near, far) =
                (TcpListener::bind("127.0.0.1:0").expect("a port"), boot.listener_addr(Rank(1)));
            boot.shared.lock().addrs[1] = near.local_addr().expect("an address");
            let far = far.expect("a rank");
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let (from, to) = (near.accept().expect("a connection").0, TcpStream::connect(far));
                    let to = to.expect("it listens");
                    let back = (to.try_clone().expect("one more"), from.try_clone().expect("one more"));
                    std::thread::spawn(move || forward(back.0, back.1, None, &Mutex::default()));
                    forward(from, to, None, &recorded);
                });
                boot.send(Rank(1), 3, b"once").expect("forwarded");
            });
            let bytes = recorded.lock().expect("no panic").clone();
            assert!(bytes.len() > 80 + 16, "{} bytes", bytes.len());
            let mut again = TcpStream::connect(far).expect("it listens");
            again.write_all(&bytes).expect("written");
            again.set_read_timeout(Some(Duration::from_secs(5))).expect("an option");
            let mut answer = Vec::new();
            let end = again.read_to_end(&mut answer);
            assert!(
                end.is_ok() || end.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset)
            );
            // A challenge, and a verdict of zeros.
            assert!(answer.len() < 56 + 17 || answer[56..] == [0; 17], "{answer:?}");
        } else {
            assert_eq!(boot.recv(Rank(0), 3).as_deref(), Ok(&b"once"[..]));
        }
        boot.barrier().expect("both are there");
        let waiting = boot.shared.lock().parked.len();
        assert_eq!(waiting, 0, "a connection played back was let in");
        boot.close();
    });
}

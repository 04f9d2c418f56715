//! Strangers connect to the listeners during the rendezvous: each is refused and named in a warning, and delays no
//! rank.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::super::acceptor::Acceptor;
use super::*;

/// Opens connections that send `garbage` and then nothing, as fast as possible, and holds the last hundred open until
/// `stop`.
fn pester(addr: SocketAddr, garbage: &[u8], stop: &Mutex<bool>) {
    let mut held = std::collections::VecDeque::new();
    while !*stop.lock().expect("no panic") {
        if let Ok(mut stream) = TcpStream::connect_timeout(&addr, Duration::from_secs(1)) {
            let _ = stream.write_all(garbage);
            held.push_back(stream);
        }
        if held.len() > 100 {
            held.pop_front();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn ranks_meet_undelayed_while_strangers_pester_the_root_and_the_ranks() {
    let hello = {
        use super::super::handshake::{Handshake, Hello, Purpose, ROOT};
        use super::super::secret::Ephemeral;
        let hello = Hello { purpose: Purpose::Register, from: Rank(0), to: ROOT, tag: 0 };
        Handshake::initiator(Secret::from_seed(b"wrong"), hello, Ephemeral::from_bytes([0; 32]))
            .output()
            .to_vec()
    };
    // A port scan, a browser, a half handshake held open, a complete one with another secret.
    let whole = [hello.clone(), vec![7; 32]].concat();
    let attacks: [&[u8]; 4] = [b"", b"GET / HTTP/1.1\r\n\r\n", &hello[..30], &whole];
    let id = UniqueId::create_by(&config()).expect("a root on the loopback");
    let stop = Mutex::new(false);
    std::thread::scope(|scope| {
        for attack in attacks {
            let stop = &stop;
            scope.spawn(move || pester(id.root_addr(), attack, stop));
        }
        std::thread::sleep(Duration::from_millis(100));
        let began = Instant::now();
        in_parallel(4, |rank| {
            let boot = join(&id, rank, 4).expect("all ranks come");
            assert!(began.elapsed() < Duration::from_secs(4), "joined after {:?}", began.elapsed());
            let peer = Rank((rank + 1) % 4);
            let addr = boot.listener_addr(peer).expect("a rank");
            let done = Mutex::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| pester(addr, attacks[rank as usize], &done));
                std::thread::sleep(Duration::from_millis(100));
                let began = Instant::now();
                boot.send(peer, 0, b"through").expect("the peer listens");
                assert_eq!(boot.recv(Rank((rank + 3) % 4), 0), Ok(b"through".to_vec()));
                boot.barrier().expect("all are there");
                assert!(began.elapsed() < Duration::from_secs(4), "a message took {:?}", began.elapsed());
                *done.lock().expect("no panic") = true;
            });
            boot.barrier().expect("all are there");
            boot.close();
        });
        *stop.lock().expect("no panic") = true;
    });
}

/// An acceptor driven by the test's own thread, so that its warnings can be read.
struct Gate {
    acceptor: Acceptor,
    addr: SocketAddr,
}

impl Gate {
    fn new(timeout: Duration) -> Gate {
        let listener =
            super::super::sock::listen("127.0.0.1".parse().expect("an address"), 0).expect("a port");
        let addr = listener.local_addr().expect("an address");
        Gate { acceptor: Acceptor::new(listener, Secret::from_seed(b"s"), Rank(0), timeout), addr }
    }

    fn drive_for(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until {
            let mut fds = Vec::new();
            self.acceptor.poll_fds(&mut fds);
            super::super::sock::poll(&mut fds, Some(until)).expect("poll works");
            let ready: Vec<_> = fds.iter().map(rustix::event::PollFd::revents).collect();
            let mut accepted = Vec::new();
            self.acceptor.drive(Instant::now(), &ready, &mut accepted);
            assert!(accepted.is_empty(), "a stranger got in");
        }
    }
}

/// Keeps the text of every event.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Log {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        struct Text(String);
        impl tracing::field::Visit for Text {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0.push_str(&format!("{field}={value:?} "));
            }
        }
        let mut text = Text(format!("{} ", event.metadata().level()));
        event.record(&mut text);
        self.0.lock().expect("no panic").push(text.0);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn a_refusal_warns_with_the_remote_address() {
    for (garbage, why) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], "does not speak"),
        (b"OxBs\xff\x00", "version 255"),
        (b"OxBs", "did not prove in time"),
    ] {
        let mut gate = Gate::new(Duration::from_millis(200));
        let mut stranger = TcpStream::connect(gate.addr).expect("the gate listens");
        stranger.write_all(garbage).expect("written");
        let log = Log::default();
        tracing::subscriber::with_default(log.clone(), || gate.drive_for(Duration::from_millis(400)));
        let lines = log.0.lock().expect("no panic");
        let remote = stranger.local_addr().expect("an address").to_string();
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(
            lines[0].starts_with("WARN") && lines[0].contains(&remote) && lines[0].contains(why),
            "{lines:?}"
        );
        stranger.set_read_timeout(Some(Duration::from_secs(1))).expect("an option");
        let mut rest = Vec::new();
        let closed = match stranger.read_to_end(&mut rest) {
            Ok(_) => true,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        };
        assert!(closed, "a refused connection is closed");
    }
}

#[test]
fn a_drip_of_bytes_does_not_prolong_the_deadline() {
    let mut gate = Gate::new(Duration::from_millis(300));
    let mut stranger = TcpStream::connect(gate.addr).expect("the gate listens");
    let began = Instant::now();
    for byte in b"OxBs\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00" {
        if stranger.write_all(&[*byte]).is_err() {
            break;
        }
        gate.drive_for(Duration::from_millis(50));
    }
    assert_eq!(gate.acceptor.poll_len(), 1, "the slow stranger is gone after {:?}", began.elapsed());
}

#[test]
fn strangers_that_hold_connections_make_room_for_newer_ones() {
    let mut gate = Gate::new(Duration::from_secs(60));
    let held: Vec<TcpStream> = (0..600)
        .map(|_| {
            let stream = TcpStream::connect(gate.addr).expect("the gate listens");
            gate.drive_for(Duration::ZERO);
            stream
        })
        .collect();
    gate.drive_for(Duration::from_millis(100));
    assert!(gate.acceptor.poll_len() <= 513, "{} are held of {}", gate.acceptor.poll_len(), held.len());
}

#[test]
fn a_stranger_that_answers_as_the_root_cannot_hold_a_rank_for_long() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let config = BootstrapConfig {
        timeout: Duration::from_millis(600),
        handshake_timeout: Duration::from_millis(200),
        ..config()
    };
    let id = UniqueId::from_address(listener.local_addr().expect("an address"), b"s");
    let began = Instant::now();
    let error = Bootstrap::connect(&id, Rank(1), 2, &config).err().expect("nobody answers");
    assert!(matches!(error, BootstrapError::RootUnreachable { .. }), "{error}");
    assert!(began.elapsed() < Duration::from_secs(3));
}

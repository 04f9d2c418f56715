//! The error that every rank gets when one of them is missing or registers wrongly.

use super::super::acceptor::Acceptor;
use super::super::channel::{Channel, DialError};
use super::super::frame;
use super::super::handshake::{Handshake, HandshakeError, Hello, PROTOCOL_VERSION, Purpose, ROOT};
use super::super::id::RootKind;
use super::super::iface::InterfaceFilter;
use super::super::rendezvous_wire::{KIND_REGISTER, ROOT_PAYLOAD_MAX, Register, Reply};
use super::super::ring_wire::MembershipEvent;
use super::super::secret::Ephemeral;
use super::super::sock::{self, Deadline};
use super::super::{AuthFailure, Cancel, RankList};
use super::*;
use crate::wire::Message;
use rustix::event::PollFlags;
use std::net::SocketAddr;
use std::time::Instant;

fn hasty() -> BootstrapConfig {
    BootstrapConfig { timeout: Duration::from_millis(500), ..config() }
}

/// Registers these (rank, nranks) with one root and returns each one's error.
fn errors(config: &BootstrapConfig, comers: &[(u32, u32)]) -> Vec<BootstrapError> {
    let id = UniqueId::create_by(config).expect("a root on the loopback");
    in_parallel(comers.len() as u32, |i| {
        let (rank, nranks) = comers[i as usize];
        Bootstrap::connect(&id, Rank(rank), nranks, config).err().expect("the rendezvous fails")
    })
}

#[test]
fn missing_ranks_are_named_to_all_who_came() {
    for error in errors(&hasty(), &[(0, 5), (2, 5), (3, 5)]) {
        let BootstrapError::MissingRanks { ranks, nranks, limit, strangers: None, calls: None } = error
        else {
            panic!("{error}")
        };
        assert_eq!((ranks, nranks), ([1, 4].map(Rank).into_iter().collect::<RankList>(), 5));
        // Not the time that was measured, which is longer.
        assert_eq!(limit, hasty().timeout);
    }
}

/// No clock holds them.
#[test]
fn times_without_end_are_long_ones() {
    let forever = Duration::MAX;
    let config = BootstrapConfig { timeout: forever, unused_root_timeout: forever, ..config() };
    let id = UniqueId::create_by(&config).expect("a root on the loopback");
    in_parallel(2, |rank| Bootstrap::connect(&id, Rank(rank), 2, &config).expect("both come").close());
}

#[test]
fn a_rank_that_comes_twice_is_named_to_all_at_once() {
    let began = Instant::now();
    for error in errors(&config(), &[(0, 4), (1, 4), (1, 4), (2, 4)]) {
        assert!(matches!(error, BootstrapError::DuplicateRank { rank: Rank(1), .. }), "{error}");
    }
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_wrong_number_of_ranks_is_named_to_all() {
    for error in errors(&config(), &[(0, 3), (1, 3), (2, 4)]) {
        let BootstrapError::WorldSizeMismatch { nranks, expected, .. } = error else { panic!("{error}") };
        assert!((nranks, expected) == (4, 3) || (nranks, expected) == (3, 4), "{error}");
    }
}

#[test]
fn a_rank_out_of_range_is_named_to_all() {
    for error in errors(&config(), &[(0, 3), (1, 3), (3, 3)]) {
        assert_eq!(error, BootstrapError::RankOutOfRange { rank: Rank(3), nranks: 3 });
    }
    for (rank, nranks) in [(0, 0), (u32::MAX, 4), (0, u32::MAX)] {
        let error = BootstrapError::RankOutOfRange { rank: Rank(rank), nranks };
        assert_eq!(errors(&config(), &[(rank, nranks)]), [error]);
    }
}

fn with_another_secret(id: &UniqueId) -> UniqueId {
    let mut bytes = id.to_bytes();
    bytes[40] ^= 1;
    UniqueId::from_bytes(&bytes).expect("still an id")
}

#[test]
fn another_secret_is_refused_and_disturbs_nobody() {
    let id = UniqueId::create_by(&config()).expect("a root on the loopback");
    let other = with_another_secret(&id);
    let refused = BootstrapError::AuthFailed { addr: id.root_addr(), why: AuthFailure::WrongSecret };
    assert_eq!(join(&other, 1, 2).map(drop), Err(refused));
    in_parallel(2, |rank| join(&id, rank, 2).expect("both come").close());
}

/// The ranks that had waited were told that it never came, and not that it had been refused.
#[test]
fn who_was_refused_is_named_with_those_that_are_missing() {
    let id = UniqueId::create_by(&hasty()).expect("a root on the loopback");
    let other = with_another_secret(&id);
    let waiting = std::thread::spawn(move || Bootstrap::connect(&id, Rank(0), 2, &hasty()).err());
    for _ in 0..2 {
        join(&other, 1, 2).err().expect("another secret");
    }
    let error = waiting.join().expect("no panic").expect("rank 1 cannot come");
    let BootstrapError::MissingRanks { strangers: Some(strangers), .. } = &error else { panic!("{error}") };
    assert_eq!((strangers.count, strangers.last.ip()), (2, id.root_addr().ip()));
    let said =
        format!("s; 2 came with another secret and had to be refused, the last from {}", strangers.last);
    assert!(error.to_string().contains(&said), "{error}");
}

/// An id whose root is on the loopback.
fn id_of(kind: RootKind) -> UniqueId {
    let made = match kind {
        RootKind::Created => UniqueId::create_by(&config()),
        _ => UniqueId::by_rank_zero(&config()),
    };
    made.expect("a root on the loopback")
}

/// The others waited for it until the bootstrap's time was over.
#[test]
fn a_rank_whose_settings_are_wrong_is_named_to_all_at_once() {
    for (kind, wrong) in
        [(RootKind::Created, 1), (RootKind::Created, 0), (RootKind::ByRankZero, 1), (RootKind::ByRankZero, 0)]
    {
        let id = id_of(kind);
        let began = Instant::now();
        in_parallel(4, |rank| {
            // Some are there before it, others come later.
            std::thread::sleep(Duration::from_millis(150) * ((rank + 4 - wrong) % 3));
            if rank == wrong {
                return Bootstrap::decline(&id, (Rank(rank), 4), "X is \"y\"");
            }
            let error = join(&id, rank, 4).err().expect("one cannot come");
            let BootstrapError::PeerAborted { rank, reason } = &error else { panic!("{kind:?}: {error}") };
            assert_eq!((rank.0, reason.as_str()), (wrong, "its settings or arguments are wrong: X is \"y\""));
        });
        assert!(began.elapsed() < Duration::from_secs(4), "{kind:?} {wrong}: {:?}", began.elapsed());
    }
}

/// They heard that it could not join and not why; who came after it waited until the bootstrap's time was over.
#[test]
fn a_rank_without_the_interface_it_is_to_use_is_named_to_all_at_once() {
    for (kind, wrong) in [(RootKind::Created, 1), (RootKind::ByRankZero, 1), (RootKind::ByRankZero, 0)] {
        let id = id_of(kind);
        let began = Instant::now();
        in_parallel(3, |rank| {
            std::thread::sleep(Duration::from_millis(250) * ((rank + 3 - wrong) % 3));
            let interfaces = InterfaceFilter::parse("nope").filter(|_| rank == wrong);
            let bind_addr = config().bind_addr.filter(|_| rank != wrong);
            let config = BootstrapConfig { interfaces, bind_addr, ..config() };
            let error = Bootstrap::connect(&id, Rank(rank), 3, &config).err().expect("one cannot come");
            if rank == wrong {
                return assert!(matches!(error, BootstrapError::NoInterface { .. }), "{error}");
            }
            let BootstrapError::PeerAborted { rank, reason } = &error else { panic!("{kind:?}: {error}") };
            assert!(rank.0 == wrong && reason.contains("NCCL_SOCKET_IFNAME=\"nope\""), "{reason}");
        });
        assert!(began.elapsed() < Duration::from_secs(4), "{kind:?} {wrong}: {:?}", began.elapsed());
    }
}

/// They waited as long for one that does not know which rank it is, and which may be the rank 0 without whom there is no root.
#[test]
fn a_process_that_does_not_know_its_rank_is_named_to_all_at_once() {
    for (kind, unplaced) in [(RootKind::Created, 2), (RootKind::ByRankZero, 2), (RootKind::ByRankZero, 0)] {
        let id = id_of(kind);
        let began = Instant::now();
        in_parallel(3, |rank| {
            if rank == unplaced {
                return Bootstrap::decline_unplaced(&id, "X is \"y\"");
            }
            std::thread::sleep(Duration::from_millis(100) * rank);
            let error = join(&id, rank, 3).err().expect("one cannot come");
            let BootstrapError::Unplaced { process, reason } = &error else { panic!("{kind:?}: {error}") };
            assert_eq!(process.process, std::process::id());
            assert_eq!(reason, "its settings or arguments are wrong: X is \"y\"");
        });
        assert!(began.elapsed() < Duration::from_secs(8), "{kind:?} {unplaced}: {:?}", began.elapsed());
    }
}

#[test]
fn who_has_the_id_and_not_the_key_is_refused() {
    let id = UniqueId::create_with_key(&config(), b"a key").expect("a root on the loopback");
    for other in [id, id.with_key(b"another key"), id.with_key(b"")] {
        let refused = BootstrapError::AuthFailed { addr: id.root_addr(), why: AuthFailure::WrongSecret };
        assert_eq!(join(&other, 1, 2).map(drop), Err(refused));
    }
    in_parallel(2, |rank| join(&id.with_key(b"a key"), rank, 2).expect("both come").close());
}

/// With one id for all any rank could be any other.
#[test]
fn who_has_one_ranks_id_is_no_other_rank() {
    let ids = UniqueId::create_each_by(&config(), 3).expect("a root on the loopback");
    let refused = BootstrapError::AuthFailed { addr: ids[0].root_addr(), why: AuthFailure::NotThatRank };
    for (rank, id) in [(0, 1), (1, 2), (2, 0), (3, 0)] {
        assert_eq!(join(&ids[id], rank, 3).map(drop), Err(refused.clone()), "rank {rank} by the id of {id}");
    }
    // What all three share is not enough.
    let shared = UniqueId::new(ids[0].root_addr(), *ids[0].secret(), RootKind::Created);
    assert!(join(&shared, 1, 3).is_err());
    // None of that has kept the ranks from coming, nor counts as their death.
    in_parallel(3, |rank| {
        let text = ids[rank as usize].to_bytes();
        let id = UniqueId::from_bytes(&text).expect("its own bytes");
        let boot = join(&id, rank, 3).expect("all come by their own ids");
        let table = boot.all_gather(&[rank as u8]).expect("all live");
        assert_eq!(table, [[0], [1], [2]]);
        boot.send(Rank((rank + 1) % 3), 7, b"hello").expect("it listens");
        assert_eq!(boot.recv(Rank((rank + 2) % 3), 7).as_deref(), Ok(&b"hello"[..]));
        // An impostor that has the job's shared secret, and is rank 0 with an identity, calls itself rank 1.
        if rank == 0 {
            let addr = boot.listener_addr(Rank(2)).expect("a rank");
            let hello = Hello { purpose: Purpose::Message, from: Rank(1), to: Rank(2), tag: 7 };
            let handshake =
                Handshake::initiator(*id.secret(), hello, Ephemeral::random().expect("random bytes"));
            let mut handshake = handshake.by(boot.shared.credentials.clone());
            let dialed = Channel::dial(addr, &mut handshake, &Deadline::after(SOON));
            let is_refused =
                matches!(dialed, Err(DialError::Handshake(HandshakeError::Auth(AuthFailure::NotThatRank))));
            assert!(is_refused, "{dialed:?}");
        }
        boot.barrier().expect("all live");
        // Rank 1 is in no child.
        let members: &[Rank] = if rank == 1 { &[] } else { &[Rank(2), Rank(0)] };
        if let Some(child) = boot.split(members, 0, &Cancel::default()).expect("both come") {
            child.barrier().expect("both live");
            let again = child.split_among(&[Rank(1), Rank(0)], 1, &Cancel::default()).expect("both come");
            assert_eq!(again.all_gather(&[rank as u8]).as_deref(), Ok(&[vec![0], vec![2]][..]));
            again.close();
            child.close();
        }
        boot.barrier().expect("all live");
        boot.close();
    });
}

#[test]
fn a_root_that_is_gone_is_named_with_its_address() {
    let id = UniqueId::create_by(&config()).expect("a root on the loopback");
    join(&id, 0, 1).expect("alone").close();
    let error = Bootstrap::connect(&id, Rank(0), 1, &hasty()).err().expect("the root has ended");
    let BootstrapError::RootUnreachable { addr, waited, errno } = error else { panic!("{error}") };
    assert_eq!((addr, errno), (id.root_addr(), libc::ECONNREFUSED));
    assert!(waited >= hasty().timeout && waited < Duration::from_secs(5), "{waited:?}");
}

#[test]
fn another_program_at_the_roots_address_is_recognised() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = listener.local_addr().expect("an address");
    let server = std::thread::spawn(move || {
        use std::io::Write;
        let (mut stream, _) = listener.accept().expect("a connection");
        stream.write_all(b"SSH-2.0-OpenSSH_9.6\r\n").expect("written");
        stream
    });
    let error = join(&UniqueId::from_address(addr, b"seed"), 1, 2).err();
    assert_eq!(error, Some(BootstrapError::AuthFailed { addr, why: AuthFailure::NotOxccl }));
    drop(server.join());
}

/// Connects to the root with the HELLO of another version. Gives the first bytes of the answer, and the own address.
fn greet_by_version(id: &UniqueId, secret: Secret, version: u16) -> ([u8; 6], SocketAddr) {
    use std::io::{Read, Write};
    let hello = Hello { purpose: Purpose::Register, from: Rank(1), to: ROOT, tag: 0 };
    let ephemeral = Ephemeral::random().expect("random bytes");
    let handshake = Handshake::initiator_of(version, secret, hello, ephemeral);
    let mut stream = std::net::TcpStream::connect(id.root_addr()).expect("the root listens");
    stream.write_all(handshake.output()).expect("written");
    let mut answer = [0; 6];
    stream.read_exact(&mut answer).expect("the root answers");
    (answer, stream.local_addr().expect("an address"))
}

/// The others waited for it until the timeout, and it was in no error.
#[test]
fn a_rank_of_another_version_is_named_to_all_at_once() {
    let theirs = PROTOCOL_VERSION + 1;
    let id = UniqueId::create_by(&config()).expect("a root on the loopback");
    let waiting = std::thread::spawn(move || join(&id, 0, 3).err().expect("rank 1 cannot come"));
    // Strangers that speak another version change nothing.
    greet_by_version(&id, Secret::from_seed(b"another"), theirs);
    std::thread::sleep(Duration::from_millis(200));
    assert!(!waiting.is_finished());
    let began = Instant::now();
    let (answer, addr) = greet_by_version(&id, *id.secret(), theirs);
    assert_eq!(answer[..], [&b"OxBs"[..], &PROTOCOL_VERSION.to_le_bytes()].concat());
    let late = join(&id, 2, 3).err().expect("rank 1 cannot come");
    let rank = Some(Rank(1));
    let named = BootstrapError::VersionMismatch { rank, addr, ours: PROTOCOL_VERSION, theirs };
    assert_eq!((waiting.join().expect("no panic"), late), (named.clone(), named.clone()));
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    for part in
        [format!("rank 1 at {addr}"), format!("version {theirs}"), format!("speaks {PROTOCOL_VERSION}:")]
    {
        assert!(named.to_string().contains(&part), "{named}");
    }
}

#[test]
fn a_root_of_another_version_is_named_at_once() {
    let theirs = PROTOCOL_VERSION + 1;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = listener.local_addr().expect("an address");
    let server = std::thread::spawn(move || {
        use std::io::Write;
        let (mut stream, _) = listener.accept().expect("a connection");
        let [low, high] = theirs.to_le_bytes();
        stream.write_all(&[b'O', b'x', b'B', b's', low, high, 1, 0]).expect("written");
        stream
    });
    let error = join(&UniqueId::from_address(addr, b"seed"), 1, 2).err().expect("refused");
    drop(server.join());
    let named = BootstrapError::VersionMismatch { rank: None, addr, ours: PROTOCOL_VERSION, theirs };
    assert_eq!(error, named);
    let said = format!("the root at {addr} speaks bootstrap version {theirs}, this library");
    assert!(named.to_string().starts_with(&said), "{named}");
}

/// Registers as rank 1 of `nranks` with a listener at `listens`.
fn register_by_hand(id: &UniqueId, nranks: u32, listens: SocketAddr) -> Channel {
    let hello = Hello { purpose: Purpose::Register, from: Rank(1), to: ROOT, tag: 0 };
    let mut handshake = Handshake::initiator(*id.secret(), hello, Ephemeral::random().expect("random bytes"));
    let deadline = Deadline::after(SOON);
    let mut channel = Channel::dial(id.root_addr(), &mut handshake, &deadline).expect("the root answers");
    let mut message = Vec::new();
    let register = Register::of_this_process(nranks, listens, SOON);
    frame::push(&mut message, KIND_REGISTER, &[&register.to_bytes()]);
    channel.write_all(&message, &deadline).expect("written");
    channel
}

#[test]
fn a_rank_that_dies_while_registered_is_named() {
    let id = UniqueId::create_by(&config()).expect("a root on the loopback");
    let channel = register_by_hand(&id, 3, id.root_addr());
    let survivor = std::thread::spawn(move || join(&id, 0, 3).err());
    std::thread::sleep(Duration::from_millis(100));
    drop(channel);
    assert_eq!(survivor.join().expect("no panic"), Some(BootstrapError::PeerLost { rank: Rank(1) }));
}

/// Its predecessor came a second later, found nobody, and said that it had died.
#[test]
fn a_rank_that_is_aborted_while_it_joins_tells_those_that_still_come_to_connect() {
    let id = UniqueId::create_by(&config()).expect("a root on the loopback");
    let listener = sock::listen([127, 0, 0, 1].into(), 0).expect("a port");
    let mut registered = register_by_hand(&id, 2, listener.local_addr().expect("an address"));
    let cancel = Cancel::default();
    let (its_id, its_cancel) = (id, cancel.clone());
    let aborted = std::thread::spawn(move || {
        Bootstrap::connect_unless(&its_id, (Rank(0), 2), &config(), &its_cancel).err()
    });
    let deadline = Deadline::after(SOON);
    let reply = registered.read_frame(ROOT_PAYLOAD_MAX, &deadline).expect("all ranks have come");
    let Ok(Reply::Assigned { listener: addr, .. }) = Reply::from_bytes(&reply.payload) else {
        panic!("{reply:?}")
    };
    cancel.cancel();
    std::thread::sleep(Duration::from_secs(1));
    let hello = Hello { purpose: Purpose::Ring, from: Rank(1), to: Rank(0), tag: 0 };
    let mut handshake = Handshake::initiator(*id.secret(), hello, Ephemeral::random().expect("random bytes"));
    let mut channel = Channel::dial(addr, &mut handshake, &deadline).expect("it listens");
    let said = channel.read_frame(1000, &deadline).expect("it says why");
    let event = MembershipEvent::from_bytes(&said.payload);
    assert!(matches!(event, Ok(MembershipEvent::Aborted { rank: Rank(0), .. })), "{event:?}");
    assert_eq!(aborted.join().expect("no panic"), Some(BootstrapError::Aborted));
}

/// Its predecessor has connected to it and heard nothing of it yet.
#[test]
fn a_rank_that_dies_before_it_greets_its_neighbours_is_named_at_once() {
    for nranks in [2, 3] {
        let id = UniqueId::create_by(&config()).expect("a root on the loopback");
        let listener = sock::listen([127, 0, 0, 1].into(), 0).expect("a port");
        let registered = register_by_hand(&id, nranks, listener.local_addr().expect("an address"));
        let began = Instant::now();
        let survivors: Vec<_> = (0..nranks).filter(|rank| *rank != 1).collect();
        std::thread::scope(|scope| {
            let joins: Vec<_> =
                survivors.iter().map(|&rank| scope.spawn(move || join(&id, rank, nranks).err())).collect();
            let mut acceptor = Acceptor::new(listener, *id.secret(), Rank(1), SOON);
            let mut accepted = Vec::new();
            while accepted.is_empty() && began.elapsed() < SOON {
                acceptor.drive(Instant::now(), &[PollFlags::IN, PollFlags::IN], &mut accepted);
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(accepted.len(), 1, "rank 0 connects to its successor");
            drop((accepted, acceptor, registered));
            for join in joins {
                let error = join.join().expect("no panic");
                assert_eq!(error, Some(BootstrapError::PeerLost { rank: Rank(1) }), "{nranks} ranks");
            }
        });
        assert!(began.elapsed() < config().timeout / 2, "{:?}", began.elapsed());
    }
}

#[test]
fn a_collective_that_a_rank_does_not_enter_names_it_to_all() {
    let id = UniqueId::create_by(&hasty()).expect("a root on the loopback");
    in_parallel(3, |rank| {
        let boot = Bootstrap::connect(&id, Rank(rank), 3, &hasty()).expect("all ranks come");
        if rank == 1 {
            return std::thread::sleep(Duration::from_secs(2));
        }
        let error = boot.barrier().expect_err("rank 1 does not come");
        match &error {
            BootstrapError::Timeout { ranks, limit, .. } => {
                // Not the time that was measured, which is longer.
                assert_eq!((*ranks, *limit), (RankList::from_iter([Rank(1)]), hasty().timeout));
            }
            BootstrapError::PeerAborted { reason, .. } => {
                assert!(reason.contains("waiting for rank 1"), "{reason}")
            }
            other => panic!("{other}"),
        }
    });
}

#[test]
fn a_message_that_never_comes_names_its_sender() {
    let id = UniqueId::create_by(&hasty()).expect("a root on the loopback");
    in_parallel(2, |rank| {
        let boot = Bootstrap::connect(&id, Rank(rank), 2, &hasty()).expect("all ranks come");
        if rank == 0 {
            let error = boot.recv(Rank(1), 3).expect_err("nothing was sent");
            assert!(error.to_string().contains("still waiting for rank 1"), "{error}");
        } else {
            std::thread::sleep(Duration::from_secs(1));
        }
        boot.close();
    });
}

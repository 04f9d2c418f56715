//! Ranks that call different things: every one of them ends, soon, with an error that names a rank and its call.

use oxccl::{Algorithm, Blocks, Communicator, Error, Fault, Protocol, Rank, ReduceOp, TransportKind};
use oxccl_tests::deadline::{Deadline, doing};
use oxccl_tests::harness::{Settings, World};
use std::time::{Duration, Instant};

/// How soon.
const BOUND: Duration = Duration::from_secs(5);

type Does = fn(&Communicator) -> Result<(), Error>;

/// What all ranks but the last do, what the last does, and why they disagree.
const DISAGREEMENTS: [(&str, Does, Does); 14] = [
    ("count", |r| sum(r, 10), |r| sum(r, 11)),
    ("count, by many slots", |r| sum(r, 10), |r| sum(r, 100_000)),
    ("count, by a whole chunk", |r| sum(r, 50_000), |r| sum(r, 100_000)),
    ("count of nothing", |r| sum(r, 1000), |r| sum(r, 0)),
    ("type", |r| sum(r, 8), |r| r.all_reduce_in_place(&mut [0u8; 8], ReduceOp::SUM)),
    ("operator", |r| sum(r, 8), |r| r.all_reduce_in_place(&mut [0f32; 8], ReduceOp::MAX)),
    ("root", |r| r.broadcast_in_place(&mut [0u8; 9], 0), |r| r.broadcast_in_place(&mut [0u8; 9], 1)),
    ("function", |r| sum(r, 8), |r| r.broadcast_in_place(&mut [0f32; 8], 0)),
    (
        "function, over other connections",
        |r| sum(r, 2),
        |r| r.all_gather_in_place(&mut vec![0f32; 6000 * 3 * 2]),
    ),
    ("function, message or not", |r| sum(r, 200_000), |r| r.all_to_all(&[0u8; 6], &mut [0u8; 6])),
    ("barrier or not", |r| r.barrier(), |r| sum(r, 64)),
    (
        "root of a gather",
        |r| r.gather(&[1u8], &mut vec![0; r.size() as usize], 0),
        |r| r.gather(&[1u8], &mut vec![0; r.size() as usize], 1),
    ),
    ("order", |r| sum(r, 5).and_then(|()| sum(r, 6)), |r| sum(r, 6).and_then(|()| sum(r, 5))),
    (
        "order of functions",
        |r| r.barrier().and_then(|()| r.broadcast_in_place(&mut [1u8; 5], 0)),
        |r| r.broadcast_in_place(&mut [1u8; 5], 0).and_then(|()| r.barrier()),
    ),
];

fn sum(rank: &Communicator, count: usize) -> Result<(), Error> {
    rank.all_reduce_in_place(&mut vec![1f32; count], ReduceOp::SUM)
}

/// Two ranks, then three; what the disagreement does to each of them.
fn all_end(settings: Settings) {
    for nranks in [2, 3] {
        for (what, most, last) in DISAGREEMENTS {
            doing(|| format!("{what}, {nranks} ranks, {settings:?}"));
            let mut world = World::new(nranks, settings);
            let started = Instant::now();
            let results = world.each(|rank| {
                let result = if rank.rank() == nranks - 1 { last(rank) } else { most(rank) };
                // A rank that waits for no peer may not detect it; its next call does.
                let result = result.and_then(|()| rank.barrier());
                while rank.async_error().is_none() && started.elapsed() < BOUND {
                    std::thread::sleep(Duration::from_millis(5));
                }
                result.err().or(rank.async_error())
            });
            let context = || format!("{what}, {nranks} ranks, {settings:?}: {results:#?}");
            assert!(started.elapsed() < BOUND, "not within {BOUND:?}: {}", context());
            let faults: Vec<_> = results.iter().map(|r| r.as_ref().and_then(Error::fault)).collect();
            let mismatch = |fault: &Option<Fault>| matches!(fault, Some(Fault::Mismatch { .. }));
            assert!(faults.iter().any(mismatch), "nobody names the mismatch: {}", context());
            for (rank, fault) in faults.iter().enumerate() {
                let guilty = match fault {
                    Some(Fault::Mismatch { rank, .. } | Fault::PeerAborted { rank }) => *rank,
                    _ => panic!("rank {rank} has no fault: {}", context()),
                };
                assert!(
                    guilty != Rank(rank as u32) && guilty < Rank(nranks),
                    "rank {rank} blames {guilty}: {}",
                    context()
                );
                let text = results[rank].as_ref().expect("a fault is an error").to_string();
                assert!(text.contains(&format!("rank {guilty}")), "{text}");
            }
        }
    }
}

macro_rules! worlds {
    ($($name:ident: $settings:expr;)+) => { $(
        #[test]
        fn $name() {
            let _deadline = Deadline::start(stringify!($name), Duration::from_secs(240));
            all_end($settings);
        }
    )+ };
}

worlds! {
    by_the_librarys_choice: Settings::default();
    over_ring_ll: Settings::forced(Algorithm::Ring, Protocol::LL);
    over_tree_ll128: Settings::forced(Algorithm::Tree, Protocol::LL128);
    over_direct_simple: Settings::forced(Algorithm::OneShot, Protocol::Simple);
    over_shm: Settings { transport: Some(TransportKind::Shm), ..Settings::default() };
    over_tcp: Settings { transport: Some(TransportKind::Tcp), ..Settings::default() };
    over_net: Settings { transport: Some(TransportKind::Net), ..Settings::default() };
    over_net_ll: Settings {
        transport: Some(TransportKind::Net),
        ..Settings::forced(Algorithm::Ring, Protocol::LL)
    };
}

/// A message of another length than its receiver expects.
#[test]
fn a_message_of_another_length_ends_both() {
    let _deadline = Deadline::start("a_message_of_another_length_ends_both", Duration::from_secs(60));
    for (sent, expected) in [(10usize, 11usize), (11, 10), (0, 1), (1, 0), (100_000, 99_999), (8, 100_000)] {
        let mut world = World::new(2, Settings::default());
        let started = Instant::now();
        let results = world.each(|rank| {
            let result = match rank.rank() {
                0 => rank.send(&vec![1u8; sent], 1),
                _ => rank.recv(&mut vec![1u8; expected], 0),
            };
            while rank.async_error().is_none() && started.elapsed() < BOUND {
                std::thread::sleep(Duration::from_millis(5));
            }
            result.err().or(rank.async_error())
        });
        for (at, other) in [(0, Rank(1)), (1, Rank(0))] {
            let error = results[at].as_ref();
            let found =
                matches!(error.and_then(Error::fault), Some(Fault::Mismatch { rank, .. }) if rank == other);
            let text = error.map(ToString::to_string).unwrap_or_default();
            // The receiver said that the other called something else, and not what.
            let names_both = [format!("send of {sent} uint8"), format!("receive of {expected} uint8")];
            assert!(
                found && names_both.iter().all(|call| text.contains(call)),
                "{sent} for {expected}: {text}"
            );
        }
    }
}

/// A block of an all-to-all-v that is longer or shorter than its receiver expects, or not expected at all.
#[test]
fn blocks_of_another_length_name_their_sender() {
    let _deadline = Deadline::start("blocks_of_another_length_name_their_sender", Duration::from_secs(60));
    for (sent, expected) in [(5usize, 4usize), (4, 5), (0, 1), (1, 0), (100_000, 99_999), (8, 100_000)] {
        doing(|| format!("{sent} for {expected}"));
        let mut world = World::new(3, Settings::default());
        let started = Instant::now();
        let results = world.each(|rank| {
            // Two elements from each to each, but from rank 2 to rank 0.
            let (mut to, mut from) = ([2; 3], [2; 3]);
            match rank.rank() {
                0 => from[2] = expected,
                2 => to[0] = sent,
                _ => {}
            }
            let sent = Blocks { counts: &to, displs: &[0, to[0], to[0] + 2] };
            let received = Blocks { counts: &from, displs: &[0, 2, 4] };
            let (send, mut recv) = (vec![1i32; to.iter().sum()], vec![0i32; from.iter().sum()]);
            let result = rank.all_to_all_v(&send, sent, &mut recv, received);
            while rank.async_error().is_none() && started.elapsed() < BOUND {
                std::thread::sleep(Duration::from_millis(5));
            }
            result.err().or(rank.async_error())
        });
        let fault = |rank: usize| results[rank].as_ref().and_then(Error::fault);
        let context = || format!("{sent} for {expected}: {results:#?}");
        assert!(matches!(fault(0), Some(Fault::Mismatch { rank: Rank(2), .. })), "{}", context());
        // The sender hears what was expected; the third rank, from one of the two.
        assert!(matches!(fault(1), Some(Fault::PeerAborted { rank: Rank(0 | 2) })), "{}", context());
        assert!(matches!(fault(2), Some(Fault::Mismatch { rank: Rank(0), .. })), "{}", context());
        let text = results[0].as_ref().expect("a fault").to_string();
        assert!(text.contains("rank 2") && text.starts_with("rank 0 of 3"), "{text}");
    }
}

/// The message that a user reads names both calls.
#[test]
fn the_message_names_both_calls() {
    let _deadline = Deadline::start("the_message_names_both_calls", Duration::from_secs(60));
    let errors = World::new(2, Settings::default()).each(|rank| {
        let result = match rank.rank() {
            0 => sum(rank, 10),
            // The root waits for no peer, so its barrier detects the other rank.
            _ => rank.broadcast_in_place(&mut [0u8; 7], 1),
        };
        result.and_then(|()| rank.barrier()).expect_err("the ranks disagree").to_string()
    });
    let both = |text: &String| text.contains("all_reduce of 10 float") && text.contains("broadcast of 7");
    assert!(errors.iter().any(both), "{errors:#?}");
}

/// Every rank on one thread: no rank blocks the one that detects the mismatch.
#[test]
fn fibers_end_as_well() {
    let _deadline = Deadline::start("fibers_end_as_well", Duration::from_secs(60));
    let world = World::new(3, Settings::default());
    let started = Instant::now();
    let mut data = [vec![0u8; 30], vec![0u8; 30], vec![0u8; 31]];
    let result = oxccl::group(|group| {
        let mut ranks = world.ranks.iter().zip(&mut data);
        ranks.try_for_each(|(rank, data)| group.all_reduce_in_place(rank, data, ReduceOp::SUM))
    });
    assert!(started.elapsed() < BOUND);
    assert!(matches!(result, Err(Error::Operation(_))), "{result:?}");
    let faults: Vec<_> = world.ranks.iter().map(|rank| rank.async_error().and_then(|e| e.fault())).collect();
    assert!(faults.iter().any(|fault| matches!(fault, Some(Fault::Mismatch { .. }))), "{faults:?}");
    assert!(faults.iter().all(Option::is_some), "{faults:?}");
}

/// Messages to oneself meet within one group only.
#[test]
fn a_message_to_oneself_without_its_other_end_is_said_to_be_that() {
    let _deadline = Deadline::start(
        "a_message_to_oneself_without_its_other_end_is_said_to_be_that",
        Duration::from_secs(60),
    );
    type Call = fn(&Communicator) -> Result<(), Error>;
    let lonely: [Call; 3] = [
        |rank| rank.send(&[1u8; 4], rank.rank()),
        |rank| rank.recv(&mut [1u8; 4], rank.rank()),
        |rank| {
            let (sent, mut got) = ([1u8; 4], [0u8; 3]);
            oxccl::group(|group| {
                group.send(rank, &sent, rank.rank())?;
                group.recv(rank, &mut got, rank.rank())
            })
        },
    ];
    for call in lonely {
        let error = World::new(1, Settings::default()).each(call).remove(0).expect_err("it has one end only");
        assert_eq!(error.fault(), Some(Fault::SelfMessages));
        assert!(error.to_string().contains("sends to itself"), "{error}");
    }
}

/// A call with a root.
type Rooted = fn(&Communicator, u32) -> Result<(), Error>;

/// What all ranks but the last do with root 0, and the last with root 1, on three ranks: somebody waits for one that does not.
const ROOTS: [(&str, Rooted); 4] = [
    ("broadcast", |r, root| r.broadcast_in_place(&mut [0u8; 9], root)),
    ("reduce", |r, root| r.reduce(&[1f32; 9], &mut [0f32; 9], ReduceOp::SUM, root)),
    ("gather", |r, root| r.gather(&[1u8], &mut vec![0; r.size() as usize], root)),
    ("scatter", |r, root| r.scatter(&vec![1u8; r.size() as usize], &mut [0u8], root)),
];

/// Nothing is called after it, by which it would be found anyway.
fn roots_are_named_without_another_call(settings: Settings) {
    for (what, does) in ROOTS {
        doing(|| format!("{what}, {settings:?}"));
        let mut world = World::new(3, settings);
        let started = Instant::now();
        let results = world.each(|rank| {
            let result = does(rank, u32::from(rank.rank() == 2));
            while rank.async_error().is_none() && started.elapsed() < BOUND {
                std::thread::sleep(Duration::from_millis(5));
            }
            result.err().or(rank.async_error())
        });
        let is_found = |error: &Option<Error>| {
            let text = error.as_ref().map(Error::to_string).unwrap_or_default();
            let fault = error.as_ref().and_then(Error::fault);
            matches!(fault, Some(Fault::Mismatch { .. }))
                && text.contains("root 0")
                && text.contains("root 1")
        };
        assert!(started.elapsed() < BOUND, "{what}: not within {BOUND:?}: {results:#?}");
        assert!(results.iter().any(is_found), "{what}: nobody names both roots: {results:#?}");
        assert!(results.iter().all(Option::is_some), "{what}: {results:#?}");
    }
}

#[test]
fn roots_are_named_without_another_call_over_shm() {
    let _deadline = Deadline::start("roots_over_shm", Duration::from_secs(120));
    roots_are_named_without_another_call(Settings {
        transport: Some(TransportKind::Shm),
        ..Settings::default()
    });
}

#[test]
fn roots_are_named_without_another_call_over_tcp() {
    let _deadline = Deadline::start("roots_over_tcp", Duration::from_secs(120));
    roots_are_named_without_another_call(Settings {
        transport: Some(TransportKind::Tcp),
        ..Settings::default()
    });
}

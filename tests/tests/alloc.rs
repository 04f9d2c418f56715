//! After a first call of its kind, no operation allocates: not on the caller's thread, not on any thread of the library.
//!
//! One test only: the counter sees the whole process, so nothing else may run in it.

use oxccl::net::coll::CollConfig;
use oxccl::net::plugin;
use oxccl::{Algorithm, Blocks, Communicator, Error, Protocol, ReduceOp, TransportKind};
use oxccl_tests::counting::{Counting, calls, check_that_it_counts};
use oxccl_tests::deadline::{Deadline, doing};
use oxccl_tests::harness::{Settings, World};
use oxccl_tests::net::{PluginFile, Tables};
use std::sync::Barrier;
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Elements per rank: one, what fits a slot, and what wraps the slots many times.
const COUNTS: [usize; 3] = [2, 200, 40_000];
/// Rounds measured after the first.
const ROUNDS: usize = 5;
/// A rank that has waited half a second, as on a busy machine, reports to the others what it waits for, once, and
/// allocates for the message. An operation's own allocations show in every attempt.
const ATTEMPTS: usize = 4;

struct Buffers {
    one: Vec<f32>,
    other: Vec<f32>,
    all: Vec<f32>,
    more: Vec<f32>,
}

impl Buffers {
    fn new(count: usize, nranks: usize) -> Buffers {
        let zeros = |len| vec![0.0; len];
        let (one, other) = (zeros(count), zeros(count));
        Buffers { one, other, all: zeros(nranks * count), more: zeros(nranks * count) }
    }
}

type Operation = (&'static str, fn(&Communicator, &mut Buffers) -> Result<(), Error>);

/// Every operation, called directly.
const DIRECT: [Operation; 12] = [
    ("all_reduce", |rank, b| rank.all_reduce(&b.one, &mut b.other, ReduceOp::SUM)),
    ("all_reduce_in_place", |rank, b| rank.all_reduce_in_place(&mut b.one, ReduceOp::AVG)),
    ("reduce", |rank, b| rank.reduce(&b.one, &mut b.other, ReduceOp::MAX, 1)),
    ("broadcast", |rank, b| rank.broadcast(&b.one, &mut b.other, 0)),
    ("all_gather", |rank, b| rank.all_gather(&b.one, &mut b.all)),
    ("reduce_scatter", |rank, b| rank.reduce_scatter(&b.all, &mut b.one, ReduceOp::PROD)),
    ("all_to_all", |rank, b| rank.all_to_all(&b.all, &mut b.more)),
    ("all_to_all_v", |rank, b| {
        let n = rank.size() as usize;
        let (counts, displs) =
            ([b.one.len(); 8], std::array::from_fn::<usize, 8, _>(|peer| peer * b.one.len()));
        let blocks = Blocks { counts: &counts[..n], displs: &displs[..n] };
        rank.all_to_all_v(&b.all, blocks, &mut b.more, blocks)
    }),
    ("gather", |rank, b| rank.gather(&b.one, &mut b.all, 1)),
    ("scatter", |rank, b| rank.scatter(&b.all, &mut b.one, 0)),
    ("barrier", |rank, _| rank.barrier()),
    ("send and recv", |rank, b| match rank.rank() {
        0 => rank.send(&b.one, 1),
        1 => rank.recv(&mut b.one, 0),
        _ => Ok(()),
    }),
];

/// Groups and operations in flight, with the messages and collectives of one communicator.
const GROUPED: [Operation; 3] = [
    ("operations in flight", |rank, b| {
        let (me, n) = (rank.rank(), rank.size());
        rank.overlap(|scope| {
            let received = scope.recv(&mut b.other, (me + n - 1) % n)?;
            scope.send(&b.one, (me + 1) % n)?.wait()?;
            let reduced = scope.all_reduce_in_place(&mut b.all, ReduceOp::SUM)?;
            rank.barrier()?;
            while !reduced.test()? {}
            received.wait().map(drop)
        })
    }),
    ("a ring of messages", |rank, b| {
        let (me, n) = (rank.rank(), rank.size());
        oxccl::group(|group| {
            group.send(rank, &b.one, (me + 1) % n)?;
            group.recv(rank, &mut b.other, (me + n - 1) % n)
        })
    }),
    ("collectives and messages", |rank, b| {
        let (me, n) = (rank.rank(), rank.size());
        oxccl::group(|group| {
            group.all_reduce_in_place(rank, &mut b.all, ReduceOp::SUM)?;
            group.send(rank, &b.one, (me + n - 1) % n)?;
            group.recv(rank, &mut b.other, (me + 1) % n)?;
            group.barrier(rank)
        })
    }),
];

/// The least of a few measurements.
fn least_of(mut measure: impl FnMut() -> u64) -> u64 {
    let mut least = measure();
    for _ in 1..ATTEMPTS {
        least = if least == 0 { 0 } else { least.min(measure()) };
    }
    least
}

/// Runs each operation once, then many times, all ranks on threads; what was allocated in the latter.
fn by_threads(world: &mut World, found: &mut Vec<String>) {
    let (nranks, settings) = (world.size(), world.settings);
    for (name, operation) in DIRECT.iter().chain(&GROUPED) {
        for count in COUNTS {
            doing(|| format!("{name} of {count} with {settings:?}"));
            let meet = Barrier::new(nranks);
            let measure = || {
                let counted = world.each(|rank| {
                    let mut buffers = Buffers::new(count, nranks);
                    operation(rank, &mut buffers).unwrap();
                    meet.wait();
                    let before = calls();
                    meet.wait();
                    for _ in 0..ROUNDS {
                        operation(rank, &mut buffers).unwrap();
                    }
                    meet.wait();
                    let counted = calls() - before;
                    meet.wait();
                    counted
                });
                counted[0]
            };
            let least = least_of(measure);
            if least > 0 {
                found.push(format!("{name} of {count} with {settings:?}: {least} calls"));
            }
        }
    }
}

/// One thread is all ranks: a group over their communicators, as fibers.
fn by_fibers(world: &World, found: &mut Vec<String>) {
    let nranks = world.size();
    for count in COUNTS {
        let mut buffers: Vec<_> = (0..nranks).map(|_| Buffers::new(count, nranks)).collect();
        let mut round = || {
            oxccl::group(|group| {
                for (rank, b) in world.ranks.iter().zip(&mut buffers) {
                    let (me, n) = (rank.rank(), rank.size());
                    group.all_reduce_in_place(rank, &mut b.all, ReduceOp::SUM)?;
                    group.send(rank, &b.one, (me + 1) % n)?;
                    group.recv(rank, &mut b.other, (me + n - 1) % n)?;
                }
                Ok(())
            })
        };
        round().unwrap();
        let least = least_of(|| {
            let before = calls();
            for _ in 0..ROUNDS {
                round().unwrap();
            }
            calls() - before
        });
        if least > 0 {
            found.push(format!("fibers, {count} with {:?}: {least} calls", world.settings));
        }
    }
}

/// Two ranks on a host and one on another, along chains.
fn through_a_network_that_reduces() -> World {
    let net = plugin::open_coll(PluginFile::build(Tables::Coll, 12, "", &[]).name()).expect("a plugin");
    let settings = Settings { algorithm: Some(Algorithm::CollnetChain), ..Settings::default() };
    World::with(3, settings, |rank, config| {
        config.host_id = Some((rank / 2).to_string());
        config.net.coll = CollConfig { enabled: true, own: Some(net.clone()), ..CollConfig::default() };
    })
}

#[test]
fn nothing_is_allocated_after_the_first_call() {
    let _deadline = Deadline::start("nothing_is_allocated_after_the_first_call", Duration::from_secs(280));
    check_that_it_counts();
    let mut found = Vec::new();
    let mut settings = vec![Settings::default()];
    for algorithm in [Algorithm::Ring, Algorithm::Tree, Algorithm::OneShot] {
        settings.extend(Protocol::ALL.iter().map(|protocol| Settings::forced(algorithm, *protocol)));
    }
    settings.push(Settings::forced(Algorithm::Doubling, Protocol::Simple));
    for transport in [TransportKind::InProcess, TransportKind::Shm, TransportKind::Tcp, TransportKind::Net] {
        // Over streams every message is a system call, so ten settings would only take longer than one.
        let settings = if transport.is_remote() { &settings[..4] } else { &settings[..] };
        for &setting in settings {
            let settings = Settings { transport: Some(transport), ..setting };
            by_threads(&mut World::new(2, settings), &mut found);
        }
        let settings = Settings { transport: Some(transport), ..Settings::default() };
        by_fibers(&World::new(3, settings), &mut found);
    }
    by_threads(&mut through_a_network_that_reduces(), &mut found);
    assert!(found.is_empty(), "allocator calls in steady state:\n{}", found.join("\n"));
}

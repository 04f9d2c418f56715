//! All-to-all-v against the oracle: random blocks of every type, with empty ones and gaps, by threads, by fibers and in groups.

use oxccl::{DataType, Error, ReduceOp, TransportKind};
use oxccl_tests::deadline::{Deadline, doing};
use oxccl_tests::harness::{Settings, World, first_error};
use oxccl_tests::model::Model;
use oxccl_tests::uneven::{Part, Uneven};
use oxccl_tests::with_type;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::cell::RefCell;
use std::time::Duration;

/// How the ranks come to call it.
#[derive(Clone, Copy, Debug)]
enum Called {
    /// Each on a thread of its own.
    Alone,
    /// Each on a thread of its own, in a group between other calls.
    AmongOthers,
    /// By one thread, in a group over all ranks.
    Together,
}

fn call<T: Model>(world: &mut World, parts: &mut [Part<T>], called: Called) -> Result<(), Error> {
    match called {
        Called::Alone => first_error(world.each_with(parts, |rank, part| {
            rank.all_to_all_v(&part.send, part.sent.blocks(), &mut part.recv, part.received.blocks())
        })),
        Called::AmongOthers => first_error(world.each_with(parts, |rank, part| {
            let (me, n) = (rank.rank(), rank.size());
            let (out, mut back, mut sum) = ([me; 3], [0; 3], [1u32; 100]);
            let (spread, mut gathered) = (vec![me; n as usize], vec![n; n as usize]);
            oxccl::group(|group| {
                group.send(rank, &out, (me + 1) % n)?;
                group.recv(rank, &mut back, (me + n - 1) % n)?;
                let (sent, received) = (part.sent.blocks(), part.received.blocks());
                group.all_to_all_v(rank, &part.send, sent, &mut part.recv, received)?;
                group.all_reduce_in_place(rank, &mut sum, ReduceOp::SUM)?;
                group.all_to_all(rank, &spread, &mut gathered)
            })?;
            assert_eq!((back, sum), ([(me + n - 1) % n; 3], [n; 100]));
            assert!(gathered.iter().copied().eq(0..n), "{gathered:?}");
            Ok(())
        })),
        Called::Together => oxccl::group(|group| {
            let mut ranks = world.ranks.iter().zip(parts);
            ranks.try_for_each(|(rank, part)| {
                let (sent, received) = (part.sent.blocks(), part.received.blocks());
                group.all_to_all_v(rank, &part.send, sent, &mut part.recv, received)
            })
        }),
    }
}

fn check<T: Model>(world: &mut World, uneven: &Uneven, called: Called) -> Result<(), String> {
    let mut parts = uneven.parts::<T>();
    call(world, &mut parts, called).map_err(|error| error.to_string())?;
    let compare =
        |(rank, part): (usize, &Part<T>)| part.compare().map_err(|what| format!("rank {rank}: {what}"));
    parts.iter().enumerate().try_for_each(compare)
}

/// So many random exchanges of each type.
fn among(nranks: u32, settings: Settings, cases: u32) {
    let world = RefCell::new(World::new(nranks, settings));
    let config = Config { cases, max_shrink_iters: 0, failure_persistence: None, ..Config::default() };
    let called = prop::sample::select(vec![Called::Alone, Called::AmongOthers, Called::Together]);
    for dtype in DataType::ALL {
        let random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
        let mut runner = TestRunner::new_with_rng(config.clone(), random);
        let exchanges = (Uneven::any(nranks as usize), called.clone());
        let result = runner.run(&exchanges, |(uneven, called)| {
            doing(|| format!("{called:?} of {dtype}, {nranks} ranks, {settings:?}: {uneven:?}"));
            let world = &mut *world.borrow_mut();
            let checked = with_type!(*dtype, T => check::<T>(world, &uneven, called));
            checked.map_err(TestCaseError::fail)
        });
        result.unwrap_or_else(|failure| panic!("{dtype}: {failure}"));
    }
}

macro_rules! worlds {
    ($($name:ident: $nranks:expr, $settings:expr, $cases:literal;)+) => { $(
        #[test]
        fn $name() {
            let _deadline = Deadline::start(stringify!($name), Duration::from_secs(240));
            $nranks.for_each(|nranks| among(nranks, $settings, $cases));
        }
    )+ };
}

fn over(transport: TransportKind) -> Settings {
    Settings { transport: Some(transport), ..Settings::default() }
}

worlds! {
    up_to_4_ranks: 1..=4, Settings::default(), 12;
    up_to_8_ranks: 5..=8, Settings::default(), 4;
    over_shm: 3..=3, over(TransportKind::Shm), 8;
    over_tcp: 3..=3, over(TransportKind::Tcp), 8;
    over_net: 3..=3, over(TransportKind::Net), 8;
}

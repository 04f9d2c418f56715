//! Anything at random: groups of anything, on any number of threads, against the oracle.

use super::program::{Op, Program};
use oxccl::{Func, Protocol, RedOp};
use oxccl_tests::deadline::{Deadline, doing};
use oxccl_tests::harness::{Settings, World};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use std::cell::RefCell;
use std::time::Duration;

/// Groups for each of the tests, of up to nine operations each.
const GROUPS: u32 = 1000;
const SIZES: [u32; 5] = [1, 2, 3, 4, 6];

fn lengths() -> impl Strategy<Value = usize> {
    prop_oneof![1 => Just(0), 3 => 1usize..20, 3 => 20usize..2000, 1 => 2000usize..20_000]
}

fn op(nranks: u32) -> impl Strategy<Value = Op> {
    let message = (0..nranks, 0..nranks, lengths()).prop_map(|(from, to, len)| Op::Message { from, to, len });
    let funcs = vec![
        Func::AllReduce,
        Func::AllGather,
        Func::ReduceScatter,
        Func::Broadcast,
        Func::Reduce,
        Func::AllToAll,
        Func::Gather,
        Func::Scatter,
        Func::Barrier,
    ];
    let ops = vec![RedOp::Sum, RedOp::Prod, RedOp::Max, RedOp::Min, RedOp::Avg];
    let collective = (prop::sample::select(funcs), prop::sample::select(ops), 0..nranks, lengths())
        .prop_map(|(func, op, root, count)| Op::Collective { func, op, root, count });
    prop_oneof![3 => message, 2 => collective]
}

/// Ranks (an index into [`SIZES`]), ranks on a thread, operations, data.
fn groups() -> impl Strategy<Value = (usize, usize, Vec<Op>, u64)> {
    (0..SIZES.len()).prop_flat_map(|size| {
        let nranks = SIZES[size];
        (Just(size), 1..=nranks as usize, prop::collection::vec(op(nranks), 0..10), any::<u64>())
    })
}

fn random_groups(name: &'static str, settings: Settings) {
    let _deadline = Deadline::start(name, Duration::from_secs(240));
    let worlds = SIZES.map(|nranks| RefCell::new(World::new(nranks, settings)));
    let config = Config { cases: GROUPS, failure_persistence: None, ..Config::default() };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[settings.buffer_bytes as u8 ^ name.len() as u8; 32]);
    let outcome = TestRunner::new_with_rng(config, rng).run(&groups(), |(size, per_thread, ops, seed)| {
        let world = &mut *worlds[size].borrow_mut();
        doing(|| format!("{ops:?} on {} ranks, {per_thread} on a thread", world.size()));
        if world.ranks.iter().any(|rank| rank.async_error().is_some()) {
            // proptest's search for a smaller case needs working ranks.
            *world = World::new(SIZES[size], settings);
        }
        let mut program = Program::new(&ops, SIZES[size], seed);
        program.run(world, per_thread).map_err(|error| TestCaseError::fail(error.to_string()))?;
        program.wrong().map_or(Ok(()), |wrong| Err(TestCaseError::fail(wrong)))
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}

#[test]
fn random_groups_of_the_librarys_choice() {
    random_groups("random_groups_of_the_librarys_choice", Settings::default());
}

#[test]
fn random_groups_over_ll() {
    let settings = Settings { protocol: Some(Protocol::LL), ..Settings::default() };
    random_groups("random_groups_over_ll", settings);
}

#[test]
fn random_groups_over_ll128_and_shm() {
    let transport = Some(oxccl::TransportKind::Shm);
    let settings = Settings { protocol: Some(Protocol::LL128), transport, ..Settings::default() };
    random_groups("random_groups_over_ll128_and_shm", settings);
}

#[test]
fn random_groups_over_tcp() {
    let settings = Settings { transport: Some(oxccl::TransportKind::Tcp), ..Settings::default() };
    random_groups("random_groups_over_tcp", settings);
}

#[test]
fn random_groups_over_net() {
    let settings = Settings { transport: Some(oxccl::TransportKind::Net), ..Settings::default() };
    random_groups("random_groups_over_net", settings);
}

//! Anything at random: calls that wait and calls that do not, on every rank as it likes, against the oracle.

use crate::groups::program::{Op, Step, is_ordered, steps_of};
use oxccl::{Communicator, Error, Func, RedOp, ScopedRequest, TransportKind};
use oxccl_tests::deadline::{Deadline, doing};
use oxccl_tests::deck::Deck;
use oxccl_tests::harness::{Settings, World, first_error};
use oxccl_tests::model::mix;
use std::time::Duration;

/// Programs for each of the tests, of so many operations.
const PROGRAMS: u64 = 150;
const OPERATIONS: usize = 14;

const FUNCS: [Func; 9] = [
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
const OPS: [RedOp; 5] = [RedOp::Sum, RedOp::Prod, RedOp::Max, RedOp::Min, RedOp::Avg];

/// What all ranks do, in an order in which they could do it one after another.
fn operations(nranks: u32, seed: u64) -> Vec<Op> {
    let draw = |k: u64, below: u64| mix(seed ^ k << 8) % below;
    let one = |at: u64| {
        let k = at * 16;
        let count = match draw(k, 8) {
            0 => 0,
            1..4 => draw(k + 1, 20),
            4..7 => draw(k + 1, 2000),
            _ => draw(k + 1, 20_000),
        } as usize;
        let (from, to) = (draw(k + 2, u64::from(nranks)) as u32, draw(k + 3, u64::from(nranks)) as u32);
        // A message to itself has both ends in one call.
        if draw(k + 4, 2) == 0 && from != to {
            return Op::Message { from, to, len: count };
        }
        let (func, op) = (FUNCS[draw(k + 5, 9) as usize], OPS[draw(k + 6, 5) as usize]);
        Op::Collective { func, op, root: from, count }
    };
    (0..OPERATIONS as u64).map(one).collect()
}

/// One rank's calls: runs of messages, which go to and fro as they like, between collectives.
fn runs(ops: &[Op], rank: u32, nranks: u32, seed: u64) -> Vec<Vec<Step>> {
    let mut runs: Vec<Vec<Step>> = vec![Vec::new()];
    for (k, op) in ops.iter().enumerate() {
        let steps = steps_of(op, mix(seed ^ k as u64), rank, nranks);
        match op {
            Op::Message { .. } => runs.last_mut().expect("it begins with one").extend(steps),
            Op::Collective { .. } => runs.extend([steps, Vec::new()]),
        }
    }
    runs
}

/// The messages of a run in any order that both ends of each pair share.
fn shuffled(steps: &[Step], deck: &mut Deck) -> Vec<usize> {
    let (mut left, mut order): (Vec<usize>, _) = ((0..steps.len()).collect(), Vec::new());
    while !left.is_empty() {
        let is_free =
            |at: &usize| left.iter().all(|before| before >= at || !is_ordered(&steps[*before], &steps[*at]));
        let free: Vec<usize> = left.iter().copied().filter(is_free).collect();
        let next = free[deck.draw() % free.len()];
        left.retain(|at| *at != next);
        order.push(next);
    }
    order
}

/// Does one rank's part: which calls wait, and what becomes of the requests, is drawn.
fn run(comm: &Communicator, runs: &mut [Vec<Step>], deck: &mut Deck) -> Result<(), Error> {
    comm.overlap(|scope| {
        let mut open: Vec<ScopedRequest<'_>> = Vec::new();
        for steps in runs {
            let is_messages = steps.first().is_some_and(|step| matches!(step.func, Func::Send | Func::Recv));
            for at in shuffled(steps, deck) {
                let call = steps[at].untyped();
                // SAFETY: the buffers have the shape of the function, and outlive the scope.
                let start = || scope.group(|calls| unsafe { calls.untyped(&call) });
                match deck.draw() % 4 {
                    // SAFETY: as above.
                    0 if !is_messages => unsafe { comm.run_untyped(&call)? },
                    // SAFETY: as above.
                    1 if !is_messages => oxccl::group(|group| unsafe { group.add_untyped(comm, &call) })?,
                    _ => open.push(start()?),
                }
                let drawn = deck.draw();
                if drawn.is_multiple_of(3) && !open.is_empty() {
                    open[drawn / 3 % open.len()].test()?;
                }
            }
            // Behind a run: all ranks have started what comes before.
            let drawn = deck.draw();
            match drawn % 6 {
                0 => scope.wait_all()?,
                1 | 2 if !open.is_empty() => open.swap_remove(drawn / 6 % open.len()).wait()?,
                3 if !open.is_empty() => drop(open.swap_remove(drawn / 6 % open.len())),
                4 => drop(ScopedRequest::wait_any(&open)?),
                _ => {}
            }
        }
        Ok(())
    })
}

fn random_programs(name: &'static str, settings: Settings) {
    let _deadline = Deadline::start(name, Duration::from_secs(240));
    for nranks in [2, 3, 4] {
        let mut world = World::new(nranks, settings);
        for program in 0..PROGRAMS / u64::from(nranks) {
            let seed = mix(program ^ u64::from(nranks) << 32 ^ name.len() as u64);
            let ops = operations(nranks, seed);
            doing(|| format!("{name}: {ops:?} of {nranks} ranks, seed {seed:#x}"));
            let mut parts: Vec<Vec<Vec<Step>>> =
                (0..nranks).map(|rank| runs(&ops, rank, nranks, seed)).collect();
            let results = world.each_with(&mut parts, |comm, runs| {
                let mut deck = Deck::new(1 << 10, mix(seed ^ u64::from(comm.rank()) << 17));
                run(comm, runs, &mut deck)
            });
            first_error(results).unwrap_or_else(|error| panic!("{error}\n  in {ops:?}, seed {seed:#x}"));
            for (rank, runs) in parts.iter().enumerate() {
                if let Some(wrong) = runs.iter().flatten().find_map(Step::wrong) {
                    panic!("rank {rank}: {wrong}\n  in {ops:?}, seed {seed:#x}");
                }
            }
        }
    }
}

#[test]
fn random_requests_of_the_librarys_choice() {
    random_programs("random_requests_of_the_librarys_choice", Settings::default());
}

#[test]
fn random_requests_over_shm() {
    let settings = Settings { transport: Some(TransportKind::Shm), ..Settings::default() };
    random_programs("random_requests_over_shm", settings);
}

#[test]
fn random_requests_over_tcp() {
    let settings = Settings { transport: Some(TransportKind::Tcp), ..Settings::default() };
    random_programs("random_requests_over_tcp", settings);
}

#[test]
fn random_requests_over_net() {
    let settings = Settings { transport: Some(TransportKind::Net), ..Settings::default() };
    random_programs("random_requests_over_net", settings);
}

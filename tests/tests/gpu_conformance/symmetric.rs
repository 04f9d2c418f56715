//! Symmetric kernels, which reach the other ranks' buffers: every function, type and operator, out of place and in place, in graphs; ranks
//! that pass different places, and a rank that does not come.

use oxccl::{DataType, Fault, Func, Rank, RedOp, Untyped};
use oxccl_shared::algo::symmetric::reduced_max;
use oxccl_tests::case::{Case, Placement, ops};
use oxccl_tests::deadline::{Deadline, doing};
use oxccl_tests::devices::{DeviceRank, DeviceWorld, Launch, ranks_max};
use oxccl_tests::harness::{Settings, on_threads};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(280);
const FUNCS: [Func; 4] = [Func::AllReduce, Func::ReduceScatter, Func::AllGather, Func::AllToAll];
const WINDOW_BYTES: usize = 128 << 20;

/// Elements: less than a bulk copy has, whole ones, a ragged end, several tiles of several blocks.
const COUNTS: [usize; 6] = [1, 16, 100, 4112, 70_001, 400_016];

fn world(nranks: u32, timeout: Duration) -> DeviceWorld {
    let mut world = DeviceWorld::with(nranks, Settings::default(), None, |config| {
        config.symmetric = Some(true);
        config.timeout = timeout;
    });
    world.use_windows(WINDOW_BYTES);
    world
}

fn has_too_few() -> bool {
    let has = ranks_max() < 2;
    if has {
        println!("skipped: this machine has one GPU, and OXCCL_DUPLICATE_GPUS=1 is not set");
    }
    has
}

/// Not where a rank alone knows that tiles do not reach its output.
fn may_lie(placement: Placement, func: Func, dtype: DataType, nranks: u32) -> bool {
    placement != Placement::Unaligned || func != Func::ReduceScatter || nranks <= reduced_max(dtype)
}

fn check(world: &mut DeviceWorld, case: Case, launch: Launch) {
    doing(|| format!("{case:?} by {launch:?} of {} GPUs", world.ranks.len()));
    world.check(&case, launch).unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_symmetric_results() {
    let _deadline = Deadline::start("needs_gpu_symmetric_results", LIMIT);
    if has_too_few() {
        return;
    }
    let (mut done, mut seed) = (0, 1);
    for nranks in [2, 3, 4, 8].into_iter().filter(|nranks| *nranks <= ranks_max()) {
        let mut world = world(nranks, Duration::from_secs(60));
        for func in FUNCS {
            let types = if func.is_reduction() { DataType::ALL } else { &[DataType::U8, DataType::F64] };
            for (dtype, count) in types.iter().flat_map(|dtype| COUNTS.map(|count| (*dtype, count))) {
                for op in ops(func) {
                    // Each call one of these, all of them in turn.
                    let (placement, launch) = (Placement::ALL[seed % 3], Launch::ALL[seed / 3 % 3]);
                    let placement =
                        if may_lie(placement, func, dtype, nranks) { placement } else { Placement::Apart };
                    let case = Case { func, dtype, op: *op, root: 0, count, placement, seed: seed as u64 };
                    check(&mut world, case, launch);
                    (done, seed) = (done + 1, seed + 1);
                }
            }
        }
        world.leave_windows();
    }
    println!("{done} operations");
}

/// Long calls, as many blocks as there may be, mixed with others.
#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_symmetric_long() {
    let _deadline = Deadline::start("needs_gpu_symmetric_long", LIMIT);
    if has_too_few() {
        return;
    }
    let nranks = ranks_max().min(4);
    let mut world = world(nranks, Duration::from_secs(60));
    for turn in 0..3 {
        let case = |func, count, placement| Case {
            func,
            dtype: DataType::F32,
            op: RedOp::Sum,
            root: 1,
            count,
            placement,
            seed: turn + count as u64,
        };
        let group = [
            case(Func::AllReduce, (2 << 20) + 1, Placement::InPlace),
            case(Func::AllGather, 77, Placement::Apart),
            case(Func::AllGather, 1 << 18, Placement::Apart),
            case(Func::AllReduce, 77, Placement::Apart),
            case(Func::ReduceScatter, 1 << 18, Placement::InPlace),
            case(Func::AllToAll, 1 << 18, Placement::Apart),
        ];
        for launch in Launch::ALL {
            doing(|| format!("turn {turn} by {launch:?}"));
            world.check_group(&group, launch).unwrap_or_else(|failure| panic!("{failure}"));
        }
    }
    world.leave_windows();
}

/// Two ranks' all-reduces from 64 MiB on have tiles again.
#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_symmetric_longer_than_threads_reduce() {
    let _deadline = Deadline::start("needs_gpu_symmetric_longer_than_threads_reduce", LIMIT);
    if has_too_few() {
        return;
    }
    let mut world = world(2, Duration::from_secs(60));
    let case = Case {
        func: Func::AllReduce,
        dtype: DataType::F32,
        op: RedOp::Sum,
        root: 0,
        count: (16 << 20) + 1,
        placement: Placement::InPlace,
        seed: 7,
    };
    check(&mut world, case, Launch::Threads);
    world.leave_windows();
}

/// An all-reduce of floats at this place of a rank's window.
fn all_reduce(window: u64, offset: u64, count: usize) -> Untyped {
    let at = |offset: u64| std::ptr::without_provenance_mut::<u8>((window + offset) as usize);
    let (send, recv) = (at(0).cast_const(), at((64 << 20) + offset));
    Untyped { send, recv, count, ..Untyped::new(Func::AllReduce, DataType::F32) }
}

fn fault(rank: &DeviceRank) -> Option<Fault> {
    rank.comm.async_error().and_then(|error| error.fault())
}

/// Ranks that pass other places, a rank that does not come.
#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_symmetric_without_a_partner() {
    let _deadline = Deadline::start("needs_gpu_symmetric_without_a_partner", LIMIT);
    if has_too_few() {
        return;
    }
    for differs in [true, false] {
        let mut world = world(2, Duration::from_secs(if differs { 60 } else { 1 }));
        let windows: Vec<u64> = (0..2).map(|rank| world.address(rank)).collect();
        let named = on_threads(world.ranks.iter_mut().zip(windows), |(rank, window)| {
            let offset = u64::from(rank.comm.rank()) * u64::from(differs) * 512;
            let call = all_reduce(window, offset, 1000);
            let me = rank.comm.rank();
            let called = if differs || me == 0 {
                // SAFETY: the buffers lie in memory that outlives the stream's work.
                unsafe { rank.comm.enqueue_untyped(&call, rank.stream.by_ref()) }
            } else {
                Ok(())
            };
            rank.stream.synchronize().expect("the waits have ended");
            while rank.comm.async_error().is_none() {
                std::thread::sleep(Duration::from_millis(5));
            }
            let refusal = called.err().and_then(|error| error.fault());
            match (differs, fault(rank)) {
                (true, fault) => {
                    assert!(fault.is_some());
                    matches!(refusal, Some(Fault::Placement { .. }))
                }
                (false, fault) if me == 0 => {
                    assert!(matches!(fault, Some(Fault::Timeout { rank: Rank(1), .. })), "{fault:?}");
                    true
                }
                (false, fault) => fault.is_some(),
            }
        });
        assert!(named.contains(&true), "one of both says that places differ, or who does not come");
        // Others may still have the memory mapped.
        std::mem::forget(world);
    }
}

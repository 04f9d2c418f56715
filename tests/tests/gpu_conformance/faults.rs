//! The faults that ranks report when another does not do its part.

use oxccl::cuda::DeviceMemory;
use oxccl::{DataType, Error, Fault, Func, Rank, Untyped};
use oxccl_tests::deadline::Deadline;
use oxccl_tests::devices::{DeviceRank, DeviceWorld, ranks_max};
use oxccl_tests::harness::{Settings, on_threads};
use std::time::Duration;

const BYTES: usize = 1 << 20;

fn all_reduce(rank: &DeviceRank, memory: &DeviceMemory, count: usize) -> Result<(), Error> {
    let buffer: *mut u8 = std::ptr::without_provenance_mut(memory.address() as usize);
    let call = Untyped { send: buffer, recv: buffer, count, ..Untyped::new(Func::AllReduce, DataType::F32) };
    // SAFETY: in place, within the memory, which lives until the stream has been waited for.
    unsafe { rank.comm.enqueue_untyped(&call, rank.stream.by_ref()) }
}

/// Every rank all-reduces so many floats, or nothing, and waits. Returns each rank's fault.
fn faults(counts: [Option<usize>; 2], timeout: Duration) -> Vec<Option<Fault>> {
    let mut world = DeviceWorld::new(2, Settings { timeout, ..Settings::default() }, None);
    let ranks = world.ranks.iter_mut().zip(counts);
    on_threads(ranks, |(rank, count)| {
        let memory = DeviceMemory::zeroed(rank.comm.device(), BYTES).expect("1 MiB");
        let done = match count {
            Some(count) => {
                all_reduce(rank, &memory, count).and_then(|()| rank.comm.synchronize(rank.stream.by_ref()))
            }
            None => {
                std::thread::sleep(timeout + Duration::from_secs(3));
                rank.comm.async_error().map_or(Ok(()), Err)
            }
        };
        done.err().and_then(|error| error.fault())
    })
}

#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_a_silent_rank_is_named() {
    let _deadline = Deadline::start("needs_gpu_a_silent_rank_is_named", Duration::from_secs(60));
    if ranks_max() < 2 {
        return println!("skipped: this machine has one GPU, and OXCCL_DUPLICATE_GPUS=1 is not set");
    }
    for count in [10, 200_000] {
        let reported = faults([Some(count), None], Duration::from_secs(2));
        assert!(matches!(reported[0], Some(Fault::Timeout { rank: Rank(1), .. })), "{reported:?}");
        assert!(reported[1].is_some(), "rank 1 hears that rank 0 gave up: {reported:?}");
    }
}

#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_another_call_is_noticed() {
    let _deadline = Deadline::start("needs_gpu_another_call_is_noticed", Duration::from_secs(60));
    if ranks_max() < 2 {
        return println!("skipped: this machine has one GPU, and OXCCL_DUPLICATE_GPUS=1 is not set");
    }
    for counts in [[10, 11], [200_000, 200_001]] {
        let reported = faults(counts.map(Some), Duration::from_secs(5));
        let mismatch = |fault: &Option<Fault>| matches!(fault, Some(Fault::Mismatch { .. }));
        assert!(reported.iter().any(mismatch), "{reported:?}");
    }
}

#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_abort_ends_a_kernel_that_waits() {
    let _deadline = Deadline::start("needs_gpu_abort_ends_a_kernel_that_waits", Duration::from_secs(60));
    if ranks_max() < 2 {
        return println!("skipped: this machine has one GPU, and OXCCL_DUPLICATE_GPUS=1 is not set");
    }
    let world = DeviceWorld::new(2, Settings::default(), None);
    let rank = &world.ranks[0];
    let memory = DeviceMemory::zeroed(rank.comm.device(), BYTES).expect("1 MiB");
    all_reduce(rank, &memory, 1000).expect("a call");
    std::thread::sleep(Duration::from_millis(200));
    assert!(!rank.stream.by_ref().is_done().expect("a stream"), "rank 1 has not called");
    rank.comm.abort();
    let reported = rank.comm.synchronize(rank.stream.by_ref()).unwrap_err();
    assert_eq!(reported.fault(), Some(Fault::Aborted));
}

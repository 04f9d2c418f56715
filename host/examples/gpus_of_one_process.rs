//! One process and one thread with several GPUs, without `unsafe`: cudarc's streams and buffers, sums between all GPUs.
//!
//! ```text
//! cargo xtask build-ptx
//! cargo run --release -p oxccl --example gpus_of_one_process [number of GPUs, all by default]
//! ```

use oxccl::cuda::Driver;
use oxccl::cudarc::driver::{CudaContext, CudaSlice, CudaStream};
use oxccl::{DeviceCommunicator, ReduceOp};
use std::error::Error;
use std::sync::Arc;

/// Elements of a buffer: enough that an operation is under way when the program goes on.
const COUNT: usize = 8 << 20;
const ROUNDS: usize = 20;

/// A rank: its communicator, and its GPU as cudarc knows it.
struct Rank {
    comm: DeviceCommunicator,
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    sum: CudaSlice<f32>,
}

impl Rank {
    fn new(comm: DeviceCommunicator) -> Result<Rank, Box<dyn Error>> {
        let context = CudaContext::new(comm.device().ordinal() as usize)?;
        let stream = context.new_stream()?;
        let sum =
            stream.clone_htod(&vec![1 + comm.rank(); COUNT].iter().map(|x| *x as f32).collect::<Vec<_>>())?;
        Ok(Rank { comm, context, stream, sum })
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let gpus = match std::env::args().nth(1) {
        Some(text) => text.parse()?,
        None => Driver::get()?.device_count(),
    };
    let comms = DeviceCommunicator::init_all(&Vec::from_iter(0..gpus))?;
    let mut ranks = comms.into_iter().map(Rank::new).collect::<Result<Vec<_>, _>>()?;

    // All ranks' calls in one group: a thread that has several ranks must not wait for one before it has called the others.
    oxccl::stream_group(|group| {
        ranks.iter_mut().try_for_each(|rank| {
            group.on(&rank.comm, &rank.stream)?.all_reduce_in_place(&mut rank.sum, ReduceOp::SUM)
        })
    })?;
    let expected = (gpus * (gpus + 1) / 2) as f32;
    for rank in &ranks {
        let sum = rank.stream.clone_dtoh(&rank.sum)?;
        assert!(
            sum.iter().all(|x| *x == expected),
            "rank {}: {} instead of {expected}",
            rank.comm.rank(),
            sum[0]
        );
    }

    // Each round takes new streams and new buffers and drops them while their operations are under way. cudarc frees a buffer when its
    // stream is done with it, and the next operation waits for the one before, on whichever streams they are.
    let mut last = Vec::new();
    for round in 0..ROUNDS {
        last.clear();
        let streams = ranks.iter().map(|rank| rank.context.new_stream()).collect::<Result<Vec<_>, _>>()?;
        for (rank, stream) in ranks.iter().zip(&streams) {
            let send = stream.clone_htod(&vec![round as f32; COUNT / gpus as usize])?;
            let mut recv = stream.alloc_zeros::<f32>(COUNT / gpus as usize * gpus as usize)?;
            rank.comm.on(stream)?.all_gather(&send, &mut recv)?;
            last.push((stream.clone(), recv));
        }
    }
    for (stream, gathered) in &last {
        assert!(stream.clone_dtoh(gathered)?.iter().all(|x| *x == (ROUNDS - 1) as f32));
    }
    drop(last);
    DeviceCommunicator::finalize_all(ranks.into_iter().map(|rank| rank.comm))?;
    println!("{gpus} GPUs: all-reduce and {ROUNDS} all-gathers are right");
    Ok(())
}

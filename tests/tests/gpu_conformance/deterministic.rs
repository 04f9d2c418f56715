//! The bits of a reduction by rank: those of ranks on CPUs, by an oracle that knows neither.

use oxccl::cudarc::driver::{CudaContext, CudaSlice, CudaStream, DeviceRepr};
use oxccl::{GpuElement, RedOp, ReduceOp};
use oxccl_tests::deadline::{Deadline, doing};
use oxccl_tests::devices::{DeviceWorld, gpus};
use oxccl_tests::guarded::bytes_of;
use oxccl_tests::harness::Settings;
use oxccl_tests::model::Model;
use oxccl_tests::oracle::{by_rank, noise};
use std::sync::Arc;
use std::time::Duration;

fn check<T>(world: &DeviceWorld, streams: &[Arc<CudaStream>], op: (RedOp, ReduceOp), count: usize)
where
    T: Model<Wide = f64> + GpuElement + DeviceRepr,
{
    doing(|| format!("{} of {count} {}", op.0, T::DTYPE));
    let n = world.ranks.len();
    let inputs: Vec<Vec<T>> = (0..n).map(|rank| noise(count as u64, rank, count)).collect();
    let sends: Vec<&[T]> = inputs.iter().map(Vec::as_slice).collect();
    let expected = by_rank(op.0, &sends, T::narrow(1.0));
    let block = count / n;
    let on_gpus = |len: usize| -> Vec<CudaSlice<T>> {
        sends.iter().zip(streams).map(|(input, stream)| stream.clone_htod(&input[..len]).unwrap()).collect()
    };
    let sent = on_gpus(count);
    let (mut whole, mut scattered, mut rooted) = (on_gpus(count), on_gpus(block), on_gpus(count));
    let outs = whole.iter_mut().zip(&mut scattered).zip(&mut rooted);
    let blocks: Vec<_> = sent.iter().map(|sent| sent.slice(..block * n)).collect();
    oxccl::stream_group(|group| {
        let ins = world.ranks.iter().zip(streams).zip(sent.iter().zip(&blocks));
        for (((rank, stream), (send, blocks)), ((whole, scattered), rooted)) in ins.zip(outs) {
            let mut on = group.on(&rank.comm, stream)?;
            on.all_reduce(send, whole, op.1)?;
            on.reduce_scatter(blocks, scattered, op.1)?;
            on.reduce(send, rooted, op.1, 0)?;
        }
        Ok(())
    })
    .unwrap();
    for (rank, stream) in streams.iter().enumerate() {
        let found = stream.clone_dtoh(&whole[rank]).unwrap();
        assert!(bytes_of(&found) == bytes_of(&expected), "all-reduce, rank {rank}: {} of {count}", T::DTYPE);
        let found = stream.clone_dtoh(&scattered[rank]).unwrap();
        assert!(
            bytes_of(&found) == bytes_of(&expected[rank * block..][..block]),
            "reduce-scatter, rank {rank}"
        );
    }
    let found = streams[0].clone_dtoh(&rooted[0]).unwrap();
    assert!(bytes_of(&found) == bytes_of(&expected), "reduce: {} of {count}", T::DTYPE);
}

/// Four ranks, which share GPUs where there are fewer.
#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_bits_are_those_of_a_reduction_by_rank() {
    let _deadline =
        Deadline::start("needs_gpu_bits_are_those_of_a_reduction_by_rank", Duration::from_secs(300));
    if gpus() == 0 {
        println!("skipped: no GPU");
        return;
    }
    let world = DeviceWorld::on_hosts(&["one"; 4], Settings::default(), |config| config.deterministic = true);
    let stream = |rank: u32| CudaContext::new((rank % gpus()) as usize).unwrap().new_stream().unwrap();
    let streams: Vec<Arc<CudaStream>> = (0..4).map(stream).collect();
    let sum = (RedOp::Sum, ReduceOp::SUM);
    for count in [4, 1_000, 100_000, 3_000_001] {
        check::<f32>(&world, &streams, sum, count);
        check::<f32>(&world, &streams, (RedOp::Avg, ReduceOp::AVG), count);
        check::<f64>(&world, &streams, (RedOp::Prod, ReduceOp::PROD), count);
    }
}

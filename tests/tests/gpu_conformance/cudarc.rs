//! Operations on cudarc's buffers and streams, without `unsafe`: results, lifetimes, and what is refused.

use oxccl::cudarc::driver::{CudaContext, CudaSlice, CudaStream};
use oxccl::{ArgumentError, Blocks, DeviceCommunicator, Error, ReduceOp};
use oxccl_tests::deadline::Deadline;
use oxccl_tests::devices::{device_config, gpus, ordinals, ranks_max};
use oxccl_tests::harness::Settings;
use std::sync::Arc;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(200);

fn ranks(nranks: u32) -> Vec<(DeviceCommunicator, Arc<CudaStream>)> {
    let config = device_config(&Settings::default(), None);
    let comms = DeviceCommunicator::init_all_with(&ordinals(nranks), &config).unwrap();
    let with_stream = |comm: DeviceCommunicator| {
        let stream = CudaContext::new(comm.device().ordinal() as usize).unwrap().new_stream().unwrap();
        (comm, stream)
    };
    comms.into_iter().map(with_stream).collect()
}

/// Rank r's buffer holds r * 100, r * 100 + 1 and so on.
fn filled(ranks: &[(DeviceCommunicator, Arc<CudaStream>)], len: usize) -> Vec<CudaSlice<i32>> {
    let fill = |rank: u32| (0..len as i32).map(|i| rank as i32 * 100 + i).collect::<Vec<_>>();
    ranks.iter().map(|(comm, stream)| stream.clone_htod(&fill(comm.rank())).unwrap()).collect()
}

fn zeros(ranks: &[(DeviceCommunicator, Arc<CudaStream>)], len: usize) -> Vec<CudaSlice<i32>> {
    ranks.iter().map(|(_, stream)| stream.alloc_zeros(len).unwrap()).collect()
}

fn read(slice: &CudaSlice<i32>) -> Vec<i32> {
    slice.stream().clone_dtoh(slice).unwrap()
}

#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_every_operation_on_slices_and_views() {
    let _deadline = Deadline::start("needs_gpu_every_operation_on_slices_and_views", LIMIT);
    let nranks = ranks_max().min(4);
    let (n, ranks) = (nranks as usize, ranks(nranks));
    let send = filled(&ranks, n);
    let total = |i: usize| (0..nranks as i32).map(|rank| rank * 100).sum::<i32>() + nranks as i32 * i as i32;

    let mut recv = zeros(&ranks, n);
    for (((comm, stream), send), recv) in ranks.iter().zip(&send).zip(&mut recv) {
        comm.on(stream).unwrap().all_reduce(send, recv, ReduceOp::SUM).unwrap();
    }
    recv.iter().for_each(|recv| assert_eq!(read(recv), (0..n).map(total).collect::<Vec<_>>()));

    let mut recv = zeros(&ranks, n * n);
    for (((comm, stream), send), recv) in ranks.iter().zip(&send).zip(&mut recv) {
        comm.on(stream).unwrap().all_gather(&send.slice(..), &mut recv.slice_mut(..)).unwrap();
    }
    let all: Vec<i32> =
        (0..nranks as i32).flat_map(|rank| (0..n as i32).map(move |i| rank * 100 + i)).collect();
    recv.iter().for_each(|recv| assert_eq!(read(recv), all));

    let mut recv = zeros(&ranks, 1);
    for (((comm, stream), send), recv) in ranks.iter().zip(&send).zip(&mut recv) {
        comm.on(stream).unwrap().reduce_scatter(send, recv, ReduceOp::SUM).unwrap();
    }
    recv.iter().enumerate().for_each(|(rank, recv)| assert_eq!(read(recv), [total(rank)]));

    let mut recv = zeros(&ranks, n);
    oxccl::stream_group(|group| {
        for (((comm, stream), send), recv) in ranks.iter().zip(&send).zip(&mut recv) {
            group.on(comm, stream)?.all_to_all(send, recv)?;
        }
        Ok(())
    })
    .unwrap();
    let column = |rank: usize| (0..nranks as i32).map(|from| from * 100 + rank as i32).collect::<Vec<_>>();
    recv.iter().enumerate().for_each(|(rank, recv)| assert_eq!(read(recv), column(rank)));

    // The same as blocks of a length of their own.
    let (counts, displs) = (vec![1; n], Vec::from_iter(0..n));
    let blocks = Blocks { counts: &counts, displs: &displs };
    let mut recv = zeros(&ranks, n);
    oxccl::stream_group(|group| {
        for (((comm, stream), send), recv) in ranks.iter().zip(&send).zip(&mut recv) {
            group.on(comm, stream)?.all_to_all_v(send, blocks, recv, blocks)?;
        }
        Ok(())
    })
    .unwrap();
    recv.iter().enumerate().for_each(|(rank, recv)| assert_eq!(read(recv), column(rank)));
}

/// Buffers and streams are dropped, and buffers written by other streams, while operations that use them are under way.
#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_buffers_and_streams_may_go_before_the_operation() {
    let _deadline = Deadline::start("needs_gpu_buffers_and_streams_may_go_before_the_operation", LIMIT);
    const LEN: usize = 4 << 20;
    let nranks = ranks_max().min(2);
    let ranks = ranks(nranks);
    let mut sums = zeros(&ranks, LEN);
    for round in 1..=30i32 {
        // All ranks' inputs before any rank's call: where ranks share a GPU, they share the queues of its copies too, and the
        // second rank's input would wait behind the first rank's copy of a result that needs the second rank.
        let inputs: Vec<_> = ranks
            .iter()
            .map(|(_, home)| {
                let [stream, other] = [(); 2].map(|()| home.context().new_stream().unwrap());
                let send = stream.clone_htod(&vec![round; LEN]).unwrap();
                let recv = stream.alloc_zeros::<i32>(LEN).unwrap();
                (stream, other, send, recv)
            })
            .collect();
        for (((comm, _), (stream, other, mut send, mut recv)), sum) in ranks.iter().zip(inputs).zip(&mut sums)
        {
            comm.on(&stream).unwrap().all_reduce(&send, &mut recv, ReduceOp::SUM).unwrap();
            // Another stream overwrites the input, reads the output, and is gone too.
            other.memset_zeros(&mut send).unwrap();
            other.memcpy_dtod(&recv, sum).unwrap();
        }
        let expected = round * nranks as i32;
        sums.iter().for_each(|sum| assert!(read(sum).iter().all(|x| *x == expected), "round {round}"));
    }
    DeviceCommunicator::finalize_all(ranks.into_iter().map(|(comm, _)| comm)).unwrap();
}

#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_what_is_of_another_gpu_is_refused() {
    let _deadline = Deadline::start("needs_gpu_what_is_of_another_gpu_is_refused", LIMIT);
    if gpus() < 2 {
        return println!("skipped: this machine has one GPU");
    }
    let ranks = ranks(2);
    let mut data = zeros(&ranks, 4);
    let ((first, own), (_, other)) = (&ranks[0], &ranks[1]);
    let refused = first.on(other).map(drop).unwrap_err();
    assert!(
        matches!(refused, Error::Argument(ArgumentError::StreamDevice { device: 0, stream: 1, .. })),
        "{refused}"
    );
    let refused = first.on(own).unwrap().all_reduce_in_place(&mut data[1], ReduceOp::SUM).unwrap_err();
    assert!(matches!(refused, Error::Argument(ArgumentError::OtherContext { ordinal: 1, .. })), "{refused}");
}

//! What a call costs: all-reduce between two threads of one process, from 8 bytes.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use oxccl::{Communicator, ReduceOp, UniqueId};
use std::sync::mpsc;
use std::time::Instant;

fn two_threads(c: &mut Criterion) {
    let id = UniqueId::create().expect("an id of this host");
    let join = move |rank| {
        Communicator::builder().unique_id(id).rank(rank).ranks(2).build().expect("two ranks of one process")
    };
    std::thread::scope(|scope| {
        let (order, orders) = mpsc::channel::<(u64, usize)>();
        scope.spawn(move || {
            let communicator = join(1);
            for (iters, count) in orders {
                run(&communicator, iters, count);
            }
        });
        let communicator = join(0);
        let mut group = c.benchmark_group("all_reduce");
        for count in [2usize, 256, 16 << 10, 256 << 10] {
            group.throughput(Throughput::Bytes(4 * count as u64));
            group.bench_function(BenchmarkId::from_parameter(4 * count), |bench| {
                bench.iter_custom(|iters| {
                    // The partner ends only when this closure, and with it the sender, is gone.
                    let _ = order.send((iters, count));
                    run(&communicator, iters, count)
                });
            });
        }
        group.finish();
        drop(order);
    });
}

/// `iters` operations after one that brings the ranks together.
fn run(communicator: &Communicator, iters: u64, count: usize) -> std::time::Duration {
    let (send, mut recv) = (vec![1f32; count], vec![0f32; count]);
    let mut once = || communicator.all_reduce(&send, &mut recv, ReduceOp::SUM).expect("both ranks live");
    once();
    let start = Instant::now();
    (0..iters).for_each(|_| once());
    start.elapsed()
}

criterion_group!(benches, two_threads);
criterion_main!(benches);

//! What a proxy costs: a turn with nothing to do, a turn that waits, a step. The network under it costs nothing.

mod proxy_parts;

use criterion::{Criterion, criterion_group, criterion_main};
use oxccl_shared::abi::Func;
use proxy_parts::Bed;

/// More steps than are ever measured.
const MANY: u64 = 1 << 40;

fn turns(c: &mut Criterion) {
    for connections in [1, 8, 64] {
        let mut bed = Bed::new(connections, MANY);
        c.bench_function(&format!("proxy/idle/{}_connections", 2 * connections), |b| {
            b.iter(|| bed.progress.do_work());
        });
    }
    let mut bed = Bed::new(8, MANY);
    bed.give(Func::Send, MANY);
    c.bench_function("proxy/waits_for_a_kernel", |b| b.iter(|| bed.progress.do_work()));
}

fn steps(c: &mut Criterion) {
    let mut bed = Bed::new(8, MANY);
    bed.give(Func::Send, MANY);
    c.bench_function("proxy/step/send", |b| b.iter(|| bed.send_step()));
    let mut bed = Bed::new(8, MANY);
    bed.give(Func::Recv, MANY);
    c.bench_function("proxy/step/recv", |b| b.iter(|| bed.recv_step()));
}

criterion_group!(benches, turns, steps);
criterion_main!(benches);

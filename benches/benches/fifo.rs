//! What a step costs: the FIFO's counters and LL's lines, in one thread (instructions) and between two (cache lines travelling).

use criterion::{Criterion, criterion_group, criterion_main};
use oxccl_shared::abi::{ConnControl, SlotHeader, Step};
use oxccl_shared::fifo::{STEPS, split};
use oxccl_shared::proto::ll::{LlLine, flag};
use oxccl_shared::sync::{Line128, cpu_relax};
use std::hint::black_box;
use std::sync::mpsc;
use std::time::{Duration, Instant};

const HEADER: SlotHeader = SlotHeader { tag: 7, len_bytes: 8 };

fn one_thread(c: &mut Criterion) {
    let control = ConnControl::default();
    let (mut producer, mut consumer) = split(&control);
    c.bench_function("step_fifo/publish_poll_release", |b| {
        b.iter(|| {
            assert!(producer.poll_credit(STEPS));
            producer.publish(black_box(HEADER));
            let header = consumer.poll();
            consumer.release();
            header
        });
    });
    let line = LlLine::default();
    let mut step = Step(0);
    c.bench_function("ll_line/store_load", |b| {
        b.iter(|| {
            step = step.next();
            line.store(black_box(step.0), flag(step));
            line.load(flag(step))
        });
    });
}

/// Times `iters` round trips with a partner thread, which knows their number and answers each.
fn with_partner(
    c: &mut Criterion,
    name: &str,
    mut ours: impl FnMut() + Send,
    mut theirs: impl FnMut() + Send,
) {
    std::thread::scope(|scope| {
        let (order, orders) = mpsc::channel::<u64>();
        scope.spawn(move || {
            for iters in orders {
                (0..iters).for_each(|_| theirs());
            }
        });
        c.bench_function(name, |b| {
            b.iter_custom(|iters| -> Duration {
                // The partner ends only when this closure, and with it the sender, is gone.
                let _ = order.send(iters + 1);
                ours();
                let start = Instant::now();
                (0..iters).for_each(|_| ours());
                start.elapsed()
            });
        });
    });
}

fn round_trips(c: &mut Criterion) {
    let (there, back) = (ConnControl::default(), ConnControl::default());
    let ((mut to, mut from_us), (mut to_us, mut from)) = (split(&there), split(&back));
    with_partner(
        c,
        "step_fifo/round_trip",
        || {
            send(&mut to);
            receive(&mut from);
        },
        || {
            receive(&mut from_us);
            send(&mut to_us);
        },
    );
    let lines: [Line128<LlLine>; 2] = Default::default();
    let (mut mine, mut yours) = (Step(0), Step(0));
    let wait = |line: &LlLine, step| wait_until(|| line.load(flag(step)).is_some());
    with_partner(
        c,
        "ll_line/round_trip",
        || {
            mine = mine.next();
            lines[0].store(mine.0, flag(mine));
            wait(&lines[1], mine);
        },
        || {
            yours = yours.next();
            wait(&lines[0], yours);
            lines[1].store(yours.0, flag(yours));
        },
    );
}

fn send(producer: &mut oxccl_shared::fifo::StepProducer<'_>) {
    wait_until(|| producer.poll_credit(STEPS));
    producer.publish(HEADER);
}

fn receive(consumer: &mut oxccl_shared::fifo::StepConsumer<'_>) {
    wait_until(|| consumer.poll().is_some());
    consumer.release();
}

/// Spins, but leaves the processor now and then: on a busy machine the partner may be waiting for this very one.
fn wait_until(mut there: impl FnMut() -> bool) {
    for spin in 1u32.. {
        if there() {
            return;
        }
        if spin.is_multiple_of(10_000) {
            std::thread::yield_now();
        }
        cpu_relax();
    }
}

criterion_group!(benches, one_thread, round_trips);
criterion_main!(benches);

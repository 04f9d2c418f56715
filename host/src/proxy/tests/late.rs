//! What counts as late, and what does not. The clock is the test's.

use super::ends::{counted, ends, host_block, memory};
use super::network::Manners;
use crate::proxy::*;
use oxccl_shared::abi::{ConnControl, Func, Rank, SlotHeader};
use oxccl_shared::fifo::{STEPS, split};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(8);
const TAG: u32 = 7;
const HEADER: SlotHeader = SlotHeader { tag: TAG, len_bytes: 64 };
/// The channel of [`ends`].
const CHANNEL: u32 = 3;
const MANY: u64 = 20;

/// The proxy of a rank that has one connection.
fn alone(rank: Rank, end: ProxyEnd) -> (ProxyOrders, Progress) {
    let channels = (0..=CHANNEL).map(|_| ProxyChannel::default()).collect();
    proxy(ProxyParts { rank, nranks: 2, channels, ends: vec![end], timeout: Some(TIMEOUT) })
}

/// A message of [`MANY`] slots to or from the other rank.
fn order(func: Func, peer: Rank, slot_bytes: usize) -> ProxyOrder {
    ProxyOrder {
        count: MANY * slot_bytes as u64,
        grain_elems: 1,
        tag: TAG,
        rank: peer,
        first_channel: CHANNEL,
        nchannels: 1,
        func: func as u8,
        protocol: counted() as u8,
        ..ProxyOrder::default()
    }
}

/// A rank that receives, its kernel's words, and the other rank's end, whose kernel has filled so many slots.
fn receiving(filled: usize) -> (ProxyOrders, Progress, &'static ConnControl, SendEnd) {
    let (mut send, recv, [from, to]) = ends(Manners::GOOD);
    let slot_bytes = recv.layout().simple_slot_bytes as usize;
    send.begin(SubOp { tag: TAG, protocol: counted(), steps: MANY });
    let (mut producer, _) = split(from);
    (0..filled).for_each(|_| producer.publish(HEADER));
    let (mut orders, progress) = alone(Rank(1), ProxyEnd::Recv(recv));
    orders.give(order(Func::Recv, Rank(0), slot_bytes)).unwrap();
    (orders, progress, to, send)
}

fn exchange(progress: &mut Progress, send: &mut SendEnd) {
    for _ in 0..100 {
        progress.do_work();
        send.progress().unwrap();
    }
}

/// Looks at the clock every second of `from..to`, having looked for work.
fn watch(progress: &mut Progress, seconds: std::ops::Range<u64>) {
    for second in seconds {
        progress.do_work();
        progress.check(Duration::from_secs(second));
    }
}

/// A kernel that empties no slot for an hour has had its slots full all the while; the peer had nothing to do. Its time begins
/// when it has a slot to fill again.
#[test]
fn a_pause_of_this_ranks_kernel_is_not_the_peers() {
    let (orders, mut progress, kernel, mut send) = receiving(STEPS);
    exchange(&mut progress, &mut send);
    watch(&mut progress, 1..3600);
    let (_, mut consumer) = split(kernel);
    assert_eq!(consumer.poll(), Some(HEADER));
    consumer.release();
    watch(&mut progress, 3600..3608);
    assert!(!orders.has_failed(), "{}", orders.failure().unwrap());
    watch(&mut progress, 3608..3612);
    assert!(orders.has_failed());
}

/// A process that was stopped, or a machine that slept, has not looked, and does not take that for the peer's silence.
#[test]
fn time_in_which_nobody_looked_counts_little() {
    let (orders, mut progress, _kernel, mut send) = receiving(1);
    exchange(&mut progress, &mut send);
    watch(&mut progress, 1..3);
    watch(&mut progress, 3600..3603);
    assert!(!orders.has_failed(), "{}", orders.failure().unwrap());
    watch(&mut progress, 3603..3612);
    assert!(orders.has_failed());
}

/// A network without room for the very first message of an operation.
#[test]
fn a_peer_that_takes_not_even_the_header_is_late() {
    let (send, _recv, [from, _]) = ends(Manners { lazy_eighths: 8, ..Manners::GOOD });
    let slot_bytes = send.layout().simple_slot_bytes as usize;
    let (mut orders, mut progress) = alone(Rank(0), ProxyEnd::Send(send));
    orders.give(order(Func::Send, Rank(1), slot_bytes)).unwrap();
    watch(&mut progress, 1..100);
    assert!(!orders.has_failed(), "the kernel has filled nothing");
    split(from).0.publish(HEADER);
    watch(&mut progress, 100..112);
    let failure = orders.failure().expect("nothing has left for longer than the timeout");
    let error = failure.error.as_ref().unwrap();
    assert!(matches!(error.why, EndFault::Timeout { .. }), "{error}");
    assert_eq!(error.outstanding.map(|was| was.counters.received), Some(1), "{error}");
}

/// A connection that is made while the proxy runs: the order behind it finds it.
#[test]
fn an_end_that_comes_late_is_there_for_the_next_order() {
    let (mut send, recv, [from, to]) = ends(Manners::GOOD);
    let slot_bytes = recv.layout().simple_slot_bytes as usize;
    let channels = (0..=CHANNEL).map(|_| ProxyChannel::default()).collect();
    let parts = ProxyParts { rank: Rank(1), nranks: 2, channels, ends: Vec::new(), timeout: Some(TIMEOUT) };
    let (mut orders, mut progress) = proxy(parts);
    // Nothing of this one is this proxy's.
    orders.queue(order(Func::Recv, Rank(0), slot_bytes)).unwrap();
    progress.do_work();
    assert!(orders.is_all_done());
    assert!(orders.add(ProxyEnd::Recv(recv)));
    send.begin(SubOp { tag: TAG, protocol: counted(), steps: MANY });
    orders.queue(order(Func::Recv, Rank(0), slot_bytes)).unwrap();
    let ((mut producer, _), (_, mut consumer)) = (split(from), split(to));
    let mut taken = 0;
    for _ in 0..10_000 {
        if producer.poll_credit(STEPS) {
            producer.publish(HEADER);
        }
        if consumer.poll().is_some() {
            consumer.release();
            taken += 1;
        }
        progress.do_work();
        let _ = send.progress();
    }
    assert_eq!(taken, MANY);
    assert!(orders.is_all_done() && !orders.has_failed());
}

/// An end whose communicator never comes.
fn opening(patience: Patience) -> (ProxyOrders, Progress) {
    let (send, _, _) = ends(Manners::GOOD);
    let (place, layout) = (send.place(), *send.layout());
    let slot_bytes = layout.simple_slot_bytes as usize;
    let end = OpeningEnd::new(place, layout, Box::new(|| Ok(None))).with_patience(patience);
    let (mut orders, progress) = alone(Rank(0), ProxyEnd::Opening(Box::new(end)));
    orders.give(order(Func::Send, Rank(1), slot_bytes)).unwrap();
    (orders, progress)
}

/// Kernels of GPUs may run long after their operations began: a connection that does not open is late once one has filled a slot.
#[test]
fn an_end_that_does_not_open_is_late_when_a_kernel_waits_for_it() {
    let block = host_block(memory());
    let (orders, mut progress) = opening(Patience::UntilFilled(block));
    watch(&mut progress, 1..100);
    assert!(!orders.has_failed(), "the kernel has filled nothing");
    split(block.words().consumer_side).0.publish(HEADER);
    watch(&mut progress, 100..112);
    let failure = orders.failure().expect("it has not opened for longer than the timeout");
    assert!(matches!(failure.error.as_ref().unwrap().why, EndFault::Timeout { .. }), "{failure:?}");
    // A kernel that receives counts the time itself.
    let (orders, mut progress) = opening(Patience::OfKernel);
    watch(&mut progress, 1..100);
    assert!(!orders.has_failed());
    let (orders, mut progress) = opening(Patience::None);
    watch(&mut progress, 1..12);
    assert!(orders.has_failed());
}

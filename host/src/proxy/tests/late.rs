//! What counts as late, and what does not. The clock is the test's.

use super::ends::{counted, ends};
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
fn a_peer_that_takes_not_even_the_prologue_is_late() {
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

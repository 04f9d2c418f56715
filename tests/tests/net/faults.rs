//! The faulty network follows its plan, and repeats it for the same seed.

use super::{LIMIT, sockets};
use oxccl::net::fault::{FaultNet, FaultPlan};
use oxccl::net::loopback::Loopback;
use oxccl::net::{Net, NetError};
use oxccl_tests::deadline::Deadline;
use oxccl_tests::net::{pair, until};
use std::sync::Arc;
use std::time::{Duration, Instant};

fn faulty(plan: FaultPlan) -> Arc<dyn Net> {
    Arc::new(FaultNet::new(Arc::new(Loopback::new(0)), plan))
}

#[test]
fn a_request_that_is_to_fail_fails_and_the_other_end_hears_of_it() {
    let _deadline = Deadline::start("a_request_that_is_to_fail", LIMIT);
    for inner in [Arc::new(Loopback::new(0)) as Arc<dyn Net>, sockets(2, false)] {
        let plan = FaultPlan { fail_at: Some(2), only_connection: Some(0), ..FaultPlan::default() };
        let net: Arc<dyn Net> = Arc::new(FaultNet::new(inner, plan));
        let mut pair = pair(&net);
        // Which end came about first, and so has the fault, is the network's affair.
        let error = until("the planned failure", || {
            let sent = pair.send.post(b"abc").err();
            let posted = pair.recv.post(3).err();
            [sent, posted].into_iter().flatten().find(|error| error.to_string().contains("planned to fail"))
        });
        assert!(error.to_string().contains("request 2"), "{error}");
        until("the other end's error", || {
            let sent = if pair.send.under_way() > 0 {
                pair.send.oldest().err()
            } else {
                pair.send.post(b"abc").err()
            };
            let got =
                if pair.recv.under_way() > 0 { pair.recv.oldest().err() } else { pair.recv.post(3).err() };
            (sent.is_some() && got.is_some()).then_some(())
        });
    }
}

#[test]
fn a_cut_is_seen_at_both_ends() {
    let _deadline = Deadline::start("a_cut_is_seen_at_both_ends", LIMIT);
    let net = faulty(FaultPlan { cut_at: Some(1), ..FaultPlan::default() });
    let mut pair = pair(&net);
    assert!(pair.send.post(b"x").expect("the first request is spared"));
    // Until it is complete it may be cancelled with the connection.
    until("the first request", || pair.send.oldest().expect("it is spared"));
    let error = pair.send.post(b"y").expect_err("the second is not");
    assert!(matches!(error, NetError::Closed { .. }), "{error}");
    assert!(pair.recv.post(1).expect("the first request is spared"));
    until("what came before the cut", || pair.recv.oldest().expect("it was sent"));
}

#[test]
fn a_stall_lasts_as_long_as_planned() {
    let _deadline = Deadline::start("a_stall_lasts_as_long_as_planned", LIMIT);
    let stall = Duration::from_millis(80);
    let net = faulty(FaultPlan { stall_at: Some(3), stall, ..FaultPlan::default() });
    let mut pair = pair(&net);
    let begin = Instant::now();
    pair.exchange(&[10; 3], |len_bytes| len_bytes);
    pair.exchange(&[10; 3], |len_bytes| len_bytes);
    assert!(begin.elapsed() >= stall, "{:?}", begin.elapsed());
}

#[test]
fn a_receive_comes_up_short() {
    let _deadline = Deadline::start("a_receive_comes_up_short", LIMIT);
    let net = faulty(FaultPlan { short_at: Some(1), ..FaultPlan::default() });
    let mut pair = pair(&net);
    for expected in [3, 2, 3] {
        assert!(pair.recv.post(3).expect("whole") && pair.send.post(b"abc").expect("whole"));
        until("the send", || pair.send.oldest().expect("whole"));
        assert_eq!(until("the message", || pair.recv.oldest().expect("whole")).len(), expected);
    }
}

#[test]
fn ill_luck_repeats_with_its_seed() {
    let _deadline = Deadline::start("ill_luck_repeats_with_its_seed", LIMIT);
    let refusals = |seed| {
        let net = faulty(FaultPlan { seed, late_per_mille: 300, ..FaultPlan::default() });
        let mut pair = pair(&net);
        (0..30).map(|_| pair.recv.post(1).expect("whole")).collect::<Vec<bool>>()
    };
    assert_eq!(refusals(5), refusals(5));
    assert_ne!(refusals(5), refusals(6));
}

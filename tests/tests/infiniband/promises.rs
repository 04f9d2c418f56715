//! The conformance suite of all networks.

use super::infiniband;
use oxccl_tests::deadline::Deadline;
use oxccl_tests::net::run_all;
use std::time::Duration;

/// The guest is emulated.
const LIMIT: Duration = Duration::from_secs(120);

#[test]
#[ignore = "needs two RoCE devices: cargo xtask test --only softroce"]
fn one_queue_pair_keeps_every_promise() {
    let _deadline = Deadline::start("one_queue_pair_keeps_every_promise", LIMIT);
    run_all("InfiniBand", &infiniband(&[]));
}

#[test]
#[ignore = "needs two RoCE devices: cargo xtask test --only softroce"]
fn split_messages_keep_every_promise() {
    let _deadline = Deadline::start("split_messages_keep_every_promise", LIMIT);
    let settings = [
        ("NCCL_IB_QPS_PER_CONNECTION", "3"),
        ("NCCL_IB_SPLIT_DATA_ON_QPS", "1"),
        ("NCCL_IB_ADAPTIVE_ROUTING", "1"),
        ("NCCL_IB_AR_THRESHOLD", "100"),
    ];
    run_all("InfiniBand, split", &infiniband(&settings));
}

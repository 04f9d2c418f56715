//! Two-level all-reduce between hosts of several GPUs, at the counts where a grain, a slice or a loop begins or ends. Where GPUs are fewer
//! than ranks, ranks share them.

use super::net::loopback;
use oxccl::{Algorithm, DataType, Func, Protocol, RedOp};
use oxccl_tests::case::{Case, Placement};
use oxccl_tests::deadline::{Deadline, doing};
use oxccl_tests::devices::{DeviceWorld, Launch};
use oxccl_tests::harness::Settings;
use std::time::Duration;

/// Two hosts, three hosts, and hosts of more ranks than there are hosts.
const HOSTS: [&[&str]; 3] =
    [&["a", "a", "b", "b"], &["a", "a", "b", "b", "c", "c"], &["a", "a", "a", "a", "b", "b", "b", "b"]];

/// Elements of one, two, four and eight bytes.
const DTYPES: [DataType; 4] = [DataType::U8, DataType::BF16, DataType::F32, DataType::F64];

/// A word, a grain, one slot of 64 KiB, all slots of a connection, and several loops.
const COUNTS: [usize; 12] = [0, 1, 15, 16, 17, 1000, 16_383, 16_385, 65_537, 131_071, 300_000, 600_001];

fn world(hosts: &[&str]) -> DeviceWorld {
    DeviceWorld::on_hosts(hosts, Settings::forced(Algorithm::TwoLevel, Protocol::Simple), loopback)
}

#[test]
#[ignore = "needs a GPU"]
fn needs_gpu_levels_all_reduce() {
    let _deadline = Deadline::start("needs_gpu_levels_all_reduce", Duration::from_secs(300));
    for hosts in HOSTS {
        doing(|| format!("setting up {hosts:?}"));
        let mut world = world(hosts);
        let explained = world.ranks[0].comm.explain(Func::AllReduce, DataType::F32, 1 << 20);
        let choice = explained.expect("idle").expect("an all-reduce is planned").choice;
        assert_eq!(choice.candidate.algorithm, Algorithm::TwoLevel, "another test otherwise");
        let cases = DTYPES.iter().flat_map(|dtype| COUNTS.map(|count| (*dtype, count)));
        for (seed, (dtype, count)) in cases.enumerate() {
            let op = RedOp::ALL[seed % RedOp::ALL.len()];
            let placement = Placement::ALL[seed / 2 % Placement::ALL.len()];
            let launch = Launch::ALL[seed / 5 % Launch::ALL.len()];
            let levels =
                Case { func: Func::AllReduce, dtype, op, root: 0, count, placement, seed: seed as u64 };
            // Messages in between use the same connections.
            let messages = Case { func: Func::AllToAll, op: RedOp::Sum, count: count % 10_000, ..levels };
            for case in [Some(levels), seed.is_multiple_of(4).then_some(messages)].into_iter().flatten() {
                doing(|| format!("{case:?} by {launch:?} on {hosts:?}"));
                world.check(&case, launch).unwrap_or_else(|failure| panic!("{failure} on {hosts:?}"));
            }
        }
    }
}

//! Deterministic plans: whatever the facts, what rounds is reduced by rank.

use super::{DIGESTED, FUNCS, call, lengths, scenes};
use crate::plan::{Facts, Lacks, plan};
use oxccl_shared::abi::{DataType, RedOp};
use oxccl_shared::algo::registry::spec_of;
use oxccl_shared::algo::spec::{Processor, ReductionOrder};

/// Scenes that init lets pass, as deterministic ones.
fn allowed() -> impl Iterator<Item = (String, Facts)> {
    scenes::all().into_iter().filter_map(|(name, scene)| {
        let facts = Facts { forced: scene.0.forced.deterministic(true), ..scene.0 };
        let on = if facts.has_gpus() { Processor::Gpu } else { Processor::Cpu };
        let mesh = facts.crosses_network().then_some("hosts");
        let lacks = Lacks { mesh, ..Lacks::default() };
        Facts::check(on, facts.nranks, &facts.forced, lacks).is_ok().then_some((name, facts))
    })
}

#[test]
fn what_rounds_is_reduced_by_rank() {
    let mut counted = [0; 2];
    for (name, facts) in allowed() {
        for func in FUNCS.into_iter().filter(|func| func.is_reduction()) {
            let kinds =
                DIGESTED.into_iter().chain([(DataType::F32, RedOp::Sum), (DataType::F16, RedOp::Min)]);
            for ((dtype, op), count) in kinds.flat_map(|kind| lengths().map(move |count| (kind, count))) {
                let planned = plan(&call(func, dtype, op, count), &facts);
                let order = spec_of(planned.algorithm).order;
                let is_free = facts.nranks <= 2 || dtype == DataType::U8 || op == RedOp::Min;
                let is_right = order == ReductionOrder::Rank || is_free && order != ReductionOrder::Network;
                assert!(is_right, "{name}: {func} of {count} {dtype}, {op}: {planned:?}");
                counted[usize::from(order == ReductionOrder::Rank)] += 1;
            }
        }
    }
    assert!(counted[0] > 1000 && counted[1] > 1000, "{counted:?}");
}

/// GPUs of several hosts, and more than a kernel has room for, have nothing for every length: init says so.
#[test]
fn where_nothing_reduces_by_rank_init_refuses() {
    let names: Vec<String> = allowed().map(|(name, _)| name).collect();
    assert!(names.contains(&"8 GPUs of 90".to_owned()) && names.contains(&"40 ranks, streams".to_owned()));
    assert!(!names.contains(&"9 GPUs of 90".to_owned()));
    assert!(!names.contains(&"4 GPUs of 90 in 2 groups by 4 threads".to_owned()));
    assert!(names.contains(&"2 GPUs of 90 in 2 groups by 1 threads".to_owned()), "two operands commute");
}

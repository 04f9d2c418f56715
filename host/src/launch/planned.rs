//! The plans of the calls that run next, which are mostly those of the calls before.

use super::call::RawCall;
use crate::plan::{Call, CallPlan, Forced};

/// Calls and their plans.
///
/// A communicator's plans depend on the call and what is insisted on for it alone: whatever else they depend on is settled when the communicator is made. So the plans
/// of the same calls as before are the same as before. A plan takes some 900 instructions, a third of an all-reduce of 8 bytes in
/// shared memory (docs/measurements/2026-11-23-cpu-host-cost.md).
#[derive(Debug)]
pub(super) struct Planned {
    /// As long as `plans`, unless planning panicked: then empty.
    calls: Vec<(Call, Option<Forced>)>,
    plans: Vec<CallPlan>,
    /// The same by where the buffers of these calls lie; empty where that does not count.
    placed: Vec<CallPlan>,
}

impl Planned {
    /// None, with room for so many.
    pub(super) fn new(capacity: usize) -> Planned {
        let placed = Vec::new();
        Planned { calls: Vec::with_capacity(capacity), plans: Vec::with_capacity(capacity), placed }
    }

    /// The plans, in the order of the calls.
    pub(super) fn plans(&self) -> &[CallPlan] {
        if self.placed.is_empty() { &self.plans } else { &self.placed }
    }

    /// Plans by buffers, which may be others for calls that are the same.
    pub(super) fn place(&mut self, calls: &[RawCall], placed: impl Fn(&RawCall, CallPlan) -> CallPlan) {
        self.placed.clear();
        self.placed.extend(calls.iter().zip(&self.plans).map(|(raw, plan)| placed(raw, *plan)));
    }

    /// Whether the plans are those of `calls`.
    #[inline]
    pub(super) fn is_of(&self, calls: &[RawCall]) -> bool {
        let is_same = |(call, forced): &(Call, Option<Forced>), raw: &RawCall| {
            *call == raw.call && (forced.is_none() && raw.forced.is_none() || *forced == raw.forced)
        };
        match (&self.calls[..], calls) {
            // Nearly always.
            ([known], [raw]) => is_same(known, raw),
            (known, calls) => {
                known.len() == calls.len() && known.iter().zip(calls).all(|(known, raw)| is_same(known, raw))
            }
        }
    }

    /// Plans `calls`, unless they are the calls that were planned last.
    #[inline]
    pub(super) fn plan(&mut self, calls: &[RawCall], fresh: impl Fn(&Call, Option<Forced>) -> CallPlan) {
        if !self.is_of(calls) {
            self.renew(calls, fresh);
        }
    }

    #[cold]
    fn renew(&mut self, calls: &[RawCall], fresh: impl Fn(&Call, Option<Forced>) -> CallPlan) {
        self.calls.clear();
        self.plans.clear();
        self.placed.clear();
        self.plans.extend(calls.iter().map(|raw| fresh(&raw.call, raw.forced)));
        self.calls.extend(calls.iter().map(|raw| (raw.call, raw.forced)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Facts;
    use crate::plan::tuning::Architecture;
    use oxccl_shared::abi::{ConnLayout, DataType, Func, Rank, RedOp};
    use proptest::prelude::*;
    use std::cell::Cell;
    use std::ptr::{null, null_mut};

    const LAYOUT: ConnLayout =
        ConnLayout { ll_slot_bytes: 4096, ll128_slot_bytes: 8192, simple_slot_bytes: 65536 };

    /// Few values of each field, so that sequences repeat calls and change one field at a time.
    fn calls() -> impl Strategy<Value = Vec<Call>> {
        use proptest::sample::select;
        let funcs =
            select(&[Func::AllReduce, Func::AllGather, Func::Broadcast, Func::Barrier, Func::Send][..]);
        let (dtypes, ops) =
            (select(&[DataType::U8, DataType::F64][..]), select(&[RedOp::Sum, RedOp::Max][..]));
        let counts = select(&[0u64, 2, 1 << 12, 1 << 24][..]);
        let call = (funcs, dtypes, ops, 0u32..2, counts).prop_map(|(func, dtype, op, root, count)| Call {
            func,
            dtype,
            op,
            root: Rank(root),
            count,
        });
        proptest::collection::vec(call, 0..3)
    }

    fn raw(call: &Call) -> RawCall {
        RawCall { call: *call, send: null(), recv: null_mut(), scalar_bits: 0, forced: None }
    }

    proptest! {
        #[test]
        fn remembered_plans_are_those_that_fresh_planning_gives(
            groups in proptest::collection::vec((calls(), 1usize..3), 0..20),
            nranks in 2u32..9,
        ) {
            let facts =
                Facts::of_cpus(nranks, Architecture::Cpu, Forced::default(), [LAYOUT; 2], [1, 2]);
            let (mut planned, planned_times) = (Planned::new(4), Cell::new(0));
            let mut before: Vec<Call> = Vec::new();
            for (group, times) in groups {
                let calls: Vec<RawCall> = group.iter().map(raw).collect();
                for _ in 0..times {
                    planned_times.set(0);
                    planned.plan(&calls, |call, _| {
                        planned_times.set(planned_times.get() + 1);
                        facts.plan(call)
                    });
                    let fresh: Vec<CallPlan> = group.iter().map(|call| facts.plan(call)).collect();
                    prop_assert_eq!(planned.plans(), fresh);
                    let expected = if group == before { 0 } else { group.len() };
                    prop_assert_eq!(planned_times.get(), expected, "calls are planned when they are others, and only then");
                    before.clone_from(&group);
                }
            }
        }
    }
}

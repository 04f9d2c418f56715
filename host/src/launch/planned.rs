//! The plans of the calls that run next, which are mostly those of the calls before.

use super::call::RawCall;
use crate::plan::{Call, CallPlan, Forced};
use std::mem::discriminant;

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
    /// Whether they go other ways than those that were counted last.
    are_new: bool,
}

impl Planned {
    /// None, with room for so many.
    pub(super) fn new(capacity: usize) -> Planned {
        let (calls, plans) = (Vec::with_capacity(capacity), Vec::with_capacity(capacity));
        Planned { calls, plans, placed: Vec::new(), are_new: true }
    }

    /// The plans, in the order of the calls.
    pub(super) fn plans(&self) -> &[CallPlan] {
        if self.placed.is_empty() { &self.plans } else { &self.placed }
    }

    /// Plans by buffers, which may be others for calls that are the same.
    pub(super) fn place(&mut self, calls: &[RawCall], placed: impl Fn(&RawCall, CallPlan) -> CallPlan) {
        let is_renewed = self.placed.len() != calls.len();
        self.placed.resize(calls.len(), CallPlan::Local);
        let mut are_new = is_renewed;
        for ((raw, plan), place) in calls.iter().zip(&self.plans).zip(&mut self.placed) {
            let now = placed(raw, *plan);
            // Where in a window a buffer lies does not matter.
            are_new |= discriminant(&now) != discriminant(place);
            *place = now;
        }
        self.are_new |= are_new;
    }

    /// Whether they are others than those that were counted last, or go another way.
    #[inline]
    pub(super) fn are_new(&self) -> bool {
        self.are_new
    }

    /// They are counted.
    #[inline]
    pub(super) fn note_counted(&mut self) {
        self.are_new = false;
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
        self.are_new = true;
        self.plans.extend(calls.iter().map(|raw| fresh(&raw.call, raw.forced)));
        self.calls.extend(calls.iter().map(|raw| (raw.call, raw.forced)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tuning::Architecture;
    use crate::plan::{Facts, Placement};
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

    /// Where a buffer lies in a window is no other way, unlike another plan.
    #[test]
    fn plans_are_new_until_they_are_counted_and_when_they_go_other_ways() {
        let call =
            Call { func: Func::AllGather, dtype: DataType::U8, op: RedOp::Sum, root: Rank(0), count: 8 };
        let (calls, other) = ([raw(&call)], [raw(&Call { count: 9, ..call })]);
        let mut planned = Planned::new(4);
        planned.plan(&calls, |_, _| CallPlan::Messages);
        assert!(planned.are_new());
        planned.note_counted();
        planned.plan(&calls, |_, _| CallPlan::Messages);
        assert!(!planned.are_new());
        planned.plan(&other, |_, _| CallPlan::Messages);
        assert!(planned.are_new(), "another call");
        let copies = |offset| CallPlan::CopyEngines(Placement { window: 0, offset });
        for (way, is_new) in [(copies(0), true), (copies(16), false), (CallPlan::Messages, true)] {
            planned.note_counted();
            planned.plan(&other, |_, _| CallPlan::Messages);
            planned.place(&other, |_, _| way);
            assert_eq!(planned.are_new(), is_new, "{way:?}");
        }
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

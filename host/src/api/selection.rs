//! Algorithms of one call, instead of the communicator's.

use super::communicator::Comm;
use super::error::Error;
use super::init::Init;
use super::selection_error::SelectionError;
use crate::plan::tuning::TUNED;
use crate::plan::{Call, Facts, Forced};
use oxccl_shared::abi::{DataType, Func, Rank, RedOp};

/// Algorithms that a call may use: see [`Comm::selection`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Selection {
    pub(super) forced: Forced,
}

impl<M: Init> Comm<M> {
    /// The algorithms that a call of so many elements may use, as `NCCL_ALGO` lists them: `ring`, `ring,tree`, `^ring`. It takes the place
    /// of `NCCL_ALGO` for the calls that have it ([`Untyped::selection`](super::Untyped)); `NCCL_PROTO` stays.
    ///
    /// # Errors
    /// [`Error::Selection`]: none of them can be had; [`Error::Argument`] inside a group's end.
    pub fn selection(
        &self,
        func: Func,
        dtype: DataType,
        count: u64,
        algorithms: &str,
    ) -> Result<Selection, Error> {
        let call = Call { func, dtype, op: RedOp::Sum, root: Rank(0), count };
        Ok(select(self.engine()?.machine().facts(), &call, algorithms)?)
    }
}

fn select(facts: &Facts, call: &Call, algorithms: &str) -> Result<Selection, SelectionError> {
    let (text, func) = (algorithms.to_owned(), call.func);
    let forced = facts.forced.with_algorithms(algorithms);
    let forced = forced.map_err(|why| SelectionError::List { text: text.clone(), why })?;
    if !TUNED.contains(&func) {
        return Err(SelectionError::Messages { text, func });
    }
    let chosen = Facts { forced, ..*facts }.choose(call).candidate.algorithm;
    if !forced.allows_algorithm(func, chosen) {
        return Err(SelectionError::Nothing { text, func, possible: facts.possible(call) });
    }
    Ok(Selection { forced })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::CallPlan;
    use crate::plan::ChannelLimits;
    use oxccl_shared::abi::Algorithm;

    fn facts() -> Facts {
        Facts::of_gpus(4, (90, 132), Forced::default(), ChannelLimits::default(), None)
    }

    fn call(func: Func, count: u64) -> Call {
        Call { func, dtype: DataType::F32, op: RedOp::Sum, root: Rank(0), count }
    }

    #[test]
    fn a_selected_algorithm_runs_instead_of_the_best() {
        let (facts, call) = (facts(), call(Func::AllReduce, 64));
        let algorithm = |forced| match facts.plan_with(&call, forced) {
            CallPlan::Collective(plan) => plan.algorithm,
            other => panic!("{other:?}"),
        };
        assert_eq!(algorithm(None), Algorithm::OneShot);
        let ring = select(&facts, &call, "ring").unwrap();
        assert_eq!(algorithm(Some(ring.forced)), Algorithm::Ring);
        let not_one = select(&facts, &call, "^oneshot").unwrap();
        assert_ne!(algorithm(Some(not_one.forced)), Algorithm::OneShot);
    }

    #[test]
    fn what_cannot_be_had_is_refused_with_what_can() {
        let facts = facts();
        let error = select(&facts, &call(Func::AllReduce, 64), "tree").unwrap_err().to_string();
        assert!(error.contains("\"tree\" leaves no algorithm") && error.contains("ring ll"), "{error}");
        let error = select(&facts, &call(Func::AllReduce, 64), "nvls").unwrap_err().to_string();
        assert!(error.contains("selects no algorithm") && error.contains("NVLink multicast"), "{error}");
        let error = select(&facts, &call(Func::AllReduce, 64), "quick").unwrap_err().to_string();
        assert!(error.contains("\"quick\" selects no algorithm"), "{error}");
        let error = select(&facts, &call(Func::AllToAll, 64), "ring").unwrap_err().to_string();
        assert!(error.contains("made of messages"), "{error}");
    }
}

//! Layer: perf / beside.
//! Takes: what was measured of operations and a computation at the same time.
//! Gives: a line of JSON for each case and engine, on CPUs ([`crate::overlap`]) and on GPUs.
//! Never: measures.

use crate::bench::{Case, Verdict};
use serde::Serialize;

/// One engine on one case, out of place.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Beside {
    engine: String,
    size_bytes: usize,
    count: usize,
    dtype: &'static str,
    op: Option<&'static str>,
    root: Option<u32>,
    #[serde(flatten)]
    outcome: Outcome,
}

/// What was found: medians of the rounds.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(untagged)]
pub enum Outcome {
    /// On CPUs: an operation is started, its rank computes, then waits.
    Hidden {
        /// Tests of the request during the computation.
        tests: u32,
        /// Operations of each round.
        iters: u32,
        /// Microseconds of an operation alone, of the computation alone, and of both.
        alone_us: f64,
        computation_us: f64,
        together_us: f64,
        /// The part of the shorter one that the longer hides.
        overlap_percent: f64,
        /// Null where results were not checked.
        verdict: Option<Verdict>,
    },
    /// On GPUs: operations on a stream, the computation on another.
    Shared {
        /// What binds the computation: `arithmetic` or `memory`.
        computation: &'static str,
        /// Operations of each round.
        operations: u64,
        /// Microseconds of an operation alone, and beside the computation.
        alone_us: f64,
        beside_us: f64,
        /// Microseconds of the whole computation alone, and beside the operations.
        computation_us: f64,
        computation_beside_us: f64,
        /// Microseconds of the computation that each operation has cost.
        lost_us: f64,
        /// Of an operation's kernels, where they can be seen.
        #[serde(skip_serializing_if = "Option::is_none")]
        blocks: Option<u32>,
        /// Null where results were not checked.
        verdict: Option<Verdict>,
    },
    /// The engine has no such call.
    Refused {
        /// Why.
        refused: String,
    },
}

impl Beside {
    /// What this engine was found to do with this case.
    pub fn new(engine: &str, case: &Case, outcome: Outcome) -> Beside {
        let Case { collective, shape, dtype, op, root, .. } = case;
        Beside {
            engine: engine.to_owned(),
            size_bytes: case.bytes(),
            count: shape.count,
            dtype: dtype.name(),
            op: collective.reduces().then(|| op.name()),
            root: collective.rooted().then_some(*root),
            outcome,
        }
    }
}

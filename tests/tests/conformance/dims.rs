//! The dimensions of the matrix and which of their values go together.

use oxccl::{Algorithm, Func, Protocol, RedOp};
pub use oxccl_tests::case::FUNCS;
use oxccl_tests::harness::Settings;

/// Forced algorithm and protocol, and what the library chooses by itself.
pub fn settings() -> Vec<Settings> {
    let mut all = vec![Settings::default()];
    for algorithm in [Algorithm::Ring, Algorithm::Tree, Algorithm::Direct] {
        all.extend(Protocol::ALL.iter().map(|protocol| Settings::forced(algorithm, *protocol)));
    }
    all
}

/// Whether the function has an operator.
pub fn reduces(func: Func) -> bool {
    matches!(func, Func::AllReduce | Func::Reduce | Func::ReduceScatter)
}

/// Only all-reduce has more than one algorithm.
pub fn applies(settings: &Settings, func: Func) -> bool {
    func == Func::AllReduce || matches!(settings.algorithm, None | Some(Algorithm::Ring))
}

/// The operators to test it with.
pub fn ops(func: Func) -> &'static [RedOp] {
    if reduces(func) { RedOp::ALL } else { &[RedOp::Sum] }
}

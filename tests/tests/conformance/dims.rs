//! The dimensions of the matrix and which of their values go together.

use oxccl::{Algorithm, Protocol};
pub use oxccl_tests::case::{FUNCS, applies, ops, reduces};
use oxccl_tests::harness::Settings;

/// Forced algorithm and protocol, and what the library chooses by itself.
pub fn settings() -> Vec<Settings> {
    let mut all = vec![Settings::default()];
    for algorithm in [Algorithm::Ring, Algorithm::Tree, Algorithm::OneShot] {
        all.extend(Protocol::ALL.iter().map(|protocol| Settings::forced(algorithm, *protocol)));
    }
    all.push(Settings::forced(Algorithm::Doubling, Protocol::Simple));
    all
}

//! What every network that reduces promises, as tests that take any [`CollNet`].

mod heads;
mod operations;
mod endings;

pub use heads::{End, What, all_output, gather, heads};
pub use operations::{bad_windows, windows};

use super::{Case, run};
use oxccl::net::coll::CollNet;
use std::sync::Arc;

/// Every promise of the contract that needs nothing but some heads in one process.
pub const CASES: &[Case<dyn CollNet>] = &[
    ("devices say what they are", operations::devices),
    ("what is reduced, is reduced right", operations::reductions),
    ("many operations end in order", operations::order),
    ("requests are bounded and none is lost", operations::exhausted),
    ("gathers and scatters, or says that it does not", operations::others),
    ("a thread for each head", operations::threads),
    ("memory is registered and forgotten", operations::registration),
    ("a request that is not under way is an error", operations::not_under_way),
    ("a head that leaves is noticed", endings::head_leaves),
    ("a head without a handle is refused", endings::no_handle),
    ("heads that have not come together are given up without harm", endings::given_up),
];

/// Runs all of them.
pub fn run_all(name: &str, net: &Arc<dyn CollNet>) {
    run(CASES, name, net);
}

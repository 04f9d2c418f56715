//! What every network promises, as tests that take any [`Net`]; [`coll`] does so for networks that reduce.

mod pair;
mod messages;
mod endings;
mod plugin_file;
mod aggregator;
pub mod coll;

pub use aggregator::Aggregator;
pub use pair::{PATIENCE, Pair, RecvEnd, SendEnd, pair, until};
pub use plugin_file::{PluginFile, PluginNumbers, Tables, VERSIONS};

use crate::deadline::doing;
use oxccl::net::Net;
use std::sync::Arc;

/// A test of a network's first device; `N` is the network's contract.
pub type Case<N> = (&'static str, fn(&Arc<N>));

/// Every promise of the contract that needs nothing but two ends in one process.
pub const CASES: &[Case<dyn Net>] = &[
    ("devices say what they are", messages::devices),
    ("messages of every border's size arrive whole and alone", messages::sizes),
    ("many messages arrive in order", messages::order),
    ("requests are bounded and none is lost", messages::exhausted),
    ("receives may be posted before and after", messages::early_and_late),
    ("requests may be asked for in any order", messages::any_order),
    ("both directions and several connections at once", messages::several),
    ("two threads, two ends", messages::threads),
    ("memory is registered and forgotten", messages::registration),
    ("a request that is not under way is an error", messages::not_under_way),
    ("a message that is too long breaks the connection", endings::too_long),
    ("what was done before a sender left arrives, then its end is reported", endings::sender_leaves),
    ("a sender that leaves in the middle is named", endings::sender_cut),
    ("a receiver that leaves is named", endings::receiver_leaves),
    ("handles of garbage are refused", endings::garbage_handles),
    ("a listener that is gone is not reached", endings::no_listener),
    ("half a connection is given up without harm", endings::given_up),
];

/// Runs all of them.
pub fn run_all(name: &str, net: &Arc<dyn Net>) {
    run(CASES, name, net);
}

/// Runs some tests of a network.
pub fn run<'a, N: ?Sized + 'a>(cases: impl IntoIterator<Item = &'a Case<N>>, name: &str, net: &Arc<N>) {
    for (what, case) in cases {
        doing(|| format!("{name}: {what}"));
        case(net);
    }
}

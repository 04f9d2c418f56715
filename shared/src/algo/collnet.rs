//! All-reduce with in-network reduction (NCCL's "CollNet chain").
//!
//! The ranks of each host form a chain. Each adds its input to the partial sum from the rank below it and passes the
//! sum up; the first, the *head*, passes it to the network, which gives every host's head the sum of all. The result
//! goes down the chains again.
//!
//! ```text
//! host 0:  last -> ... -> head -+-> network        the way up
//! host 1:         last -> head -+
//!
//! host 0:  last <- ... <- head <-+- network        the way down
//! host 1:         last <- head <-+
//! ```
//!
//! # Why it cannot deadlock
//! It is a tree whose root is the network and whose ranks have one child at most, walked by
//! [`super::tree::pipeline`]. The network's step s needs the same slice of every head's way up and an empty slot on
//! every head's way down: exactly what the root of a tree waits for in its `Up(c)`. It does one after the other, as a
//! root does, and nothing else in between, and releases a slot of the way up when it has finished with it. So the
//! argument of [`super::tree`] holds with the same bound on the lag.

use super::Action;
use super::spec::{Connections, Offered, Protocols, Proxied, ReductionOrder, Spec, Terms};
use crate::abi::{Algorithm, Func, Protocol};

/// The algorithm's row. The network adds what lies in a slot, so that nothing but elements may be there.
pub const SPEC: Spec = Spec {
    algorithm: Algorithm::CollnetChain,
    aliases: &[],
    on_gpus: &[Offered::new(Func::AllReduce, Protocols::of(&[Protocol::Simple]))],
    on_cpus: &[Offered::new(Func::AllReduce, Protocols::of(&[Protocol::Simple]))],
    connections: Connections::Chain,
    halved: Protocols::NONE,
    // The chain, and of GPUs what a head gives to the network that reduces.
    proxied: Proxied::Any(&[Func::AllReduce]),
    order: ReductionOrder::Network,
    at_once: None,
    peers_max: None,
    terms: Terms::Chain,
};

/// A rank's position in its host's chain.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ChainLinks {
    /// Whether the network is above this rank, instead of another rank.
    pub is_head: bool,
    /// Whether there is a rank below this one.
    pub has_below: bool,
}

/// A rank's action on a chunk on the way up: receives from below, sends to above.
pub fn all_reduce_up(links: &ChainLinks) -> Action {
    if links.has_below { Action::RECV_REDUCE_SEND } else { Action::SEND }
}

/// A rank's action on a chunk on the way down: receives from above, sends to below. The head applies the
/// post-operation for its whole host.
pub fn all_reduce_down(links: &ChainLinks) -> Action {
    let pass = if links.has_below { Action::RECV_COPY_SEND } else { Action::RECV };
    Action { finish: links.is_head, ..pass }
}

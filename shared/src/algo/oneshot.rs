//! One-shot: every rank sends to every other what that one needs, in one hop, and reduces what it receives in rank order.
//!
//! An all-reduce moves `n - 1` times the bytes of a ring in one message time instead of `2 (n - 1)`: for small messages. The other
//! functions move no more than a ring.

use super::spec::{Connections, Exchange, Offered, Protocols, Proxied, ReductionOrder, Spec, Terms};
use crate::abi::{Algorithm, Func, Protocol};

/// The algorithm's row.
pub const SPEC: Spec = Spec {
    algorithm: Algorithm::OneShot,
    aliases: &["direct"],
    on_gpus: &[
        Offered::new(Func::AllReduce, Protocols::of(&[Protocol::LL, Protocol::Simple])),
        Offered::new(Func::AllGather, Protocols::LINES),
        Offered::new(Func::ReduceScatter, Protocols::LINES),
        Offered::new(Func::Broadcast, Protocols::of(&[Protocol::LL])),
        Offered::new(Func::Reduce, Protocols::of(&[Protocol::LL])),
        Offered::new(Func::AllToAll, Protocols::LINES),
        Offered::new(Func::Barrier, Protocols::of(&[Protocol::LL])),
    ],
    on_cpus: &[Offered::new(Func::AllReduce, Protocols::ALL), Offered::new(Func::Barrier, Protocols::ALL)],
    connections: Connections::Mesh,
    halved: Protocols::NONE,
    // Of a broadcast or a reduce the root would be the only one with work, and all of it; an all-to-all is made of messages.
    proxied: Proxied::OneTrip(&[Func::AllReduce, Func::AllGather, Func::ReduceScatter, Func::Barrier]),
    order: ReductionOrder::Rank,
    exchange: Some(Exchange { protocols: Protocols::LINES, own_ranks: &[2, 4] }),
    peers_max: Some(7),
    terms: Terms::Hops(1),
};

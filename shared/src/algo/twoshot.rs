//! Two-shot all-reduce: a reduce-scatter and an all-gather, one hop each. Block `r` of a loop is reduced by rank `r`, which sends the
//! result to all: the bytes of a ring in two message times.

use super::spec::{Connections, Exchange, Offered, Protocols, Proxied, ReductionOrder, Spec, Terms};
use crate::abi::{Algorithm, Func, Protocol};

/// The algorithm's row.
pub const SPEC: Spec = Spec {
    algorithm: Algorithm::TwoShot,
    aliases: &["direct"],
    on_gpus: &[Offered::new(Func::AllReduce, Protocols::LINES)],
    on_cpus: &[],
    connections: Connections::Mesh,
    // By LL128 a slot carries both hops: one credit, one header and one step for both.
    halved: Protocols::of(&[Protocol::LL128]),
    proxied: Proxied::Nothing,
    order: ReductionOrder::Rank,
    exchange: Some(Exchange { protocols: Protocols::LINES, own_ranks: &[2, 4] }),
    peers_max: Some(7),
    terms: Terms::Hops(2),
};

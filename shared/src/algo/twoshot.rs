//! Two-shot all-reduce: a reduce-scatter and an all-gather, one hop each. Block `r` of a loop is reduced by rank `r`, which sends the
//! result to all: the bytes of a ring in two message times.
//!
//! # Why it cannot deadlock
//! It is a schedule over the [mesh](super::mesh). Where a rank sends its result while it reduces, these sends move from the second hop's
//! time to that of the first one's receives. They still look back: the messages whose credits they wait for are of earlier hops.

use super::mesh::{Keep, MeshHop, Others, Part, Sent};
use super::spec::{Connections, Offered, PeersAtOnce, Protocols, Proxied, ReductionOrder, Spec, Terms};
use crate::abi::{Algorithm, Func, Protocol};

/// The algorithm's row.
pub const SPEC: Spec = Spec {
    algorithm: Algorithm::TwoShot,
    aliases: &["direct"],
    on_gpus: &[Offered::new(Func::AllReduce, Protocols::LINES)],
    on_cpus: &[Offered::new(Func::AllReduce, Protocols::ALL)],
    kernels: Algorithm::TwoShot,
    connections: Connections::Mesh,
    // By LL128 a slot carries both hops: one credit, one header and one step for both.
    halved: Protocols::of(&[Protocol::LL128]),
    proxied: Proxied::OneTrip { at_once: &[], in_turn: &[Func::AllReduce] },
    order: ReductionOrder::Rank,
    at_once: Some(PeersAtOnce { protocols: Protocols::LINES, own_ranks: &[2, 4] }),
    peers_max: Some(7),
    terms: Terms::Hops(2),
};

/// The hops of a loop, the same on every rank. Block `r` is rank `r`'s.
#[inline(always)]
pub fn all_reduce() -> [MeshHop; 2] {
    let scatter = MeshHop {
        to: Others::All,
        send: Sent::Input(Part::Block),
        from: Others::All,
        keep: Keep::Reduced,
        dst: Part::Block,
        takes_own: true,
    };
    [scatter, MeshHop { send: Sent::Result, keep: Keep::Each, takes_own: false, ..scatter }]
}

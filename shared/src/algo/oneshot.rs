//! One-shot: every rank sends to every other what that one needs, in one hop, and reduces what it receives in rank order.
//!
//! An all-reduce moves `n - 1` times the bytes of a ring in one message time instead of `2 (n - 1)`: for small messages. The other
//! functions move no more than a ring.
//!
//! # Why it cannot deadlock
//! It is a schedule over the [mesh](super::mesh).

use super::mesh::{Keep, MeshHop, Others, Part, Sent};
use super::spec::{Connections, Offered, PeersAtOnce, Protocols, Proxied, ReductionOrder, Spec, Terms};
use crate::abi::{Algorithm, Func, Protocol, Rank};

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
    on_cpus: &[
        Offered::new(Func::AllReduce, Protocols::ALL),
        Offered::new(Func::AllGather, Protocols::ALL),
        Offered::new(Func::ReduceScatter, Protocols::ALL),
        Offered::new(Func::Reduce, Protocols::ALL),
        Offered::new(Func::Barrier, Protocols::ALL),
    ],
    kernels: Algorithm::OneShot,
    connections: Connections::Mesh,
    halved: Protocols::NONE,
    // Of a broadcast or a reduce the root would be the only one with work, and all of it; an all-to-all is made of messages.
    proxied: Proxied::OneTrip {
        at_once: &[Func::AllReduce, Func::AllGather, Func::ReduceScatter, Func::Barrier],
        in_turn: &[Func::AllReduce, Func::AllGather, Func::ReduceScatter, Func::Reduce, Func::Barrier],
    },
    order: ReductionOrder::Rank,
    at_once: Some(PeersAtOnce { protocols: Protocols::LINES, own_ranks: &[2, 4] }),
    peers_max: Some(7),
    terms: Terms::Hops(1),
};

/// The only hop of `func` on `rank`. Blocks are those of the ranks' buffers. A barrier is an all-reduce of nothing.
#[inline(always)]
pub fn hops(func: Func, rank: Rank, root: Rank) -> [MeshHop; 1] {
    [match func {
        Func::AllGather => MeshHop { keep: Keep::Each, dst: Part::Block, ..ALL_REDUCE },
        Func::ReduceScatter => MeshHop { send: Sent::Input(Part::Block), ..ALL_REDUCE },
        Func::AllToAll => {
            MeshHop { send: Sent::Input(Part::Block), keep: Keep::Each, dst: Part::Block, ..ALL_REDUCE }
        }
        Func::Broadcast if rank == root => MeshHop { from: Others::None, keep: Keep::Each, ..ALL_REDUCE },
        Func::Broadcast => {
            let (from, keep) = (Others::One(root), Keep::Each);
            MeshHop { to: Others::None, from, keep, takes_own: false, ..ALL_REDUCE }
        }
        Func::Reduce if rank == root => MeshHop { to: Others::None, ..ALL_REDUCE },
        Func::Reduce => MeshHop { to: Others::One(root), from: Others::None, takes_own: false, ..ALL_REDUCE },
        Func::AllReduce | Func::Barrier => ALL_REDUCE,
        Func::Gather | Func::Scatter | Func::Send | Func::Recv => {
            unreachable!("the registry offers no such one-shot")
        }
    }]
}

const ALL_REDUCE: MeshHop = MeshHop {
    to: Others::All,
    send: Sent::Input(Part::Whole),
    from: Others::All,
    keep: Keep::Reduced,
    dst: Part::Whole,
    takes_own: true,
};

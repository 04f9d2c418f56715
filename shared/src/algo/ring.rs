//! The ring: position `p` receives from `p - 1` and sends to `p + 1`, modulo the number of ranks `n`.
//!
//! Positions are places in the ring, not ranks: whoever owns the ring's order maps one to the other. Every rank's
//! `k`-th sending hop meets its successor's `k`-th receiving hop, on the same block.
//!
//! # Why it cannot deadlock
//! Give the hop `j` of loop `l`, slice `s`, the time `(l * hops + j) * S + s`, `S` being the most slices any block has.
//! A receive waits for the predecessor's send of one hop, hence `S`, earlier. A send at time `t` waits for the credit of
//! the slice `n` before it, of a protocol with `n` slots, which the successor takes no later than `t + S - n`. With `S < n` every wait
//! looks back in time, so there is no cycle of waits: hence [`slices_max`]. At `S = n` all ranks fill their
//! slots with the first hop and wait for each other. Broadcast and reduce are chains and would bear any `S`.

use super::spec::{Connections, Offered, Protocols, Proxied, ReductionOrder, Spec, Terms};
use super::{Action, Hop, wrap};
use crate::abi::{Algorithm, Func};

/// The algorithm's row.
pub const SPEC: Spec = Spec {
    algorithm: Algorithm::Ring,
    aliases: &[],
    on_gpus: &FUNCS,
    on_cpus: &FUNCS,
    kernels: Algorithm::Ring,
    connections: Connections::Ring,
    halved: Protocols::NONE,
    proxied: Proxied::Any(&[
        Func::AllReduce,
        Func::AllGather,
        Func::ReduceScatter,
        Func::Broadcast,
        Func::Reduce,
    ]),
    order: ReductionOrder::Ring,
    at_once: None,
    peers_max: None,
    terms: Terms::Ring,
};

const FUNCS: [Offered; 5] = [
    Offered::new(Func::AllReduce, Protocols::ALL),
    Offered::new(Func::AllGather, Protocols::ALL),
    Offered::new(Func::ReduceScatter, Protocols::ALL),
    Offered::new(Func::Broadcast, Protocols::ALL),
    Offered::new(Func::Reduce, Protocols::ALL),
];

/// The most slices a block may be cut into, by a protocol with so many slots.
pub const fn slices_max(slots: usize) -> usize {
    slots - 1
}

/// All-reduce: `2n - 1` hops per loop; a block is one of the loop's `n` chunks.
///
/// A reduce-scatter (block `p` ends complete at position `p`) runs into an all-gather; the hop in the middle belongs to
/// both. Hop `j` works on block `p - 1 - j` throughout.
pub fn all_reduce(position: u32, n: u32) -> impl Iterator<Item = Hop> + Clone {
    let last = 2 * (n - 1);
    (0..=last).map(move |hop| {
        let action = if n == 1 {
            Action::COPY_FINISH
        } else if hop == 0 {
            Action::SEND
        } else if hop < n - 1 {
            Action::RECV_REDUCE_SEND
        } else if hop == n - 1 {
            Action::RECV_REDUCE_COPY_SEND
        } else if hop < last {
            Action::RECV_COPY_SEND
        } else {
            Action::RECV
        };
        // position - 1 - hop + 2n lies in 1..3n.
        Hop { action, block: wrap(wrap(position + last + 1 - hop, 2 * n), n) }
    })
}

/// Reduce-scatter: `n` hops; a block is named by the ring POSITION of the rank that keeps its result.
///
/// `src` reads that rank's block of the input; the one hop with `dst` is the last, on the rank's own block.
pub fn reduce_scatter(position: u32, n: u32) -> impl Iterator<Item = Hop> + Clone {
    let last = n - 1;
    (0..n).map(move |hop| {
        let action = if n == 1 {
            Action::COPY_FINISH
        } else if hop == 0 {
            Action::SEND
        } else if hop < last {
            Action::RECV_REDUCE_SEND
        } else {
            Action::RECV_REDUCE_COPY
        };
        Hop { action, block: wrap(position + last - hop, n) }
    })
}

/// All-gather: `n` hops; a block is named by the ring POSITION of the rank whose input it is.
///
/// `src` occurs only in the first hop, on the rank's own block; `dst` writes that rank's block of the output.
pub fn all_gather(position: u32, n: u32) -> impl Iterator<Item = Hop> + Clone {
    let last = n - 1;
    (0..n).map(move |hop| {
        let action = if n == 1 {
            Action::COPY
        } else if hop == 0 {
            Action::COPY_SEND
        } else if hop < last {
            Action::RECV_COPY_SEND
        } else {
            Action::RECV
        };
        Hop { action, block: wrap(position + n - hop, n) }
    })
}

/// Broadcast: one hop per chunk, down the chain that starts at the root; the block is always 0, the chunk itself.
pub fn broadcast(position: u32, root_position: u32, n: u32) -> impl Iterator<Item = Hop> + Clone {
    let from_root = wrap(position + n - root_position, n);
    let action = if n == 1 {
        Action::COPY
    } else if from_root == 0 {
        Action::COPY_SEND
    } else if from_root < n - 1 {
        Action::RECV_COPY_SEND
    } else {
        Action::RECV
    };
    core::iter::once(Hop { action, block: 0 })
}

/// Reduce: one hop per chunk, along the chain that starts after the root and ends at it; the block is always 0.
pub fn reduce(position: u32, root_position: u32, n: u32) -> impl Iterator<Item = Hop> + Clone {
    let from_root = wrap(position + n - root_position, n);
    let action = if n == 1 {
        Action::COPY_FINISH
    } else if from_root == 0 {
        Action::RECV_REDUCE_COPY
    } else if from_root == 1 {
        Action::SEND
    } else {
        Action::RECV_REDUCE_SEND
    };
    core::iter::once(Hop { action, block: 0 })
}

//! Layer: device / coll.
//! Takes: a work descriptor and the connections of one channel.
//! Gives: the algorithms, each a walk over the schedule of the same name in `oxccl_shared::algo`.
//! Never: chooses algorithm, protocol or sizes (the plan did), talks to an operating system.

mod work;
pub mod hop;
pub mod ring;
pub mod tree;
pub mod collnet;
pub mod mesh;
pub mod oneshot;
pub mod twoshot;
pub mod twolevel;
#[cfg(feature = "cpu")]
mod briefly;
#[cfg(feature = "cpu")]
mod doubling;
#[cfg(feature = "cpu")]
pub mod pair;
#[cfg(feature = "cpu")]
mod offer;
pub mod send_recv;
pub mod direct;
#[cfg(feature = "cpu")]
pub mod reading;
pub mod symmetric;

pub use mesh::{AtOnce, InTurn, Meet};
pub use work::{CollWork, Endpoints, HostEnds, MeshEnds, Offered, P2pWork, Received, RingEnds, TreeEnds};

use crate::conn::Conns;
use crate::gpu::{Block, BulkCopy, Lines, Stop};
use crate::prims::{Bulk, Ll, Ll128, Proto, Simple};
use oxccl_shared::abi::{Algorithm, Func, Protocol};
use oxccl_shared::algo::twolevel::PEERS_MAX;

/// How the hops of a mesh are carried out where not all peers are met at once.
#[cfg(feature = "cpu")]
type OneByOne<P> = briefly::Briefly<P>;
#[cfg(not(feature = "cpu"))]
type OneByOne<P> = InTurn<P>;

/// Runs one channel's part of a collective to its end.
///
/// # Safety
/// 1. `work.src` and `work.dst` are valid for what `work.func` reads and writes of them (see [`CollWork`]).
/// 2. The indices in `ends` name connections of `conns` to the ranks that the schedule means.
pub unsafe fn run<B: Lines>(
    block: &B,
    conns: Conns<'_>,
    ends: &Endpoints<'_>,
    work: &CollWork,
) -> Result<(), Stop> {
    match work.protocol {
        // SAFETY: obligations 1 and 2 are passed on.
        Protocol::LL => unsafe { run_protocol::<B, Ll<1>>(block, conns, ends, work) },
        // SAFETY: obligations 1 and 2 are passed on.
        Protocol::LL128 => unsafe { run_protocol::<B, Ll128>(block, conns, ends, work) },
        // SAFETY: obligations 1 and 2 are passed on.
        Protocol::Simple => unsafe { run_protocol::<B, Simple>(block, conns, ends, work) },
    }
}

/// The same by bulk copies, for work over Simple; peers cannot tell.
///
/// # Safety
/// 1. As [`run`]; all slices begin at multiples of 16 bytes, if the block's copies ask for that.
pub unsafe fn run_by_tiles<B: BulkCopy>(
    block: &B,
    conns: Conns<'_>,
    ends: &Endpoints<'_>,
    work: &CollWork,
) -> Result<(), Stop> {
    // SAFETY: obligation 1.
    unsafe { run_protocol::<B, Bulk>(block, conns, ends, work) }
}

/// # Safety
/// 1. As [`run`].
unsafe fn run_protocol<B: Block, P: Proto<B>>(
    block: &B,
    conns: Conns<'_>,
    ends: &Endpoints<'_>,
    work: &CollWork,
) -> Result<(), Stop> {
    let ran = match (work.algorithm, work.func) {
        // SAFETY: obligations 1 and 2 are passed on.
        (Algorithm::Ring, _) => unsafe { ring::run::<B, P>(block, conns, &ends.ring, work) },
        // SAFETY: obligations 1 and 2 are passed on.
        (Algorithm::OneShot, _) => unsafe { oneshot::run::<B, OneByOne<P>>(block, &ends.mesh(conns), work) },
        // SAFETY: obligations 1 and 2 are passed on.
        (Algorithm::TwoShot, Func::AllReduce) => unsafe {
            twoshot::run::<B, OneByOne<P>>(block, &ends.mesh(conns), work)
        },
        #[cfg(feature = "cpu")]
        // SAFETY: obligations 1 and 2 are passed on.
        (Algorithm::Doubling, Func::AllReduce | Func::Barrier) if P::IS_PLAIN => unsafe {
            doubling::all_reduce(block, &ends.mesh(conns), work)
        },
        // SAFETY: obligations 1 and 2 are passed on.
        (Algorithm::TwoLevel, Func::AllReduce) => unsafe {
            twolevel::all_reduce::<B, P, { PEERS_MAX }>(block, &ends.mesh(conns), work)
        },
        // SAFETY: obligations 1 and 2 are passed on.
        (Algorithm::Tree, Func::AllReduce) => unsafe {
            tree::all_reduce::<B, P>(block, conns, ends.tree, work)
        },
        // SAFETY: obligations 1 and 2 are passed on.
        (Algorithm::CollnetChain, Func::AllReduce | Func::ReduceScatter | Func::AllGather) => unsafe {
            collnet::run::<B, P>(block, conns, &ends.chain, work)
        },
        // SAFETY: obligations 1 and 2 are passed on.
        (Algorithm::CollnetDirect, Func::AllReduce | Func::ReduceScatter | Func::AllGather) => unsafe {
            collnet::run::<B, P>(block, conns, &ends.star, work)
        },
        (
            Algorithm::TwoShot
            | Algorithm::TwoLevel
            | Algorithm::Doubling
            | Algorithm::Tree
            | Algorithm::CollnetChain
            | Algorithm::CollnetDirect,
            func,
        ) => {
            unreachable!("{} of {func}: the registry offers no such thing", work.algorithm)
        }
    };
    P::close(block, conns, ran)
}

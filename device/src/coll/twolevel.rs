//! All-reduce inside hosts and between them.

use super::hop::{HopArgs, run_hop};
use super::work::{CollWork, MeshEnds};
use crate::gpu::{Block, Stop};
use crate::prims::Proto;
use oxccl_shared::algo::chunk::Loops;
use oxccl_shared::algo::mesh::{place_from, place_to};
use oxccl_shared::algo::twolevel::{self as schedule, Seat};

/// Runs `work`, whose hosts are even. A rank has at most `PEERS` peers on its host and of its number.
///
/// # Safety
/// 1. As [`super::run`].
#[cfg_attr(not(feature = "cpu"), inline(always))]
pub(crate) unsafe fn all_reduce<B: Block, P: Proto<B>, const PEERS: usize>(
    block: &B,
    ends: &MeshEnds<'_>,
    work: &CollWork,
) -> Result<(), Stop> {
    let seat = Seat::new(work.rank, work.nranks, work.host_ranks);
    let (mut send, mut recv) = ([0; PEERS], [0; PEERS]);
    for place in seat.all().take(PEERS) {
        let (me, peer) = (work.rank, seat.peer(place));
        send[place] = ends.send[place_to(me, peer, work.nranks)];
        recv[place] = ends.recv[place_from(me, peer)];
    }
    for round in Loops::new(work.part.clone(), work.nranks, work.slice_elems, work.grain_elems) {
        for hop in schedule::all_reduce(seat) {
            let args = HopArgs {
                action: hop.action,
                recv: &recv[hop.from],
                send: &send[hop.to],
                src_position: seat.number as usize,
                src_offset: 0,
                dst_offset: 0,
            };
            // SAFETY: obligation 1 is passed on: a block lies within the part.
            unsafe { run_hop::<B, P>(block, ends.conns, work, &args, round.block_range(hop.block))? };
        }
    }
    Ok(())
}

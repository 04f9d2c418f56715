//! The walk over the schedule, for every machine.

use crate::schedule::{Peers, Place, Step};
use oxccl_device::coll::CollWork;
use oxccl_device::coll::hop::{HopArgs, run_hop};
use oxccl_device::conn::Conns;
use oxccl_device::custom::{Mesh, Walk};
use oxccl_device::gpu::{Block, Stop};
use oxccl_device::prims::Proto;
use oxccl_shared::abi::{Func, Rank};
use oxccl_shared::algo::chunk;

/// A binomial tree of a million ranks has so many children at its root.
const CHILDREN_MAX: usize = 20;

/// The algorithm.
pub struct Binomial;

impl Walk for Binomial {
    #[inline(always)]
    unsafe fn run<B: Block, P: Proto<B>>(
        block: &B,
        conns: Conns<'_>,
        mesh: &Mesh<'_>,
        work: &CollWork,
    ) -> Result<(), Stop> {
        let reduces = work.func == Func::AllReduce;
        let place = Place::new(work.rank, if reduces { Rank(0) } else { work.root }, work.nranks);
        let ends = Ends::new(&place, mesh);
        for range in chunk::slices(work.part.clone(), work.slice_elems) {
            let (up_and_down, down) =
                (reduces.then(|| place.all_reduce()), (!reduces).then(|| place.broadcast()));
            for step in up_and_down.into_iter().flatten().chain(down.into_iter().flatten()) {
                // SAFETY: the caller's first obligation: the range lies within the call's elements.
                unsafe { run_hop::<B, P>(block, conns, work, &ends.hop(step), range.clone())? };
            }
        }
        Ok(())
    }
}

/// The connections of a rank to its parent and its children.
struct Ends {
    parent: [[u16; 1]; 2],
    children: [[u16; CHILDREN_MAX]; 2],
    count: usize,
}

impl Ends {
    #[inline(always)]
    fn new(place: &Place, mesh: &Mesh<'_>) -> Ends {
        let parent = place.parent().map_or([[0]; 2], |parent| [[mesh.from(parent)], [mesh.to(parent)]]);
        let mut ends = Ends { parent, children: [[0; CHILDREN_MAX]; 2], count: 0 };
        for child in place.children().take(CHILDREN_MAX) {
            ends.children[0][ends.count] = mesh.from(child);
            ends.children[1][ends.count] = mesh.to(child);
            ends.count += 1;
        }
        ends
    }

    #[inline(always)]
    fn of(&self, peers: Peers, way: usize) -> &[u16] {
        match peers {
            Peers::Nobody => &[],
            Peers::Parent => &self.parent[way],
            Peers::Children => &self.children[way][..self.count],
        }
    }

    /// Our own input comes first, then the children's.
    #[inline(always)]
    fn hop(&self, step: Step) -> HopArgs<'_> {
        let (recv, send) = (self.of(step.from, 0), self.of(step.to, 1));
        HopArgs { action: step.action, recv, send, src_position: 0, src_offset: 0, dst_offset: 0 }
    }
}

//! An algorithm from outside the library that panics ends its communicator, on every rank.

use oxccl::{CustomAlgorithm, Error, Fault, ReduceOp};
use oxccl_device::coll::CollWork;
use oxccl_device::conn::Conns;
use oxccl_device::custom::{Mesh, Walk};
use oxccl_device::gpu::{Block, Stop};
use oxccl_device::prims::{Proto, Slice, run_slice};
use oxccl_shared::abi::{Func, Protocol, Rank, SlotHeader};
use oxccl_shared::algo::Action;
use oxccl_shared::algo::custom::CustomSpec;
use oxccl_shared::algo::spec::{Offered, Protocols};
use oxccl_tests::deadline::Deadline;
use oxccl_tests::harness::{Settings, World};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// Rank 0 fills a slot and panics, rank 1 waits for two.
struct Panics;

static SPEC: CustomSpec = CustomSpec {
    name: "panics",
    version: 1,
    offered: &[Offered::new(Func::AllReduce, Protocols::of(&[Protocol::Simple]))],
    serves: |nranks| nranks == 2,
};

impl Walk for Panics {
    unsafe fn run<B: Block, P: Proto<B>>(
        block: &B,
        conns: Conns<'_>,
        mesh: &Mesh<'_>,
        work: &CollWork,
    ) -> Result<(), Stop> {
        let peer = Rank(1 - work.rank.0);
        let slice = Slice {
            action: if work.rank == Rank(0) { Action::SEND } else { Action::RECV },
            header: SlotHeader { tag: work.tag, len_bytes: (work.count * size_of::<f32>()) as u32 },
            recv: &[mesh.from(peer)],
            send: &[mesh.to(peer)],
            src_position: 0,
            src: work.src,
            dst: work.dst,
            stream: false,
        };
        // SAFETY: the caller's obligations: the slice is the call's elements.
        unsafe { run_slice::<B, P>(block, conns, &slice)? };
        assert!(work.rank > Rank(0), "as intended");
        // SAFETY: as above.
        unsafe { run_slice::<B, P>(block, conns, &slice) }
    }
}

#[test]
fn a_panic_ends_the_communicator_on_every_rank() {
    let _deadline = Deadline::start("a_panic_ends_the_communicator_on_every_rank", Duration::from_secs(30));
    let mut world = World::with(2, Settings::default(), |_, config| {
        config.custom.push(CustomAlgorithm::new::<Panics>(&SPEC));
    });
    let results = world.each(|rank| {
        let mut all_reduce = || rank.all_reduce(&[1f32; 8], &mut [0f32; 8], ReduceOp::SUM);
        if rank.rank() == 0 {
            let panicked = catch_unwind(AssertUnwindSafe(&mut all_reduce));
            assert!(panicked.is_err_and(|panic| panic.is::<&str>()));
        }
        all_reduce()
    });
    let faults = results.iter().map(|result| result.as_ref().err().and_then(Error::fault));
    assert_eq!(
        faults.collect::<Vec<_>>(),
        [Some(Fault::Panicked), Some(Fault::PeerAborted { rank: Rank(0) })]
    );
}

//! A head's end of a network that reduces, without a kernel: which slot is which operation of the network.

use super::ends::{host_block, memory};
use crate::net::coll::{CollComm, CollPart, Head, Reduction, Started, Window};
use crate::net::{Comm, NetError, NetMemory, Registration, Request};
use crate::proxy::pattern::{Amount, Carried, Way, expand};
use crate::proxy::*;
use oxccl_shared::abi::{Algorithm, DataType, Func, Protocol, Rank, RedOp, SlotHeader};
use oxccl_shared::algo::collnet::{
    Blocks, Owner, Shape, all_gather_down, all_gather_up, branches, reduce_scatter_down, reduce_scatter_up,
};
use oxccl_shared::fifo::{STEPS, StepConsumer, StepProducer, split_over};
use oxccl_shared::reduce::CombineKind;
use std::sync::{Arc, Mutex};

const TAG: u32 = 77;

/// An operation that the network was asked for.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Asked {
    Reduce(usize),
    Scatter(Window),
    Gather(Window),
}

/// A network of two heads that is done at once, and adds nothing but the heads' tags.
struct Ready(Arc<Mutex<Vec<Asked>>>);

impl Ready {
    fn ask(&self, asked: Asked) -> Started {
        self.0.lock().unwrap().push(asked);
        Ok(Some(Request(0)))
    }
}

impl Comm for Ready {
    unsafe fn register(&mut self, _: NetMemory<'_>) -> Result<Registration, NetError> {
        Ok(Registration(0))
    }
    fn deregister(&mut self, _: Registration) -> Result<(), NetError> {
        Ok(())
    }
    fn test(&mut self, _: Request) -> Result<Option<usize>, NetError> {
        Ok(Some(0))
    }
}

impl CollComm for Ready {
    unsafe fn iallreduce(&mut self, send: CollPart, recv: CollPart, what: Reduction) -> Started {
        if (what.dtype, what.op) == CHECKED {
            // SAFETY: the check's words; the other head has the same tag.
            unsafe { recv.start.cast::<u64>().write(2 * send.start.cast::<u64>().read()) };
            return Ok(Some(Request(0)));
        }
        self.ask(Asked::Reduce(what.count))
    }
    unsafe fn iallgather(&mut self, _: CollPart, _: CollPart, window: Window) -> Started {
        self.ask(Asked::Gather(window))
    }
    unsafe fn ireduce_scatter(
        &mut self,
        _: CollPart,
        _: CollPart,
        _: (DataType, RedOp),
        window: Window,
    ) -> Started {
        self.ask(Asked::Scatter(window))
    }
    unsafe fn flush(&mut self, _: CollPart, _: usize) -> Started {
        Ok(None)
    }
    fn awaited(&self) -> String {
        String::new()
    }
}

/// What a rank sends to a neighbour, and receives from it, as the walk has it.
fn walked(func: Func, (shape, host): (Shape, &[Rank]), me: Rank, peer: Rank, steps: &Blocks) -> [Carried; 2] {
    let place = shape.place(host, me).unwrap();
    let (links, nth) = (place.links(), place.below.iter().position(|below| *below == peer));
    let mut counts = [Carried::default(); 2];
    for step in steps.clone() {
        let owner = Owner::of(shape, host, me, step.owner);
        let hops = match func {
            Func::ReduceScatter => [reduce_scatter_up(&links), reduce_scatter_down(&links, owner)],
            _ => [all_gather_up(&links, owner), all_gather_down(&links)],
        };
        for (is_up, hop) in [true, false].into_iter().zip(hops) {
            let below = branches(func, is_up, owner, place.below.len());
            let is_concerned = nth.is_none_or(|nth| below.contains(&nth));
            let Some(hop) = hop.filter(|_| is_concerned) else { continue };
            let elems = if hop.is_full { step.elems.len() as u64 } else { 0 };
            let mut add = |way: usize, is_part: bool| {
                let Carried { slots, elems: before } = counts[way];
                counts[way] =
                    if is_part { Carried { slots: slots + 1, elems: before + elems } } else { counts[way] };
            };
            // What goes up is sent to above and received from below.
            add(0, hop.action.send && nth.is_none() == is_up);
            add(1, hop.action.recv && nth.is_none() != is_up);
        }
    }
    counts
}

/// Where a host's ranks meet over streams, both ends expect exactly what kernels send.
#[test]
fn neighbours_carry_as_many_slots_as_the_walk_has() {
    let host = [4, 0, 3, 1].map(Rank);
    for (shape, algorithm) in
        [(Shape::Chain, Algorithm::CollnetChain), (Shape::Star, Algorithm::CollnetDirect)]
    {
        for func in [Func::ReduceScatter, Func::AllGather] {
            for (rank, count) in host.into_iter().flat_map(|rank| [1, 3, 10].map(|count| (rank, count))) {
                neighbours_carry((shape, &host), (func, algorithm), rank, count);
            }
        }
    }
}

fn neighbours_carry(
    (shape, host): (Shape, &[Rank]),
    (func, algorithm): (Func, Algorithm),
    rank: Rank,
    count: u64,
) {
    let order = ProxyOrder {
        count,
        chunk_elems: 3,
        slice_elems: 3,
        grain_elems: 1,
        nchannels: 1,
        func: func as u8,
        algorithm: algorithm as u8,
        protocol: Protocol::Simple as u8,
        ..ProxyOrder::default()
    };
    let [chain, star] = [Shape::Chain, Shape::Star].map(|shape| ProxyPlace::of(shape, host, rank));
    let channel = ProxyChannel { chain, star, ..ProxyChannel::default() };
    let mut found = Vec::new();
    expand(&order.decode().unwrap(), 0, &channel, rank, 6, &mut |peer, way, amount| {
        found.push((peer, way == Way::Send, amount));
    });
    let (place, steps) = (shape.place(host, rank).unwrap(), Blocks::new(0..count as usize, 3, 6));
    let mut expected = Vec::new();
    for peer in place.above.into_iter().chain(place.below.iter().copied()) {
        let [sent, received] = walked(func, (shape, host), rank, peer, &steps);
        expected.extend([(peer, true, Amount::Steps(sent)), (peer, false, Amount::Steps(received))]);
    }
    for list in [&mut found, &mut expected] {
        list.sort_by_key(|(peer, is_send, _)| (*peer, *is_send));
    }
    assert_eq!(found, expected, "{algorithm} {func} of {count} at {rank}");
}

/// Head 1 of two; rank 0 is on the first host, ranks 1 and 2 are on this one.
struct Played {
    end: CollEnd,
    kernel: (StepProducer<'static>, StepConsumer<'static>),
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Played {
    /// Of blocks of five elements of four bytes, in slots of three.
    fn of(func: Func) -> Played {
        let (up, down) = (host_block(memory()), host_block(memory()));
        let kernel = (split_over(up.words()).0, split_over(down.words()).1);
        let asked = Arc::new(Mutex::new(Vec::new()));
        let head = (Head { index: 1, count: 2 }, Box::from([0, 1, 1]));
        // SAFETY: the blocks are leaked, and nobody else is at their other ends.
        let end = unsafe { CollEnd::new(Box::new(Ready(asked.clone())), head, [up, down], Arc::new(())) };
        let mut end = end.unwrap();
        let elements = Elements::new(DataType::U32, CombineKind::Sum);
        let moves = Moves::of(func, Cut { part_elems: 5, slice_elems: 3 });
        end.begin(CollOp { tag: TAG, elements, moves, steps: 6 });
        Played { end, kernel, asked }
    }

    /// Fills a slot with so many bytes, and empties what comes. Its bytes, if anything does.
    fn slot(&mut self, len_bytes: u32) -> Option<u32> {
        assert!(self.kernel.0.poll_credit(STEPS));
        self.kernel.0.publish(SlotHeader { tag: TAG, len_bytes });
        while self.end.do_work() > 0 {}
        let came = self.kernel.1.poll()?;
        assert_eq!(came.tag, TAG);
        self.kernel.1.release();
        Some(came.len_bytes)
    }

    fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

/// Where the blocks of ranks 0, 1 and 2 are: in that of head 0, and twice in that of head 1.
fn windows() -> [Window; 6] {
    [(0, 12), (1, 12), (1, 12), (0, 8), (1, 8), (1, 8)].map(|(head, bytes)| Window::of_head(head, bytes))
}

#[test]
fn a_gather_asks_for_each_ranks_block_in_turn_and_gives_its_own_hosts() {
    let mut played = Played::of(Func::AllGather);
    let came = [0, 12, 12, 0, 8, 8].map(|given| played.slot(given));
    assert_eq!(came, [12, 12, 12, 8, 8, 8].map(Some), "every block comes, {:?}", played.end.failure());
    assert_eq!(played.asked(), windows().map(Asked::Gather));
    assert!(played.end.is_idle());
}

#[test]
fn a_scatter_gives_every_block_and_gets_its_own_hosts() {
    let mut played = Played::of(Func::ReduceScatter);
    let came = [12, 12, 12, 8, 8, 8].map(|given| played.slot(given));
    assert_eq!(came, [0, 12, 12, 0, 8, 8].map(Some), "{:?}", played.end.failure());
    assert_eq!(played.asked(), windows().map(Asked::Scatter));
    assert!(played.end.is_idle());
}

#[test]
fn a_reduction_takes_slots_as_they_are() {
    let mut played = Played::of(Func::AllReduce);
    assert_eq!([12, 8].map(|given| played.slot(given)), [12, 8].map(Some));
    assert_eq!(played.asked(), [Asked::Reduce(3), Asked::Reduce(2)]);
}

/// A kernel and an end that disagree: the network would read what nobody wrote.
#[test]
fn a_slot_that_the_operation_has_not_is_refused() {
    for (func, given, expected) in
        [(Func::AllGather, 12, 0), (Func::ReduceScatter, 8, 12), (Func::ReduceScatter, 0, 12)]
    {
        let mut played = Played::of(func);
        assert_eq!(played.slot(given), None);
        assert_eq!(played.end.failure(), Some(&CollFault::Slot { found: given, expected }), "{func}");
        assert_eq!(played.asked(), []);
    }
    let mut played = Played::of(Func::AllReduce);
    assert_eq!(played.slot(100_000), None, "there is no room for so many bytes");
    assert!(matches!(played.end.failure(), Some(CollFault::Slot { found: 100_000, .. })));
}

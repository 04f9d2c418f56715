//! How many steps an operation takes on each connection of a channel and how many elements they carry, from the schedules that kernels walk.
//!
//! Nothing here knows who sends what when: that is `shared::algo`. What is here is how kernels divide a part among hops and hops
//! among slots, in closed form: a walk of every slot would cost as much as moving some of them.

use super::order::Operation;
use oxccl_shared::abi::{Algorithm, Extent, Func, Rank};
use oxccl_shared::algo::chunk::{self, Loop, Loops};
use oxccl_shared::algo::collnet::{Blocks, Shape};
use oxccl_shared::algo::mesh::{Keep, Sent, peers};
use oxccl_shared::algo::registry::spec_of;
use oxccl_shared::algo::spec::Connections;
use oxccl_shared::algo::{Action, Hop, doubling, oneshot, ring, tree, twolevel, twoshot};
use std::ops::Range;

/// This rank's place in one channel's ring and tree, or in its host.
#[derive(Clone, Debug, Default)]
pub struct ProxyChannel {
    /// The rank at each position of the ring; empty where there is none.
    pub ring: Box<[Rank]>,
    /// The neighbours in the tree.
    pub tree: tree::TreeLinks,
    /// The host's chain.
    pub chain: ProxyPlace,
    /// The host's star.
    pub star: ProxyPlace,
}

/// This rank's neighbours on the way to a network that reduces, and of how many ranks the blocks pass between it and each.
#[derive(Clone, Default, Debug)]
pub struct ProxyPlace {
    /// The rank above; of a head whose network goes through the proxy, the next head, and all ranks.
    above: Option<(Rank, u32)>,
    /// The ranks below.
    below: Box<[(Rank, u32)]>,
}

impl ProxyPlace {
    /// That of a rank of a host, whose ranks begin with the head; the network is not among the proxy's connections.
    pub fn of(shape: Shape, host: &[Rank], rank: Rank) -> ProxyPlace {
        let Some(at) = host.iter().position(|other| *other == rank) else { return ProxyPlace::default() };
        let place = shape.place(host, rank).unwrap_or_default();
        // Those of the rank at a place, and of all behind it.
        let blocks = |at: usize| match shape {
            Shape::Star if at > 0 => 1,
            Shape::Chain | Shape::Star => (host.len() - at) as u32,
        };
        ProxyPlace {
            above: place.above.map(|above| (above, blocks(at))),
            // They follow it in the host's list.
            below: place.below.iter().copied().zip((at + 1..).map(blocks)).collect(),
        }
    }

    /// That of a head among so many ranks, of whose connections the proxy has the one to the network alone.
    pub fn of_head(next_head: Rank, nranks: u32) -> ProxyPlace {
        ProxyPlace { above: Some((next_head, nranks)), ..ProxyPlace::default() }
    }
}

/// Who sees how many steps, in which direction.
pub(super) type Emit<'a> = dyn FnMut(Rank, Way, Amount) + 'a;

/// Seen from this rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    Send,
    Recv,
}

/// How much goes over a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Amount {
    Steps(Carried),
    /// In slots as full as they hold; at least one.
    Bytes(u64),
}

/// Slots, and the elements in all of them: as many as can be counted, if an order says more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Carried {
    pub(super) slots: u64,
    pub(super) elems: u64,
}

impl Carried {
    /// A hop on `len` elements.
    fn of(op: &Operation, len: usize) -> Carried {
        Carried { slots: (len as u64).div_ceil(op.order.slice_elems), elems: len as u64 }
    }

    fn times(self, times: u64) -> Carried {
        Carried { slots: self.slots * times, elems: self.elems.saturating_mul(times) }
    }

    fn and(self, other: Carried) -> Carried {
        Carried { slots: self.slots + other.slots, elems: self.elems.saturating_add(other.elems) }
    }
}

/// Whether there is such a pattern.
pub(super) fn is_known(op: &Operation, channel: &ProxyChannel) -> bool {
    let has_ring = !channel.ring.is_empty();
    if op.func.is_message() {
        return true;
    }
    let spec = spec_of(op.algorithm);
    let has_place = match spec.connections {
        Connections::Ring if op.func.is_rooted() => channel.ring.contains(&op.order.rank),
        Connections::Ring => has_ring,
        _ => true,
    };
    has_place && spec.is_proxied(op.func)
}

/// Tells `emit` what channel `index` (of the operation's) carries. A known pattern, see [`is_known`].
pub(super) fn expand(
    op: &Operation,
    index: u32,
    channel: &ProxyChannel,
    me: Rank,
    nranks: u32,
    emit: &mut Emit<'_>,
) {
    let order = &op.order;
    let count = order.count as usize;
    let part = chunk::channel_part(count, order.nchannels, index, order.grain_elems as usize);
    match spec_of(op.algorithm).connections {
        _ if op.func.is_message() => {
            let way = if op.func.buffers(false).send == Extent::Unused { Way::Recv } else { Way::Send };
            // A message of nothing is one empty slot on its first channel.
            if !part.is_empty() || count == 0 && index == 0 {
                emit(order.rank, way, Amount::Bytes(part.len() as u64));
            }
        }
        Connections::Ring => along_ring(op, part, channel, me, nranks, emit),
        Connections::Tree => along_tree(op, part, channel, emit),
        Connections::Levels => in_levels(op, part, me, nranks, emit),
        Connections::Chain => to_network(op, part, &channel.chain, nranks, emit),
        Connections::Star => to_network(op, part, &channel.star, nranks, emit),
        Connections::Mesh if op.algorithm == Algorithm::TwoShot => in_two_shots(op, part, me, nranks, emit),
        Connections::Mesh if op.algorithm == Algorithm::Doubling => {
            let each = all_of(op, part);
            for step in doubling::all_reduce(me, nranks) {
                if step.sends {
                    emit(step.peer, Way::Send, each);
                }
                if step.received.is_some() {
                    emit(step.peer, Way::Recv, each);
                }
            }
        }
        // What else of a mesh is known goes in one hop.
        Connections::Mesh => {
            let steps = all_of(op, part);
            for hop in oneshot::hops(op.func, me, order.rank) {
                hop.to.ranks(me, nranks).for_each(|peer| emit(peer, Way::Send, steps));
                hop.from.ranks(me, nranks).for_each(|peer| emit(peer, Way::Recv, steps));
            }
        }
    }
}

/// All of a part as one message. That of a barrier is one empty slot.
fn all_of(op: &Operation, part: Range<usize>) -> Amount {
    Amount::Steps(if op.func.has_buffers() { in_chunks(op, part) } else { in_a_slot(0) })
}

/// A part that is cut into chunks and these into slots.
fn in_chunks(op: &Operation, part: Range<usize>) -> Carried {
    let chunk_elems = op.order.chunk_elems as usize;
    let (whole, rest) = (part.len() / chunk_elems, part.len() % chunk_elems);
    Carried::of(op, chunk_elems).times(whole as u64).and(Carried::of(op, rest))
}

/// Loops: so many whole ones, all of whose blocks have so many elements, and at most one more, the last, in which a block may be short or
/// empty.
struct Rounds {
    whole: u64,
    chunk: usize,
    short: Option<Loop>,
}

impl Rounds {
    fn of(op: &Operation, part: Range<usize>, n: u32, chunk_elems: u64) -> Rounds {
        let mut rounds = Rounds { whole: 0, chunk: 0, short: None };
        for round in Loops::new(part, n, chunk_elems as usize, op.order.grain_elems as usize) {
            let Loop { base, chunk, end } = round;
            let is_whole = end - base >= chunk.saturating_mul(n as usize);
            // A last loop that is whole may have shorter blocks.
            if is_whole && (rounds.whole == 0 || chunk == rounds.chunk) {
                (rounds.whole, rounds.chunk) = (rounds.whole + 1, chunk);
            } else {
                rounds.short = Some(round);
            }
        }
        rounds
    }

    /// A block of every loop.
    fn block(&self, block: u32, of: impl Fn(usize) -> Carried) -> Carried {
        let last = self.short.map_or(Carried::default(), |round| of(round.block_range(block).len()));
        of(self.chunk).times(self.whole).and(last)
    }
}

/// One slot for a block, and an empty one for an empty block.
fn in_a_slot(len: usize) -> Carried {
    Carried { slots: 1, elems: len as u64 }
}

/// Both hops of a loop are one slot to and from every peer, where the kernels meet one peer after the other.
fn in_two_shots(op: &Operation, part: Range<usize>, me: Rank, n: u32, emit: &mut Emit<'_>) {
    let rounds = Rounds::of(op, part, n, op.order.slice_elems);
    for peer in peers(me, n) {
        let (mut sent, mut received) = (Carried::default(), Carried::default());
        for hop in twoshot::all_reduce() {
            let to = if hop.send == Sent::Result { me } else { peer };
            let from = if hop.keep == Keep::Reduced { me } else { peer };
            sent = sent.and(rounds.block(to.0, in_a_slot));
            received = received.and(rounds.block(from.0, in_a_slot));
        }
        emit(peer, Way::Send, Amount::Steps(sent));
        emit(peer, Way::Recv, Amount::Steps(received));
    }
}

/// Hops that send and that receive.
fn hops(hops: impl Iterator<Item = Hop>) -> (u64, u64) {
    hops.fold((0, 0), |(sent, received), Hop { action, .. }| {
        (sent + u64::from(action.send), received + u64::from(action.recv))
    })
}

fn along_ring(
    op: &Operation,
    part: Range<usize>,
    channel: &ProxyChannel,
    me: Rank,
    n: u32,
    emit: &mut Emit<'_>,
) {
    let place = |rank| channel.ring.iter().position(|at| *at == rank).unwrap_or(0) as u32;
    let (position, root) = (place(me), place(op.order.rank));
    let (sent, received) = match op.func {
        Func::AllReduce => all_reduce(op, part, position, n),
        func => {
            let (sent, received) = match func {
                Func::AllGather => hops(ring::all_gather(position, n)),
                Func::ReduceScatter => hops(ring::reduce_scatter(position, n)),
                Func::Broadcast => hops(ring::broadcast(position, root, n)),
                Func::Reduce => hops(ring::reduce(position, root, n)),
                Func::AllReduce
                | Func::AllToAll
                | Func::Gather
                | Func::Scatter
                | Func::Send
                | Func::Recv
                | Func::Barrier => unreachable!("{func} is no such pattern: `is_known` refuses it"),
            };
            let each = in_chunks(op, part);
            (each.times(sent), each.times(received))
        }
    };
    let at = |offset: u32| channel.ring[((position + offset) % n) as usize];
    emit(at(1), Way::Send, Amount::Steps(sent));
    emit(at(n - 1), Way::Recv, Amount::Steps(received));
}

fn all_reduce(op: &Operation, part: Range<usize>, position: u32, n: u32) -> (Carried, Carried) {
    let rounds = Rounds::of(op, part, n, op.order.chunk_elems);
    let mut steps = (Carried::default(), Carried::default());
    for Hop { action, block } in ring::all_reduce(position, n) {
        let each = rounds.block(block, |len| Carried::of(op, len));
        steps = (
            steps.0.and(each.times(u64::from(action.send))),
            steps.1.and(each.times(u64::from(action.recv))),
        );
    }
    steps
}

/// Steps between this rank and each peer of either level.
fn in_levels(op: &Operation, part: Range<usize>, me: Rank, n: u32, emit: &mut Emit<'_>) {
    let host_ranks = op.order.host_ranks;
    if host_ranks == 0 || !n.is_multiple_of(host_ranks) {
        return;
    }
    let seat = twolevel::Seat::new(me, n, host_ranks);
    let rounds = Rounds::of(op, part, n, op.order.slice_elems);
    for place in seat.all() {
        let steps = |of: fn(&twolevel::LevelHop) -> &Range<usize>| {
            let all = twolevel::all_reduce(seat).filter(|hop| of(hop).contains(&place));
            let each = |hop: twolevel::LevelHop| rounds.block(hop.block, |len| Carried::of(op, len));
            Amount::Steps(all.map(each).fold(Carried::default(), Carried::and))
        };
        emit(seat.peer(place), Way::Send, steps(|hop| &hop.to));
        emit(seat.peer(place), Way::Recv, steps(|hop| &hop.from));
    }
}

/// What goes up passes all ranks above whoever has it, and what comes down all that are to have it.
fn to_network(op: &Operation, part: Range<usize>, place: &ProxyPlace, n: u32, emit: &mut Emit<'_>) {
    // Slots without elements are between a head and the network alone.
    let of_blocks = |blocks: u32| Carried {
        slots: Blocks::count(part.len(), op.order.slice_elems as usize, blocks) as u64,
        elems: (part.len() as u64).saturating_mul(blocks.into()),
    };
    let up_and_down = |blocks| match op.func {
        Func::ReduceScatter => [of_blocks(n), of_blocks(blocks)],
        Func::AllGather => [of_blocks(blocks), of_blocks(n)],
        _ => [in_chunks(op, part.clone()); 2],
    };
    if let Some((above, blocks)) = place.above {
        let [up, down] = up_and_down(blocks);
        emit(above, Way::Send, Amount::Steps(up));
        emit(above, Way::Recv, Amount::Steps(down));
    }
    for &(below, blocks) in &place.below {
        let [up, down] = up_and_down(blocks);
        emit(below, Way::Recv, Amount::Steps(up));
        emit(below, Way::Send, Amount::Steps(down));
    }
}

fn along_tree(op: &Operation, part: Range<usize>, channel: &ProxyChannel, emit: &mut Emit<'_>) {
    let steps = Amount::Steps(in_chunks(op, part));
    let halves = [Some(tree::all_reduce_up(&channel.tree)), tree::all_reduce_down(&channel.tree)]
        .into_iter()
        .flatten();
    for tree::TreeHop { action: Action { recv, send, .. }, from, to } in halves {
        from.into_iter().flatten().filter(|_| recv).for_each(|peer| emit(peer, Way::Recv, steps));
        to.into_iter().flatten().filter(|_| send).for_each(|peer| emit(peer, Way::Send, steps));
    }
}

//! One collective: what it is given, what it must give, and its launch.

use super::arith::{Arith, is_float, mix, value};
use super::block::{Odd, Shape};
use super::buffer::Buffer;
use super::world::{Ended, Job, LAYOUT, Shared, World};
use oxccl_device::coll::symmetric::OwnPart;
use oxccl_device::coll::{
    self, AtOnce, CollWork, Endpoints, HostEnds, MeshEnds, RingEnds, TreeEnds, oneshot, symmetric, twoshot,
};
use oxccl_device::conn::Conns;
use oxccl_device::gpu::{AmongBlocks, BulkCopy, Lines, Stop};
use oxccl_device::prims::{Ll, Ll128, Slice, run_slice};
use oxccl_shared::abi::{Algorithm, DataType, Func, Protocol, Rank, RankBuffers, RedOp, SlotHeader};
use oxccl_shared::algo::symmetric::Share;
use oxccl_shared::algo::{Action, chunk, mesh, tree};
use oxccl_shared::proto;
use std::ops::Range;
use std::time::Duration;

/// Who sends what to whom.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    Ring,
    /// The first or the second tree.
    Tree(usize),
    /// One-shot through `coll::run`: one peer after the other.
    Direct,
    /// Two-shot through `coll::run`.
    DirectTwice,
    /// Two levels, with so many ranks to a host.
    Levels(usize),
    /// One-shot with the words of all peers at once.
    OneHop,
    /// Two-shot with the words of all peers at once.
    TwoHops,
    /// The lines of all peers at once: two-shot, if it is an all-reduce.
    LineHops,
    /// Straight from the inputs to the outputs of all ranks.
    Symmetric,
    /// A one-shot all-reduce whose words are asked for at once, through `run_slice`.
    FanIn,
}

/// One collective of all ranks.
#[derive(Clone, Debug)]
pub struct Case {
    pub func: Func,
    pub way: Way,
    pub protocol: Protocol,
    /// Over Simple: whether slots move by bulk copies.
    pub tiles: bool,
    pub dtype: DataType,
    pub op: RedOp,
    pub count: usize,
    /// Elements before the part that the channel works on.
    pub skip: usize,
    pub slices_per_chunk: usize,
    pub grain_elems: usize,
    pub root: usize,
    pub in_place: bool,
    /// As `CollWork`'s: slots need not be given back where all send to all.
    pub is_direct: bool,
    /// Bytes from a 16-byte line to the input and to the output.
    pub misaligned: [usize; 2],
    pub tag: u32,
}

/// The buffers of one rank.
pub struct Buffers {
    src: Buffer,
    /// None in place.
    dst: Option<Buffer>,
}

/// One rank's view of a case.
struct Side {
    work: CollWork,
    /// By rank, where those are reached.
    ranks: Vec<RankBuffers>,
    tiles: bool,
    way: Way,
    order: Vec<Rank>,
    ring_peers: [u16; 2],
    tree: TreeEnds,
    mesh_recv: Vec<u16>,
    mesh_send: Vec<u16>,
}

impl Case {
    pub fn new(func: Func, way: Way, protocol: Protocol, count: usize) -> Case {
        Case {
            func,
            way,
            protocol,
            tiles: false,
            dtype: DataType::F32,
            op: RedOp::Sum,
            count,
            skip: 0,
            slices_per_chunk: 2,
            grain_elems: 1,
            root: 0,
            in_place: false,
            is_direct: true,
            misaligned: [0, 0],
            tag: 7,
        }
    }

    /// The nearest case that the way has: symmetric kernels have no pre-operation, no all-to-all in place, and move all of a buffer.
    pub fn nearest_offered(self) -> Case {
        if self.way != Way::Symmetric {
            return self;
        }
        let op = if self.op == RedOp::PreMulSum { RedOp::Sum } else { self.op };
        let in_place = self.in_place && self.func != Func::AllToAll;
        Case { op, in_place, skip: 0, ..self }
    }

    fn size(&self) -> usize {
        self.dtype.size_bytes()
    }

    pub fn slice_elems(&self) -> usize {
        let holds_both = self.way == Way::LineHops && self.func == Func::AllReduce;
        let bytes = match holds_both {
            true => proto::ll128::half_payload_bytes(LAYOUT.ll128_slot_bytes as usize),
            false => proto::payload_bytes(self.protocol, &LAYOUT),
        };
        bytes / self.size()
    }

    fn part(&self) -> Range<usize> {
        self.skip.min(self.count)..self.count
    }

    fn reduces(&self) -> bool {
        matches!(self.func, Func::AllReduce | Func::ReduceScatter | Func::Reduce)
    }

    fn arith(&self, n: usize, rank: usize) -> Arith {
        Arith::new(self.dtype, if self.reduces() { self.op } else { RedOp::Sum }, n, rank)
    }

    /// Elements of the input and of the output on `n` ranks.
    fn lengths(&self, n: usize) -> (usize, usize) {
        match self.func {
            Func::AllGather => (self.count, n * self.count),
            Func::ReduceScatter => (n * self.count, self.count),
            Func::AllToAll => (n * self.count, n * self.count),
            Func::Barrier => (0, 0),
            _ => (self.count, self.count),
        }
    }

    /// Where, in place, input and output begin in the longer of both.
    fn offsets(&self, rank: usize) -> (usize, usize) {
        match self.func {
            Func::AllGather => (rank * self.count, 0),
            Func::ReduceScatter => (0, rank * self.count),
            _ => (0, 0),
        }
    }

    fn input(&self, n: usize, rank: usize) -> Vec<u64> {
        let seed = |i: usize| mix(u64::from(self.tag) << 32 | rank as u64) ^ i as u64;
        (0..self.lengths(n).0).map(|i| value(self.dtype, self.op, seed(i))).collect()
    }

    /// What the output must hold; nothing where it must be left alone.
    fn expected(&self, n: usize, rank: usize) -> Vec<Option<u64>> {
        let inputs: Vec<Vec<u64>> = (0..n).map(|r| self.input(n, r)).collect();
        let mask = u64::MAX >> (64 - 8 * self.size());
        let reduced = |i: usize| {
            let operand = |r: usize| self.arith(n, r).pre(inputs[r][i]);
            let arith = self.arith(n, rank);
            let sum = (1..n).fold(operand(0), |acc, r| arith.combine(acc, operand(r)));
            arith.post(sum) & mask
        };
        let of_part = |i: usize, f: &dyn Fn() -> u64| self.part().contains(&i).then(f);
        let whole = |f: &dyn Fn(usize) -> u64| (0..self.count).map(|i| of_part(i, &|| f(i))).collect();
        match self.func {
            Func::AllReduce => whole(&reduced),
            Func::Reduce if rank == self.root => whole(&reduced),
            Func::Reduce => vec![None; self.count],
            Func::Broadcast => whole(&|i| inputs[self.root][i]),
            Func::ReduceScatter => whole(&|i| reduced(rank * self.count + i)),
            Func::AllGather => {
                let at = |i: usize| (i / self.count, i % self.count);
                (0..n * self.count).map(|i| of_part(at(i).1, &|| inputs[at(i).0][at(i).1])).collect()
            }
            Func::AllToAll => {
                let at = |i: usize| (i / self.count, i % self.count);
                let from = |i: usize| inputs[at(i).0][rank * self.count + at(i).1];
                (0..n * self.count).map(|i| of_part(at(i).1, &|| from(i))).collect()
            }
            _ => Vec::new(),
        }
    }

    fn buffers(&self, n: usize, rank: usize) -> Buffers {
        let size = self.size();
        let pack = |elements: &[u64]| -> Vec<u8> {
            elements.iter().flat_map(|element| element.to_le_bytes()[..size].to_vec()).collect()
        };
        let input = pack(&self.input(n, rank));
        let (src_elems, dst_elems) = self.lengths(n);
        if !self.in_place {
            let dst = Some(Buffer::new(dst_elems * size, self.misaligned[1]));
            return Buffers { src: Buffer::holding(&input, self.misaligned[0]), dst };
        }
        let mut both = Buffer::new(src_elems.max(dst_elems) * size, self.misaligned[0]);
        let at = self.offsets(rank).0 * size;
        both.bytes_mut()[at..at + input.len()].copy_from_slice(&input);
        Buffers { src: both, dst: None }
    }

    fn side(&self, n: usize, rank: usize, buffers: &mut Buffers) -> Side {
        let base = buffers.src.as_mut_ptr().0;
        let (src, dst) = match &mut buffers.dst {
            Some(dst) => (base, dst.as_mut_ptr().0),
            None => {
                let (src, dst) = self.offsets(rank);
                (base.wrapping_add(src * self.size()), base.wrapping_add(dst * self.size()))
            }
        };
        let index = |peer: Rank| (peer.index() - usize::from(peer.index() > rank)) as u16;
        // Not the ranks' own order, that positions and ranks are not mistaken for each other.
        let order: Vec<Rank> = (0..n as u32).rev().map(Rank).collect();
        let position = n - 1 - rank;
        let neighbour = |by: usize| if n == 1 { 0 } else { index(order[(position + by) % n]) };
        let which = if let Way::Tree(which) = self.way { which } else { 0 };
        let links = tree::double_binary_tree(Rank(rank as u32), n as u32)[which];
        let children = links.down.map(|child| child.map_or(0, index));
        let parent = [links.up.map_or(0, index)];
        Side {
            work: CollWork {
                func: self.func,
                algorithm: match self.way {
                    Way::Ring => Algorithm::Ring,
                    Way::Tree(_) => Algorithm::Tree,
                    Way::TwoHops | Way::DirectTwice => Algorithm::TwoShot,
                    Way::Levels(_) => Algorithm::TwoLevel,
                    Way::LineHops if self.func == Func::AllReduce => Algorithm::TwoShot,
                    _ => Algorithm::OneShot,
                },
                protocol: self.protocol,
                dtype: self.dtype,
                src,
                dst,
                count: self.count,
                part: self.part(),
                chunk_elems: self.slice_elems() * self.slices_per_chunk,
                slice_elems: self.slice_elems(),
                grain_elems: self.grain_elems,
                rank: Rank(rank as u32),
                nranks: n as u32,
                root: Rank(self.root as u32),
                host_ranks: if let Way::Levels(each) = self.way { each as u32 } else { 0 },
                tag: self.tag,
                stream: false,
                is_direct: self.is_direct,
            },
            ranks: Vec::new(),
            tiles: self.tiles && self.protocol == Protocol::Simple,
            way: self.way,
            ring_peers: [neighbour(n - 1), neighbour(1)],
            tree: TreeEnds {
                links,
                children: links.down.iter().flatten().count(),
                child_recv: children,
                child_send: children,
                parent_recv: parent,
                parent_send: parent,
            },
            mesh_recv: (0..n as u16 - 1).collect(),
            mesh_send: mesh::peers(Rank(rank as u32), n as u32).map(index).collect(),
            order,
        }
    }

    /// Runs the case on every rank.
    pub fn run(&self, world: &mut World, shape: Shape) -> Vec<(Ended, Buffers)> {
        let same = vec![self.clone(); world.n];
        run_each(world, shape, &same, Odd::default())
    }

    /// Whether `buffers` hold what `rank` of `n` must have in the end. Panics with the first difference.
    pub fn check(&self, n: usize, rank: usize, buffers: &Buffers) {
        let size = self.size();
        let (output, at) = match &buffers.dst {
            Some(dst) => (dst.bytes(), 0),
            None => (buffers.src.bytes(), self.offsets(rank).1 * size),
        };
        let input = self.buffers(n, rank);
        if buffers.dst.is_some() {
            assert_eq!(buffers.src.bytes(), input.src.bytes(), "{self:?} wrote its input");
        }
        let before = input.dst.as_ref().map_or(input.src.bytes(), Buffer::bytes);
        for (i, expected) in self.expected(n, rank).into_iter().enumerate() {
            let at = at + i * size;
            let element = |bytes: &[u8]| {
                let mut word = [0; 8];
                word[..size].copy_from_slice(&bytes[at..at + size]);
                u64::from_le_bytes(word)
            };
            let (found, expected) = (element(output), expected.unwrap_or(element(before)));
            let is_right = found == expected || self.is_rounded(n) && self.is_near(found, expected);
            assert!(is_right, "rank {rank} of {n}, element {i}: {found:#x}, not {expected:#x}; {self:?}");
        }
    }

    /// The part of an output that an all-reduce computes.
    pub fn result<'a>(&self, buffers: &'a Buffers) -> &'a [u8] {
        let part = self.part();
        &buffers.dst.as_ref().unwrap_or(&buffers.src).bytes()
            [part.start * self.size()..part.end * self.size()]
    }

    /// Whether the result depends on the order of the operands, which is that of the ranks in one hop only.
    fn is_rounded(&self, n: usize) -> bool {
        let any_order = matches!(self.way, Way::Ring | Way::Tree(_) | Way::Levels(_));
        any_order && is_float(self.dtype) && self.reduces() && self.op == RedOp::Avg && !n.is_power_of_two()
    }

    /// Whether two results differ by a few roundings: positive floats are ordered as their bits are.
    fn is_near(&self, a: u64, b: u64) -> bool {
        a.abs_diff(b) <= 4
    }
}

/// Runs on each rank the case that stands at its place; a thread may quit or be slow.
pub fn run_each(world: &mut World, shape: Shape, cases: &[Case], odd: Odd) -> Vec<(Ended, Buffers)> {
    match shape.line_threads() {
        4 => run_each_with::<4>(world, shape, cases, odd),
        2 => run_each_with::<2>(world, shape, cases, odd),
        _ => run_each_with::<1>(world, shape, cases, odd),
    }
}

fn run_each_with<const LINE: usize>(
    world: &mut World,
    shape: Shape,
    cases: &[Case],
    odd: Odd,
) -> Vec<(Ended, Buffers)> {
    let n = world.n;
    let mut buffers: Vec<Buffers> = (0..n).map(|rank| cases[rank].buffers(n, rank)).collect();
    let side = |(rank, buffers): (usize, &mut Buffers)| cases[rank].side(n, rank, buffers);
    let mut sides: Vec<Side> = buffers.iter_mut().enumerate().map(side).collect();
    let ranks: Vec<_> =
        sides.iter().map(|side| RankBuffers { src: side.work.src, dst: side.work.dst }).collect();
    sides.iter_mut().for_each(|side| side.ranks.clone_from(&ranks));
    let job = |(rank, side): (usize, Side)| {
        let side = Shared(side);
        Job::<'_, LINE> {
            conns: world.all_of(rank),
            arith: cases[rank].arith(n, rank),
            quitter: odd.quitter.filter(|(who, _)| *who == rank).map(|(_, quitter)| quitter),
            slow: odd.slow.filter(|slow| slow.rank == rank),
            abort_delay: odd.abort_delay,
            // SAFETY: buffers are as long as the case says and live on; connections are all of the rank's, in rank order.
            body: Box::new(move |block, conns| unsafe { side.0.run(block, conns) }),
        }
    };
    let jobs = sides.into_iter().enumerate().map(job).collect();
    let ended = world.launch(shape, jobs);
    ended.into_iter().zip(buffers).collect()
}

/// Runs `cases` one after another in one launch, over connections that stay what they are, as on a CPU. For blocks of one thread:
/// between kernels of more there is a barrier that algorithms do not have.
pub fn run_in_a_row(world: &mut World, cases: &[Case]) -> Vec<(Ended, Vec<Buffers>)> {
    let n = world.n;
    let all = |rank| -> Vec<Buffers> { cases.iter().map(|case| case.buffers(n, rank)).collect() };
    let mut buffers: Vec<_> = (0..n).map(all).collect();
    let job = |(rank, buffers): (usize, &mut Vec<Buffers>)| {
        let sides = cases.iter().zip(buffers).map(|(case, buffers)| case.side(n, rank, buffers));
        let sides = Shared(sides.collect::<Vec<_>>());
        Job::<'_, 1> {
            conns: world.all_of(rank),
            arith: cases[0].arith(n, rank),
            quitter: None,
            slow: None,
            abort_delay: Duration::ZERO,
            body: Box::new(move |block, conns| {
                // SAFETY: as in `run_each`.
                sides.0.iter().try_for_each(|side| unsafe { side.run(block, conns) })
            }),
        }
    };
    let jobs = buffers.iter_mut().enumerate().map(job).collect();
    let ended = world.launch(Shape { workers: 1, poster: false }, jobs);
    ended.into_iter().zip(buffers).collect()
}

/// As on a GPU: one and three peers have kernels of their own.
macro_rules! by_peers {
    ($module:ident::run::<$protocol:ty>($block:ident, $conns:ident, $work:expr)) => {{
        let ends = MeshEnds { conns: $conns, send: &[], recv: &[] };
        match $conns.send.len() {
            1 => $module::run::<_, AtOnce<$protocol, 1>>($block, &ends, $work),
            3 => $module::run::<_, AtOnce<$protocol, 3>>($block, &ends, $work),
            _ => $module::run::<_, AtOnce<$protocol, 7>>($block, &ends, $work),
        }
    }};
}

impl Side {
    /// # Safety
    /// 1. The buffers are live, and `conns` are all of the rank's connections, in rank order.
    unsafe fn run<B: Lines + BulkCopy + AmongBlocks>(&self, block: &B, conns: Conns<'_>) -> Result<(), Stop> {
        match self.way {
            // SAFETY: obligation 1.
            Way::OneHop => unsafe { by_peers!(oneshot::run::<Ll<1>>(block, conns, &self.work)) },
            // SAFETY: obligation 1.
            Way::TwoHops => unsafe { by_peers!(twoshot::run::<Ll<1>>(block, conns, &self.work)) },
            // SAFETY: obligation 1.
            Way::LineHops if self.work.algorithm == Algorithm::TwoShot => unsafe {
                by_peers!(twoshot::run::<Ll128>(block, conns, &self.work))
            },
            // SAFETY: obligation 1.
            Way::LineHops => unsafe { by_peers!(oneshot::run::<Ll128>(block, conns, &self.work)) },
            // SAFETY: obligation 1; the buffers of all ranks are live, and these blocks' copies ask for no alignment.
            Way::Symmetric => unsafe { self.symmetric(block, conns) },
            // SAFETY: obligation 1.
            Way::FanIn => unsafe { self.fan_in(block, conns) },
            _ => {
                let ring = RingEnds {
                    order: &self.order,
                    position: self.order.iter().position(|r| *r == self.work.rank).expect("we are in it")
                        as u32,
                    recv: [self.ring_peers[0]],
                    send: [self.ring_peers[1]],
                };
                let (mesh_recv, mesh_send) = (&self.mesh_recv[..], &self.mesh_send[..]);
                let ends = Endpoints {
                    ring,
                    tree: &self.tree,
                    chain: HostEnds::default(),
                    star: HostEnds::default(),
                    mesh_recv,
                    mesh_send,
                };
                match self.tiles {
                    // SAFETY: obligation 1.
                    true => unsafe { coll::run_by_tiles(block, conns, &ends, &self.work) },
                    // SAFETY: obligation 1.
                    false => unsafe { coll::run(block, conns, &ends, &self.work) },
                }
            }
        }
    }

    /// # Safety
    /// 1. As [`Self::run`], and the buffers of all ranks are live.
    unsafe fn symmetric<B: Lines + BulkCopy + AmongBlocks>(
        &self,
        block: &B,
        conns: Conns<'_>,
    ) -> Result<(), Stop> {
        let work = &self.work;
        let share = Share {
            func: work.func,
            rank: work.rank,
            nranks: work.nranks,
            count: work.count,
            nchannels: 1,
            channel: 0,
            grain_elems: work.grain_elems,
        };
        let buffers = symmetric::Buffers { ranks: self.ranks.as_ptr(), rank: work.rank, nranks: work.nranks };
        match self.tiles || work.func.is_reduction() && !symmetric::can_reduce_by_threads::<B>(work.nranks) {
            // SAFETY: obligation 1.
            true => unsafe { symmetric::run(block, conns, &buffers, share, work.elem_bytes(), work.tag) },
            // SAFETY: obligation 1.
            false => unsafe {
                // By turns, so that both ways are tried: of an all-to-all another block copies what a rank sends to itself.
                let own = if work.tag.is_multiple_of(2) { OwnPart::Here } else { OwnPart::Elsewhere };
                if own == OwnPart::Elsewhere {
                    symmetric::copy_own(block, &buffers, share, work.elem_bytes());
                }
                symmetric::run_by_threads(block, conns, &buffers, share, work.elem_bytes(), work.tag, own)
            },
        }
    }

    /// # Safety
    /// 1. As [`Self::run`].
    unsafe fn fan_in<B: Lines>(&self, block: &B, conns: Conns<'_>) -> Result<(), Stop> {
        let (work, size) = (&self.work, self.work.elem_bytes());
        for range in chunk::slices(work.part.clone(), work.slice_elems) {
            let slice = Slice {
                action: Action::SEND,
                header: SlotHeader { tag: work.tag, len_bytes: (range.len() * size) as u32 },
                recv: &self.mesh_recv,
                send: &self.mesh_send,
                src_position: work.rank.index(),
                src: work.src.wrapping_add(range.start * size),
                dst: work.dst.wrapping_add(range.start * size),
                stream: false,
            };
            let reduce = if work.nranks == 1 { Action::COPY_FINISH } else { Action::RECV_REDUCE_COPY };
            if work.nranks > 1 {
                // SAFETY: obligation 1: the slice lies within the buffers.
                unsafe { run_slice::<_, Ll<4>>(block, conns, &slice)? };
            }
            // SAFETY: as above.
            unsafe { run_slice::<_, Ll<4>>(block, conns, &Slice { action: reduce, ..slice })? };
        }
        Ok(())
    }
}

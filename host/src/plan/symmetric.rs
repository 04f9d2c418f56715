//! Collectives by symmetric kernels, which reach the other ranks' buffers: which calls can go so, and by how many blocks.
//!
//! As with copy engines, what other ranks touch lies in a symmetric window, at the same offset on every rank: what an all-reduce sends and
//! receives, what a reduce-scatter sends, what an all-gather and an all-to-all receive. The other buffer may be any memory.

use super::call::Call;
use super::collective::Plan;
use super::copy_engines::{CtaPolicy, Placement, WindowRow};
use super::facts::Facts;
use super::tuning::{Architecture, Forced};
use crate::topology::PathKind;
use oxccl_shared::abi::{Algorithm, DataType, Func, Protocol, Rank, RedOp};
use oxccl_shared::algo::kernels::Kernel;
use oxccl_shared::algo::symmetric::{FUNCS, RANKS_MAX, REDUCED_MAX, reduced_max, touches};

/// How a symmetric kernel carries out a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SymmetricPlan {
    /// The function.
    pub func: Func,
    /// The type of elements, if the function reduces.
    pub dtype: Option<DataType>,
    /// Where the buffers lie that other ranks touch: what is sent, and what is received.
    pub touched: [Option<Placement>; 2],
    /// Blocks, each with a channel of the mesh.
    pub channels: u32,
    /// Blocks besides, which copy what a rank of an all-to-all sends to itself; 0: the others do.
    pub own_blocks: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of a tile; 0 where the threads copy.
    pub tile_bytes: u32,
    /// Whether bulk copies reach all of it: this rank's buffers, and the ranks' blocks in them.
    pub is_aligned: bool,
    /// Elements of the call, or its bytes if there is no type.
    pub count: u64,
    /// Borders fall on multiples of this.
    pub grain_elems: u64,
}

/// The blocks of a symmetric kernel.
struct Team {
    /// At most so many.
    blocks: u32,
    /// Threads of each.
    threads: u32,
    /// Bytes of a tile; 0 where the threads move all.
    tile_bytes: u32,
}

/// Bulk copies begin at multiples of this.
const ALIGN_BYTES: u64 = 16;
/// Borders between blocks fall on multiples of this.
const GRAIN_BYTES: u64 = 512;
/// A block for so many bytes that a rank moves, up to [`blocks_max`].
const BLOCK_BYTES: u64 = 32 << 10;
/// Threads of a block: with tiles a warp that loads, one that stores and one beside them, if there is nothing to combine, and eight that
/// combine; without, as many as a block may have.
const MOVING_THREADS: u32 = 96;
const REDUCING_THREADS: u32 = 320;
const COPYING_THREADS: u32 = 512;
/// Copies of shorter buffers go by the threads (docs/measurements/2026-11-27-copies.md).
const COPYING_MAX_BYTES: u64 = 256 << 20;
/// The most blocks by which threads reduce. Between two ranks, reduce-scatters carry 273 GB/s of 1 GiB with 8 and 328 with 12. Among more the
/// default is within 4 % of 24 from 8 MiB on (docs/measurements/2026-11-28-four-ranks.md).
fn reducing_blocks_max(func: Func, nranks: u32, policy: CtaPolicy) -> u32 {
    match (func, nranks) {
        (Func::ReduceScatter, 3..) if policy != CtaPolicy::Default => 12,
        _ if policy != CtaPolicy::Default => 8,
        (Func::AllReduce, 2) => 8,
        (_, 2) | (Func::AllReduce, 3) => 12,
        _ => 16,
    }
}
/// With so many blocks at most more ranks than two reduce by their threads faster than along rings, however long.
fn few_reducing_blocks(func: Func) -> u32 {
    if func == Func::ReduceScatter { 16 } else { 12 }
}
/// All-reduces by tiles always have so many blocks; rings with as many are slower.
const FEW_TILED_BLOCKS: u32 = 8;
/// Two ranks' all-reduces of so many bytes go by tiles.
const PAIR_TILES_MIN_BYTES: u64 = 64 << 20;
/// Shorter reductions by tiles are slower than kernels with slots.
const TILES_MIN_BYTES: u64 = 16 << 20;
/// The most blocks that copy so. Two ranks gather as fast with 16, within 5 % (docs/measurements/2026-11-28-answers.md).
fn copying_blocks_max(func: Func, nranks: u32) -> u32 {
    if func == Func::AllGather && nranks == 2 { 16 } else { 24 }
}
/// Blocks of a copy within a GPU beside messages of its length to all other ranks: two ranks' message takes as long as 8 blocks do, and with 12
/// is no faster (docs/measurements/2026-11-29-odd-blocks.md). More ranks have longer.
fn own_copy_blocks(nranks: u32) -> u32 {
    if nranks > 2 { 16_u32.div_ceil(nranks - 1) } else { 8 }
}
/// Blocks of an all-to-all that copy what a rank sends to itself. In the blocks that send to others these copies would take the time in
/// which stores over NVLink are on their way. A block copies 42 GB/s, so 8 of them end with a message of the same length over NVLink; where
/// there are few, those that send are the limit too (docs/measurements/2026-11-28-answers.md).
fn own_share(func: Func, blocks: u32, nranks: u32) -> u32 {
    let peers = nranks - 1;
    if func == Func::AllToAll { 8_u32.div_ceil(peers).min(blocks * 7 / (16 * peers)) } else { 0 }
}

/// Bytes of a tile. Three pieces and more fit a multiprocessor's memory, with a tile for each rank's operand; a piece costs 0.4 us however
/// short it is, so tiles are as long as that allows (docs/measurements/2026-11-25-symmetric-kernels.md).
fn tile_bytes(func: Func, nranks: u32) -> u32 {
    match (func, nranks) {
        // Two stores of each sum want their tiles for longer.
        (Func::AllReduce, ..=4) => 16 << 10,
        (Func::ReduceScatter, 2) => 32 << 10,
        (Func::ReduceScatter, ..=4) => 16 << 10,
        (Func::AllReduce | Func::ReduceScatter, _) => 8 << 10,
        _ => 16 << 10,
    }
}

/// The kernel of copies within a GPU.
pub fn copying_kernel() -> Kernel {
    Kernel::symmetric(Func::AllGather, DataType::U8)
}

impl SymmetricPlan {
    /// Its kernel.
    pub fn kernel(&self) -> Kernel {
        Kernel::Symmetric { func: self.func, dtype: self.dtype }
    }

    /// The call of a plan that only moves bytes.
    pub fn call(&self) -> Call {
        Call { func: self.func, dtype: DataType::U8, op: RedOp::Sum, root: Rank(0), count: self.count }
    }

    /// What arguments are made from.
    pub fn as_collective(&self) -> Plan {
        Plan {
            func: self.func,
            algorithm: Algorithm::OneShot,
            protocol: Protocol::LL,
            dtype: self.dtype,
            ranks: None,
            channels: self.channels,
            threads: self.threads,
            count: self.count,
            chunk_elems: self.count,
            slice_elems: self.count,
            grain_elems: self.grain_elems,
            host_ranks: 0,
            stream: false,
        }
    }
}

/// The most blocks: they fill NVLink, and more help little (docs/measurements/2026-11-25-symmetric-kernels.md,
/// 2026-11-27-h200x4.md).
fn blocks_max(func: Func, nranks: u32, policy: CtaPolicy) -> u32 {
    match (func, policy) {
        (Func::AllReduce, _) => 8,
        (Func::ReduceScatter | Func::AllToAll, CtaPolicy::Default) if nranks > 2 => 24,
        (Func::ReduceScatter, _) | (_, CtaPolicy::Default) => 16,
        _ => 8,
    }
}

/// Whether all ranks' blocks begin where bulk copies may, if the buffers do.
fn blocks_are_aligned(call: &Call) -> bool {
    call.func == Func::AllReduce || call.bytes().is_multiple_of(ALIGN_BYTES)
}

impl Facts {
    /// Whether a call goes by a symmetric kernel if its buffers are placed for that. The same on every rank.
    pub fn takes_symmetric(&self, call: &Call, forced: Option<Forced>) -> bool {
        self.has_symmetric()
            && forced.is_none()
            && self.symmetric != Some(false)
            && FUNCS.contains(&call.func)
            // Each rank has a multiplier of its own, for its own input.
            && !(call.func.is_reduction() && call.op == RedOp::PreMulSum)
            && call.count > 0
            && (blocks_are_aligned(call) || self.takes_any_place(call))
            && (self.symmetric == Some(true) || self.symmetric_is_faster(call))
    }

    /// Whether there are such kernels for these ranks at all: GPUs of one host with bulk copies.
    fn has_symmetric(&self) -> bool {
        self.has_bulk_copies()
            && !self.crosses_network()
            && (2..=RANKS_MAX as u32).contains(&self.nranks)
            && self.mesh_channels > 0
            && self.forced == Forced::default()
    }

    /// Whether threads can carry it out, wherever buffers and ranks' blocks begin. The same on every rank.
    fn threads_move(&self, call: &Call) -> bool {
        !call.func.is_reduction() || self.nranks <= reduced_max(call.dtype)
    }

    /// Whether they are to where ranks' blocks, or what other ranks touch, begin anywhere. Of types of which a sum takes many instructions slots
    /// are faster. The same on every rank.
    fn takes_any_place(&self, call: &Call) -> bool {
        let is_faster = !call.func.is_reduction() || reduced_max(call.dtype) == REDUCED_MAX;
        self.threads_move(call) && (is_faster || self.symmetric == Some(true))
    }

    fn symmetric_is_faster(&self, call: &Call) -> bool {
        let is_like_measured = self.machine.ring.intra <= PathKind::Nvb && self.machine.nhosts == 1;
        let bytes = call.buffer_bytes(self.nranks);
        let Some(row) = WindowRow::of(self.tuning.symmetric, call.func, self.nranks) else { return false };
        let has_at_most =
            |few| self.cta_policy == CtaPolicy::Efficiency || self.limits.max.is_some_and(|most| most <= few);
        let is_faster =
            row.holds(bytes) || bytes >= row.min_bytes && has_at_most(few_reducing_blocks(call.func));
        let by_tiles = call.func.is_reduction() && !self.reduces_by_threads(call);
        // Rings of more ranks than two are faster than tiles, but not with as few blocks. A reduce-scatter's output, of which the other ranks
        // know nothing, may lie where tiles cannot be stored.
        let may_have_tiles =
            self.nranks == 2 || call.func == Func::AllReduce && has_at_most(FEW_TILED_BLOCKS);
        let tiles_are_faster = bytes >= TILES_MIN_BYTES && may_have_tiles;
        is_like_measured && is_faster && (!by_tiles || tiles_are_faster)
    }

    /// The plan of a call that [takes](Self::takes_symmetric) a symmetric kernel, with its buffers at these addresses, which `place` finds in
    /// symmetric windows; none if they do not lie as they must.
    pub fn plan_symmetric(
        &self,
        call: &Call,
        addresses: [u64; 2],
        place: impl Fn(u64, u64) -> Option<Placement>,
    ) -> Option<SymmetricPlan> {
        let [touches_send, touches_recv] = touches(call.func);
        let buffers = call.func.buffers(false);
        let placed = |is_touched: bool, address: u64, extent| {
            if !is_touched {
                // The other ranks do not know where it is, so it must not change the way.
                return Some(None);
            }
            let placement = place(address, call.extent_bytes(extent, self.nranks))?;
            let is_reached = self.takes_any_place(call) || placement.offset.is_multiple_of(ALIGN_BYTES);
            is_reached.then_some(Some(placement))
        };
        let send = placed(touches_send, addresses[0], buffers.send)?;
        let recv = placed(touches_recv, addresses[1], buffers.recv)?;
        if call.func == Func::AllToAll && addresses[0] == addresses[1] {
            return None;
        }
        let is_aligned =
            blocks_are_aligned(call) && addresses.iter().all(|address| address.is_multiple_of(ALIGN_BYTES));
        let plan = self.symmetric_plan(call, [send, recv], is_aligned);
        match is_aligned || plan.tile_bytes == 0 {
            true => Some(plan),
            // As many blocks as the other ranks have, which may have tiles.
            false if self.threads_move(call) => {
                Some(SymmetricPlan { threads: COPYING_THREADS, tile_bytes: 0, ..plan })
            }
            false => None,
        }
    }

    /// Whether ranks reduce by their threads: few, and where a sum takes an instruction or two. Of other types so few blocks compute for longer
    /// than the data comes (docs/measurements/2026-11-28-pair-reductions.md), and two ranks' long all-reduces are slower so
    /// (docs/measurements/2026-11-28-four-ranks.md).
    fn reduces_by_threads(&self, call: &Call) -> bool {
        let is_long =
            self.nranks == 2 && call.func == Func::AllReduce && call.bytes() >= PAIR_TILES_MIN_BYTES;
        self.nranks <= REDUCED_MAX && reduced_max(call.dtype) == REDUCED_MAX && !is_long
    }

    /// By whom a call's elements are moved. Threads begin and end sooner, and reduce among few ranks with fewer blocks. Tiles copy long buffers
    /// with the fewest, and reduce what threads do not.
    fn symmetric_team(&self, call: &Call) -> Team {
        let (func, nranks, policy) = (call.func, self.nranks, self.cta_policy);
        let is_short = call.buffer_bytes(nranks) < COPYING_MAX_BYTES;
        match func.is_reduction() {
            true if self.reduces_by_threads(call) => Team {
                blocks: reducing_blocks_max(func, nranks, policy),
                threads: COPYING_THREADS,
                tile_bytes: 0,
            },
            false if is_short && policy == CtaPolicy::Default => {
                Team { blocks: copying_blocks_max(func, nranks), threads: COPYING_THREADS, tile_bytes: 0 }
            }
            reduces => Team {
                blocks: blocks_max(func, nranks, policy),
                threads: if reduces { REDUCING_THREADS } else { MOVING_THREADS },
                tile_bytes: tile_bytes(func, nranks),
            },
        }
    }

    fn symmetric_plan(
        &self,
        call: &Call,
        touched: [Option<Placement>; 2],
        is_aligned: bool,
    ) -> SymmetricPlan {
        let reduces = call.func.is_reduction();
        let dtype = reduces.then_some(call.dtype);
        let (elem_bytes, count) =
            dtype.map_or((1, call.bytes()), |dtype| (dtype.size_bytes() as u64, call.count));
        let Team { blocks: most, threads, tile_bytes } = self.symmetric_team(call);
        let moved_bytes = match call.func {
            Func::AllReduce => call.bytes().div_ceil(u64::from(self.nranks)),
            _ => call.bytes(),
        };
        let by_size = moved_bytes.div_ceil(BLOCK_BYTES).clamp(1, u64::from(most)) as u32;
        let connected = self.mesh_channels.min(self.blocks_max).max(1);
        let blocks = self.limits.apply(by_size).min(connected);
        let own_blocks = if tile_bytes == 0 { own_share(call.func, blocks, self.nranks) } else { 0 };
        SymmetricPlan {
            func: call.func,
            dtype,
            touched,
            channels: blocks - own_blocks,
            own_blocks,
            threads,
            tile_bytes,
            is_aligned,
            count,
            grain_elems: GRAIN_BYTES / elem_bytes,
        }
    }

    /// A copy within a GPU, beside messages to the other ranks: as the all-gather of a rank that is alone.
    pub fn plan_own_copy(&self, len_bytes: u64) -> SymmetricPlan {
        SymmetricPlan {
            func: Func::AllGather,
            dtype: None,
            touched: [None; 2],
            channels: own_copy_blocks(self.nranks).min(self.limits.max.unwrap_or(u32::MAX)),
            own_blocks: 0,
            threads: COPYING_THREADS,
            tile_bytes: 0,
            is_aligned: true,
            count: len_bytes,
            grain_elems: GRAIN_BYTES,
        }
    }

    /// The kernel of copies within a GPU, if there is one for these GPUs, and its threads.
    pub(super) fn own_kernel(&self) -> Option<(Kernel, u32)> {
        let is_there = self.has_bulk_copies() && self.nranks > 1;
        is_there.then(|| (copying_kernel(), COPYING_THREADS))
    }

    /// Whether there are GPUs with bulk copies: others have no symmetric kernels.
    fn has_bulk_copies(&self) -> bool {
        self.has_gpus() && matches!(self.machine.architecture, Architecture::Hopper | Architecture::Blackwell)
    }

    /// Every symmetric kernel that a call may need, and the most threads of its blocks.
    pub fn symmetric_kernels(&self) -> Vec<(Kernel, u32)> {
        if !self.has_symmetric() || self.symmetric == Some(false) {
            return Vec::new();
        }
        let mut kernels = Vec::new();
        for (func, dtype) in FUNCS.iter().flat_map(|func| DataType::ALL.iter().map(move |of| (*func, *of))) {
            let threads = if func.is_reduction() && self.nranks > REDUCED_MAX {
                REDUCING_THREADS
            } else {
                COPYING_THREADS
            };
            let kernel = (Kernel::symmetric(func, dtype), threads);
            if !kernels.contains(&kernel) {
                kernels.push(kernel);
            }
        }
        kernels
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::ChannelLimits;

    fn facts(nranks: u32, sm: u32, forced: Forced) -> Facts {
        Facts::of_gpus(nranks, (sm, 132), forced, ChannelLimits::default(), None)
    }

    fn call(func: Func, count: u64) -> Call {
        Call { func, dtype: DataType::F32, op: RedOp::Sum, root: Rank(0), count }
    }

    const LONG: u64 = 5 << 20;

    #[test]
    fn who_takes_symmetric_kernels() {
        let free = facts(4, 90, Forced::default());
        let any = Facts { symmetric: Some(true), ..free };
        let pair = facts(2, 90, Forced::default());
        assert!(free.takes_symmetric(&call(Func::AllGather, 8 << 20 >> 4), None), "8 MiB of four ranks");
        let eight = facts(8, 90, Forced::default());
        assert!(!eight.takes_symmetric(&call(Func::AllToAll, 64 << 20 >> 5), None), "not measured");
        for func in [Func::AllReduce, Func::ReduceScatter] {
            assert!(pair.takes_symmetric(&call(func, LONG), None), "{func}");
            assert!(
                !free.takes_symmetric(&call(func, 64 * LONG), None),
                "{func}: rings are faster among four"
            );
        }
        for func in FUNCS {
            assert!(!free.takes_symmetric(&call(*func, 64), None), "{func}: kernels with slots are faster");
            assert!(any.takes_symmetric(&call(*func, 64), None), "{func}");
            assert!(!any.takes_symmetric(&call(*func, 0), None), "{func}");
            let none = Facts { symmetric: Some(false), ..free };
            assert!(!none.takes_symmetric(&call(*func, LONG), None), "{func}");
            assert!(!any.takes_symmetric(&call(*func, LONG), Some(Forced::only(None, None))), "{func}");
        }
        assert!(pair.takes_symmetric(&call(Func::AllReduce, 64 * LONG), None), "8 blocks are as fast as 24");
        assert!(!any.takes_symmetric(&call(Func::Broadcast, LONG), None));
        let pre = Call { op: RedOp::PreMulSum, ..call(Func::AllReduce, LONG) };
        assert!(!any.takes_symmetric(&pre, None), "each rank has a multiplier of its own");
        assert!(any.takes_symmetric(&call(Func::AllReduce, LONG + 1), None));
        for func in [Func::AllGather, Func::ReduceScatter] {
            assert!(any.takes_symmetric(&call(func, LONG + 1), None), "{func}: threads move any blocks");
        }
        let bytes = Call { dtype: DataType::U8, ..call(Func::ReduceScatter, LONG + 1) };
        assert!(!any.takes_symmetric(&bytes, None), "tiles cannot be loaded from there");
        let scatter = |dtype| Call { dtype, ..call(Func::ReduceScatter, 16 * LONG + 1) };
        assert!(pair.takes_symmetric(&scatter(DataType::F32), None));
        assert!(!pair.takes_symmetric(&scatter(DataType::U8), None), "slots are faster than their sums");
        let any_pair = Facts { symmetric: Some(true), ..pair };
        assert!(any_pair.takes_symmetric(&scatter(DataType::U8), None));
        let three = facts(3, 90, Forced::default());
        assert!(three.takes_symmetric(&call(Func::ReduceScatter, 4 << 20), None));
        assert!(three.takes_symmetric(&call(Func::ReduceScatter, (4 << 20) + 1), None), "lanes hand sums on");
        for (nranks, sm) in [(1, 90), (9, 90), (4, 80)] {
            let other = Facts { symmetric: Some(true), ..facts(nranks, sm, Forced::default()) };
            assert!(!other.takes_symmetric(&call(Func::AllReduce, LONG), None), "{nranks} ranks, sm {sm}");
            assert!(other.symmetric_kernels().is_empty());
        }
        let ring = Forced::only(Some(Algorithm::Ring), None);
        let named = Facts { symmetric: Some(true), ..facts(4, 90, ring) };
        assert!(!named.takes_symmetric(&call(Func::AllReduce, LONG), None), "the user names another way");
    }

    #[test]
    fn buffers_lie_in_windows_where_others_touch_them() {
        let facts = facts(4, 90, Forced::default());
        // A window of 1 GiB at address 1 << 40.
        let place = |address: u64, len_bytes: u64| {
            let offset = address.checked_sub(1 << 40)?;
            (offset + len_bytes <= 1 << 30).then_some(Placement { window: 3, offset })
        };
        let (inside, far) = (1 << 40, 1 << 50);
        let plan = |func, send, recv| facts.plan_symmetric(&call(func, 1 << 20), [send, recv], place);
        let both = plan(Func::AllReduce, inside, inside + (512 << 20)).expect("both are inside");
        assert_eq!(both.touched.map(|placement| placement.map(|at| at.offset)), [Some(0), Some(512 << 20)]);
        assert_eq!(plan(Func::AllReduce, inside, far), None);
        let off = plan(Func::AllReduce, inside + 4, inside).expect("threads reach it");
        assert_eq!((off.tile_bytes, off.touched[0].map(|at| at.offset)), (0, Some(4)));
        assert!(both.is_aligned && !off.is_aligned, "the user's tiles do not count either");
        let odd = facts.plan_symmetric(&call(Func::AllGather, (1 << 20) + 1), [far, inside], place);
        assert!(!odd.expect("threads move any blocks").is_aligned);
        let bytes = Call { dtype: DataType::U8, ..call(Func::AllReduce, 1 << 20) };
        assert_eq!(facts.plan_symmetric(&bytes, [inside + 4, inside], place), None, "tiles do not");
        assert_eq!(plan(Func::ReduceScatter, inside, far).map(|plan| plan.touched[1]), Some(None));
        let misaligned = |dtype| {
            let call = Call { dtype, ..call(Func::ReduceScatter, 1 << 20) };
            facts.plan_symmetric(&call, [inside, far + 4], place).map(|plan| plan.tile_bytes)
        };
        assert_eq!(misaligned(DataType::F32), Some(0), "threads reach it");
        assert_eq!(
            misaligned(DataType::U8),
            None,
            "tiles cannot be stored there, and this is only asked for"
        );
        let copied =
            plan(Func::AllGather, far + 4, inside).expect("the others do not see where it is sent from");
        assert_eq!((copied.tile_bytes, copied.threads), (0, COPYING_THREADS));
        assert_eq!(plan(Func::ReduceScatter, inside + (1 << 30) - 16, far), None, "it ends outside");
        assert!(plan(Func::AllGather, far, inside).is_some() && plan(Func::AllToAll, far, inside).is_some());
        assert_eq!(plan(Func::AllToAll, inside, inside), None, "in place");
        for func in FUNCS {
            let plan = plan(*func, inside, inside + (512 << 20)).expect("both are inside");
            assert!(
                (facts.symmetric_kernels().iter())
                    .any(|(kernel, threads)| *kernel == plan.kernel() && plan.threads <= *threads),
                "not loaded: {plan:?}"
            );
            assert!((1..=24).contains(&(plan.channels + plan.own_blocks)), "{plan:?}");
        }
    }

    #[test]
    fn ranks_copy_by_their_threads() {
        let place = |_, _| Some(Placement { window: 0, offset: 0 });
        let plan = |facts: &Facts, func, bytes: u64| {
            let count = bytes / 4 / u64::from(facts.nranks);
            facts.plan_symmetric(&call(func, count), [0, 1 << 40], place).expect("all is in windows")
        };
        let two = facts(2, 90, Forced::default());
        for func in [Func::AllGather, Func::AllToAll] {
            let copied = plan(&two, func, 16 << 20);
            let blocks = if func == Func::AllGather { (16, 0) } else { (16, 8) };
            assert_eq!((copied.tile_bytes, copied.threads), (0, 512), "{func}");
            assert_eq!((copied.channels, copied.own_blocks), blocks, "{func}");
            assert_ne!(plan(&two, func, 256 << 20).tile_bytes, 0, "{func}: long ones go by bulk copies");
            let few = Facts { cta_policy: CtaPolicy::Efficiency, ..two };
            assert_ne!(plan(&few, func, 16 << 20).tile_bytes, 0, "{func}: fewer blocks do with bulk copies");
        }
    }

    #[test]
    fn few_ranks_reduce_by_their_threads() {
        let place = |_, _| Some(Placement { window: 0, offset: 0 });
        let plan = |facts: &Facts, func| {
            let plan = facts.plan_symmetric(&call(func, 64 << 20), [0, 1 << 40], place);
            let plan = plan.expect("all is in windows");
            (plan.channels, plan.threads, plan.tile_bytes)
        };
        let [two, three, four, eight] = [2, 3, 4, 8].map(|nranks| facts(nranks, 90, Forced::default()));
        let few = Facts { cta_policy: CtaPolicy::Efficiency, ..two };
        assert_eq!(plan(&two, Func::ReduceScatter), (12, 512, 0));
        assert_eq!(plan(&few, Func::ReduceScatter), (8, 512, 0));
        let short = |facts: &Facts| {
            let plan = facts.plan_symmetric(&call(Func::AllReduce, 8 << 20), [0, 1 << 40], place);
            plan.map(|plan| (plan.channels, plan.threads, plan.tile_bytes))
        };
        assert_eq!([&two, &few].map(short), [Some((8, 512, 0)); 2]);
        assert_eq!([&two, &few].map(|facts| plan(facts, Func::AllReduce)), [(8, 320, 16 << 10); 2], "long");
        assert_eq!([Func::ReduceScatter, Func::AllReduce].map(|func| plan(&four, func)), [(16, 512, 0); 2]);
        assert_eq!(plan(&three, Func::AllReduce), (12, 512, 0));
        assert_eq!(plan(&eight, Func::ReduceScatter), (24, 320, 8 << 10));
        let of = |dtype: DataType, bytes: u64| {
            let call = Call { dtype, ..call(Func::ReduceScatter, bytes / 2 / dtype.size_bytes() as u64) };
            let plan = two.plan_symmetric(&call, [0, 1 << 40], place).expect("all is in windows");
            (two.takes_symmetric(&call, None), plan.tile_bytes)
        };
        assert_eq!(of(DataType::F16, 4 << 20), (true, 0));
        assert_eq!(of(DataType::BF16, 4 << 20), (true, 0));
        assert_eq!(of(DataType::I8, 4 << 20), (false, 32 << 10), "tiles want more");
        assert_eq!(of(DataType::I8, 16 << 20), (true, 32 << 10));
    }

    #[test]
    fn four_ranks_reduce_so_where_rings_are_slower() {
        let four = facts(4, 90, Forced::default());
        let limited =
            |max| Facts { limits: ChannelLimits { max: Some(max), ..ChannelLimits::default() }, ..four };
        let few = Facts { cta_policy: CtaPolicy::Efficiency, ..four };
        let takes = |facts: &Facts, dtype, mib: u64| {
            let call = Call { dtype, ..call(Func::AllReduce, (mib << 20) / dtype.size_bytes() as u64) };
            facts.takes_symmetric(&call, None)
        };
        let of = |facts: &Facts, dtype| [2, 16, 64, 1024].map(|mib| takes(facts, dtype, mib));
        assert_eq!(of(&four, DataType::F32), [false, true, false, false]);
        assert_eq!(of(&limited(24), DataType::F32), [false, true, false, false]);
        assert_eq!(of(&limited(16), DataType::F32), [false, true, false, false]);
        assert_eq!(of(&limited(12), DataType::F32), [false, true, true, true], "rings with 12 are slower");
        let scatter = |facts: &Facts| facts.takes_symmetric(&call(Func::ReduceScatter, 64 << 20), None);
        assert_eq!([scatter(&four), scatter(&limited(16)), scatter(&limited(24))], [false, true, false]);
        assert_eq!(of(&few, DataType::F32), [false, true, true, true]);
        assert_eq!(of(&four, DataType::U8), [false; 4], "tiles are slower than rings");
        assert_eq!(of(&limited(12), DataType::U8), [false; 4], "with 12 blocks too");
        assert_eq!(of(&limited(8), DataType::U8), [false, true, true, true], "but not with 8");
        let scatter = Call { dtype: DataType::U8, ..call(Func::ReduceScatter, 16 << 20) };
        assert!(!limited(8).takes_symmetric(&scatter, None), "a rank's output may be misaligned");
    }

    #[test]
    fn some_blocks_copy_what_a_rank_sends_to_itself() {
        let own = |nranks: u32| [1, 2, 4, 8, 16, 24].map(|blocks| own_share(Func::AllToAll, blocks, nranks));
        assert_eq!(own(2), [0, 0, 1, 3, 7, 8]);
        assert_eq!(own(4), [0, 0, 0, 1, 2, 3]);
        assert_eq!(own(8), [0, 0, 0, 0, 1, 1]);
        assert_eq!(own_share(Func::AllGather, 24, 2), 0, "what is sent to others is what is kept");
    }

    #[test]
    fn a_rank_copies_its_own_beside_its_messages() {
        let of = |nranks, sm| facts(nranks, sm, Forced::default());
        let copy = |facts: Facts| facts.plan_own_copy(1 << 20);
        assert_eq!([1, 2, 3, 4, 8].map(|nranks| copy(of(nranks, 90)).channels), [8, 8, 8, 6, 3]);
        let few = Facts { limits: ChannelLimits { max: Some(4), ..ChannelLimits::default() }, ..of(2, 90) };
        assert_eq!(copy(few).channels, 4, "the user says how many there may be");
        let own = |nranks, sm| of(nranks, sm).own_kernel();
        assert_eq!(own(2, 90), Some((copying_kernel(), copy(of(2, 90)).threads)));
        assert_eq!((own(1, 90), own(2, 80)), (None, None), "the driver copies");
    }
}

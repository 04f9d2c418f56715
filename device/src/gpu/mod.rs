//! Layer: device / gpu, the kernel DSL.
//! Takes: one machine's way to wait, to move whole slots and to reduce words.
//! Gives: [`Block`], the small trait over which every primitive and algorithm is written once, and its extensions.
//! Never: knows collectives or protocols.
//!
//! A *block* is a group of threads that run one channel of one operation together. On a CPU it is one thread and its bulk
//! operations are vectorised loops; on a GPU it is a thread block and they are cooperative. A machine implements
//!
//! | trait | what it is for |
//! |---|---|
//! | [`Block`] | every algorithm: who is who, barriers, bounded waits, whole slots; alone it runs the protocol Simple |
//! | [`Words`] | reduction of single words, which LL needs |
//! | [`Lines`] | lines of 128 bytes that move as one access, which LL128 needs |
//! | [`BulkCopy`] | bulk copies through tiles (NVIDIA's `cp.async.bulk`), another way to move Simple's slots |
//!
//! A GPU implements [`KernelMachine`], some dozen small functions, and has [`threads::GpuBlock`] as its block.
//!
//! A kernel whose protocol needs a trait that the machine lacks does not compile, so the machine does not offer it. Bulk copies need a
//! [`CopyEngine`], of which a machine may have none: its kernels move slots by ordinary copies, and their peers cannot tell.

mod bulk_copy;
mod lines;
mod machine;
mod words;
pub mod threads;
#[cfg(feature = "cpu")]
pub mod cpu;
#[cfg(target_arch = "nvptx64")]
pub mod ptx;
#[cfg(target_arch = "amdgpu")]
pub mod amdgcn;

pub use bulk_copy::{BulkCopy, NO_TILE, Pipe, STORES_READING, STORES_RECENT, Stage, Tile};
pub use lines::Lines;
pub use machine::{CopyEngine, KernelMachine, LINE_BYTES, NoEngine, Pack, SHARED_BYTES};
pub use words::{Fold, Words};

use oxccl_shared::abi::{Rank, SlotHeader, Step};

/// Why a kernel returned early. The reason lies with whoever answered [`Block::idle`] or [`Block::refuse`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stop;

/// What a block is waiting for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wait {
    /// Who has to act.
    pub peer: Rank,
    /// What it has to do.
    pub what: Awaited,
}

/// What a peer has to do before a waiting block can go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Awaited {
    /// Empty a slot that we want to fill.
    Credit,
    /// Fill a slot that we want to read.
    Data,
}

/// An end of a connection, at which a block waits.
pub trait End {
    /// What for.
    fn wait(&self) -> Wait;

    /// The step that it will go on with.
    fn step(&self) -> Step;
}

/// A wait at an end of which the step is not known.
impl End for Wait {
    #[inline(always)]
    fn wait(&self) -> Wait {
        *self
    }

    #[inline(always)]
    fn step(&self) -> Step {
        Step(0)
    }
}

/// How a bulk operation treats its operands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct How {
    /// The user's input (`src`, or `b` of a combination) is pre-multiplied.
    pub pre: bool,
    /// The result is final: the operator's post-operation applies.
    pub post: bool,
    /// `dst` is user memory that nobody reads soon, or a slot that its consumer reads from afar; it may bypass the caches.
    pub stream: bool,
    /// `dst2` is a slot that its consumer reads from afar; it may bypass the caches too.
    pub stream2: bool,
}

/// One group of threads and the machine under it.
///
/// All threads of a block run the same primitives on the same connections. *Workers* move data, the first of them also counts.
/// Where the protocol publishes whole slots, a block may have a *poster* beside its workers, which only tells the peers, so
/// that a slot can be filled while the one before it is still being announced:
///
/// ```text
/// worker 0   waits for the peers            moves data        |                 waits ...
/// workers    `lead` waits for worker 0      move data    `close` waits for all  `lead` ...
/// poster     `lead` does not wait           nothing           |                 posts ...
/// ```
pub trait Block {
    /// This thread's index among the workers; at least [`Self::threads`] for a poster.
    fn thread(&self) -> usize;

    /// Workers in the block.
    fn threads(&self) -> usize;

    /// Whether this thread moves data.
    #[inline]
    fn works(&self) -> bool {
        self.thread() < self.threads()
    }

    /// Whether this thread is the first worker, who counts steps.
    #[inline]
    fn leads(&self) -> bool {
        self.thread() == 0
    }

    /// Whether this thread is the one that tells the peers: a poster, or else the first worker.
    fn posts(&self) -> bool;

    /// One worker runs `wait`; all workers return what it returned, and see what it saw. A poster returns at once.
    fn lead(&self, wait: impl FnOnce() -> Result<(), Stop>) -> Result<(), Stop>;

    /// Returns when all threads of the block, a poster too, have called it: `Ok` if all were. What they wrote before is then
    /// visible to each other, and to whom one of them tells.
    fn close(&self, mine: Result<(), Stop>) -> Result<(), Stop>;

    /// Returns when all threads of a block without a poster have called it or have ended.
    fn sync(&self);

    /// Returns when all workers have called it, and they see what each other wrote. A poster returns at once.
    #[inline(always)]
    fn meet(&self) {
        // Nobody waits for a peer here, so nobody can be stopped.
        let _ = self.lead(|| Ok(()));
    }

    /// Called after the `polls`-th poll in a row that found nothing. Returns to poll again, or `Err` when the operation
    /// is aborted, its deadline has passed or the peer is gone.
    fn idle(&self, on: Wait, polls: u32) -> Result<(), Stop>;

    /// As [`Self::idle`], at this end. A block of a GPU looks at the end only when it has polled in vain for long, and so keeps nothing of
    /// it in registers meanwhile.
    #[inline(always)]
    fn idle_at(&self, end: &impl End, polls: u32) -> Result<(), Stop> {
        self.idle(end.wait(), polls)
    }

    /// The peer's slot belongs to another operation than ours: records who and what, and stops.
    fn refuse(&self, on: Wait, expected: SlotHeader, found: SlotHeader) -> Stop;

    /// Whether the operator has a pre-operation at all.
    fn has_pre(&self) -> bool;

    /// Copies `len_bytes` from `src` to `dst` (and `dst2` unless null), elements transformed as `how` says.
    ///
    /// Bulk operations divide their bytes among the workers as alignment and type suggest, each differently: what one has
    /// written another may read after [`Self::meet`] or [`Self::close`], not before.
    ///
    /// # Safety
    /// 1. `src` is readable and `dst`, `dst2` are writable for `len_bytes`, a whole number of elements, by this block.
    /// 2. `dst` equals `src` or does not overlap it; `dst2` overlaps neither.
    unsafe fn map_bulk(&self, dst: *mut u8, dst2: *mut u8, src: *const u8, len_bytes: usize, how: How);

    /// `dst = op(a, b)` (and `dst2` unless null); `how.pre` applies to `b`.
    ///
    /// # Safety
    /// 1. `a`, `b` are readable and `dst`, `dst2` are writable for `len_bytes`, a whole number of elements, by this block.
    /// 2. Each of `dst` and `dst2` equals `a` or `b` or overlaps neither, and they are apart.
    unsafe fn combine_bulk(
        &self,
        dst: *mut u8,
        dst2: *mut u8,
        a: *const u8,
        b: *const u8,
        len_bytes: usize,
        how: How,
    );
}

/// A block among others of its launch that have one bulk operation together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Among {
    /// Which of them it is.
    pub index: u32,
    /// Blocks.
    pub count: u32,
}

/// A block of a kernel that copies, or reduces the inputs of a few ranks, and does little else: it has as many bytes in flight as help.
pub trait AmongBlocks: Block {
    /// The most inputs that it reduces: 2 to 4.
    const INPUTS_MAX: u32;

    /// This block's part of a copy as by [`Block::map_bulk`], of elements that are not transformed.
    ///
    /// # Safety
    /// 1. As [`Block::map_bulk`], by all these blocks.
    unsafe fn copy_among(&self, among: Among, dst: *mut u8, dst2: *mut u8, src: *const u8, len_bytes: usize);

    /// This block's part of a reduction of inputs, 2 to [`Self::INPUTS_MAX`], in their order. Each output that is not null gets the outcome. The
    /// first one is never null. `how.pre` applies to every input. Each element belongs to one thread of one block.
    ///
    /// # Safety
    /// 1. As [`Block::combine_bulk`], of each of the inputs and outputs, by all these blocks.
    unsafe fn reduce_among<const N: usize>(
        &self,
        among: Among,
        outputs: [*mut u8; N],
        inputs: [*const u8; N],
        len_bytes: usize,
        how: How,
    );
}

/// Whether a copy is onto itself and nowhere else: there is nothing to do.
#[inline(always)]
pub fn is_onto_itself(dst: *mut u8, dst2: *mut u8, src: *const u8) -> bool {
    dst.cast_const() == src && dst2.is_null()
}

/// Looks at an end until `look` finds something.
#[inline(always)]
pub fn wait_for<B: Block, T>(
    block: &B,
    end: &impl End,
    mut look: impl FnMut() -> Option<T>,
) -> Result<T, Stop> {
    let mut polls = 0u32;
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        polls = polls.saturating_add(1);
        block.idle_at(end, polls)?;
    }
}

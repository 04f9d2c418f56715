//! One OS thread for each thread of a GPU's block.

use super::arith::Arith;
use super::barrier::{Barrier, Meeting};
use oxccl_device::gpu::{
    Among, AmongBlocks, Block, BulkCopy, How, Lines, Pipe, STORES_READING, STORES_RECENT, Stage, Stop, Tile,
    Wait, Words, is_onto_itself,
};
use oxccl_shared::abi::SlotHeader;
use oxccl_shared::fifo::{ConsumerCursor, ProducerCursor};
use oxccl_shared::proto::ll128::{LINE_WORDS, Ll128Line};
use oxccl_shared::sync::{Block as InBlock, Sys, Word, fence_acquire, fence_release};
use std::cell::{Cell, RefCell, UnsafeCell};
use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How many threads a block has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    pub workers: usize,
    pub poster: bool,
}

impl Shape {
    pub fn threads(&self) -> usize {
        self.workers + self.poster as usize
    }

    /// Threads that combine tiles: all workers but the loader.
    fn combiners(&self) -> usize {
        (self.workers - 1).max(1)
    }

    /// Groups of them that take turns.
    fn groups(&self) -> usize {
        if self.combiners() < 4 { 1 } else { 2 }
    }

    /// How many threads move an LL128 line together: as many as the workers allow.
    pub fn line_threads(&self) -> usize {
        let fits = |line: &usize| self.workers.is_multiple_of(team_threads(*line));
        [4, 2].into_iter().find(fits).unwrap_or(1)
    }
}

/// How many threads go through lines in lock step, where `line` move one: those of two lines, or of one.
const fn team_threads(line: usize) -> usize {
    if line == 4 { 8 } else { line }
}

/// Why a thread stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    Aborted,
    /// It waited for longer than any test should take.
    Late(Wait),
    Refused {
        on: Wait,
        expected: SlotHeader,
        found: SlotHeader,
    },
}

/// A thread whose wait fails.
#[derive(Clone, Copy, Debug)]
pub struct Quitter {
    pub thread: usize,
    /// After so many polls in vain.
    pub patience: u32,
}

/// A thread that is slow.
#[derive(Clone, Copy, Debug)]
pub struct Slow {
    pub rank: usize,
    pub thread: usize,
    /// It sleeps for so long before it stores a line, and again when it has.
    pub before_and_after_a_line: Duration,
}

/// What is out of the ordinary in a launch.
#[derive(Clone, Copy, Debug, Default)]
pub struct Odd {
    /// Of this rank.
    pub quitter: Option<(usize, Quitter)>,
    pub slow: Option<Slow>,
    /// How long everybody goes on when a thread has stopped, before the others hear of it. A GPU's threads look at the host's word each at
    /// polls of its own.
    pub abort_delay: Duration,
}

/// What the threads of one block share, beside connections.
pub struct BlockState<'a> {
    shape: Shape,
    all: Barrier,
    /// The workers of a block with a poster.
    first: Barrier,
    /// Of each team of LL128.
    teams: Vec<Barrier>,
    abort: &'a Word<u32, Sys>,
    quitter: Option<Quitter>,
    slow: Option<Slow>,
    tiles: Vec<TileState>,
    /// Not 0 when a thread has stopped whom others may wait for.
    has_stopped: Word<u32, InBlock>,
    pub reasons: Mutex<Vec<Reason>>,
    pub saved: Mutex<Saved>,
}

/// Small tiles: four to a slot.
const TILE_BYTES: usize = 64;
/// More than any slice of the tests has operands; a few, so that they are used again soon.
const TILES: u32 = 7;

/// A tile, and how often each of its stages has come. Every word has one writer.
struct TileState {
    bytes: UnsafeCell<[u8; TILE_BYTES]>,
    loaded: Word<u32, InBlock>,
    gathered: Word<u32, InBlock>,
    freed: Word<u32, InBlock>,
    /// Of each combiner.
    combined: Vec<Word<u32, InBlock>>,
}

// SAFETY: who may access the bytes follows from the stages; miri sees where it does not.
unsafe impl Sync for TileState {}

impl TileState {
    fn new(shape: Shape) -> TileState {
        TileState {
            bytes: UnsafeCell::new([0xa5; TILE_BYTES]),
            loaded: Word::new(0),
            gathered: Word::new(0),
            freed: Word::new(0),
            combined: (0..shape.combiners()).map(|_| Word::new(0)).collect(),
        }
    }

    fn at(&self) -> *mut u8 {
        self.bytes.get().cast()
    }
}

/// A store that was asked for: from, to, length.
type Asked = (*const u8, *mut u8, usize);

/// What the first worker leaves to the next launch.
#[derive(Default)]
pub struct Saved {
    pub producers: Vec<ProducerCursor>,
    pub consumers: Vec<ConsumerCursor>,
}

impl<'a> BlockState<'a> {
    pub fn new(
        shape: Shape,
        abort: &'a Word<u32, Sys>,
        quitter: Option<Quitter>,
        slow: Option<Slow>,
    ) -> Self {
        BlockState {
            shape,
            all: Barrier::new(shape.threads()),
            first: Barrier::new(shape.workers),
            teams: (0..shape.workers).map(|_| Barrier::new(team_threads(shape.line_threads()))).collect(),
            abort,
            quitter,
            slow,
            tiles: (0..TILES).map(|_| TileState::new(shape)).collect(),
            has_stopped: Word::new(0),
            reasons: Mutex::default(),
            saved: Mutex::default(),
        }
    }

    fn stop(&self, why: Reason) -> Stop {
        self.reasons.lock().expect("nobody panics inside").push(why);
        Stop
    }
}

/// One thread's view of its block. Everything that a GPU's block may do differently each time it does differently each time:
/// see [`ThreadBlock::share`]. `LINE` threads move a line of LL128: [`Shape::line_threads`].
pub struct ThreadBlock<'a, const LINE: usize> {
    thread: usize,
    block: &'a BlockState<'a>,
    arith: Arith,
    /// Equal on all workers of the block: all call the same bulk operations.
    bulk_calls: Cell<usize>,
    polls: Cell<u32>,
    start: Instant,
    pipe: Pipe,
    /// Stores are carried out as late as may be: when somebody waits for them.
    asked: RefCell<Vec<Asked>>,
    groups: RefCell<VecDeque<Vec<Asked>>>,
}

impl<'a, const LINE: usize> ThreadBlock<'a, LINE> {
    pub fn new(thread: usize, block: &'a BlockState<'a>, arith: Arith) -> Self {
        assert_eq!(LINE, block.shape.line_threads());
        let (bulk_calls, polls) = (Cell::new(0), Cell::new(0));
        ThreadBlock {
            thread,
            block,
            arith,
            bulk_calls,
            polls,
            start: Instant::now(),
            pipe: Pipe::default(),
            asked: RefCell::default(),
            groups: RefCell::default(),
        }
    }

    /// Which elements of a tile are this combiner's: the same of all tiles.
    fn tile_share(&self, len_bytes: usize) -> impl Iterator<Item = usize> + use<LINE> {
        let size = self.arith.dtype.size_bytes();
        let (groups, mine) = (self.block.shape.groups(), self.combiner());
        let of_group = (self.block.shape.combiners() - mine % groups).div_ceil(groups);
        (0..len_bytes / size).filter(move |i| i % of_group == mine / groups).map(move |i| i * size)
    }

    fn combiner(&self) -> usize {
        self.thread.saturating_sub(1)
    }

    fn group_of(&self, turn: Tile) -> usize {
        turn.index as usize % self.block.shape.groups()
    }

    /// Carries out all groups but the last `left`.
    fn carry_out(&self, left: usize) {
        let mut groups = self.groups.borrow_mut();
        while groups.len() > left {
            for (from, to, len) in groups.pop_front().into_iter().flatten() {
                // SAFETY: whoever asked promised that both are valid until it waits.
                unsafe { from.copy_to_nonoverlapping(to, len) };
            }
        }
    }

    fn be_slow(&self) {
        if let Some(slow) = self.block.slow.filter(|slow| slow.thread == self.thread) {
            std::thread::sleep(slow.before_and_after_a_line);
        }
    }

    /// Which elements of a bulk operation are this thread's. As on a GPU that depends on how the operands are aligned; here it
    /// changes from call to call besides, so that a barrier forgotten between two passes gives wrong results.
    fn share(&self, operands: &[usize], len_bytes: usize) -> impl Iterator<Item = usize> + use<LINE> {
        let size = self.arith.dtype.size_bytes();
        let is_aligned = operands.iter().all(|at| at % 16 == 0);
        let granule = if is_aligned { 16 / size } else { 1 };
        let (call, workers, thread) = (self.bulk_calls.get(), self.block.shape.workers, self.thread);
        self.bulk_calls.set(call + 1);
        let is_mine = move |i: &usize| (i / granule + call) % workers == thread;
        (0..len_bytes / size).filter(is_mine).map(move |i| i * size)
    }

    /// # Safety
    /// 1. An element is readable at `at`.
    unsafe fn read(&self, at: *const u8) -> u64 {
        let mut bytes = [0; 8];
        // SAFETY: obligation 1; an element has at most 8 bytes.
        unsafe { at.copy_to_nonoverlapping(bytes.as_mut_ptr(), self.arith.dtype.size_bytes()) };
        u64::from_le_bytes(bytes)
    }

    /// # Safety
    /// 1. An element is writable at offset `at` of every output that is not null.
    unsafe fn write<const N: usize>(&self, outputs: [*mut u8; N], at: usize, value: u64) {
        let bytes = value.to_le_bytes();
        for output in outputs.into_iter().filter(|output| !output.is_null()) {
            // SAFETY: obligation 1.
            let to = unsafe { output.add(at) };
            // SAFETY: obligation 1; an element has at most 8 bytes.
            unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), self.arith.dtype.size_bytes()) };
        }
    }

    /// Combines this thread's share of operands, in their order. `pre` says of each whether the pre-operation applies to it.
    ///
    /// # Safety
    /// 1. As [`Block::combine_bulk`].
    unsafe fn combine_each<const N: usize>(
        &self,
        outputs: [*mut u8; N],
        operands: [*const u8; N],
        len_bytes: usize,
        pre: [bool; N],
        post: bool,
    ) {
        let addresses = [outputs.map(|at| at.addr()), operands.map(|at| at.addr())];
        for at in self.share(addresses.as_flattened(), len_bytes) {
            let operand = |k: usize| {
                // SAFETY: obligation 1.
                let value = unsafe { self.read(operands[k].add(at)) };
                if pre[k] { self.arith.pre(value) } else { value }
            };
            let value = (1..N).fold(operand(0), |value, k| self.arith.combine(value, operand(k)));
            let value = if post { self.arith.post(value) } else { value };
            // SAFETY: obligation 1.
            unsafe { self.write(outputs, at, value) };
        }
    }
}

impl<const LINE: usize> Drop for ThreadBlock<'_, LINE> {
    fn drop(&mut self) {
        let failed = std::thread::panicking();
        self.block.all.end(failed);
        if self.works() {
            self.block.first.end(failed);
            self.block.teams[self.thread / Self::TEAM_THREADS].end(failed);
        }
    }
}

impl<const LINE: usize> Block for ThreadBlock<'_, LINE> {
    fn thread(&self) -> usize {
        self.thread
    }

    fn threads(&self) -> usize {
        self.block.shape.workers
    }

    fn posts(&self) -> bool {
        self.thread == if self.block.shape.poster { self.threads() } else { 0 }
    }

    fn lead(&self, wait: impl FnOnce() -> Result<(), Stop>) -> Result<(), Stop> {
        if !self.works() {
            return Ok(());
        }
        let stopped = self.thread == 0 && wait().is_err();
        let barrier = if self.block.shape.poster { &self.block.first } else { &self.block.all };
        if barrier.wait(Meeting::Lead, stopped) { Err(Stop) } else { Ok(()) }
    }

    fn close(&self, mine: Result<(), Stop>) -> Result<(), Stop> {
        if self.block.all.wait(Meeting::Close, mine.is_err()) { Err(Stop) } else { Ok(()) }
    }

    fn sync(&self) {
        assert!(!self.block.shape.poster, "blocks with a poster do not sync");
        self.block.all.wait(Meeting::Sync, false);
    }

    fn idle(&self, on: Wait, polls: u32) -> Result<(), Stop> {
        self.polls.set(self.polls.get() + 1);
        if self.block.abort.load_relaxed() != 0 {
            return Err(self.block.stop(Reason::Aborted));
        }
        let mut quitters = self.block.quitter.iter();
        if quitters.any(|quitter| quitter.thread == self.thread && self.polls.get() > quitter.patience) {
            return Err(self.block.stop(Reason::Aborted));
        }
        if !cfg!(miri) && polls.is_multiple_of(256) && self.start.elapsed() > Duration::from_secs(30) {
            return Err(self.block.stop(Reason::Late(on)));
        }
        std::thread::yield_now();
        Ok(())
    }

    fn refuse(&self, on: Wait, expected: SlotHeader, found: SlotHeader) -> Stop {
        self.block.stop(Reason::Refused { on, expected, found })
    }

    fn has_pre(&self) -> bool {
        self.arith.operator.pre
    }

    unsafe fn map_bulk(&self, dst: *mut u8, dst2: *mut u8, src: *const u8, len_bytes: usize, how: How) {
        let (pre, post) = (how.pre && self.arith.operator.pre, how.post && self.arith.operator.post);
        if is_onto_itself(dst, dst2, src) && !pre && !post {
            return;
        }
        for at in self.share(&[dst.addr(), dst2.addr(), src.addr()], len_bytes) {
            // SAFETY: obligation 1.
            let value = unsafe { self.read(src.add(at)) };
            let value = if pre { self.arith.pre(value) } else { value };
            let value = if post { self.arith.post(value) } else { value };
            // SAFETY: obligations 1 and 2.
            unsafe { self.write([dst, dst2], at, value) };
        }
    }

    unsafe fn combine_bulk(
        &self,
        dst: *mut u8,
        dst2: *mut u8,
        a: *const u8,
        b: *const u8,
        len_bytes: usize,
        how: How,
    ) {
        // SAFETY: obligations 1 and 2.
        unsafe { self.combine_each([dst, dst2], [a, b], len_bytes, [false, how.pre], how.post) };
    }
}

impl<const LINE: usize> AmongBlocks for ThreadBlock<'_, LINE> {
    const INPUTS_MAX: u32 = 4;

    unsafe fn copy_among(&self, among: Among, dst: *mut u8, dst2: *mut u8, src: *const u8, len_bytes: usize) {
        assert_eq!(among, Among { index: 0, count: 1 });
        // SAFETY: obligation 1.
        unsafe { self.map_bulk(dst, dst2, src, len_bytes, How::default()) };
    }

    unsafe fn reduce_among<const N: usize>(
        &self,
        among: Among,
        outputs: [*mut u8; N],
        inputs: [*const u8; N],
        len_bytes: usize,
        how: How,
    ) {
        assert_eq!(among, Among { index: 0, count: 1 });
        // SAFETY: obligation 1.
        unsafe { self.combine_each(outputs, inputs, len_bytes, [how.pre; N], how.post) };
    }
}

impl<const LINE: usize> Words for ThreadBlock<'_, LINE> {
    type Batch = [u64; 1];

    fn batch() -> [u64; 1] {
        [0]
    }

    fn pre(&self, words: &mut [u64]) {
        words.iter_mut().for_each(|word| *word = self.arith.pre(*word));
    }

    fn post(&self, words: &mut [u64]) {
        words.iter_mut().for_each(|word| *word = self.arith.post(*word));
    }

    fn combine(&self, acc: &mut [u64], src: &[u64]) {
        assert_eq!(acc.len(), src.len());
        acc.iter_mut().zip(src).for_each(|(acc, src)| *acc = self.arith.combine(*acc, *src));
    }
}

impl<const LINE: usize> Lines for ThreadBlock<'_, LINE> {
    const LINE_THREADS: usize = LINE;
    const TEAM_THREADS: usize = team_threads(LINE);

    fn store_line(&self, line: &Ll128Line, words: &[u64; LINE_WORDS], takes_part: bool) {
        self.be_slow();
        let pairs = LINE_WORDS / 2 / LINE;
        let first = self.thread % LINE * pairs;
        let has_flag = takes_part && first + pairs == LINE_WORDS / 2;
        for i in 0..if takes_part { pairs } else { 0 } {
            let pair = [words[2 * i], words[2 * i + 1]];
            // The flag comes when all have stored their words: a GPU's line is one access.
            let no_flag = if has_flag && i + 1 == pairs { [pair[0], 0] } else { pair };
            line.pair(first + i).store_relaxed(no_flag);
        }
        self.any_of_team(false);
        if has_flag {
            // RELEASE fence pairs with the acquire fence in `peek_line`.
            fence_release();
            line.pair(first + pairs - 1).store_relaxed([words[2 * pairs - 2], words[2 * pairs - 1]]);
        }
        self.be_slow();
    }

    fn peek_line(
        &self,
        line: &Ll128Line,
        words: &mut [u64; LINE_WORDS],
        flag: u64,
        takes_part: bool,
    ) -> bool {
        let pairs = LINE_WORDS / 2 / LINE;
        let first = self.thread % LINE * pairs;
        let has_flag = takes_part && first + pairs == LINE_WORDS / 2;
        let is_missing = has_flag && line.pair(first + pairs - 1).load_relaxed()[1] != flag;
        // ACQUIRE fence pairs with the release fence in `store_line`.
        fence_acquire();
        // On a GPU the threads of a line look at it in one access; here each after the one that sees the flag.
        let is_missing = self.any_of_team(is_missing);
        for i in 0..if takes_part { pairs } else { 0 } {
            [words[2 * i], words[2 * i + 1]] = line.pair(first + i).load_relaxed();
        }
        !is_missing
    }

    fn any_of_team(&self, mine: bool) -> bool {
        if Self::TEAM_THREADS == 1 {
            return mine;
        }
        self.block.teams[self.thread / Self::TEAM_THREADS].wait(Meeting::Team, mine)
    }
}

impl<const LINE: usize> BulkCopy for ThreadBlock<'_, LINE> {
    fn tile_bytes(&self) -> usize {
        TILE_BYTES
    }

    fn tiles(&self) -> u32 {
        TILES
    }

    fn pipe(&self) -> &Pipe {
        &self.pipe
    }

    fn combines(&self) -> bool {
        self.works() && (self.thread > 0 || self.threads() == 1)
    }

    fn combines_turn(&self, turn: Tile) -> bool {
        self.combiner() % self.block.shape.groups() == self.group_of(turn)
    }

    fn changes(&self, how: How) -> bool {
        how.pre && self.arith.operator.pre || how.post && self.arith.operator.post
    }

    fn has_come(&self, stage: Stage, turn: Tile, patience: bool) -> bool {
        if patience {
            std::thread::yield_now();
        }
        let state = &self.block.tiles[turn.index as usize];
        let times = match stage {
            Stage::Empty => state.freed.load_acquire(),
            Stage::Loaded => state.loaded.load_acquire(),
            Stage::Gathered => state.gathered.load_acquire(),
            Stage::Combined => {
                let of_group =
                    state.combined.iter().skip(self.group_of(turn)).step_by(self.block.shape.groups());
                of_group.map(|times| times.load_acquire()).min().expect("a combiner")
            }
        };
        // As a GPU's barriers, which know a phase by its parity.
        let parity = turn.odd ^ (stage == Stage::Empty);
        times.is_multiple_of(2) == parity
    }

    fn has_stopped(&self) -> bool {
        if !cfg!(miri) && self.start.elapsed() > Duration::from_secs(40) {
            panic!("thread {} waits for the others of its block", self.thread);
        }
        self.block.has_stopped.load_relaxed() != 0
    }

    fn stop(&self) {
        self.block.has_stopped.store_relaxed(1);
    }

    fn see_peers(&self) {}

    unsafe fn load(&self, tile: Tile, _piece: (Stage, Tile), src: *const u8, len_bytes: usize, _whole: bool) {
        assert!(self.loads() && len_bytes <= TILE_BYTES);
        let state = &self.block.tiles[tile.index as usize];
        // SAFETY: obligations 1 and 2.
        unsafe { src.copy_to_nonoverlapping(state.at(), len_bytes) };
    }

    fn asked(&self, (stage, turn): (Stage, Tile)) {
        let state = &self.block.tiles[turn.index as usize];
        let times = if stage == Stage::Loaded { &state.loaded } else { &state.gathered };
        // RELEASE pairs with ACQUIRE in `has_come`.
        times.store_release(times.load_relaxed() + 1);
    }

    unsafe fn map_tile(&self, tile: Tile, len_bytes: usize, how: How) {
        let bytes = self.block.tiles[tile.index as usize].at();
        for at in self.tile_share(len_bytes) {
            // SAFETY: obligation 1.
            let value = unsafe { self.read(bytes.add(at)) };
            let value = if how.pre { self.arith.pre(value) } else { value };
            let value = if how.post { self.arith.post(value) } else { value };
            // SAFETY: as above.
            unsafe { self.write([bytes, std::ptr::null_mut()], at, value) };
        }
    }

    unsafe fn combine_tile(&self, tile: Tile, operand: Tile, len_bytes: usize, how: How) {
        let [to, from] = [tile, operand].map(|tile| self.block.tiles[tile.index as usize].at());
        for at in self.tile_share(len_bytes) {
            // SAFETY: obligation 1.
            let [a, b] = [to, from].map(|operand| unsafe { self.read(operand.add(at)) });
            let b = if how.pre { self.arith.pre(b) } else { b };
            let value = self.arith.combine(a, b);
            let value = if how.post { self.arith.post(value) } else { value };
            // SAFETY: as above.
            unsafe { self.write([to, std::ptr::null_mut()], at, value) };
        }
    }

    fn combined(&self, turn: Tile) {
        let times = &self.block.tiles[turn.index as usize].combined[self.combiner()];
        // RELEASE pairs with ACQUIRE in `has_come`.
        times.store_release(times.load_relaxed() + 1);
    }

    unsafe fn store(&self, tile: Tile, dst: *mut u8, len_bytes: usize, _whole: bool) {
        assert!(self.stores() && len_bytes <= TILE_BYTES);
        let from = self.block.tiles[tile.index as usize].at().cast_const();
        self.asked.borrow_mut().push((from, dst, len_bytes));
    }

    fn commit(&self) {
        self.groups.borrow_mut().push_back(self.asked.take());
    }

    fn wait_read(&self) {
        self.carry_out(STORES_READING);
    }

    fn wait_recent(&self) {
        self.carry_out(STORES_RECENT as usize);
    }

    fn wait_stored(&self) {
        self.carry_out(0);
    }

    fn show_peers(&self) {}

    fn free(&self, index: u32) {
        let freed = &self.block.tiles[index as usize].freed;
        // RELEASE pairs with ACQUIRE in `has_come`.
        freed.store_release(freed.load_relaxed() + 1);
    }
}

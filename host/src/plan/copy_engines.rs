//! Collectives by the GPUs' copy engines: which calls can go so, and what each rank puts on its stream for one.
//!
//! Copies lead from a rank's memory straight into another rank's buffers, so that no multiprocessor and no slot is used. Who enqueues a copy
//! must know both addresses, before the other rank has called anything: the buffers that others touch lie in a symmetric window, at the
//! same offset on every rank ([`Placement`]).
//!
//! ```text
//! every rank    admit: to those who copy into its buffer (gather: from it); its own block, beside the rest
//! who copies    await all admits; copies, one peer after the other from rank + 1 on; done: to each
//! every rank    await done of those whom it has admitted
//! ```
//! Copies to all peers at once reach half of a link's speed (docs/measurements/2026-11-23-copy-engines.md). A broadcast to more than one rank goes along a chain in
//! pieces: each rank passes a piece on while it gets the next one, so that every link carries the buffer once.
//!
//! Each admit and each done is a word that its reader sets back, so the same steps may be replayed by a graph: a rank admits again only
//! after the done of the copy before, and that follows the reset of its former admit.

use super::call::Call;
use oxccl_shared::abi::{Extent, Func, Rank};

/// How much of a GPU's multiprocessors communication may take (`NCCL_CTA_POLICY`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub enum CtaPolicy {
    /// What is fastest.
    #[default]
    Default,
    /// Few: symmetric kernels have 8 to 12, and carry reductions of few ranks in symmetric windows at any length. Others are chosen as by
    /// default.
    Efficiency,
    /// None where that is possible: copy engines, whatever the size.
    Zero,
}

impl CtaPolicy {
    /// By NCCL's bits (`NCCL_CTA_POLICY_EFFICIENCY`, `NCCL_CTA_POLICY_ZERO`).
    pub fn from_bits(bits: u32) -> Option<CtaPolicy> {
        match bits {
            0 => Some(CtaPolicy::Default),
            1 => Some(CtaPolicy::Efficiency),
            2 | 3 => Some(CtaPolicy::Zero),
            _ => None,
        }
    }
}

/// Where the buffer lies that other ranks touch: the same on every rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placement {
    /// The symmetric window's number.
    pub window: u32,
    /// Bytes from where it begins.
    pub offset: u64,
}

/// Where a way through symmetric windows is faster than kernels with slots. Of a function's rows the first one that knows so many ranks
/// says so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowRow {
    /// The function.
    pub func: Func,
    /// Among at most so many ranks.
    pub ranks_max: u32,
    /// From so many bytes of the longer buffer on.
    pub min_bytes: u64,
    /// Below so many.
    pub end_bytes: u64,
}

impl WindowRow {
    /// From so many bytes on, among at most so many ranks.
    pub const fn from(func: Func, ranks_max: u32, min_bytes: u64) -> WindowRow {
        WindowRow { func, ranks_max, min_bytes, end_bytes: u64::MAX }
    }

    /// The same, below so many bytes.
    pub const fn below(self, end_bytes: u64) -> WindowRow {
        WindowRow { end_bytes, ..self }
    }

    /// The row for so many ranks.
    pub fn of(rows: &[WindowRow], func: Func, nranks: u32) -> Option<&WindowRow> {
        rows.iter().find(|row| row.func == func && nranks <= row.ranks_max)
    }

    /// Whether it says so of this length.
    pub fn holds(&self, bytes: u64) -> bool {
        (self.min_bytes..self.end_bytes).contains(&bytes)
    }
}

/// What a rank tells another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Said {
    /// Its copies may touch this rank's buffer.
    Admit,
    /// So many pieces are copied.
    Done,
}

/// What a rank puts on its stream, in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Tells a peer that its copies may touch this rank's buffer.
    Admit {
        /// The peer that copies.
        peer: Rank,
    },
    /// Waits until every other rank has said so, of one piece each.
    AwaitAll(Said),
    /// Waits for a peer's admit.
    AwaitAdmit {
        /// The peer that owns the buffer.
        peer: Rank,
    },
    /// A copy.
    Copy(CopyStep),
    /// Tells a peer that so many pieces are done.
    Done {
        /// The peer that owns the buffer.
        peer: Rank,
        /// Pieces, counted from the operation's first.
        pieces: u32,
    },
    /// Waits until so many pieces are done.
    AwaitDone {
        /// The peer that copies.
        peer: Rank,
        /// Pieces.
        pieces: u32,
        /// Whether it is the operation's last wait for this peer.
        is_last: bool,
    },
}

/// A copy of one rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopyStep {
    /// Where the data is.
    pub from: Spot,
    /// Where it goes.
    pub to: Spot,
    /// Its length.
    pub len_bytes: u64,
}

/// A place in a rank's buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spot {
    /// Whose buffer.
    pub rank: Rank,
    /// Which: what the rank sends, or what it receives.
    pub is_send: bool,
    /// Bytes from its beginning.
    pub offset: u64,
}

/// The most pieces of a broadcast.
const PIECES_MAX: u64 = 64;
/// Pieces begin at multiples of this.
const PIECE_GRAIN_BYTES: u64 = 4096;
/// What a piece costs besides its copy, in bytes that a link carries meanwhile: some 6 us.
const PIECE_COST_BYTES: u64 = 2 << 20;

/// The buffer of each rank that others touch, and its bytes by the number of ranks; none where a call cannot go by copy engines.
fn touched(call: &Call) -> Option<(bool, Extent)> {
    let buffers = call.func.buffers(false);
    match call.func {
        Func::AllGather | Func::AllToAll | Func::Broadcast | Func::Scatter => Some((false, buffers.recv)),
        Func::Gather => Some((true, buffers.send)),
        _ => None,
    }
}

/// Whether it is what a rank sends, and its bytes.
pub fn touched_buffer(call: &Call, nranks: u32) -> Option<(bool, u64)> {
    let (is_send, extent) = touched(call)?;
    let blocks = if extent == Extent::CountPerRank { nranks } else { 1 };
    Some((is_send, call.bytes().saturating_mul(u64::from(blocks))))
}

/// Appends the steps of a rank for a call that [takes](super::facts::Facts::takes_copy_engines) copy engines.
pub fn steps(call: &Call, rank: Rank, nranks: u32, out: &mut Vec<Step>) {
    let pieces = pieces(call.bytes(), nranks);
    Program { call, rank, nranks, pieces, out }.write();
}

/// Pieces of a broadcast: the time of the chain is that of `pieces + nranks - 2` pieces.
fn pieces(len_bytes: u64, nranks: u32) -> u32 {
    let hops = u64::from(nranks.saturating_sub(2));
    ((len_bytes / PIECE_COST_BYTES).saturating_mul(hops)).isqrt().clamp(1, PIECES_MAX) as u32
}

struct Program<'a> {
    call: &'a Call,
    rank: Rank,
    nranks: u32,
    pieces: u32,
    out: &'a mut Vec<Step>,
}

impl Program<'_> {
    fn write(mut self) {
        let (len, me, root) = (self.call.bytes(), self.rank, self.call.root);
        let block = |rank: Rank| u64::from(rank.0) * len;
        let sent = |rank, offset| Spot { rank, is_send: true, offset };
        let received = |rank, offset| Spot { rank, is_send: false, offset };
        match self.call.func {
            Func::AllGather => self.exchange(|peer| (sent(me, 0), received(peer, block(me)))),
            Func::AllToAll => self.exchange(|peer| (sent(me, block(peer)), received(peer, block(me)))),
            Func::Scatter if me == root => self.lead(|peer| (sent(me, block(peer)), received(peer, 0))),
            Func::Gather if me == root => self.lead(|peer| (sent(peer, 0), received(me, block(peer)))),
            Func::Scatter | Func::Gather => self.follow(root, 1),
            Func::Broadcast => self.chain(),
            _ => {}
        }
    }

    /// The other ranks, from the next one on.
    fn in_turn(&self) -> impl Iterator<Item = Rank> + use<> {
        let (me, nranks) = (self.rank.0, self.nranks);
        (1..nranks).map(move |ahead| Rank((me + ahead) % nranks))
    }

    /// Every rank copies to every other.
    fn exchange(&mut self, copy_to: impl Fn(Rank) -> (Spot, Spot)) {
        self.out.extend(self.in_turn().map(|peer| Step::Admit { peer }));
        self.lead(copy_to);
        self.out.push(Step::AwaitAll(Said::Done));
    }

    /// This rank copies for each rank, itself included.
    fn lead(&mut self, copy_for: impl Fn(Rank) -> (Spot, Spot)) {
        let len_bytes = self.call.bytes();
        let copy = |peer| {
            let (from, to) = copy_for(peer);
            Step::Copy(CopyStep { from, to, len_bytes })
        };
        self.out.push(copy(self.rank));
        self.out.push(Step::AwaitAll(Said::Admit));
        self.out.extend(self.in_turn().map(copy));
        self.out.extend(self.in_turn().map(|peer| Step::Done { peer, pieces: 1 }));
    }

    /// Another rank copies.
    fn follow(&mut self, leader: Rank, pieces: u32) {
        let done = Step::AwaitDone { peer: leader, pieces, is_last: true };
        self.out.extend([Step::Admit { peer: leader }, done]);
    }

    /// A broadcast: from the root to the rank after it, and so on.
    fn chain(&mut self) {
        let Program { call, rank, nranks, pieces, .. } = *self;
        let (len, root) = (call.bytes(), call.root);
        let at = |rank: Rank| (rank.0 + nranks - root.0) % nranks;
        let [next, before] = [1, nranks - 1].map(|ahead| Rank((rank.0 + ahead) % nranks));
        let (is_root, is_end) = (rank == root, at(rank) == nranks - 1);
        let spot = |rank, offset| Spot { rank, is_send: rank == root && is_root, offset };
        if is_root {
            let to = Spot { rank, is_send: false, offset: 0 };
            self.out.push(Step::Copy(CopyStep { from: spot(rank, 0), to, len_bytes: len }));
        }
        if is_end {
            return self.follow(before, pieces);
        }
        if !is_root {
            self.out.push(Step::Admit { peer: before });
        }
        self.out.push(Step::AwaitAdmit { peer: next });
        let piece_bytes = len.div_ceil(u64::from(pieces)).next_multiple_of(PIECE_GRAIN_BYTES);
        for piece in 0..pieces {
            let done = piece + 1;
            if !is_root {
                self.out.push(Step::AwaitDone { peer: before, pieces: done, is_last: done == pieces });
            }
            let begin = (u64::from(piece) * piece_bytes).min(len);
            let len_bytes = piece_bytes.min(len - begin);
            let (from, to) = (spot(rank, begin), spot(next, begin));
            self.out.push(Step::Copy(CopyStep { from, to, len_bytes }));
            self.out.push(Step::Done { peer: next, pieces: done });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxccl_shared::abi::{DataType, RedOp};
    use proptest::prelude::*;
    use std::collections::HashMap;

    const FUNCS: [Func; 5] = [Func::AllGather, Func::AllToAll, Func::Broadcast, Func::Scatter, Func::Gather];

    fn call(func: Func, root: u32, count: u64) -> Call {
        Call { func, dtype: DataType::U8, op: RedOp::Sum, root: Rank(root), count }
    }

    /// The buffers of one call: by (rank, whether it sends).
    type Memory = HashMap<(u32, bool), Vec<u8>>;

    fn input(rank: u32, at: usize, turn: usize) -> u8 {
        (rank as usize * 89 + at * 7 + turn * 31 + 1) as u8
    }

    fn fresh(n: u32, len: usize, turn: usize) -> Memory {
        let mut memory = Memory::new();
        for rank in 0..n {
            let bytes = (0..len * n as usize).map(|at| input(rank, at, turn)).collect();
            memory.insert((rank, true), bytes);
            memory.insert((rank, false), vec![0xee; len * n as usize]);
        }
        memory
    }

    /// What a rank receives, as MPI says; none where it receives nothing.
    fn expected(call: &Call, n: u32, rank: u32, turn: usize) -> Option<Vec<u8>> {
        let len = call.count as usize;
        let of = |from: u32, block: usize| (0..len).map(move |at| input(from, block * len + at, turn));
        match call.func {
            Func::AllGather => Some((0..n).flat_map(|from| of(from, 0)).collect()),
            Func::AllToAll => Some((0..n).flat_map(|from| of(from, rank as usize)).collect()),
            Func::Broadcast => Some(of(call.root.0, 0).collect()),
            Func::Scatter => Some(of(call.root.0, rank as usize).collect()),
            Func::Gather if rank == call.root.0 => Some((0..n).flat_map(|from| of(from, 0)).collect()),
            _ => None,
        }
    }

    /// Streams that do their steps in order, one at a time in a random order among the ranks.
    struct Streams {
        programs: Vec<Vec<(usize, Step)>>,
        at: Vec<usize>,
        /// By (owner of the word, writer, whether it is a done).
        words: HashMap<(u32, u32, bool), u32>,
        memories: Vec<Memory>,
    }

    impl Streams {
        /// Does the next step of a rank, if it may.
        fn step(&mut self, rank: u32) -> bool {
            let Some((turn, step)) = self.programs[rank as usize].get(self.at[rank as usize]).copied() else {
                return false;
            };
            let words = &mut self.words;
            match step {
                Step::Admit { peer } => {
                    let word = words.entry((peer.0, rank, false)).or_default();
                    assert_eq!(*word, 0, "an admit is used up before the next one");
                    *word = 1;
                }
                Step::AwaitAll(said) => {
                    let n = self.programs.len() as u32;
                    let is_done = said == Said::Done;
                    let mine = (0..n).filter(|peer| *peer != rank).map(|peer| (rank, peer, is_done));
                    if mine.clone().any(|word| words.get(&word).copied().unwrap_or_default() == 0) {
                        return false;
                    }
                    words.extend(mine.map(|word| (word, 0)));
                }
                Step::AwaitAdmit { peer } => match words.get_mut(&(rank, peer.0, false)) {
                    Some(word) if *word == 1 => *word = 0,
                    _ => return false,
                },
                Step::Done { peer, pieces } => {
                    let word = words.entry((peer.0, rank, true)).or_default();
                    assert!(*word < pieces, "pieces are counted up");
                    *word = pieces;
                }
                Step::AwaitDone { peer, pieces, is_last } => match words.get_mut(&(rank, peer.0, true)) {
                    Some(word) if *word >= pieces => *word = if is_last { 0 } else { *word },
                    _ => return false,
                },
                Step::Copy(copy) => self.copy(rank, turn, copy),
            }
            self.at[rank as usize] += 1;
            true
        }

        fn copy(&mut self, rank: u32, turn: usize, CopyStep { from, to, len_bytes }: CopyStep) {
            for spot in [from, to].iter().filter(|spot| spot.rank.0 != rank) {
                let owner = spot.rank.index();
                let in_turn = self.programs[owner].get(self.at[owner]).map(|(turn, _)| *turn);
                assert_eq!(
                    in_turn,
                    Some(turn),
                    "rank {rank} touches rank {owner}'s buffer within the same call"
                );
            }
            let len = len_bytes as usize;
            let memory = &mut self.memories[turn];
            let source = &memory[&(from.rank.0, from.is_send)][from.offset as usize..][..len];
            let bytes = source.to_vec();
            let target = memory.get_mut(&(to.rank.0, to.is_send)).unwrap();
            target[to.offset as usize..][..len].copy_from_slice(&bytes);
        }
    }

    proptest! {
        /// Any calls, one after the other on the same words, in any order among the ranks.
        #[test]
        fn every_order_of_the_ranks_gives_the_results(
            n in 2u32..8,
            turns in proptest::collection::vec((0..FUNCS.len(), 0u32..8, 1u64..9000, 1u32..5), 1..4),
            order in proptest::collection::vec(0u32..8, 0..4000),
        ) {
            let calls: Vec<(Call, u32)> =
                turns.iter().map(|(func, root, len, pieces)| (call(FUNCS[*func], root % n, *len), *pieces)).collect();
            let program = |rank| {
                let mut all = Vec::new();
                for (turn, (call, pieces)) in calls.iter().enumerate() {
                    let mut out = Vec::new();
                    Program { call, rank: Rank(rank), nranks: n, pieces: *pieces, out: &mut out }.write();
                    all.extend(out.into_iter().map(|step| (turn, step)));
                }
                all
            };
            let memories = calls.iter().enumerate().map(|(turn, (call, _))| fresh(n, call.count as usize, turn)).collect();
            let programs: Vec<_> = (0..n).map(program).collect();
            let mut streams = Streams { programs, at: vec![0; n as usize], words: HashMap::new(), memories };
            for rank in order {
                streams.step(rank % n);
            }
            while (0..n).any(|rank| streams.step(rank)) {}
            for rank in 0..n {
                let (at, len) = (streams.at[rank as usize], streams.programs[rank as usize].len());
                prop_assert_eq!(at, len, "rank {} waits for ever", rank);
                for (turn, (call, _)) in calls.iter().enumerate() {
                    let Some(expected) = expected(call, n, rank, turn) else { continue };
                    let found = &streams.memories[turn][&(rank, false)];
                    prop_assert_eq!(&found[..expected.len()], &expected[..]);
                    prop_assert!(found[expected.len()..].iter().all(|byte| *byte == 0xee));
                }
            }
            prop_assert!(streams.words.values().all(|word| *word == 0), "every word is set back");
        }
    }

    #[test]
    fn pieces_grow_with_the_buffer_and_the_chain() {
        assert_eq!([2, 3, 4].map(|n| pieces(256 << 20, n)), [1, 11, 16]);
        assert_eq!([pieces(1, 8), pieces(1 << 40, 8)], [1, 64]);
    }
}

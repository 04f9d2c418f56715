//! A call as copies into the other ranks' windows, between waits for words.

use super::choices::Choices;
use super::watch::{Watch, Watched};
use super::windows::Windows;
use super::words::{AWAITED, Awaited, BOTH, pair_of, shift, slot};
use crate::launch::{OwnCopy, RawCall};
use crate::machine::cuda::beside::{BESIDE_MIN_BYTES, Beside};
use crate::machine::cuda::driver::{CudaError, StreamRef, WordOp};
use crate::machine::cuda::own::copy_beside;
use crate::machine::cuda::parts::CudaParts;
use crate::plan::{CopyStep, Placement, Said, Spot, Step, steps, touched_buffer};
use crate::transport::p2p::SignalTable;
use oxccl_shared::abi::Rank;
use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};
use std::sync::Arc;

/// A rank's side of its communicator's collectives by copy engines.
pub(in crate::machine::cuda) struct CopyEngines {
    rank: Rank,
    nranks: u32,
    table: Arc<SignalTable>,
    pub(super) windows: Windows,
    pub(super) choices: Choices,
    /// Calls so far; those of a capture once.
    calls: u64,
    /// Of the call being enqueued; the capacity is kept.
    steps: Vec<Step>,
    ops: Vec<WordOp>,
    _watch: Watch,
}

impl CopyEngines {
    /// With the words between the ranks.
    pub fn new(parts: &CudaParts, table: SignalTable) -> CopyEngines {
        let (rank, nranks) = (parts.rank, parts.facts.nranks);
        let table = Arc::new(table);
        let watched = Watched {
            rank,
            nranks,
            table: table.clone(),
            health: parts.health.clone(),
            notify: parts.notify.clone(),
            timeout: parts.timeout,
        };
        CopyEngines {
            rank,
            nranks,
            choices: Choices::new(table.clone(), rank, nranks),
            table,
            windows: Windows::default(),
            calls: 0,
            steps: Vec::new(),
            ops: Vec::new(),
            _watch: Watch::start(watched),
        }
    }

    /// The windows that collectives use.
    pub fn windows(&self) -> &Windows {
        &self.windows
    }

    /// Where the buffer of a call that others touch lies, if it does in a window.
    pub fn place(&self, raw: &RawCall) -> Option<Placement> {
        let (is_send, len_bytes) = touched_buffer(&raw.call, self.nranks)?;
        let address = if is_send { raw.send.addr() } else { raw.recv.addr() } as u64;
        self.windows.place(self.rank, address, len_bytes)
    }

    /// Ends all waits of this rank, and those that follow until a stream sets a word back.
    pub fn release(&self) {
        self.table.release();
    }

    /// Enqueues a call's copies.
    ///
    /// # Safety
    /// 1. As [`Machine::copies`](crate::launch::Machine::copies); the device's context is current.
    pub unsafe fn enqueue(
        &mut self,
        raw: &RawCall,
        placement: Placement,
        (parts, beside): (&CudaParts, &Beside),
        stream: StreamRef<'_>,
    ) -> Result<(), CudaError> {
        self.calls += 1;
        let (mut program, mut ops) = (std::mem::take(&mut self.steps), std::mem::take(&mut self.ops));
        program.clear();
        ops.clear();
        steps(&raw.call, self.rank, self.nranks, &mut program);
        let Some(addresses) = self.windows.addresses(placement.window) else { return Ok(()) };
        let base = Base { raw, rank: self.rank, addresses, offset: placement.offset };
        // SAFETY: obligation 1.
        let put = unsafe { self.put(&program, &base, &mut ops, (parts, beside), stream) };
        (self.steps, self.ops) = (program, ops);
        put
    }

    /// # Safety
    /// 1. As [`Self::enqueue`].
    unsafe fn put(
        &self,
        program: &[Step],
        base: &Base<'_>,
        ops: &mut Vec<WordOp>,
        (parts, beside): (&CudaParts, &Beside),
        stream: StreamRef<'_>,
    ) -> Result<(), CudaError> {
        let mut has_forked = false;
        for step in program {
            match *step {
                Step::Admit { peer } => ops.push(self.say(peer, Said::Admit, 1)),
                Step::Done { peer, pieces } => ops.push(self.say(peer, Said::Done, pieces)),
                Step::AwaitAll(said) => self.await_all(said, ops),
                Step::AwaitAdmit { peer } => self.await_one(peer, Said::Admit, 1, true, ops),
                Step::AwaitDone { peer, pieces, is_last } => {
                    self.await_one(peer, Said::Done, pieces, is_last, ops);
                }
                Step::Copy(copy) if self.is_beside(&copy) => {
                    beside.fork(stream)?;
                    has_forked = true;
                    let own = base.own(&copy);
                    // SAFETY: obligation 1: both buffers are this rank's.
                    unsafe { copy_beside(parts, beside.stream()?, &own) }?;
                }
                Step::Copy(copy) => {
                    flush(ops, stream)?;
                    // SAFETY: obligation 1: the buffers are valid, this rank's by the caller and the others' by their admits.
                    unsafe { base.copy(&copy, stream) }?;
                }
            }
        }
        flush(ops, stream)?;
        if has_forked { beside.join(stream) } else { Ok(()) }
    }

    /// A long copy within the GPU goes beside the others.
    fn is_beside(&self, copy: &CopyStep) -> bool {
        copy.from.rank == self.rank && copy.to.rank == self.rank && copy.len_bytes >= BESIDE_MIN_BYTES
    }

    fn say(&self, to: Rank, said: Said, pieces: u32) -> WordOp {
        WordOp::write_half(self.half(to, self.rank, said), pieces)
    }

    /// Waits for all the others, which the watch sees, and the resets of their words: two ranks at a time.
    fn await_all(&self, said: Said, ops: &mut Vec<WordOp>) {
        let (me, awaited) = (self.rank, self.word(self.rank, self.rank, AWAITED));
        let pairs = || {
            let evens = (0..self.nranks).step_by(2).map(Rank);
            evens.map(|even| (even, Rank(even.0 + 1))).map(move |(even, odd)| {
                let is_other = |rank: Rank| rank != me && rank.0 < self.nranks;
                (self.word(me, even, slot(said)), is_other(even), is_other(odd))
            })
        };
        ops.push(WordOp::write(awaited, self.awaited(None, said, 1)));
        ops.extend(pairs().filter_map(|(word, even, odd)| match (even, odd) {
            (true, true) => Some(WordOp::wait(word, BOTH)),
            (true, false) => Some(WordOp::wait_half(word, 1)),
            (false, true) => Some(WordOp::wait_half(word + HALF_BYTES, 1)),
            (false, false) => None,
        }));
        ops.extend(pairs().filter(|(_, even, odd)| *even || *odd).map(|(word, ..)| WordOp::write(word, 0)));
        ops.push(WordOp::write(awaited, 0));
    }

    /// A wait for one peer, which the watch sees, and the reset of its word.
    fn await_one(&self, peer: Rank, said: Said, pieces: u32, is_last: bool, ops: &mut Vec<WordOp>) {
        let (me, awaited) = (self.rank, self.word(self.rank, self.rank, AWAITED));
        let half = self.half(me, peer, said);
        ops.push(WordOp::write(awaited, self.awaited(Some(peer), said, pieces)));
        ops.push(WordOp::wait_half(half, pieces));
        if is_last {
            ops.push(WordOp::write_half(half, 0));
        }
        ops.push(WordOp::write(awaited, 0));
    }

    fn awaited(&self, from: Option<Rank>, said: Said, pieces: u32) -> u64 {
        Awaited { call: self.calls as u32, from, said, pieces }.to_word()
    }

    /// The address of a rank's half of a word.
    fn half(&self, to: Rank, from: Rank, said: Said) -> u64 {
        self.word(to, pair_of(from), slot(said)) + u64::from(shift(from) / 8)
    }

    /// A word's address: there is one, since all ranks are of this host.
    fn word(&self, to: Rank, from: Rank, slot: u32) -> u64 {
        self.table.address(to, from, slot).unwrap_or_default()
    }
}

/// From the even rank's half of a word to the odd one's: numbers of a GPU are little-endian.
const HALF_BYTES: u64 = 4;

fn flush(ops: &mut Vec<WordOp>, stream: StreamRef<'_>) -> Result<(), CudaError> {
    if ops.is_empty() {
        return Ok(());
    }
    // SAFETY: (1) words of the table, which lives until `close` has seen every operation end; the ranks use them as words only.
    let put = unsafe { stream.word_ops(ops) };
    ops.clear();
    put
}

/// The addresses of a call's buffers.
struct Base<'a> {
    raw: &'a RawCall,
    rank: Rank,
    addresses: &'a [u64],
    offset: u64,
}

impl Base<'_> {
    fn address(&self, spot: Spot) -> u64 {
        let begin = match spot {
            Spot { rank, .. } if rank != self.rank => self.addresses[rank.index()] + self.offset,
            Spot { is_send: true, .. } => self.raw.send.addr() as u64,
            Spot { is_send: false, .. } => self.raw.recv.addr() as u64,
        };
        begin + spot.offset
    }

    /// A copy within this GPU.
    fn own(&self, copy: &CopyStep) -> OwnCopy {
        let [from, to] = [copy.from, copy.to].map(|spot| self.address(spot) as usize);
        OwnCopy {
            from: with_exposed_provenance(from),
            to: with_exposed_provenance_mut(to),
            len_bytes: copy.len_bytes as usize,
        }
    }

    /// # Safety
    /// 1. Both places are valid until the copy is done, and nobody else uses them meanwhile but to read the source.
    unsafe fn copy(&self, copy: &CopyStep, stream: StreamRef<'_>) -> Result<(), CudaError> {
        let (from, to) = (self.address(copy.from), self.address(copy.to));
        if from == to || copy.len_bytes == 0 {
            return Ok(());
        }
        // SAFETY: (1, 2) obligation 1.
        unsafe { stream.copy_on_device(to, from, copy.len_bytes as usize) }
    }
}

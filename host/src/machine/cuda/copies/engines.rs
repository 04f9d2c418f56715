//! A call as copies into the other ranks' windows, between waits for words.

use super::choices::Choices;
use super::watch::{Watch, Watched};
use super::windows::Windows;
use super::words::{ADMIT, AWAITED, DONE};
use crate::launch::{RawCall, RunError};
use crate::machine::cuda::driver::{CudaError, Event, Stream, StreamRef, WordOp};
use crate::machine::cuda::parts::CudaParts;
use crate::plan::{CopyStep, Placement, Spot, Step, steps, touched_buffer};
use crate::transport::p2p::SignalTable;
use oxccl_shared::abi::Rank;
use std::sync::Arc;

/// A copy within the GPU of so many bytes goes to a stream of its own, beside the others.
const BESIDE_MIN_BYTES: u64 = 1 << 20;

/// A rank's side of its communicator's collectives by copy engines.
pub(in crate::machine::cuda) struct CopyEngines {
    rank: Rank,
    table: Arc<SignalTable>,
    pub(super) windows: Windows,
    pub(super) choices: Choices,
    beside: Stream,
    forked: Event,
    joined: Event,
    /// Calls so far; those of a capture once.
    calls: u64,
    /// Of the call being enqueued; the capacity is kept.
    steps: Vec<Step>,
    ops: Vec<WordOp>,
    _watch: Watch,
}

impl CopyEngines {
    /// With the words between the ranks.
    pub fn new(parts: &CudaParts, table: SignalTable) -> Result<CopyEngines, RunError> {
        let (rank, nranks, device) = (parts.rank, parts.facts.nranks, &parts.device);
        let table = Arc::new(table);
        let watched = Watched {
            rank,
            nranks,
            table: table.clone(),
            health: parts.health.clone(),
            notify: parts.notify.clone(),
            timeout: parts.timeout,
        };
        Ok(CopyEngines {
            rank,
            choices: Choices::new(table.clone(), rank, nranks),
            table,
            windows: Windows::default(),
            beside: Stream::new(device)?,
            forked: Event::new(device)?,
            joined: Event::new(device)?,
            calls: 0,
            steps: Vec::new(),
            ops: Vec::new(),
            _watch: Watch::start(watched),
        })
    }

    /// The windows that collectives use.
    pub fn windows(&self) -> &Windows {
        &self.windows
    }

    /// Where the buffer of a call that others touch lies, if it does in a window.
    pub fn place(&self, raw: &RawCall, nranks: u32) -> Option<Placement> {
        let (is_send, len_bytes) = touched_buffer(&raw.call, nranks)?;
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
        nranks: u32,
        stream: StreamRef<'_>,
    ) -> Result<(), CudaError> {
        self.calls += 1;
        let (mut program, mut ops) = (std::mem::take(&mut self.steps), std::mem::take(&mut self.ops));
        program.clear();
        ops.clear();
        steps(&raw.call, self.rank, nranks, &mut program);
        let Some(addresses) = self.windows.addresses(placement.window) else { return Ok(()) };
        let base = Base { raw, rank: self.rank, addresses, offset: placement.offset };
        // SAFETY: obligation 1.
        let put = unsafe { self.put(&program, &base, &mut ops, stream) };
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
        stream: StreamRef<'_>,
    ) -> Result<(), CudaError> {
        let (me, mut has_forked) = (self.rank, false);
        for step in program {
            match *step {
                Step::Admit { peer } => ops.push(WordOp::write(self.word(peer, me, ADMIT), 1)),
                Step::Done { peer, pieces } => {
                    ops.push(WordOp::write(self.word(peer, me, DONE), u64::from(pieces)));
                }
                Step::AwaitAdmit { peer } => self.await_word(peer, ADMIT, 1, true, ops),
                Step::AwaitDone { peer, pieces, is_last } => {
                    self.await_word(peer, DONE, u64::from(pieces), is_last, ops);
                }
                Step::Copy(copy) => {
                    let is_own = copy.from.rank == me && copy.to.rank == me;
                    let is_beside = is_own && copy.len_bytes >= BESIDE_MIN_BYTES;
                    if is_beside {
                        stream.record(&self.forked)?;
                        self.beside.by_ref().wait(&self.forked)?;
                        has_forked = true;
                    } else {
                        flush(ops, stream)?;
                    }
                    let on = if is_beside { self.beside.by_ref() } else { stream };
                    // SAFETY: obligation 1: the buffers are valid, this rank's by the caller and the others' by their admits.
                    unsafe { base.copy(&copy, on) }?;
                    if is_beside {
                        on.record(&self.joined)?;
                    }
                }
            }
        }
        flush(ops, stream)?;
        if has_forked { stream.wait(&self.joined) } else { Ok(()) }
    }

    /// A wait, which the watch sees, and the reset of the word.
    fn await_word(&self, peer: Rank, slot: u32, value: u64, is_last: bool, ops: &mut Vec<WordOp>) {
        let (word, awaited) = (self.word(self.rank, peer, slot), self.word(self.rank, peer, AWAITED));
        ops.push(WordOp::write(awaited, self.calls << 1 | u64::from(slot == DONE)));
        ops.push(WordOp::wait(word, value));
        if is_last {
            ops.push(WordOp::write(word, 0));
        }
        ops.push(WordOp::write(awaited, 0));
    }

    /// A word's address: there is one, since all ranks are of this host.
    fn word(&self, to: Rank, from: Rank, slot: u32) -> u64 {
        self.table.address(to, from, slot).unwrap_or_default()
    }
}

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

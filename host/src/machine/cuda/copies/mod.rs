//! Layer: host / machine / cuda / copies.
//! Takes: calls whose buffers lie in symmetric windows, and the words between the ranks of the host.
//! Gives: [`CopyEngines`], which enqueues copies into the other ranks' windows, ordered by words that streams write and wait for. No
//! kernel runs.
//! Never: waits on the host; decides which calls go so (`plan` did, but for where their buffers lie).
//!
//! Words are host memory: the driver lets streams of every GPU write them, and the processor ends the waits of a communicator that has
//! failed (`watch`). `choices` compares what the ranks have chosen, before any of them enqueues.

mod choices;
mod watch;
mod windows;

use super::driver::{CudaError, Device, Event, Stream, StreamRef, WordOp};
use super::machine::{Cuda, CudaParts};
use crate::launch::{Fault, RawCall, RunError};
use crate::plan::{CallPlan, CopyStep, Placement, Spot, Step, steps, touched_buffer};
use crate::transport::p2p::{SignalTable, Window};
use choices::{Choice, Choices, Differs};
use oxccl_shared::abi::Rank;
use std::sync::Arc;
use watch::{Watch, Watched};
use windows::Windows;

/// Words between two ranks, in each direction: an admit, a done, what the reader waits for, and room for [`Choices`].
pub(crate) const SLOTS: u32 = 128;
/// See [`SLOTS`].
const ADMIT: u32 = 0;
const DONE: u32 = 1;
/// In the reader's own memory: not 0 while its stream waits for the peer.
const AWAITED: u32 = 2;
const CHOICES: u32 = 3;

/// A copy within the GPU of so many bytes goes to a stream of its own, beside the others.
const BESIDE_MIN_BYTES: u64 = 1 << 20;

/// A rank's side of its communicator's collectives by copy engines.
pub(super) struct CopyEngines {
    rank: Rank,
    table: Arc<SignalTable>,
    windows: Windows,
    choices: Choices,
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
    fn new(parts: &CudaParts, table: SignalTable) -> Result<CopyEngines, RunError> {
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
    pub(super) fn windows(&self) -> &Windows {
        &self.windows
    }

    /// Where the buffer of a call that others touch lies, if it does in a window.
    fn place(&self, raw: &RawCall, nranks: u32) -> Option<Placement> {
        let (is_send, len_bytes) = touched_buffer(&raw.call, nranks)?;
        let address = if is_send { raw.send.addr() } else { raw.recv.addr() } as u64;
        self.windows.place(self.rank, address, len_bytes)
    }

    /// Ends all waits of this rank, and those that follow until a stream sets a word back.
    pub(super) fn release(&self) {
        self.table.release();
    }

    /// # Safety
    /// 1. As [`Machine::copies`](crate::launch::Machine::copies); the device's context is current.
    unsafe fn enqueue(
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

impl Cuda {
    /// Whether a call goes by copy engines if its buffers are placed for that: the same on every rank.
    fn may_copy(&self, raw: &RawCall) -> bool {
        self.copies.is_some()
            && self.parts.custom.is_empty()
            && self.parts.facts.takes_copy_engines(&raw.call, raw.forced)
    }

    /// The plan of a call on its buffers.
    pub(super) fn placed(&self, raw: &RawCall, plan: CallPlan) -> CallPlan {
        let copies = self.copies.as_ref().filter(|_| self.may_copy(raw));
        let by_copies = copies.and_then(|copies| copies.place(raw, self.parts.facts.nranks));
        let by_kernel = || self.may_be_symmetric(raw).then(|| self.symmetric_plan(raw)).flatten();
        by_copies.map(CallPlan::CopyEngines).or_else(by_kernel).unwrap_or(plan)
    }

    /// Compares this rank's choices with the others', as far as they have made theirs.
    pub(super) fn compare_choices(&mut self, calls: &[RawCall], plans: &[CallPlan]) -> Result<(), RunError> {
        for (raw, plan) in calls.iter().zip(plans) {
            if !self.may_copy(raw) && !self.may_be_symmetric(raw) {
                continue;
            }
            let Some(copies) = &mut self.copies else { continue };
            let Some(differs) = copies.choices.make(&raw.call, Choice::of(plan)) else { continue };
            return Err(RunError::Stopped(match differs {
                Differs::Call(rank) => self.verdict().mismatch(rank),
                Differs::Placement(rank) => self.fail(Fault::Placement { rank }),
            }));
        }
        Ok(())
    }

    /// # Safety
    /// 1. As [`Machine::copies`](crate::launch::Machine::copies).
    pub(super) unsafe fn enqueue_copies(
        &mut self,
        raw: &RawCall,
        placement: Placement,
        stream: StreamRef<'_>,
    ) -> Result<(), RunError> {
        let nranks = self.parts.facts.nranks;
        let Some(copies) = &mut self.copies else { return Ok(()) };
        // SAFETY: obligation 1; `within` has made the context current.
        Ok(unsafe { copies.enqueue(raw, placement, nranks, stream) }?)
    }

    /// Whether a symmetric window was registered before.
    pub(crate) fn has_copy_engines(&self) -> bool {
        self.copies.is_some()
    }

    /// Gives it the words for collectives by copy engines.
    pub(crate) fn connect_copy_engines(&mut self, table: SignalTable) -> Result<(), RunError> {
        let device: Device = self.parts.device.clone();
        let _bound = device.bind()?;
        self.copies = Some(CopyEngines::new(&self.parts, table)?);
        self.load_symmetric();
        Ok(())
    }

    /// Lets collectives use a symmetric window that every rank has mapped.
    pub(crate) fn add_symmetric_window(&mut self, window: &Window) {
        let (rank, nranks) = (self.parts.rank, self.parts.facts.nranks);
        if let Some(copies) = &mut self.copies {
            copies.windows.add(window, rank, nranks);
        }
    }
}

//! One-sided operations: copies into other ranks' windows, and signals, by the driver's copies and stream words. No kernel runs.
//!
//! ```text
//! put     copy to the window; then, once the copy is visible everywhere, own word = how often this rank has signalled there
//! wait    until the word >= how often this rank has waited for it
//! ```
//! They are in the order of their streams and in no other: unlike collectives they use nothing that operations share.

use super::driver::{CudaError, Event, StreamRef};
use super::order::{StreamKey, key};
use crate::transport::p2p::SignalTable;
use oxccl_shared::abi::Rank;
use std::collections::HashMap;
use std::sync::Arc;

/// A word between two ranks: the other rank, and which of the words.
pub type SignalWord = (Rank, u32);

/// A rank's side of its communicator's one-sided operations.
#[derive(Debug)]
pub(crate) struct OneSided {
    rank: Rank,
    table: Arc<SignalTable>,
    /// Signals enqueued so far, by word.
    sent: HashMap<SignalWord, u64>,
    /// Signals waited for so far, by word.
    awaited: HashMap<SignalWord, u64>,
    /// Recorded after the latest operation on each stream.
    done: HashMap<StreamKey, Event>,
}

impl OneSided {
    pub fn new(rank: Rank, table: Arc<SignalTable>) -> OneSided {
        let (sent, awaited, done) = (HashMap::new(), HashMap::new(), HashMap::new());
        OneSided { rank, table, sent, awaited, done }
    }

    /// Whether there is such a word.
    pub fn has(&self, (peer, slot): SignalWord) -> bool {
        self.table.address(peer, self.rank, slot).is_some()
    }

    /// Copies to another rank's memory; later work on the stream sees it done.
    ///
    /// # Errors
    /// [`CudaError`].
    ///
    /// # Safety
    /// 1. Both are valid for the length, for this rank's device, until the copy is done, and nobody else uses them meanwhile.
    pub unsafe fn copy(
        &mut self,
        from: u64,
        to: u64,
        len_bytes: usize,
        stream: StreamRef<'_>,
    ) -> Result<(), CudaError> {
        if len_bytes > 0 && from != to {
            // SAFETY: (1, 2) obligation 1.
            unsafe { stream.copy_on_device(to, from, len_bytes) }?;
            self.note(stream)?;
        }
        Ok(())
    }

    /// Raises a word of another rank.
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn signal(&mut self, word: SignalWord, stream: StreamRef<'_>) -> Result<(), CudaError> {
        let Some(address) = self.table.address(word.0, self.rank, word.1) else { return Ok(()) };
        let sent = self.sent.entry(word).or_default();
        // SAFETY: (1) a word of the table, which lives until `is_done`; its waiters read it as one word.
        unsafe { stream.write_word(address, *sent + 1) }?;
        *sent += 1;
        self.note(stream)
    }

    /// Makes the stream wait until another rank has raised a word `count` times more.
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn wait(&mut self, word: SignalWord, count: u64, stream: StreamRef<'_>) -> Result<(), CudaError> {
        let Some(address) = self.table.address(self.rank, word.0, word.1) else { return Ok(()) };
        let awaited = self.awaited.entry(word).or_default();
        // SAFETY: (1) a word of the table, which lives until `is_done`.
        unsafe { stream.wait_for_word(address, *awaited + count) }?;
        *awaited += count;
        self.note(stream)
    }

    /// Ends all waits, and those that follow.
    pub fn release(&self) {
        self.table.release();
    }

    /// Whether everything that was enqueued is done.
    pub fn is_done(&self) -> bool {
        // An error means that the context is broken: nothing runs any more.
        self.done.values().all(|event| {
            let bound = event.device().bind();
            bound.and_then(|_bound| event.is_done()).unwrap_or(true)
        })
    }

    /// Remembers that the stream has work of this communicator.
    fn note(&mut self, stream: StreamRef<'_>) -> Result<(), CudaError> {
        let event = match self.done.entry(key(stream)) {
            std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::hash_map::Entry::Vacant(new) => new.insert(Event::new(stream.device())?),
        };
        stream.record(event)
    }
}

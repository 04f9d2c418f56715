//! Several calls as one.

use super::collectives::Untyped;
use super::communicator::Communicator;
use super::error::{ArgumentError, Error};
use crate::launch::{Job, RawCall, run_together};
use std::cell::RefMut;

/// Calls to be run together: the sends and receives of a group make progress at the same time, and the communicators of a
/// group too, so that one thread may be several ranks.
///
/// Collectives of one communicator run in the order in which they were added, then its sends and receives.
pub struct Group<'env> {
    calls: Vec<(&'env Communicator, RawCall)>,
}

/// Runs what `add` puts into the group, when `add` has returned.
///
/// Nested groups are one group: pass the [`Group`] on to whoever adds calls.
///
/// # Errors
/// What `add` returned; nothing is run then. Otherwise the first communicator's error; each communicator's own can be asked
/// with [`Communicator::async_error`].
///
/// # Examples
/// ```no_run
/// # fn exchange(comm: &oxccl::Communicator, a: &[f32], b: &mut [f32], peer: u32) -> Result<(), oxccl::Error> {
/// oxccl::group(|group| {
///     group.send(comm, a, peer)?;
///     group.recv(comm, b, peer)
/// })
/// # }
/// ```
pub fn group<'env>(add: impl FnOnce(&mut Group<'env>) -> Result<(), Error>) -> Result<(), Error> {
    let mut group = Group { calls: Vec::new() };
    add(&mut group)?;
    group.run()
}

impl<'env> Group<'env> {
    /// Adds a call on untyped memory.
    ///
    /// # Errors
    /// Wrong arguments.
    ///
    /// # Safety
    /// 1. As [`Communicator::run_untyped`], until the group has run.
    pub unsafe fn add_untyped(
        &mut self,
        communicator: &'env Communicator,
        call: &Untyped,
    ) -> Result<(), Error> {
        let call = call.check(communicator.rank, communicator.nranks)?;
        self.calls.push((communicator, call));
        Ok(())
    }

    /// Adds a barrier.
    pub fn barrier(&mut self, communicator: &'env Communicator) -> Result<(), Error> {
        use oxccl_shared::abi::{DataType, Func};
        // SAFETY: a barrier touches no buffer.
        unsafe { self.add_untyped(communicator, &Untyped::new(Func::Barrier, DataType::U8)) }
    }

    fn run(self) -> Result<(), Error> {
        let mut calls = self.calls;
        // A stable sort keeps each communicator's calls in order.
        calls.sort_by_key(|(communicator, _)| std::ptr::from_ref(*communicator) as usize);
        let raw: Vec<RawCall> = calls.iter().map(|(_, call)| *call).collect();
        let mut communicators = Vec::new();
        let mut engines: Vec<(RefMut<'_, _>, std::ops::Range<usize>)> = Vec::new();
        let mut start = 0;
        for same in calls.chunk_by(|a, b| std::ptr::eq(a.0, b.0)) {
            communicators.push(same[0].0);
            engines.push((same[0].0.engine()?, start..start + same.len()));
            start += same.len();
        }
        let mut jobs: Vec<Job<'_>> = engines
            .iter_mut()
            .map(|(engine, range)| Job { engine, calls: &raw[range.clone()], result: Ok(()) })
            .collect();
        // SAFETY: whoever added a call answered for its buffers until now.
        unsafe { run_together(&mut jobs) }.map_err(|error| ArgumentError::GroupMemory {
            communicators: communicators.len(),
            errno: error.raw_os_error().unwrap_or(0),
        })?;
        let mut first = Ok(());
        for (communicator, job) in communicators.iter().zip(&jobs) {
            let result = job.result.map_err(|outstanding| communicator.failed(outstanding));
            first = first.and(result);
        }
        first
    }
}

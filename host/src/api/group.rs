//! Several calls as one.

use super::collectives::Untyped;
use super::communicator::Communicator;
use super::error::{ArgumentError, Error};
use crate::launch::{Engine, GROUP_COMMUNICATORS_MAX, Job, RawCall, run_together};
use std::cell::{Cell, RefMut};
use std::marker::PhantomData;

/// Calls to be run together: the sends and receives of a group make progress at the same time, and the communicators of a
/// group too, so that one thread may be several ranks.
///
/// Collectives of one communicator run in the order in which they were added, then its sends and receives. All-to-all, gather and
/// scatter are made of messages and count as those: between two ranks they are matched, in the order in which each added them.
pub struct Group<'env> {
    scratch: Scratch,
    env: PhantomData<&'env mut Communicator>,
}

/// What a group collects. Kept by the thread from one group to the next, so that a group allocates nothing once one of its
/// size has run.
#[derive(Default)]
struct Scratch {
    queued: Vec<Queued>,
    raw: Vec<RawCall>,
}

struct Queued {
    /// Borrowed for `'env`, which the group does not outlive.
    communicator: *const Communicator,
    /// Position among the group's calls.
    index: usize,
    call: RawCall,
}

thread_local! {
    static SCRATCH: Cell<Option<Scratch>> = const { Cell::new(None) };
}

/// Runs what `add` puts into the group, when `add` has returned.
///
/// To add calls from several places to one group, pass the [`Group`] on. A `group` called within `add` is one of its own and has
/// run when it returns, before anything of the outer one: a send in one and its receive in the other do not meet.
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
    let mut group = Group { scratch: SCRATCH.take().unwrap_or_default(), env: PhantomData };
    let result = add(&mut group).and_then(|()| group.run());
    let mut scratch = group.scratch;
    scratch.queued.clear();
    scratch.raw.clear();
    SCRATCH.set(Some(scratch));
    result
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
        let call = call.check(communicator.rank(), communicator.size())?;
        let index = self.scratch.queued.len();
        self.scratch.queued.push(Queued { communicator, index, call });
        Ok(())
    }

    /// Adds a barrier.
    pub fn barrier(&mut self, communicator: &'env Communicator) -> Result<(), Error> {
        use oxccl_shared::abi::{DataType, Func};
        // SAFETY: a barrier touches no buffer.
        unsafe { self.add_untyped(communicator, &Untyped::new(Func::Barrier, DataType::U8)) }
    }

    fn run(&mut self) -> Result<(), Error> {
        let Scratch { queued, raw } = &mut self.scratch;
        queued.sort_unstable_by_key(|q| (q.communicator as usize, q.index));
        raw.extend(queued.iter().map(|q| q.call));
        let mut members =
            heapless::Vec::<(&Communicator, RefMut<'_, Engine>, &[RawCall]), GROUP_COMMUNICATORS_MAX>::new();
        let mut rest = raw.as_slice();
        for same in queued.chunk_by(|a, b| std::ptr::eq(a.communicator, b.communicator)) {
            // SAFETY: `add_untyped` borrowed it for `'env`, and we are still within.
            let communicator: &Communicator = unsafe { &*same[0].communicator };
            let calls;
            (calls, rest) = rest.split_at(same.len());
            let member = (communicator, communicator.engine()?, calls);
            members.push(member).map_err(|_| ArgumentError::GroupSize { max: GROUP_COMMUNICATORS_MAX })?;
        }
        let mut jobs = heapless::Vec::<Job<'_>, GROUP_COMMUNICATORS_MAX>::new();
        for (_, engine, calls) in &mut members {
            // Cannot be full: it holds as many as `members`.
            let _ = jobs.push(Job { engine, calls, result: Ok(()) });
        }
        // SAFETY: whoever added a call answered for its buffers until now.
        let ran = unsafe { run_together(&mut jobs) };
        let results: heapless::Vec<_, GROUP_COMMUNICATORS_MAX> = jobs.iter().map(|job| job.result).collect();
        drop(jobs);
        ran.map_err(|error| ArgumentError::GroupMemory {
            communicators: members.len(),
            errno: error.raw_os_error().unwrap_or(0),
        })?;
        let mut first = Ok(());
        for ((communicator, ..), result) in members.iter().zip(results) {
            first = first.and(result.map_err(|outstanding| communicator.operation_error(outstanding)));
        }
        first
    }
}

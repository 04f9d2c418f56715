//! Several communicators on one thread: a fiber each, resumed in turn until all have ended.

use super::state::Cpu;
use crate::launch::{FiberYielder, Job, in_flight};
use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult};
use std::cell::RefCell;
use std::ptr;

/// Stack of one fiber. Kernels keep a few kilobytes; a panic's unwinding and a backtrace need more.
const STACK_BYTES: usize = 256 << 10;

/// Most communicators in one group (NCCL's limit on local ranks).
pub const GROUP_COMMUNICATORS_MAX: usize = 72;

/// Fibers of one group; the group's own limit on communicators is the same.
type Fibers = heapless::Vec<Option<Fiber>, GROUP_COMMUNICATORS_MAX>;

thread_local! {
    /// Stacks not in use, kept so that a group allocates nothing once it has run.
    static STACKS: RefCell<Vec<DefaultStack>> = const { RefCell::new(Vec::new()) };
}

/// It suspends with whether its wait has lasted for long.
pub(super) type Fiber = Coroutine<(), bool, (), DefaultStack>;

/// A fiber on a stack of the thread's.
///
/// # Errors
/// There is no stack left, and memory for another cannot be had.
pub(super) fn fiber(body: impl FnOnce(&FiberYielder) + 'static) -> std::io::Result<Fiber> {
    let stack = STACKS.with_borrow_mut(Vec::pop).map_or_else(|| DefaultStack::new(STACK_BYTES), Ok)?;
    Ok(Coroutine::with_stack(stack, move |yielder, ()| body(yielder)))
}

/// Keeps the stack of a fiber that has ended.
pub(super) fn recycle(fiber: Fiber) {
    let stack = fiber.into_stack();
    // A thread that ends has no more use for it.
    let _ = STACKS.try_with(|stacks| stacks.borrow_mut().push(stack));
}

/// Runs all jobs to their ends. A failure of one communicator does not stop the others.
///
/// # Errors
/// Memory for stacks cannot be allocated; nothing has run then.
///
/// # Safety
/// 1. As [`crate::launch::Engine::run`] for every job.
pub(super) unsafe fn run_together(jobs: &mut [Job<'_, Cpu>]) -> std::io::Result<()> {
    if let [job] = jobs {
        // SAFETY: obligation 1.
        job.result = unsafe { job.engine.run(job.calls, &[ptr::null_mut()]) };
        return Ok(());
    }
    ensure_stacks(jobs.len())?;
    let mut fibers = Fibers::new();
    for job in jobs.iter_mut() {
        let job: *mut Job<'_, Cpu> = job;
        let job = job.cast::<Job<'static, Cpu>>();
        let fiber = fiber(move |yielder| {
            // SAFETY: this function does not return before the fiber has, and nobody else uses the job meanwhile.
            let job = unsafe { &mut *job };
            let fiber = ptr::from_ref(yielder).cast_mut().cast();
            // SAFETY: obligation 1; the yielder lives as long as the fiber.
            job.result = unsafe { job.engine.run(job.calls, &[fiber]) };
        })?;
        // Cannot be full: a group holds no more jobs.
        let _ = fibers.push(Some(fiber));
    }
    let mut rounds = 0u32;
    while resume_each(&mut fibers) {
        in_flight::advance_all();
        rounds = rounds.wrapping_add(1);
        if rounds.is_multiple_of(ROUNDS_BEFORE_YIELD) {
            std::thread::yield_now();
        }
    }
    Ok(())
}

/// Rounds in which every fiber polls once, before the thread yields the CPU.
const ROUNDS_BEFORE_YIELD: u32 = 64;

/// Resumes every fiber once; returns whether any is left.
fn resume_each(fibers: &mut [Option<Fiber>]) -> bool {
    let mut left = false;
    for slot in fibers {
        let Some(fiber) = slot else { continue };
        match fiber.resume(()) {
            CoroutineResult::Yield(_) => left = true,
            CoroutineResult::Return(()) => {
                slot.take().into_iter().for_each(recycle);
            }
        }
    }
    left
}

/// Ensures `count` stacks, so that no fiber starts unless all can.
fn ensure_stacks(count: usize) -> std::io::Result<()> {
    STACKS.with_borrow_mut(|pool| {
        while pool.len() < count {
            pool.push(DefaultStack::new(STACK_BYTES)?);
        }
        Ok(())
    })
}

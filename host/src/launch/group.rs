//! Calls of several engines of one thread.

use super::call::RawCall;
use super::cell::{Behind, EngineCell};
use super::engine::Engine;
use super::machine::{Machine, RawQueue, RunError};
use std::io;
use std::sync::Arc;

/// One communicator's share of a group.
pub struct Job<'a, M: Machine> {
    /// The communicator's engine.
    pub engine: &'a mut Engine<M>,
    /// Its calls.
    pub calls: &'a [RawCall],
    /// Their queues: all calls go to the first.
    pub queues: &'a [RawQueue],
    /// How it went.
    pub result: Result<(), RunError>,
}

/// A machine on which several communicators of one thread run calls at once.
pub trait GroupMachine: Machine {
    /// Communicators that one group may hold on one thread.
    const GROUP_MAX: usize;

    /// Runs the calls of several communicators of one thread at once, each to its `result`.
    ///
    /// # Errors
    /// Only that memory for stacks cannot be had, before anything has run.
    ///
    /// # Safety
    /// 1. As [`Engine::run`] for every job.
    unsafe fn run_together(jobs: &mut [Job<'_, Self>]) -> io::Result<()>;

    /// Starts each engine's calls behind those that are in flight, then waits for all, each to its `result`.
    ///
    /// # Safety
    /// 1. As [`Engine::run`] for every job.
    unsafe fn run_behind(jobs: &mut [Behind<'_, Self>]);

    /// Waits until nothing is in flight; `at_once` ends it with an error instead. Returns whether nothing is: on another thread it goes on.
    fn settle(_cell: &Arc<EngineCell<Self>>, _at_once: bool) -> bool {
        true
    }
}

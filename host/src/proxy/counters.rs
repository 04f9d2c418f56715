//! Sub-operations: one operation's steps on one connection, and how far each stage of them is.

use super::op_header::OpHeader;
use oxccl_shared::abi::{Protocol, Step};
use std::fmt;

/// What an operation sends or receives over one connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SubOp {
    /// Digest of the call; the other end's must be the same.
    pub tag: u32,
    /// How the slots look.
    pub protocol: Protocol,
    /// How many slots. None is allowed: the operation is over when it begins, and nothing travels.
    pub steps: u64,
}

/// How many steps of a sub-operation have passed each stage. No stage is ahead of the one before it.
///
/// | | sending | receiving |
/// |---|---|---|
/// | posted | slots the kernel may fill | receives begun |
/// | received | slots the kernel has filled | receives done |
/// | flushed | the same | visible to the kernel's device |
/// | transmitted | sends begun | published to the kernel |
/// | done | sends done, slots given back | slots that the kernel has given back |
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// See the table.
    pub posted: u64,
    /// See the table.
    pub received: u64,
    /// See the table.
    pub flushed: u64,
    /// See the table.
    pub transmitted: u64,
    /// See the table.
    pub done: u64,
}

#[cfg(test)]
impl Counters {
    /// Whether the stages are in order and none has more than `steps`.
    pub(super) fn is_consistent(&self, steps: u64) -> bool {
        let stages = [self.done, self.transmitted, self.flushed, self.received, self.posted, steps];
        stages.is_sorted()
    }
}

impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counters { posted, received, flushed, transmitted, done } = self;
        write!(
            f,
            "posted {posted}, received {received}, flushed {flushed}, transmitted {transmitted}, done {done}"
        )
    }
}

/// A sub-operation under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Running {
    pub(super) sub: SubOp,
    pub(super) first: Step,
    pub(super) counters: Counters,
}

impl Running {
    pub(super) fn new(sub: SubOp, first: Step) -> Running {
        Running { sub, first, counters: Counters::default() }
    }

    pub(super) fn op_header(&self) -> OpHeader {
        let SubOp { tag, protocol, steps } = self.sub;
        OpHeader { tag, protocol, first: self.first, steps }
    }

    /// The step that stage `count` comes to next.
    pub(super) fn step(&self, count: u64) -> Step {
        Step(self.first.0 + count)
    }
}

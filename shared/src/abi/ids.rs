//! Ids as newtypes: the compiler rejects a rank where a channel is expected.

use core::fmt;

/// The index of a process (or thread, or GPU) within one communicator: `0..nranks`.
#[repr(transparent)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Rank(pub u32);

/// A channel: one block of a kernel and its connections.
#[repr(transparent)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ChannelId(pub u32);

/// Slots of a connection produced (or consumed) since its creation. Never wraps in practice: at one step per
/// nanosecond a `u64` lasts 584 years.
#[repr(transparent)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Step(pub u64);

impl Rank {
    /// This rank as an index into per-rank tables.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl Step {
    /// The place of this step among [`STEPS`](crate::fifo::STEPS) in turn: its slot under protocols that have as many.
    #[inline]
    pub const fn slot(self) -> usize {
        self.0 as usize % crate::fifo::STEPS
    }

    /// The slot that this step occupies in the buffer of a protocol.
    #[inline]
    pub const fn slot_of(self, protocol: super::Protocol) -> usize {
        self.0 as usize % protocol.slots()
    }

    /// The step after this one.
    #[inline]
    pub const fn next(self) -> Step {
        Step(self.0 + 1)
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for ChannelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

//! Words between the ranks of a host, by what they say.

/// Words between two ranks, in each direction: an admit, a done, what the reader waits for, and room for `choices`.
pub(crate) const SLOTS: u32 = 128;
/// See [`SLOTS`].
pub(super) const ADMIT: u32 = 0;
pub(super) const DONE: u32 = 1;
/// In the reader's own memory: not 0 while its stream waits for the peer.
pub(super) const AWAITED: u32 = 2;
pub(super) const CHOICES: u32 = 3;

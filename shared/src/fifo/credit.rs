//! Flow control between producer and consumer.

/// The most slots of a connection's buffer, and so the steps that a producer may be ahead of its consumer. NCCL's `NCCL_STEPS`. Each protocol
/// states how many it has ([`Protocol::slots`](crate::abi::Protocol::slots)).
pub const STEPS: usize = 8;

/// Whether the slot of `step`, in a buffer of so many slots, is empty once the consumer has consumed `head` steps. One credit is one empty
/// slot: there are `slots - (step - head)` of them.
#[inline]
pub const fn has_credit(step: u64, head: u64, slots: usize) -> bool {
    step < head + slots as u64
}

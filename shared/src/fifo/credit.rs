//! Flow control between producer and consumer.

/// Slots of a connection buffer, and so the steps that a producer may be ahead of its consumer. NCCL's `NCCL_STEPS`.
pub const STEPS: usize = 8;

/// Whether the slot of `step` is empty once the consumer has consumed `head` steps. One credit is one empty slot:
/// there are `STEPS - (step - head)` of them.
#[inline]
pub const fn has_credit(step: u64, head: u64) -> bool {
    step < head + STEPS as u64
}

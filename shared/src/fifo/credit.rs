//! How far a producer may run ahead of its consumer.

/// Slots of a connection buffer, and so how many steps a producer may run ahead of its consumer. NCCL's `NCCL_STEPS`.
pub const STEPS: usize = 8;

/// Whether a producer about to write `step` finds its slot empty when the consumer has consumed `head` steps.
/// One credit is one empty slot: there are `STEPS - (step - head)` of them.
#[inline]
pub const fn has_credit(step: u64, head: u64) -> bool {
    step < head + STEPS as u64
}

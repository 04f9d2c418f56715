//! Barriers and special registers. Inline PTX, because the compiler may duplicate or sink the intrinsic of an aligned barrier
//! (rust-lang/rust#137086); `barrier` without `.aligned` is safe in divergent code.

use core::arch::asm;

/// This thread's index in its block.
#[inline(always)]
pub fn thread_index() -> u32 {
    let value;
    // SAFETY: reads a register.
    unsafe { asm!("mov.u32 {0}, %tid.x;", out(reg32) value, options(pure, nomem, nostack)) };
    value
}

/// Threads in a block.
#[inline(always)]
pub fn block_threads() -> u32 {
    let value;
    // SAFETY: reads a register.
    unsafe { asm!("mov.u32 {0}, %ntid.x;", out(reg32) value, options(pure, nomem, nostack)) };
    value
}

/// This block's index in the grid.
#[inline(always)]
pub fn block_index() -> u32 {
    let value;
    // SAFETY: reads a register.
    unsafe { asm!("mov.u32 {0}, %ctaid.x;", out(reg32) value, options(pure, nomem, nostack)) };
    value
}

/// Whether this thread is the first of those of its warp that run here together.
#[inline(always)]
pub fn is_first_here() -> bool {
    let (lane, active): (u32, u32);
    // SAFETY: reads registers.
    unsafe {
        asm!("mov.u32 {0}, %laneid; activemask.b32 {1};", out(reg32) lane, out(reg32) active, options(nomem, nostack));
    }
    lane == active.trailing_zeros()
}

/// Nanoseconds on a clock that all blocks of the GPU share.
#[inline(always)]
pub fn now_ns() -> u64 {
    let value;
    // SAFETY: reads a register.
    unsafe { asm!("mov.u64 {0}, %globaltimer;", out(reg64) value, options(nomem, nostack)) };
    value
}

/// A barrier of all threads of the block that have not ended.
#[inline(always)]
pub fn sync_all() {
    // SAFETY: no memory of its own; as an asm block without `nomem` it orders the compiler too.
    unsafe { asm!("barrier.cta.sync 0;", options(nostack)) };
}

/// Programmatic dependent launch: returns when all kernels that this one depends on have ended, and what they wrote is visible. Returns at
/// once in a kernel that was not launched early.
#[cfg(feature = "sm90")]
#[inline(always)]
pub fn await_previous() {
    // SAFETY: as in `sync_all`.
    unsafe { asm!("griddepcontrol.wait;", options(nostack)) };
}

/// Once every block has said so or has ended, a kernel that depends on this one and was launched early starts.
#[cfg(feature = "sm90")]
#[inline(always)]
pub fn admit_next() {
    // SAFETY: as in `sync_all`.
    unsafe { asm!("griddepcontrol.launch_dependents;", options(nostack)) };
}

/// A barrier of all threads of the block; returns whether any of them passed `mine`.
#[inline(always)]
pub fn any_of_all(mine: bool) -> bool {
    let any: u32;
    // SAFETY: as in `sync_all`.
    unsafe {
        asm!(
            "{{ .reg .pred p, q; setp.ne.u32 q, {0}, 0; barrier.cta.red.or.pred p, 0, q; selp.u32 {1}, 1, 0, p; }}",
            in(reg32) mine as u32, out(reg32) any, options(nostack)
        )
    };
    any != 0
}

/// A barrier of the first `threads` threads of the block, a multiple of 32; returns whether any of them passed
/// `mine`.
#[inline(always)]
pub fn any_of_first(threads: u32, mine: bool) -> bool {
    let any: u32;
    // SAFETY: as in `sync_all`.
    unsafe {
        asm!(
            "{{ .reg .pred p, q; setp.ne.u32 q, {0}, 0; barrier.cta.red.or.pred p, 1, {2}, q; selp.u32 {1}, 1, 0, p; }}",
            in(reg32) mine as u32, out(reg32) any, in(reg32) threads, options(nostack)
        )
    };
    any != 0
}

/// Converges all 32 threads of a warp: for a part of a warp the assembler generates code that may split them again.
#[inline(always)]
pub fn converge_warp() {
    // SAFETY: as in `sync_all`.
    unsafe { asm!("bar.warp.sync 0xffffffff;", options(nostack)) };
}

/// Whether any of the 32 threads of a warp passed `mine`.
#[inline(always)]
pub fn any_of_warp(mine: bool) -> bool {
    let any: u32;
    // SAFETY: as in `sync_all`.
    unsafe {
        asm!(
            "{{ .reg .pred p, q; setp.ne.u32 q, {0}, 0; vote.sync.any.pred p, q, 0xffffffff; selp.u32 {1}, 1, 0, p; }}",
            in(reg32) mine as u32, out(reg32) any, options(nostack)
        )
    };
    any != 0
}

/// What the next of the 32 threads of a warp passed; the first one is next to the last.
#[inline(always)]
pub fn of_next_lane(mine: u64) -> u64 {
    let next: u64;
    // SAFETY: as in `sync_all`.
    unsafe {
        asm!(
            "{{ .reg .b32 low, high, lane;",
            "mov.u32 lane, %laneid; add.u32 lane, lane, 1; and.b32 lane, lane, 31;",
            "mov.b64 {{low, high}}, {0};",
            "shfl.sync.idx.b32 low, low, lane, 31, 0xffffffff;",
            "shfl.sync.idx.b32 high, high, lane, 31, 0xffffffff;",
            "mov.b64 {1}, {{low, high}}; }}",
            in(reg64) mine, out(reg64) next, options(nostack)
        )
    };
    next
}

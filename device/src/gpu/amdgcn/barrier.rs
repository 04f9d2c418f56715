//! A workgroup's barrier and what is built on it. The intrinsics are convergent, so the compiler neither duplicates nor sinks them.
//!
//! ```text
//! vote:  each wavefront writes (turn, any of its lanes) to its word of one of two rows; barrier; all read the row
//! ```
//! Two rows suffice: who is two votes ahead has passed a barrier to which all have come who read the row before. A wavefront that has
//! ended counts as having come to the barrier; its words carry old turns and say nothing.

use core::arch::amdgpu;
use core::cell::Cell;
use core::sync::atomic::{Ordering, compiler_fence};
use oxccl_shared::sync::{Block, Word};

/// Threads of a wavefront.
pub const WAVE_THREADS: u32 = 64;
/// Wavefronts of a workgroup, at most.
const WAVES_MAX: usize = 16;

/// How many votes a thread has taken part in.
#[derive(Default)]
pub struct Turn(Cell<u32>);

/// The words of a workgroup's wavefronts, in LDS.
#[repr(C)]
pub struct Votes([[Word<u32, Block>; WAVES_MAX]; 2]);

impl Votes {
    /// Forgets what an earlier kernel left in the words of this thread's wavefront.
    #[inline(always)]
    pub fn clear(&self, thread: u32) {
        for row in &self.0 {
            row[wave_of(thread)].store_relaxed(0);
        }
    }

    /// A barrier of all `threads` of the workgroup; returns whether any of them passed `mine`.
    #[inline(always)]
    pub fn any(&self, turn: &Turn, thread: u32, threads: u32, mine: bool) -> bool {
        let now = turn.0.get() + 1;
        turn.0.set(now);
        let row = &self.0[now as usize % 2];
        let yes = now << 1 | 1;
        // All lanes that are left write the same.
        row[wave_of(thread)].store_relaxed(if amdgpu::ballot(mine) != 0 { yes } else { now << 1 });
        sync_all();
        let waves = threads.div_ceil(WAVE_THREADS) as usize;
        row[..waves.min(WAVES_MAX)].iter().fold(false, |any, word| any | (word.load_relaxed() == yes))
    }
}

#[inline(always)]
fn wave_of(thread: u32) -> usize {
    (thread / WAVE_THREADS) as usize % WAVES_MAX
}

/// A barrier of all threads of the workgroup that have not ended. What they wrote before is in the caches that all of them read. A
/// rank to which one of them publishes afterwards sees it too.
///
/// The fences that rustc has are of system scope and would write back the whole L2 at each barrier.
#[inline(always)]
pub fn sync_all() {
    // The compiler knows neither the wait nor the barrier as an access to memory.
    compiler_fence(Ordering::SeqCst);
    // SAFETY: waits until this wavefront's own accesses are done.
    unsafe { s_waitcnt(EVERYTHING) };
    amdgpu::s_barrier();
    compiler_fence(Ordering::SeqCst);
}

/// All counters at 0.
const EVERYTHING: i32 = 0;

unsafe extern "unadjusted" {
    #[link_name = "llvm.amdgcn.s.waitcnt"]
    fn s_waitcnt(counters: i32);
}

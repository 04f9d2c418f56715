//! Layer: device / gpu / amdgcn, AMD's data-centre GPUs (gfx90a, gfx942).
//! Takes: a workgroup of an AMD GPU, launched with [`LDS_BYTES`] of LDS.
//! Gives: [`Amdgcn`]: registers, barriers and votes by the compiler's intrinsics. Compiled and checked (`docs/amdgcn.md`), not run.
//! Never: LL128. It needs 128 bytes that arrive as one, and nobody has measured that lanes of a wavefront write so to a peer:
//! [`crate::gpu::Lines`] is not implemented here, so a kernel with lines does not compile, and `cargo xtask build-amdgcn` lists none.

mod barrier;
#[cfg(feature = "entries")]
pub(crate) mod entry;

use crate::gpu::{KernelMachine, NoEngine, Pack, SHARED_BYTES};
use barrier::Votes;
use core::arch::amdgpu;

/// LDS that a kernel is launched with: the connections and the votes of its wavefronts.
pub const LDS_BYTES: usize = SHARED_BYTES + size_of::<Votes>();

/// Nanoseconds of one tick of the constant clock, which runs at 100 MHz on both.
const TICK_NS: u64 = 10;

/// An AMD GPU.
pub struct Amdgcn {
    turn: barrier::Turn,
}

impl Amdgcn {
    /// This thread's view. Every thread of the workgroup makes one, first of all and once.
    ///
    /// # Safety
    /// 1. The workgroup was launched with [`LDS_BYTES`] of LDS, which nobody else uses.
    #[inline(always)]
    pub unsafe fn new() -> Self {
        let machine = Amdgcn { turn: barrier::Turn::default() };
        machine.votes().clear(machine.thread_index());
        machine
    }

    #[inline(always)]
    fn votes(&self) -> &Votes {
        // SAFETY: by the promise of `new` the LDS is long enough; any bits are votes, and they are accessed as words only.
        unsafe { &*self.shared().add(SHARED_BYTES).cast::<Votes>() }
    }
}

impl KernelMachine for Amdgcn {
    type Engine = NoEngine;

    const WARP_THREADS: u32 = barrier::WAVE_THREADS;

    #[inline(always)]
    fn thread_index(&self) -> u32 {
        amdgpu::workitem_id_x()
    }

    #[inline(always)]
    fn block_threads(&self) -> u32 {
        /// Where the dispatch packet has the size of a workgroup along x, 16 bits.
        const WORKGROUP_SIZE_X: usize = 4;
        let packet = core::intrinsics::gpu::amdgpu_dispatch_ptr().cast::<u8>();
        // SAFETY: the packet that launched this kernel outlives it.
        u32::from(unsafe { packet.add(WORKGROUP_SIZE_X).cast::<u16>().read() })
    }

    #[inline(always)]
    fn block_index(&self) -> u32 {
        amdgpu::workgroup_id_x()
    }

    #[inline(always)]
    fn now_ns() -> u64 {
        amdgpu::s_memrealtime() * TICK_NS
    }

    #[inline(always)]
    fn shared(&self) -> *mut u8 {
        core::intrinsics::gpu::gpu_launch_sized_workgroup_mem::<Pack16>().cast()
    }

    #[inline(always)]
    fn sync_all(&self) {
        barrier::sync_all();
    }

    #[inline(always)]
    fn any_of_all(&self, mine: bool) -> bool {
        self.votes().any(&self.turn, self.thread_index(), self.block_threads(), mine)
    }

    #[inline(always)]
    fn any_of_workers<const POSTER: bool>(&self, _workers: u32, mine: bool) -> bool {
        const { assert!(!POSTER, "a workgroup has one barrier, for all of its wavefronts") };
        self.any_of_all(mine)
    }

    #[inline(always)]
    unsafe fn load_pack(at: usize) -> Pack {
        // SAFETY: obligation 1.
        unsafe { (at as *const Pack16).read() }.0
    }

    #[inline(always)]
    unsafe fn store_pack(at: usize, value: Pack) {
        // SAFETY: obligation 1.
        unsafe { (at as *mut Pack16).write(Pack16(value)) }
    }
}

/// A pack where it lies aligned: one access of 16 bytes.
#[repr(align(16))]
struct Pack16(Pack);

/// A kernel has nobody to tell: it stops.
#[cfg(feature = "entries")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    core::intrinsics::abort()
}

//! Bulk copies and the barriers that they report to (sm_90 and later, PTX 8.0).
//!
//! A block without a cluster is a cluster by itself: its shared memory is `.shared::cluster` too, which loads name because PTX 8.0 has no
//! `.shared::cta` for them.

use super::barrier::converge_warp;
use crate::gpu::{CopyEngine, Pack, STORES_READING, STORES_RECENT};
use core::arch::{asm, global_asm};

// What the launch gives, behind the variables of the kernel.
global_asm!(".extern .shared .align 128 .b8 oxccl_tiles[];");

/// The engine of a multiprocessor.
pub struct Engine;

/// `asm!` of one instruction that touches memory or orders it.
macro_rules! instruction {
    ($text:expr $(, $($operand:tt)*)?) => {
        // SAFETY: the caller's obligations; as an asm block without `nomem` it orders the compiler too.
        unsafe { asm!($text, $($($operand)*,)? options(nostack)) }
    };
}

impl CopyEngine for Engine {
    const PRESENT: bool = true;

    #[inline(always)]
    fn memory() -> (u32, u32) {
        let (at, bytes): (u32, u32);
        // SAFETY: an address and a register.
        unsafe {
            asm!("mov.u32 {0}, oxccl_tiles; mov.u32 {1}, %dynamic_smem_size;", out(reg32) at, out(reg32) bytes, options(pure, nomem, nostack))
        };
        (at, bytes)
    }

    #[inline(always)]
    unsafe fn new_barrier(at: u32, arrivals: u32) {
        instruction!("mbarrier.init.shared::cta.b64 [{0}], {1};", in(reg32) at, in(reg32) arrivals);
    }

    #[inline(always)]
    fn show_barriers() {
        Self::fence_own();
    }

    #[inline(always)]
    unsafe fn arrive(at: u32) {
        instruction!("{{ .reg .b64 state; mbarrier.arrive.release.cta.shared::cta.b64 state, [{0}]; }}", in(reg32) at);
    }

    #[inline(always)]
    unsafe fn arrive_as_warp(at: u32) {
        Self::fence_own();
        converge_warp();
        instruction!(
            "{{ .reg .b64 state; .reg .b32 lane; .reg .pred p; mov.u32 lane, %laneid; setp.eq.u32 p, lane, 0; @p mbarrier.arrive.release.cta.shared::cta.b64 state, [{0}]; }}",
            in(reg32) at
        );
    }

    #[inline(always)]
    unsafe fn expect(at: u32, load_bytes: u32) {
        instruction!("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [{0}], {1};", in(reg32) at, in(reg32) load_bytes);
    }

    #[inline(always)]
    unsafe fn has_ended(at: u32, parity: u32, patience: bool) -> bool {
        let ended: u32;
        if patience {
            instruction!(
                "{{ .reg .pred p; mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [{1}], {2}; selp.u32 {0}, 1, 0, p; }}",
                out(reg32) ended, in(reg32) at, in(reg32) parity
            );
        } else {
            instruction!(
                "{{ .reg .pred p; mbarrier.test_wait.parity.acquire.cta.shared::cta.b64 p, [{1}], {2}; selp.u32 {0}, 1, 0, p; }}",
                out(reg32) ended, in(reg32) at, in(reg32) parity
            );
        }
        ended != 0
    }

    #[inline(always)]
    unsafe fn load(to: u32, from: usize, bytes: u32, barrier: u32) {
        instruction!(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [{0}], [{1}], {2}, [{3}];",
            in(reg32) to, in(reg64) from, in(reg32) bytes, in(reg32) barrier
        );
    }

    #[inline(always)]
    unsafe fn store(to: usize, from: u32, bytes: u32) {
        instruction!(
            "cp.async.bulk.global.shared::cta.bulk_group [{0}], [{1}], {2};",
            in(reg64) to, in(reg32) from, in(reg32) bytes
        );
    }

    #[inline(always)]
    fn commit() {
        instruction!("cp.async.bulk.commit_group;");
    }

    #[inline(always)]
    fn wait_read() {
        const { assert!(STORES_READING == 2) };
        instruction!("cp.async.bulk.wait_group.read 2;");
    }

    #[inline(always)]
    fn wait_recent() {
        const { assert!(STORES_RECENT == 3) };
        instruction!("cp.async.bulk.wait_group 3;");
    }

    #[inline(always)]
    fn wait_stored() {
        instruction!("cp.async.bulk.wait_group 0;");
    }

    #[inline(always)]
    fn fence() {
        instruction!("fence.proxy.async;");
    }

    #[inline(always)]
    fn fence_own() {
        instruction!("fence.proxy.async.shared::cta;");
    }

    #[inline(always)]
    unsafe fn load_pack(at: u32) -> Pack {
        let (low, high): (u64, u64);
        instruction!("ld.shared.v2.u64 {{{0}, {1}}}, [{2}];", out(reg64) low, out(reg64) high, in(reg32) at);
        [low, high]
    }

    #[inline(always)]
    unsafe fn store_pack(at: u32, [low, high]: Pack) {
        instruction!("st.shared.v2.u64 [{0}], {{{1}, {2}}};", in(reg32) at, in(reg64) low, in(reg64) high);
    }

    #[inline(always)]
    unsafe fn load_byte(at: u32) -> u8 {
        let value: u32;
        instruction!("ld.shared.u8 {0}, [{1}];", out(reg32) value, in(reg32) at);
        value as u8
    }

    #[inline(always)]
    unsafe fn store_byte(at: u32, value: u8) {
        instruction!("st.shared.u8 [{0}], {1};", in(reg32) at, in(reg32) u32::from(value));
    }

    #[inline(always)]
    unsafe fn load_flag(at: u32) -> u32 {
        let value: u32;
        instruction!("ld.relaxed.cta.shared.u32 {0}, [{1}];", out(reg32) value, in(reg32) at);
        value
    }

    #[inline(always)]
    unsafe fn store_flag(at: u32, value: u32) {
        instruction!("st.relaxed.cta.shared.u32 [{0}], {1};", in(reg32) at, in(reg32) value);
    }
}

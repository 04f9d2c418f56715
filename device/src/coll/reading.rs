//! Two ranks that read each other's memory: long reductions by one copy of each byte that a rank needs, instead of two through slots.
//!
//! Each reads the other's input, of which a reduce-scatter needs the block for us and an all-reduce all, and reduces it with its own.
//!
//! An all-reduce in place would overwrite what the other reads. Neither rank knows of the other's buffers, so both say first, in a message
//! of one byte, whether theirs are one. Halves instead, which each reduces and the other then reads, work in place too, and were slower than
//! slots up to 128 KiB: what one has just written the other reads from its cache, and has to be asked before the next call may write it again
//! (docs/measurements/2026-11-25-cpu-peers.md).

use super::send_recv;
use super::work::{P2pWork, Received};
use crate::conn::Conns;
use crate::gpu::{Lines, Stop};
use crate::prims::brief::{self, Brief};
use oxccl_shared::abi::{Func, Protocol, Rank};

/// A reduction of two ranks. Its operator changes neither inputs nor results.
#[derive(Clone, Copy, Debug)]
pub struct PairReduction {
    /// All-reduce or reduce-scatter.
    pub func: Func,
    /// The caller's input.
    pub src: *const u8,
    /// The caller's output.
    pub dst: *mut u8,
    /// Bytes of a block, a whole number of elements.
    pub len_bytes: usize,
    /// This rank, 0 or 1.
    pub rank: Rank,
    /// Digest of the call; both ranks must have the same.
    pub tag: u32,
    /// The connection to the other rank.
    pub send: u16,
    /// The connection from it.
    pub recv: u16,
}

impl PairReduction {
    fn message(&self, is_send: bool, buffer: *mut u8, len_bytes: usize, received: Received) -> P2pWork {
        let conn = if is_send { self.send } else { self.recv };
        P2pWork { received, ..P2pWork::new(is_send, conn, Protocol::Simple, (buffer, len_bytes), self.tag) }
    }
}

/// Carries it out, or returns that one of the ranks cannot: both return the same.
///
/// # Safety
/// 1. `work.src` and `work.dst` are valid for what `work.func` reads and writes of them, and the connections are among `conns`.
/// 2. The block's operator changes neither inputs nor results.
pub unsafe fn run<B: Lines>(block: &B, conns: Conns<'_>, work: &PairReduction) -> Result<bool, Stop> {
    let PairReduction { src, dst, len_bytes, rank, .. } = *work;
    let (theirs, own) = match work.func {
        Func::ReduceScatter => {
            let of = |whose: u32| src.wrapping_add(whose as usize * len_bytes);
            (of(1 - rank.0), of(rank.0))
        }
        _ if !both_agree(block, conns, work, dst.cast_const() != src)? => return Ok(false),
        _ => (src, src),
    };
    let reduced = Received::Reduced { own, place: rank.index(), from_bytes: 0 };
    let messages = [
        work.message(true, theirs.cast_mut(), len_bytes, Received::Kept),
        work.message(false, dst, len_bytes, reduced),
    ];
    // SAFETY: obligations 1 and 2.
    unsafe { exchange(block, conns, messages)? };
    Ok(true)
}

/// Whether both ranks say yes.
fn both_agree<B: Lines>(block: &B, conns: Conns<'_>, work: &PairReduction, mine: bool) -> Result<bool, Stop> {
    let (mine, mut theirs) = (u8::from(mine), 0u8);
    let message = Brief { tag: work.tag, len_bytes: 1 };
    // SAFETY: blocks of processors are one thread; one byte is brief, and each has one.
    unsafe {
        brief::send(block, &conns.send[work.send as usize], message, &raw const mine)?;
        brief::recv(block, &conns.recv[work.recv as usize], message, &raw mut theirs)?;
    }
    Ok(mine & theirs == 1)
}

/// One message each way. However it ends, nobody reads the user's memory afterwards.
///
/// # Safety
/// 1. As [`send_recv::run`], both.
unsafe fn exchange<B: Lines>(block: &B, conns: Conns<'_>, messages: [P2pWork; 2]) -> Result<(), Stop> {
    struct Withdraws<'a>(Conns<'a>, [P2pWork; 2]);
    impl Drop for Withdraws<'_> {
        fn drop(&mut self) {
            send_recv::withdraw(self.0, &self.1);
        }
    }
    let mut open = Withdraws(conns, messages);
    // SAFETY: obligation 1.
    unsafe { send_recv::run(block, conns, &mut open.1) }
}

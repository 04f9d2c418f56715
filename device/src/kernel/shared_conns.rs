//! A block's connections, in the memory that its threads share.

use crate::conn::{Conns, RecvConn, SendConn};
use crate::gpu::{KernelMachine, SHARED_BYTES};
use core::mem::MaybeUninit;
use core::slice;
use oxccl_shared::abi::KernelLaunch;

/// At most `N` connections in each direction.
#[repr(C)]
pub struct SharedConns<const N: usize> {
    send: [MaybeUninit<SendConn>; N],
    recv: [MaybeUninit<RecvConn>; N],
}

/// Which connections a block uses: `count` of each direction, from index `first` of the launch's lists.
#[derive(Clone, Copy)]
pub struct Extent {
    /// Where they begin.
    pub first: usize,
    /// How many.
    pub count: usize,
}

impl<const N: usize> SharedConns<N> {
    const FITS: () = assert!(size_of::<Self>() <= SHARED_BYTES);

    /// Fills `place` with the connections as the kernel before left them. All threads of the block call it.
    ///
    /// # Safety
    /// 1. `launch` is what the host launched with, and `extent` lies within its lists; nobody else uses those connections.
    /// 2. `place` is the machine's shared memory, for this alone.
    #[inline(always)]
    pub unsafe fn load<'a, M: KernelMachine>(
        machine: &M,
        place: *mut u8,
        launch: &KernelLaunch,
        extent: Extent,
    ) -> Conns<'a> {
        let () = Self::FITS;
        let this = place.cast::<Self>();
        let (thread, threads) = (machine.thread_index() as usize, machine.block_threads() as usize);
        // One thread to a connection, the directions in different warps: all loads are under way at once.
        if thread < extent.count {
            let at = extent.first + thread;
            // SAFETY: obligation 1; one thread writes each element.
            unsafe {
                let place = (&raw mut (*this).send[thread]).cast();
                SendConn::resume_at(place, launch.send.add(at), *launch.send_cursors.add(at));
            }
        } else if thread >= threads / 2 && thread - threads / 2 < extent.count {
            let i = thread - threads / 2;
            let at = extent.first + i;
            // SAFETY: as above.
            unsafe {
                let place = (&raw mut (*this).recv[i]).cast();
                RecvConn::resume_at(place, launch.recv.add(at), *launch.recv_cursors.add(at));
            }
        }
        machine.sync_all();
        // SAFETY: the first `count` of each are written, and from now on only touched through cells.
        unsafe {
            Conns {
                send: slice::from_raw_parts((&raw const (*this).send).cast(), extent.count),
                recv: slice::from_raw_parts((&raw const (*this).recv).cast(), extent.count),
            }
        }
    }
}

/// Leaves the connections to the next kernel. The first worker calls it.
///
/// # Safety
/// 1. As [`SharedConns::load`].
#[inline(always)]
pub unsafe fn save(conns: Conns<'_>, launch: &KernelLaunch, extent: Extent) {
    for (i, conn) in conns.send.iter().enumerate() {
        // SAFETY: obligation 1.
        unsafe { *launch.send_cursors.add(extent.first + i) = conn.cursor() };
    }
    for (i, conn) in conns.recv.iter().enumerate() {
        // SAFETY: obligation 1.
        unsafe { *launch.recv_cursors.add(extent.first + i) = conn.cursor() };
    }
}

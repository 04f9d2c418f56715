//! A thread's copy of its channel's connections.

use crate::conn::{Conns, RecvConn, SendConn};
use oxccl_shared::abi::{ConnEnd, KernelChannel};

/// At most `N` connections in each direction.
pub struct LocalConns<const N: usize> {
    send: [SendConn<&'static ConnEnd>; N],
    recv: [RecvConn<&'static ConnEnd>; N],
}

impl<const N: usize> LocalConns<N> {
    /// The connections as the kernel before left them.
    ///
    /// # Safety
    /// 1. `channel` is live and its lists have at least one connection each.
    #[inline(always)]
    pub unsafe fn load(channel: &KernelChannel) -> Self {
        let (nsend, nrecv) = (channel.nsend as usize, channel.nrecv as usize);
        LocalConns {
            send: core::array::from_fn(|i| {
                let i = if N == 1 { 0 } else { i.min(nsend - 1) };
                // SAFETY: obligation 1, and the host keeps connections for a communicator's life.
                unsafe { SendConn::resume(&*channel.send.add(i), *channel.send_cursors.add(i)) }
            }),
            recv: core::array::from_fn(|i| {
                let i = if N == 1 { 0 } else { i.min(nrecv - 1) };
                // SAFETY: as above.
                unsafe { RecvConn::resume(&*channel.recv.add(i), *channel.recv_cursors.add(i)) }
            }),
        }
    }

    /// As algorithms want them.
    #[inline(always)]
    pub fn view(&mut self) -> Conns<'_, &'static ConnEnd> {
        Conns { send: &mut self.send, recv: &mut self.recv }
    }

    /// Leaves the connections to the next kernel. One thread of the block does it, after all have loaded theirs.
    ///
    /// # Safety
    /// 1. As [`Self::load`].
    #[inline(always)]
    pub unsafe fn save(&self, channel: &KernelChannel) {
        for (i, conn) in self.send.iter().enumerate().take(channel.nsend as usize) {
            // SAFETY: obligation 1.
            unsafe { *channel.send_cursors.add(i) = conn.cursor() };
        }
        for (i, conn) in self.recv.iter().enumerate().take(channel.nrecv as usize) {
            // SAFETY: obligation 1.
            unsafe { *channel.recv_cursors.add(i) = conn.cursor() };
        }
    }

    /// Leaves the first connection of one direction to the next message or kernel; one thread `writes`, all wait for it.
    ///
    /// # Safety
    /// 1. As [`Self::load`].
    #[inline(always)]
    pub unsafe fn save_one(&self, channel: &KernelChannel, is_send: bool, writes: bool) {
        if writes && is_send {
            // SAFETY: obligation 1.
            unsafe { *channel.send_cursors = self.send[0].cursor() };
        } else if writes {
            // SAFETY: obligation 1.
            unsafe { *channel.recv_cursors = self.recv[0].cursor() };
        }
        crate::gpu::ptx::sync_all();
    }
}

//! Memory of the user's that connections send from and receive into, where the network takes it as it is.

use super::end::ProxyEnd;
use super::engine::Progress;
use crate::net::bypass::Expected;
use oxccl_shared::abi::{ChannelId, Rank};
use std::ops::Range;

impl Progress {
    /// Has the counted slot at `slot` stand for `len_bytes` at `body`, if it is one of a connection that can do so. Whether it is.
    ///
    /// # Safety
    /// 1. As [`SendEnd::lend`](super::SendEnd), where a connection that is not driven any more needs nothing.
    pub(crate) unsafe fn lend(&mut self, slot: *mut u8, body: *const u8, len_bytes: usize) -> bool {
        self.ends().any(|end| match end {
            // SAFETY: obligation 1.
            ProxyEnd::Send(end) => unsafe { end.lend(slot, body, len_bytes) },
            ProxyEnd::Recv(_) | ProxyEnd::Opening(_) | ProxyEnd::Coll(_) => false,
        })
    }

    /// Where the bytes of the counted slot at `slot` are, if it is lent.
    pub(crate) fn lent(&mut self, slot: *const u8) -> Option<*const u8> {
        self.ends().find_map(|end| match end {
            ProxyEnd::Send(end) => end.lent(slot),
            ProxyEnd::Recv(_) | ProxyEnd::Opening(_) | ProxyEnd::Coll(_) => None,
        })
    }

    /// Call before writing to this range of addresses: what is lent of it and has not left is copied into its slots.
    pub(crate) fn return_loans(&mut self, memory: &Range<usize>) {
        self.ends().for_each(|end| match end {
            ProxyEnd::Send(end) => end.return_loans(memory),
            ProxyEnd::Recv(_) | ProxyEnd::Opening(_) | ProxyEnd::Coll(_) => {}
        });
    }

    /// A message from `peer` will come on `channel`, whose bytes may go straight to where it says.
    ///
    /// # Safety
    /// 1. As [`RecvEnd::expect`](super::RecvEnd), where a connection that is not driven any more needs nothing.
    pub(crate) unsafe fn expect(&mut self, channel: ChannelId, peer: Rank, message: Expected) {
        if let Some(ProxyEnd::Recv(end)) = self.end((channel, peer, false)) {
            // SAFETY: obligation 1.
            unsafe { end.expect(message) };
        }
    }

    /// Where the bytes of the full counted slot at `slot` are, if they are not in it. To be asked once for a slot.
    pub(crate) fn take_arrived(&mut self, slot: *const u8) -> Option<*mut u8> {
        self.ends().find_map(|end| match end {
            ProxyEnd::Send(_) | ProxyEnd::Opening(_) | ProxyEnd::Coll(_) => None,
            ProxyEnd::Recv(end) => end.take_arrived(slot),
        })
    }

    /// A group of messages begins, and all before it have come.
    pub(crate) fn forget_arrived(&mut self) {
        self.ends().for_each(|end| match end {
            ProxyEnd::Send(_) | ProxyEnd::Opening(_) | ProxyEnd::Coll(_) => {}
            ProxyEnd::Recv(end) => end.forget_arrived(),
        });
    }
}

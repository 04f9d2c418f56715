//! Streams, driven by whoever waits.

use super::drive::{Drive, DriveFailure};
use crate::net::bypass::Expected;
use crate::net::stream::LinkError;
use crate::proxy::Links;
use oxccl_device::gpu::Wait;
use oxccl_shared::abi::{Protocol, Rank};

impl Drive for Links {
    fn begin_channel(&mut self, group: usize, protocol: Protocol) {
        self.begin(group, protocol);
    }

    unsafe fn expect(&mut self, peer: Rank, message: Expected) {
        // SAFETY: the same obligations.
        unsafe { Links::expect(self, peer, message) };
    }

    unsafe fn lend(&mut self, slot: *mut u8, body: *const u8, len_bytes: usize) -> bool {
        // SAFETY: the same obligations.
        unsafe { Links::lend(self, slot, body, len_bytes) }
    }

    fn lent(&mut self, slot: *const u8) -> Option<*const u8> {
        Links::lent(self, slot)
    }

    fn return_loans(&mut self, start: *const u8, len_bytes: usize) {
        Links::return_loans(self, start, len_bytes);
    }

    fn take_arrived(&mut self, slot: *const u8) -> Option<*mut u8> {
        Links::take_arrived(self, slot)
    }

    fn drive(&mut self, on: Wait) -> usize {
        self.do_work(on.peer)
    }

    /// The link to or from whom the kernel waits for; another's is found when that is waited for.
    fn failure(&mut self, on: Wait) -> Option<DriveFailure> {
        let error = Links::failure(self)?;
        // The monitor says better than a socket whether that rank died, left or aborted.
        let is_of_network = matches!(error, LinkError::PeerClosed { .. });
        Some(DriveFailure { peer: on.peer, is_of_network, is_mismatch: false, error })
    }
}

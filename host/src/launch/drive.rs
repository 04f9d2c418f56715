//! What a waiting rank drives: connections that go on only while somebody moves their bytes.

use super::link_error::LinkError;
use crate::net::bypass::Expected;
use crate::plan::{Call, Plan};
use crate::proxy::ProxyEnd;
use oxccl_device::gpu::Wait;
use oxccl_device::traffic::Traffic;
use oxccl_shared::abi::{Protocol, Rank};
use oxccl_shared::reduce::Resolved;
use std::sync::Arc;
use std::time::Duration;

/// A collective that begins.
pub(crate) struct Collective<'a> {
    pub call: &'a Call,
    pub plan: &'a Plan,
    pub operator: &'a Resolved,
    pub tag: u32,
}

/// What one message is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NetMessage {
    pub is_send: bool,
    pub peer: Rank,
    pub len_bytes: usize,
    pub protocol: Protocol,
    pub tag: u32,
}

/// Why a drive cannot go on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DriveFailure {
    /// The rank at the other end.
    pub peer: Rank,
    /// The network failed under the connection: somebody else may know better why.
    pub is_of_network: bool,
    /// The two ends do not do the same.
    pub is_mismatch: bool,
    /// In words.
    pub error: LinkError,
}

/// Connections of one kind: told of every operation before it runs, driven by whoever waits. Nothing allocates in an operation, but for the connections that it is
/// the first to need.
///
/// Long slots of such connections may stand for the user's memory; see [`super::lend`].
pub(crate) trait Drive: Send {
    /// Takes a connection that an operation needs and that was not there, if it is of its kind. It allocates.
    fn add_connection(&mut self, _end: &mut Option<ProxyEnd>) {}

    /// A collective begins; the user's memory may be [lent](Self::lend) until [`Self::end`].
    fn begin_collective(&mut self, _collective: &Collective<'_>) {}

    /// A group of messages begins, whose members have been [named](Self::message); memory as for collectives.
    fn begin_messages(&mut self) {}

    /// A message of the next group, or of the one under way, which it joins.
    fn message(&mut self, _message: NetMessage) {}

    /// A message from `peer` will come, whose bytes may go straight to where it says.
    ///
    /// # Safety
    /// 1. Until the message is over the bytes are writable, and nobody accesses those of slots that are not yet published. A group
    ///    that is given up is followed by no [`Self::drive`].
    /// 2. Whoever empties a counted slot of it asks [`Self::take_arrived`] first.
    unsafe fn expect(&mut self, _peer: Rank, _message: Expected) {}

    /// The operation is over: everything has left and has been taken.
    fn end(&mut self) {}

    /// Whether kernels flush its connections and may lend to it.
    fn has_slots(&self) -> bool {
        true
    }

    /// Has the counted slot at `slot` stand for `len_bytes` at `body`, if it is one of these connections'. Whether it does.
    ///
    /// # Safety
    /// 1. The slot is empty, and is published next with a length of `len_bytes`.
    /// 2. From the next [`Self::drive`] or [`Self::return_loans`] until the operation has been flushed or the bytes returned, they
    ///    are readable and nobody writes them. An operation that is not flushed is followed by no [`Self::drive`].
    unsafe fn lend(&mut self, _slot: *mut u8, _body: *const u8, _len_bytes: usize) -> bool {
        false
    }

    /// Where the bytes of the slot at `slot` are, if it is lent.
    fn lent(&mut self, _slot: *const u8) -> Option<*const u8> {
        None
    }

    /// Call before writing `len_bytes` at `start`: what is lent of them and has not left is copied into its slots.
    fn return_loans(&mut self, _start: *const u8, _len_bytes: usize) {}

    /// Where the bytes of the full counted slot at `slot` are, if they are not in it. To be asked once for a slot.
    fn take_arrived(&mut self, _slot: *const u8) -> Option<*mut u8> {
        None
    }

    /// Moves what can be moved without waiting, while the kernel waits `on` something. Returns how much.
    fn drive(&mut self, on: Wait) -> usize;

    /// The failure that matters to who waits `on` something, if there is one.
    fn failure(&mut self, on: Wait) -> Option<DriveFailure>;

    /// What a wait that has lasted too long waits for, if it is none of the ranks.
    fn beyond(&mut self, _on: Wait, _limit: Duration) -> Option<LinkError> {
        None
    }

    /// Whether slots to or from the rank may be those of a network, which the rank itself does not count.
    fn stands_for(&self, _peer: Rank) -> bool {
        false
    }

    /// Whether a wait for the rank in the collective under way is one for a network that reduces.
    fn is_meant_by(&self, _peer: Rank) -> bool {
        false
    }

    /// Of a network that reduces: the rank that stands for it, and what goes to it and comes from it.
    fn reduction(&self) -> Option<(Rank, Arc<Traffic>)> {
        None
    }

    /// What was under way at the failure, for a log.
    fn post_mortem(&self) -> Option<&str> {
        None
    }
}

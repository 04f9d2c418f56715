//! All links of a communicator, in the groups in which operations use them.

use crate::net::bypass::Expected;
use crate::net::stream::{LinkError, StreamRecv, StreamSend};
use oxccl_shared::abi::{Protocol, Rank};

/// The streams of one channel (or of the mesh).
#[derive(Default)]
pub struct LinkGroup {
    /// To consumers on other hosts.
    pub send: Vec<StreamSend<'static>>,
    /// From producers on other hosts.
    pub recv: Vec<StreamRecv<'static>>,
}

/// The streams of a communicator. Only those of the operation under way are looked at: each look is a system call.
#[derive(Default)]
pub struct Links {
    groups: Vec<LinkGroup>,
    active: usize,
    protocol: Option<Protocol>,
    failed: Option<LinkError>,
}

impl Links {
    /// Groups in the order in which [`Self::begin`] numbers them.
    pub fn new(groups: Vec<LinkGroup>) -> Links {
        let has_any = groups.iter().any(|group| !group.send.is_empty() || !group.recv.is_empty());
        Links { groups: if has_any { groups } else { Vec::new() }, ..Links::default() }
    }

    /// Whether there is no link at all.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// An operation starts on `group`; its slots are filled under `protocol`. What was sent before has been flushed.
    #[inline]
    pub fn begin(&mut self, group: usize, protocol: Protocol) {
        // Only an operation that a panic ended has left any.
        self.sends().iter_mut().for_each(StreamSend::forget_loans);
        self.recvs().iter_mut().for_each(StreamRecv::forget_arrivals);
        self.active = group;
        self.protocol = Some(protocol);
    }

    fn sends(&mut self) -> &mut [StreamSend<'static>] {
        self.groups.get_mut(self.active).map_or(&mut [], |group| &mut group.send)
    }

    fn recvs(&mut self) -> &mut [StreamRecv<'static>] {
        self.groups.get_mut(self.active).map_or(&mut [], |group| &mut group.recv)
    }

    /// A message from `peer` will come in this operation, whose bytes may go straight to where it says.
    ///
    /// # Safety
    /// 1. Until it is over the bytes are writable, and nobody accesses those of slots that are not yet published. An operation
    ///    that is given up is followed by no `do_work` but after [`Self::begin`].
    /// 2. Whoever empties a Simple slot of it asks [`Self::take_arrived`] first.
    pub(crate) unsafe fn expect(&mut self, peer: Rank, message: Expected) {
        if let Some(link) = self.recvs().iter_mut().find(|link| link.peer() == peer) {
            // SAFETY: the same obligations; `begin` ends what is expected.
            unsafe { link.expect(message) };
        }
    }

    /// Where the bytes of the full Simple slot at `slot` are, if they are not in it. To be asked once for a slot.
    pub(crate) fn take_arrived(&mut self, slot: *const u8) -> Option<*mut u8> {
        self.recvs().iter_mut().find_map(|link| link.take_arrived(slot))
    }

    /// Has the slot at `slot` stand for `len_bytes` at `body`, if it is a Simple slot of a stream of this operation. Whether
    /// it is.
    ///
    /// # Safety
    /// 1. The slot is empty, and is published next with a length of `len_bytes`.
    /// 2. From the next [`Self::do_work`] or [`Self::return_loans`] until the operation has been flushed or the bytes returned,
    ///    they are readable and nobody writes them. An operation that is not flushed is followed by no `do_work` but after
    ///    [`Self::begin`].
    pub unsafe fn lend(&mut self, slot: *mut u8, body: *const u8, len_bytes: usize) -> bool {
        // SAFETY: obligation 1; the link is idle when it has been flushed, and `begin` ends loans.
        self.sends().iter_mut().any(|link| unsafe { link.lend(slot, body, len_bytes) })
    }

    /// Where the bytes of the slot at `slot` are, if it is lent.
    pub fn lent(&mut self, slot: *const u8) -> Option<*const u8> {
        self.sends().iter().find_map(|link| link.lent(slot))
    }

    /// Call before writing `len_bytes` at `start`: what is lent of them and has not left is copied into its slots.
    pub fn return_loans(&mut self, start: *const u8, len_bytes: usize) {
        let memory = start.addr()..start.addr() + len_bytes;
        self.sends().iter_mut().for_each(|link| link.return_loans(memory.clone()));
    }

    /// Moves what can be moved without waiting. Returns bytes moved. If the link to or from `awaited`, whom the kernel waits for, is
    /// found broken, [`Self::failure`] says so until the next call; another link's failure is found when that one is waited for: its
    /// data may all have come.
    pub fn do_work(&mut self, awaited: Rank) -> usize {
        let (Some(group), Some(protocol)) = (self.groups.get_mut(self.active), self.protocol) else {
            return 0;
        };
        let mut moved = 0;
        let mut failed = None;
        let mut note = |peer: Rank, result: Result<usize, LinkError>| match result {
            Ok(bytes) => moved += bytes,
            Err(error) if peer == awaited => failed = Some(error),
            Err(_) => {}
        };
        for link in &mut group.send {
            note(link.peer(), link.progress(protocol));
        }
        for link in &mut group.recv {
            note(link.peer(), link.progress());
        }
        self.failed = failed;
        moved
    }

    /// What the last [`Self::do_work`] found broken.
    pub fn failure(&self) -> Option<LinkError> {
        self.failed
    }
}

//! Messages between ranks, as kernels on the caller's thread.

use super::state::{Cpu, CpuParts};
use crate::launch::{Channel, LendingBlock, Message, NetMessage, WaitContext};
use crate::net::bypass::{BYPASS_MIN_BYTES, Expected};
use oxccl_device::coll::{P2pWork, send_recv};
use oxccl_device::conn::RecvConn;
use oxccl_device::gpu::Stop;
use oxccl_shared::abi::{DataType, RedOp, Step};
use oxccl_shared::proto;
use oxccl_shared::reduce;

impl Cpu {
    /// # Safety
    /// 1. As [`Machine::messages`](crate::launch::Machine::messages).
    pub(super) unsafe fn run_messages(&mut self, messages: &[(Message, u32)]) -> Result<(), Stop> {
        self.works.clear();
        // SAFETY: obligation 1.
        unsafe { TakesBack(self).0.transfer(messages) }
    }

    /// # Safety
    /// 1. As [`Machine::messages`](crate::launch::Machine::messages).
    unsafe fn transfer(&mut self, messages: &[(Message, u32)]) -> Result<(), Stop> {
        if self.parts.wait.drives().is_empty() && self.queue.running_that_joins().is_none() {
            // SAFETY: obligation 1.
            return unsafe { self.transfer_in_memory(messages) };
        }
        for (message, tag) in messages {
            let work = self.work_of(message, *tag);
            self.works.push(work);
        }
        let CpuParts { mesh, wait, memory, .. } = &self.parts;
        wait.drives().each(|drive| drive.begin_messages());
        if let Some(first) = self.queue.running_that_joins() {
            // SAFETY: obligation 1.
            unsafe { self.run_joined(first)? };
        } else {
            let is_worth_it = |work: &P2pWork| !work.is_send && work.len_bytes >= BYPASS_MIN_BYTES;
            if wait.drives().has_slots() && self.works.iter().any(is_worth_it) {
                steps(mesh, &mut self.recv_steps);
                // SAFETY: obligation 1: what is received belongs to the operation until it is over.
                unsafe { expect(wait, mesh, &self.works, &mut self.recv_steps) };
            }
            let operator = reduce::resolve(RedOp::Sum, DataType::U8, 1, 0);
            let block = LendingBlock::new(wait, memory, DataType::U8, &operator);
            // SAFETY: obligation 1; the indices are those of the mesh.
            unsafe { send_recv::run(&block, mesh.view().0, &mut self.works)? };
        }
        self.flush(None)?;
        self.parts.wait.drives().each(|drive| drive.end());
        Ok(())
    }

    /// The same where no network is driven: what can be moved at once is, and only the rest is listed.
    ///
    /// # Safety
    /// 1. As [`Machine::messages`](crate::launch::Machine::messages).
    unsafe fn transfer_in_memory(&mut self, messages: &[(Message, u32)]) -> Result<(), Stop> {
        let CpuParts { mesh, wait, memory, .. } = &self.parts;
        let operator = reduce::resolve(RedOp::Sum, DataType::U8, 1, 0);
        let block = LendingBlock::new(wait, memory, DataType::U8, &operator);
        let conns = mesh.view().0;
        for (message, tag) in messages {
            let mut work = self.work_of(message, *tag);
            let is_behind = self.works.iter().any(|w| w.conn == work.conn && w.is_send == work.is_send);
            // SAFETY: obligation 1; the indices are those of the mesh.
            if is_behind || !unsafe { send_recv::at_once(&block, conns, &mut work)? } {
                self.works.push(work);
            }
        }
        // SAFETY: obligation 1; the indices are those of the mesh.
        unsafe { send_recv::run(&block, conns, &mut self.works) }
    }

    /// A message as kernels take it.
    #[inline]
    pub(super) fn work_of(&self, message: &Message, tag: u32) -> P2pWork {
        let Message { is_send, peer, buffer, len_bytes, .. } = *message;
        let table = if is_send { &self.parts.send_to } else { &self.parts.recv_from };
        let conn = table[peer.index()];
        let protocol = self.message_protocol;
        debug_assert_eq!(protocol, self.parts.facts.message_protocol(len_bytes as u64));
        let message = NetMessage { is_send, peer, len_bytes, protocol, tag };
        self.parts.wait.drives().each(|drive| drive.message(message));
        P2pWork::new(is_send, conn, protocol, (buffer, len_bytes), tag)
    }
}

/// However messages end: receivers no longer read what was offered to them.
struct TakesBack<'a>(&'a mut Cpu);

impl Drop for TakesBack<'_> {
    fn drop(&mut self) {
        let Cpu { parts: CpuParts { mesh, .. }, works, .. } = &mut *self.0;
        send_recv::withdraw(mesh.view().0, works);
    }
}

/// By connection, the first step of what is received next, before any message.
pub(super) fn steps(mesh: &Channel, steps: &mut Vec<Step>) {
    steps.clear();
    steps.extend(mesh.recv.iter().map(RecvConn::step));
}

/// Announces the next messages to all drives, which may receive them in the user's memory.
///
/// # Safety
/// 1. Each received message's buffer is writable for its length and used by nobody else until the operation is over.
pub(super) unsafe fn expect(wait: &WaitContext, mesh: &Channel, works: &[P2pWork], steps: &mut [Step]) {
    for work in works.iter().filter(|work| !work.is_send) {
        let (conn, first) = (&mesh.recv[work.conn as usize], &mut steps[work.conn as usize]);
        let message = Expected { first: *first, dst: work.buffer, len_bytes: work.len_bytes, tag: work.tag };
        let slots = work.len_bytes.div_ceil(proto::payload_bytes(work.protocol, conn.layout())).max(1);
        *first = Step(first.0 + slots as u64);
        if work.protocol.is_flagged() {
            continue;
        }
        // SAFETY: obligation 1; only `LendingBlock` empties slots of messages, and it calls `take_arrived`. After an operation that
        // fails or panics nothing is driven.
        wait.drives().each(|drive| unsafe { drive.expect(conn.peer(), message) });
    }
}

//! Messages of several operations in flight, which progress together: a send does not wait for a receive that was started before it.

use super::messages::{expect, steps};
use super::state::{Cpu, CpuParts, Open};
use crate::launch::{LendingBlock, message_tag, messages_of};
use crate::proxy::ORDERS_OPEN_MAX;
use oxccl_device::coll::{P2pWork, send_recv};
use oxccl_device::gpu::cpu::Waiter;
use oxccl_device::gpu::{Awaited, Stop, Wait};
use oxccl_shared::abi::{DataType, RedOp};
use oxccl_shared::reduce;

/// Most messages from the oldest under way to the newest: what a proxy has room for. Operations beyond wait for the oldest.
const MESSAGES_OPEN_MAX: usize = ORDERS_OPEN_MAX - 64;

impl Cpu {
    /// Carries the messages of the operation `first`, and of those that are started before all are done.
    ///
    /// # Safety
    /// 1. As [`Machine::messages`](crate::launch::Machine::messages), for each of them until its operation is over.
    pub(super) unsafe fn run_joined(&mut self, first: u32) -> Result<(), Stop> {
        let CpuParts { mesh, wait, .. } = &self.parts;
        if wait.drives().has_slots() {
            steps(mesh, &mut self.recv_steps);
            // SAFETY: obligation 1: what is received belongs to its operation until that is over.
            unsafe { expect(wait, mesh, &self.works, &mut self.recv_steps) };
        }
        let mut joined = self.works.len();
        self.open.clear();
        // The executor has recorded the first operation, each of whose calls is one message to another rank.
        let recorded = wait.health().recorder().next();
        let records = recorded - joined as u64..recorded;
        self.open.push(Open { slot: first, works: joined, first: 0, records });
        let operator = reduce::resolve(RedOp::Sum, DataType::U8, 1, 0);
        let mut polls = 0u32;
        loop {
            // SAFETY: obligation 1.
            unsafe { self.join(&mut joined)? };
            let CpuParts { mesh, wait, memory, .. } = &self.parts;
            let block = LendingBlock::new(wait, memory, DataType::U8, &operator);
            // SAFETY: obligation 1; the indices are those of the mesh.
            let swept = unsafe { send_recv::sweep(&block, mesh.view().0, &mut self.works)? };
            let undrained = self.close();
            match swept.waits.or(undrained) {
                _ if self.open.is_empty() && self.queue.next_joins().is_none() => return Ok(()),
                Some(on) if !swept.moved => {
                    polls = polls.saturating_add(1);
                    self.parts.wait.wait(on, polls)?;
                }
                _ => polls = 0,
            }
        }
    }

    /// Adds the messages of operations that have been started meanwhile.
    ///
    /// # Safety
    /// 1. As [`Self::run_joined`].
    unsafe fn join(&mut self, joined: &mut usize) -> Result<(), Stop> {
        while let Some(count) = self.queue.next_joins() {
            let oldest = self.open.first().map_or(*joined, |open| open.first);
            let is_full =
                self.parts.wait.drives().has_slots() && *joined + count - oldest > MESSAGES_OPEN_MAX;
            if is_full && !self.open.is_empty() {
                return Ok(());
            }
            let Some((slot, calls)) = self.queue.join_next() else { return Ok(()) };
            let (rank, nranks, before) = (self.parts.rank, self.parts.facts.nranks, self.works.len());
            let recorded = self.parts.wait.health().recorder().next();
            for raw in &calls {
                self.connect_for_messages(raw).map_err(|_| Stop)?;
                self.parts.wait.begin_message(&raw.call);
                let tag = message_tag(&raw.call);
                messages_of(raw, rank, nranks, |message| {
                    let work = self.work_of(&message, tag);
                    self.works.push(work);
                });
            }
            self.parts.wait.health().note_begun(calls.len());
            let CpuParts { mesh, wait, .. } = &self.parts;
            if wait.drives().has_slots() {
                // SAFETY: obligation 1.
                unsafe { expect(wait, mesh, &self.works[before..], &mut self.recv_steps) };
            }
            let records = recorded..wait.health().recorder().next();
            let works = self.works.len() - before;
            self.open.push(Open { slot, works, first: *joined, records });
            *joined += calls.len();
            self.queue.recycle(calls);
        }
        Ok(())
    }

    /// Ends the operations whose messages are done. Returns what the first waits for whose messages are done but for the network, which
    /// still has some of the user's memory.
    fn close(&mut self) -> Option<Wait> {
        let (mut start, mut at, mut waits) = (0, 0, None);
        while let Some(Open { slot, works, .. }) = self.open.get(at) {
            let (slot, end) = (*slot, start + works);
            let own = &self.works[start..end];
            let undrained = own.iter().find(|work| self.is_undrained(work));
            if !own.iter().all(|work| work.finished) || undrained.is_some() {
                let peer = undrained.map(|work| self.parts.mesh.send[work.conn as usize].peer());
                waits = waits.or(peer.map(|peer| Wait { peer, what: Awaited::Credit }));
                (start, at) = (end, at + 1);
                continue;
            }
            self.works.drain(start..end);
            let Open { records, .. } = self.open.remove(at);
            self.parts.wait.health().recorder().end_of(records);
            self.queue.end(slot);
        }
        waits
    }

    /// Whether the network may still read what the message sent.
    fn is_undrained(&self, work: &P2pWork) -> bool {
        let sends = &self.parts.mesh.send;
        work.is_send
            && sends.get(work.conn as usize).is_some_and(|conn| conn.is_streamed && !conn.is_drained())
    }
}

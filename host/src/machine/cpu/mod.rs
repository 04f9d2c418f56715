//! Layer: host / machine / cpu.
//! Takes: calls, the connections of a rank on CPUs.
//! Gives: [`Cpu`], which runs kernels on the caller's thread and returns when they are complete.
//! Never: chooses algorithms (`plan` did), creates connections (`connect` does).
//!
//! A group over several communicators of one thread gives each a fiber (`fiber`), and a waiting kernel yields the
//! thread to the next: ranks that share a thread cannot deadlock each other. Operations that were started, and are not waited for
//! yet, have one fiber for each communicator (`in_flight`), which any wait of the thread resumes.

mod fiber;
mod queue;
mod far;
mod pair;
mod exchange;
mod reading;
mod joined;
mod in_flight;

use crate::launch::{
    Behind, Channel, Collective, CustomAlgorithm, CustomCut, EngineCell, Fault, GroupMachine, Health, Job,
    LendingBlock, Machine, Message, NetMessage, RawCall, RawQueue, RunError, WaitContext,
};
use crate::mem::Segment;
use crate::net::bypass::{BYPASS_MIN_BYTES, Expected};
use crate::plan::tuning::Explanation;
use crate::plan::{Call, CallPlan, CallRecord, Facts, Forced, Plan};
use crate::tuner::Tuner;
use joined::Open;
use oxccl_device::coll::{self, CollWork, Offered, P2pWork, Received, send_recv};
use oxccl_device::conn::RecvConn;
use oxccl_device::custom::Mesh;
use oxccl_device::gpu::Stop;
use oxccl_shared::abi::{Algorithm, DataType, Rank, RedOp, Step};
use oxccl_shared::algo::registry::spec_of;
use oxccl_shared::proto;
use oxccl_shared::reduce::{self, Resolved};
use queue::Queue;
use std::io;
use std::sync::Arc;

pub use far::{Far, FarConnector, FarEnds, FarNeed, FarRefused, NOT_MADE};
pub use fiber::GROUP_COMMUNICATORS_MAX;
pub use in_flight::{Flights, InFlight};
pub use queue::{Failure, IN_FLIGHT_MAX, Over, Owner, Ticket};

/// The parts that `connect` and `transport` create at init.
pub struct CpuParts {
    /// This rank.
    pub rank: Rank,
    /// Facts for plans.
    pub facts: Facts,
    /// A plugin that chooses with them, or none.
    pub tuner: Tuner,
    /// Algorithms from outside the library, used before its own.
    pub custom: Vec<CustomAlgorithm>,
    /// Channels for rings and trees.
    pub channels: Vec<Channel>,
    /// Connections to every peer, for direct algorithms, send and receive.
    pub mesh: Channel,
    /// Index into `mesh.conns.send` by rank; unused for ourselves, [`NOT_MADE`] where there is none yet.
    pub send_to: Vec<u16>,
    /// Index into `mesh.conns.recv` by rank; in the same way.
    pub recv_from: Vec<u16>,
    /// The wait loop.
    pub wait: WaitContext,
    /// Memory of the connections.
    pub memory: Vec<Arc<Segment>>,
    /// What makes connections to other hosts when an operation first needs them.
    pub far: Option<Far>,
}

/// A rank's kernels on the caller's thread.
pub struct Cpu {
    parts: CpuParts,
    /// Messages of the current operation; its capacity is kept.
    works: Vec<P2pWork>,
    /// By connection of the mesh: the first step of the next message.
    recv_steps: Vec<Step>,
    /// Operations in flight, which messages may join.
    queue: Arc<Queue>,
    /// Of the messages under way, those of each operation in flight.
    open: Vec<Open>,
}

// SAFETY: the raw pointers are those of the current operation, which runs on the thread that has the machine.
unsafe impl Send for Cpu {}

impl Machine for Cpu {
    type Flight = InFlight;
    const RETURNS_DONE: bool = true;

    fn flight(&self) -> InFlight {
        InFlight::new(self.parts.rank, self.health().clone(), self.queue.clone())
    }

    fn rank(&self) -> Rank {
        self.parts.rank
    }

    fn nranks(&self) -> u32 {
        self.parts.facts.nranks
    }

    fn health(&self) -> &Arc<Health> {
        self.parts.wait.health()
    }

    fn explain(&self, call: &Call) -> Explanation {
        self.parts.tuner.explain(&self.parts.facts, call)
    }

    fn facts(&self) -> &Facts {
        &self.parts.facts
    }

    fn plan(&self, call: &Call, forced: Option<Forced>) -> CallPlan {
        self.parts.tuner.plan(&self.parts.facts, call, forced)
    }

    #[inline]
    fn connect_for(&mut self, calls: &[RawCall], plans: &[CallPlan]) -> Result<(), RunError> {
        if self.parts.far.is_some() { self.connect_far(calls, plans) } else { Ok(()) }
    }

    #[inline]
    unsafe fn within(
        &mut self,
        queues: &[RawQueue],
        _plans: &[CallPlan],
        body: impl FnOnce(&mut Self) -> Result<(), RunError>,
    ) -> Result<(), RunError> {
        let fiber = queues[0];
        if !fiber.is_null() {
            self.parts.wait.enter_fiber(fiber.cast());
        }
        let guarded = FailsIfUnwound(self);
        let ran = body(guarded.0);
        let wait = &guarded.0.parts.wait;
        wait.leave_fiber();
        if ran.is_ok() {
            wait.end();
        }
        std::mem::forget(guarded);
        ran
    }

    #[inline]
    fn begins(&mut self, record: &CallRecord) {
        self.parts.wait.begin(record);
        self.parts.wait.health().begin_traffic();
    }

    unsafe fn collective(
        &mut self,
        raw: &RawCall,
        plan: &Plan,
        tag: u32,
        _queue: RawQueue,
    ) -> Result<(), RunError> {
        let ran = if self.is_brief_pair(raw, plan) {
            // SAFETY: (1) obligation 2; (2) as asked.
            unsafe { self.run_brief_pair(raw, plan, tag) }
        } else {
            // SAFETY: (1) obligation 2.
            unsafe { self.run_read_or_collective(raw, plan, tag) }
        };
        ran.map_err(|Stop| self.stopped())
    }

    unsafe fn copy(
        &mut self,
        from: *const u8,
        to: *mut u8,
        len_bytes: usize,
        _queue: RawQueue,
    ) -> Result<(), RunError> {
        // SAFETY: obligation 1.
        unsafe { std::ptr::copy(from, to, len_bytes) };
        Ok(())
    }

    unsafe fn messages(&mut self, messages: &[(Message, u32)], _queue: RawQueue) -> Result<(), RunError> {
        // SAFETY: (1) obligation 1.
        let ran = match unsafe { self.exchange(messages) } {
            // SAFETY: (1) obligation 1: nothing has been done.
            Ok(false) => unsafe { self.run_messages(messages) },
            ran => ran.map(drop),
        };
        ran.map_err(|Stop| self.stopped())
    }

    fn own_messages_differ(&mut self) -> RunError {
        self.parts.wait.fail(Fault::SelfMessages);
        self.stopped()
    }
}

impl GroupMachine for Cpu {
    const GROUP_MAX: usize = GROUP_COMMUNICATORS_MAX;

    unsafe fn run_together(jobs: &mut [Job<'_, Cpu>]) -> io::Result<()> {
        // SAFETY: obligation 1.
        unsafe { fiber::run_together(jobs) }
    }

    unsafe fn run_behind(jobs: &mut [Behind<'_, Cpu>]) {
        // SAFETY: obligation 1.
        unsafe { in_flight::run_behind(jobs) };
    }

    fn settle(cell: &Arc<EngineCell<Cpu>>, at_once: bool) -> bool {
        Flights(cell).settle(at_once)
    }
}

impl Cpu {
    /// A machine over finished connections.
    pub fn new(mut parts: CpuParts) -> Cpu {
        for channel in parts.channels.iter_mut().chain([&mut parts.mesh]) {
            let of = |peer: Rank| parts.wait.health().traffic().get(peer.index()).cloned();
            channel
                .send
                .iter_mut()
                .for_each(|conn| of(conn.peer()).into_iter().for_each(|t| conn.count_in(t)));
            channel
                .recv
                .iter_mut()
                .for_each(|conn| of(conn.peer()).into_iter().for_each(|t| conn.count_in(t)));
        }
        let messages = 4 * parts.facts.nranks as usize + 64;
        Cpu {
            recv_steps: Vec::with_capacity(parts.mesh.recv.len()),
            parts,
            works: Vec::with_capacity(messages),
            queue: Arc::default(),
            open: Vec::new(),
        }
    }

    /// The cause of a stopped kernel, after reporting it to the other ranks.
    #[cold]
    fn stopped(&self) -> RunError {
        RunError::Stopped(self.parts.wait.give_up())
    }

    /// Waits until the network has taken everything of a channel, or of the mesh, before the next operation may use another
    /// protocol.
    fn flush(&mut self, channel: Option<u32>) -> Result<(), Stop> {
        let CpuParts { channels, mesh, wait, .. } = &mut self.parts;
        if !wait.drives().has_slots() {
            return Ok(());
        }
        let channel = channel.map_or(mesh, |channel| &mut channels[channel as usize]);
        channel.send.iter().filter(|conn| conn.is_streamed).try_for_each(|conn| wait.flush(conn))
    }

    /// # Safety
    /// 1. As [`Machine::collective`]'s second.
    #[inline]
    unsafe fn run_read_or_collective(&mut self, raw: &RawCall, plan: &Plan, tag: u32) -> Result<(), Stop> {
        // SAFETY: (1) obligation 1; (2) as asked.
        if self.is_read_pair(raw, plan) && unsafe { self.run_read_pair(raw, tag)? } {
            return Ok(());
        }
        // SAFETY: obligation 1.
        unsafe { self.run_collective(raw, plan, tag) }
    }

    /// # Safety
    /// 1. As [`Machine::collective`]'s second.
    #[inline]
    unsafe fn run_collective(&mut self, raw: &RawCall, plan: &Plan, tag: u32) -> Result<(), Stop> {
        let facts = &self.parts.facts;
        let plan_of = |custom: &CustomAlgorithm| custom.plan(&raw.call, facts.nranks, &facts.forced, true);
        let customs = if raw.forced.is_some() { &[] } else { &self.parts.custom[..] };
        let custom = customs.iter().position(|custom| plan_of(custom).is_some());
        if let Some(index) = custom {
            // SAFETY: obligation 1.
            return unsafe { self.run_custom(index, raw, tag) };
        }
        let mut stand_in = [0u8; 2];
        let raw = &standing_for(raw, plan, &mut stand_in);
        let Call { func, dtype, op, root, count } = raw.call;
        let nranks = self.parts.facts.nranks;
        let op = if func.is_reduction() { op } else { RedOp::Sum };
        let operator = reduce::resolve(op, dtype, nranks, raw.scalar_bits);
        let mut work = CollWork {
            func,
            algorithm: plan.algorithm,
            protocol: plan.protocol,
            dtype,
            src: raw.send,
            dst: raw.recv,
            count: count as usize,
            part: 0..0,
            chunk_elems: plan.chunk_elems as usize,
            slice_elems: plan.slice_elems as usize,
            grain_elems: plan.grain_elems as usize,
            rank: self.parts.rank,
            nranks,
            root,
            host_ranks: plan.host_ranks,
            tag,
            stream: plan.stream && !raw.is_in_place(self.parts.rank),
        };
        let drives = self.parts.wait.drives();
        let collective = Collective { call: &raw.call, plan, operator: &operator, tag };
        drives.each(|drive| drive.begin_collective(&collective));
        let over_mesh = spec_of(plan.algorithm).connections.is_of_pairs();
        for channel in 0..plan.channels {
            work.part = plan.part(channel);
            let channel = (!over_mesh).then_some(channel);
            // SAFETY: obligation 1.
            unsafe { self.run_channel(channel, &work, &operator)? };
            self.flush(channel)?;
        }
        self.parts.wait.drives().each(|drive| drive.end());
        Ok(())
    }

    /// Runs a call by the algorithm of this index, which offers it.
    ///
    /// # Safety
    /// 1. As [`Machine::collective`]'s second.
    #[cold]
    unsafe fn run_custom(&mut self, index: usize, raw: &RawCall, tag: u32) -> Result<(), Stop> {
        let CpuParts { rank, facts, custom, mesh, send_to, recv_from, wait, memory, .. } = &self.parts;
        let Call { func, dtype, op, root, count } = raw.call;
        let Some(protocol) = custom[index].plan(&raw.call, facts.nranks, &facts.forced, true) else {
            return Ok(());
        };
        let cut = CustomCut::new(&raw.call, protocol, &facts.mesh_layout, false);
        let operator = reduce::resolve(
            if func.is_reduction() { op } else { RedOp::Sum },
            dtype,
            facts.nranks,
            raw.scalar_bits,
        );
        let work = CollWork {
            func,
            algorithm: Algorithm::OneShot,
            protocol,
            dtype,
            src: raw.send,
            dst: raw.recv,
            count: count as usize,
            part: 0..count as usize,
            chunk_elems: cut.slice_elems,
            slice_elems: cut.slice_elems,
            grain_elems: cut.grain_elems,
            rank: *rank,
            nranks: facts.nranks,
            root,
            host_ranks: facts.hosts.ranks_each(),
            tag,
            stream: false,
        };
        let block = LendingBlock::new(wait, memory, dtype, &operator);
        let ways = Mesh::by_rank(*rank, send_to, recv_from);
        // SAFETY: obligation 1; the tables name connections of the mesh.
        unsafe { custom[index].run(&block, mesh.view().0, &ways, &work) }
    }

    /// # Safety
    /// 1. As [`Machine::collective`]'s second, for the call that `work` came from.
    #[inline]
    unsafe fn run_channel(
        &mut self,
        channel: Option<u32>,
        work: &CollWork,
        operator: &Resolved,
    ) -> Result<(), Stop> {
        let CpuParts { channels, mesh, wait, memory, .. } = &mut self.parts;
        let block = LendingBlock::new(wait, memory, work.dtype, operator);
        let channel = channel.map_or(mesh, |channel| &mut channels[channel as usize]);
        let (conns, ends) = channel.view();
        // SAFETY: obligation 1, and `ends` was built for `conns`.
        unsafe { coll::run(&block, conns, &ends, work) }
    }

    /// # Safety
    /// 1. As [`Machine::messages`].
    unsafe fn run_messages(&mut self, messages: &[(Message, u32)]) -> Result<(), Stop> {
        self.works.clear();
        // SAFETY: obligation 1.
        unsafe { TakesBack(self).0.transfer(messages) }
    }

    /// # Safety
    /// 1. As [`Machine::messages`].
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
    /// 1. As [`Machine::messages`].
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
    fn work_of(&self, message: &Message, tag: u32) -> P2pWork {
        let Message { is_send, peer, buffer, len_bytes } = *message;
        let table = if is_send { &self.parts.send_to } else { &self.parts.recv_from };
        let conn = table[peer.index()];
        let protocol = self.parts.facts.message_protocol(len_bytes as u64);
        let message = NetMessage { is_send, peer, len_bytes, protocol, tag };
        self.parts.wait.drives().each(|drive| drive.message(message));
        P2pWork {
            conn,
            is_send,
            protocol,
            buffer,
            len_bytes,
            done_bytes: 0,
            tag,
            finished: false,
            offered: Offered::NotYet,
            received: Received::Kept,
        }
    }
}

/// An operation that is under way. If it panics, slots are half done, and orders of the proxy: the communicator runs no other operation.
/// Catching the panic instead of dropping this costs 40 instructions where there is none.
struct FailsIfUnwound<'a>(&'a mut Cpu);

impl Drop for FailsIfUnwound<'_> {
    #[cold]
    fn drop(&mut self) {
        let wait = &self.0.parts.wait;
        wait.leave_fiber();
        wait.fail(Fault::Panicked);
        wait.give_up();
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

/// The call, or the all-reduce of one byte that is run instead of a barrier.
fn standing_for(raw: &RawCall, plan: &Plan, [send, recv]: &mut [u8; 2]) -> RawCall {
    let is_replaced = plan.func != raw.call.func;
    if is_replaced { RawCall { call: Call::ONE_BYTE, send, recv, ..*raw } } else { *raw }
}

/// By connection, the first step of what is received next, before any message.
fn steps(mesh: &Channel, steps: &mut Vec<Step>) {
    steps.clear();
    steps.extend(mesh.recv.iter().map(RecvConn::step));
}

/// Announces the next messages to all drives, which may receive them in the user's memory.
///
/// # Safety
/// 1. Each received message's buffer is writable for its length and used by nobody else until the operation is over.
unsafe fn expect(wait: &WaitContext, mesh: &Channel, works: &[P2pWork], steps: &mut [Step]) {
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

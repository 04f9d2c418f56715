//! One communicator's executor.

use super::channel::Channel;
use super::health::{Fault, Health, Outstanding};
use super::history::History;
use super::lend::LendingBlock;
use super::messages;
use super::net_links::NetMessage;
use super::wait::WaitContext;
use crate::mem::Segment;
use crate::net::bypass::{BYPASS_MIN_BYTES, Expected};
use crate::plan::{self, Call, Facts, Plan};
use corosensei::Yielder;
use oxccl_device::coll::{self, CollWork, P2pWork};
use oxccl_device::conn::RecvConn;
use oxccl_device::gpu::Stop;
use oxccl_shared::abi::{Algorithm, DataType, Func, Protocol, RedOp, Step};
use oxccl_shared::proto;
use oxccl_shared::reduce::{self, Resolved};
use std::sync::Arc;

/// A call with its buffers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawCall {
    pub call: Call,
    /// Input; unused where this rank has none.
    pub send: *const u8,
    /// Output; unused where this rank has none.
    pub recv: *mut u8,
    /// The scalar of a pre-multiplied sum, one element in the low bytes.
    pub scalar_bits: u64,
}

impl RawCall {
    /// Whether output and input share memory, as far as the function allows.
    fn is_in_place(&self, rank: u32) -> bool {
        let block = rank as usize * self.call.bytes() as usize;
        let (send, recv) = (self.send.addr(), self.recv.addr());
        match self.call.func {
            Func::AllGather => send == recv.wrapping_add(block),
            Func::ReduceScatter => recv == send.wrapping_add(block),
            _ => send == recv,
        }
    }
}

/// The mesh's links are group 0 of [`crate::proxy::Links`], channel c's are group c + 1.
const MESH_LINKS: usize = 0;

/// What `channel` and `transport` make at init.
pub struct EngineParts {
    /// This rank.
    pub rank: u32,
    /// What plans depend on.
    pub facts: Facts,
    /// Channels for rings and trees.
    pub channels: Vec<Channel>,
    /// Connections to every peer, for direct algorithms, send and receive.
    pub mesh: Channel,
    /// Index into `mesh.conns.send` by rank; unused for ourselves.
    pub send_to: Vec<u16>,
    /// Index into `mesh.conns.recv` by rank; unused for ourselves.
    pub recv_from: Vec<u16>,
    /// How to wait.
    pub wait: WaitContext,
    /// What the connections lie in.
    pub memory: Vec<Arc<Segment>>,
}

/// Runs a communicator's operations on the caller's thread.
pub struct Engine {
    parts: EngineParts,
    history: History,
    /// Messages of the operation under way; its capacity is kept.
    works: Vec<P2pWork>,
    /// Messages to ourselves: send and receive buffers, in order.
    self_sends: Vec<(*const u8, usize)>,
    self_recvs: Vec<(*mut u8, usize)>,
    /// By connection of the mesh: the step at which the next message from there begins.
    recv_steps: Vec<Step>,
}

// SAFETY: the raw pointers are those of the operation under way, which runs on the thread that has the engine.
unsafe impl Send for Engine {}

impl Engine {
    /// An executor over finished connections.
    pub fn new(parts: EngineParts) -> Engine {
        let messages = 4 * parts.facts.nranks as usize + 64;
        Engine {
            recv_steps: Vec::with_capacity(parts.mesh.recv.len()),
            parts,
            history: History::default(),
            works: Vec::with_capacity(messages),
            self_sends: Vec::with_capacity(messages),
            self_recvs: Vec::with_capacity(messages),
        }
    }

    /// The communicator's health.
    pub fn health(&self) -> &Arc<Health> {
        self.parts.wait.health()
    }

    /// What plans depend on.
    pub fn facts(&self) -> &Facts {
        &self.parts.facts
    }

    /// Runs `calls`: collectives in order, then all messages at once.
    ///
    /// # Errors
    /// The communicator's fault, if there is one by the end; what the buffers then hold is undefined.
    ///
    /// # Safety
    /// 1. Each call's buffers are valid for what its function reads and writes, and overlap only as `CollWork` allows.
    pub(crate) unsafe fn run(&mut self, calls: &[RawCall]) -> Result<(), Outstanding> {
        // A fiber that a panic unwound may have left its mark.
        self.parts.wait.leave_fiber();
        // SAFETY: obligation 1.
        unsafe { self.run_here(calls) }
    }

    /// # Safety
    /// 1. As [`Self::run`].
    unsafe fn run_here(&mut self, calls: &[RawCall]) -> Result<(), Outstanding> {
        if let Some(fault) = self.health().fault() {
            return Err(fault);
        }
        // SAFETY: obligation 1.
        let ran = unsafe { self.run_calls(calls) };
        match ran {
            Ok(()) => {
                self.parts.wait.end();
                Ok(())
            }
            Err(Stop) => Err(self.parts.wait.give_up()),
        }
    }

    /// As [`Self::run`], with waits yielding the fiber.
    ///
    /// # Safety
    /// 1. As [`Self::run`].
    pub(crate) unsafe fn run_in_fiber(
        &mut self,
        yielder: &Yielder<(), ()>,
        calls: &[RawCall],
    ) -> Result<(), Outstanding> {
        self.parts.wait.enter_fiber(yielder);
        // SAFETY: obligation 1.
        let result = unsafe { self.run_here(calls) };
        self.parts.wait.leave_fiber();
        result
    }

    /// # Safety
    /// 1. As [`Self::run`].
    unsafe fn run_calls(&mut self, calls: &[RawCall]) -> Result<(), Stop> {
        let mut has_messages = false;
        for raw in calls {
            match raw.call.func {
                Func::Send | Func::Recv | Func::AllToAll | Func::Gather | Func::Scatter => {
                    has_messages = true
                }
                // SAFETY: obligation 1.
                _ => unsafe { self.collective(raw)? },
            }
        }
        // SAFETY: obligation 1.
        if has_messages { unsafe { self.messages(calls) } } else { Ok(()) }
    }

    /// Waits until the network has everything. Each channel is flushed before the next operation may use another protocol.
    fn flush(&mut self) -> Result<(), Stop> {
        let EngineParts { channels, mesh, wait, .. } = &mut self.parts;
        if wait.links().borrow().is_empty() && wait.net_links().is_none() {
            return Ok(());
        }
        let active = wait.links().borrow().active();
        let channel = if active == MESH_LINKS { mesh } else { &channels[active - 1] };
        channel.send.iter().filter(|conn| conn.is_streamed).try_for_each(|conn| wait.flush(conn))
    }

    fn begin(&mut self, call: &Call) {
        let record = self.history.begin(call, self.parts.wait.health());
        self.parts.wait.begin(&record);
    }

    /// # Safety
    /// 1. As [`Self::run`].
    unsafe fn collective(&mut self, raw: &RawCall) -> Result<(), Stop> {
        self.begin(&raw.call);
        if raw.call.count == 0 && raw.call.func != Func::Barrier {
            return Ok(());
        }
        let Call { func, dtype, op, root, count } = raw.call;
        let plan = plan::plan(&raw.call, &self.parts.facts);
        let nranks = self.parts.facts.nranks;
        let has_operator = matches!(func, Func::AllReduce | Func::ReduceScatter | Func::Reduce);
        let op = if has_operator { op } else { RedOp::Sum };
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
            chunk_elems: plan.chunk_elems,
            slice_elems: plan.slice_elems,
            grain_elems: plan.grain_elems,
            rank: self.parts.rank,
            nranks,
            root,
            tag: self.history.tag(),
            stream: plan.stream && !raw.is_in_place(self.parts.rank),
        };
        match plan.algorithm {
            // Its chains go over no network, and beside the head nobody has one that reduces.
            Algorithm::CollnetChain => {
                if let Some(coll) = &mut *self.parts.wait.coll_links() {
                    coll.begin(dtype, &operator, work.tag);
                }
            }
            _ => {
                if let Some(net) = &mut *self.parts.wait.net_links() {
                    net.collective(&raw.call, &plan, work.tag);
                }
            }
        }
        for channel in 0..plan.channels {
            work.part = plan.part(count, channel);
            // SAFETY: obligation 1.
            unsafe { self.run_channel(&plan, channel, &work, &operator)? };
            self.flush()?;
        }
        Ok(())
    }

    /// # Safety
    /// 1. As [`Self::run`], for the call that `work` came from.
    #[inline]
    unsafe fn run_channel(
        &mut self,
        plan: &Plan,
        channel: u32,
        work: &CollWork,
        operator: &Resolved,
    ) -> Result<(), Stop> {
        let EngineParts { channels, mesh, wait, memory, .. } = &mut self.parts;
        let over_mesh = matches!(plan.algorithm, Algorithm::Direct | Algorithm::CollnetChain);
        let group = if over_mesh { MESH_LINKS } else { 1 + channel as usize };
        wait.links().borrow_mut().begin(group, plan.protocol);
        let block = LendingBlock::new(wait, memory, work.dtype, operator);
        let channel = if over_mesh { mesh } else { &mut channels[channel as usize] };
        let (conns, ends) = channel.view();
        // SAFETY: obligation 1, and `ends` was made for `conns`.
        unsafe { coll::run(&block, conns, &ends, work) }
    }

    /// Everything that is made of messages between pairs, all at once.
    ///
    /// # Safety
    /// 1. As [`Self::run`].
    unsafe fn messages(&mut self, calls: &[RawCall]) -> Result<(), Stop> {
        self.works.clear();
        self.self_sends.clear();
        self.self_recvs.clear();
        for raw in calls {
            self.add_messages(raw);
        }
        // SAFETY: obligation 1.
        unsafe { self.copy_to_self()? };
        let EngineParts { mesh, wait, facts, memory, .. } = &mut self.parts;
        let longest = self.works.iter().map(|w| w.len_bytes).max().unwrap_or(0);
        wait.links().borrow_mut().begin(MESH_LINKS, facts.protocol(longest as u64));
        if let Some(net) = &mut *wait.net_links() {
            net.begin_messages();
        }
        // SAFETY: obligation 1: what is received belongs to the operation until it is over.
        unsafe { expect(wait, mesh, &self.works, &mut self.recv_steps) };
        let operator = reduce::resolve(RedOp::Sum, DataType::U8, 1, 0);
        let block = LendingBlock::new(wait, memory, DataType::U8, &operator).for_messages();
        // SAFETY: obligation 1; the indices are those of the mesh.
        unsafe { coll::send_recv::run(&block, mesh.view().0, &mut self.works)? };
        self.flush()?;
        if let Some(net) = &mut *self.parts.wait.net_links() {
            net.end_messages();
        }
        Ok(())
    }

    /// Splits a call into messages.
    fn add_messages(&mut self, raw: &RawCall) {
        let tag = match raw.call.func {
            Func::Send | Func::Recv => {
                self.parts.wait.begin(&self.history.outside(&raw.call));
                messages::tag(&raw.call)
            }
            Func::AllToAll | Func::Gather | Func::Scatter => {
                self.begin(&raw.call);
                self.history.tag()
            }
            _ => return,
        };
        let (me, n) = (self.parts.rank, self.parts.facts.nranks);
        messages::split(raw, me, n, |message| {
            self.add_message(message.is_send, message.peer, message.buffer, message.len_bytes, tag);
        });
    }

    fn add_message(&mut self, is_send: bool, peer: u32, buffer: *mut u8, len_bytes: usize, tag: u32) {
        if peer == self.parts.rank {
            if is_send {
                self.self_sends.push((buffer, len_bytes));
            } else {
                self.self_recvs.push((buffer, len_bytes));
            }
            return;
        }
        let table = if is_send { &self.parts.send_to } else { &self.parts.recv_from };
        let conn = table[peer as usize];
        let protocol = self.parts.facts.protocol(len_bytes as u64);
        if let Some(net) = &mut *self.parts.wait.net_links() {
            net.message(NetMessage { is_send, peer, len_bytes, protocol, tag });
        }
        self.works.push(P2pWork {
            conn,
            is_send,
            protocol,
            buffer,
            len_bytes,
            done_bytes: 0,
            tag,
            finished: false,
        });
    }

    /// The k-th send to ourselves goes to the k-th receive from ourselves.
    ///
    /// # Safety
    /// 1. As [`Self::run`].
    unsafe fn copy_to_self(&mut self) -> Result<(), Stop> {
        let unequal = self.self_sends.len() != self.self_recvs.len();
        if unequal || self.self_sends.iter().zip(&self.self_recvs).any(|(s, r)| s.1 != r.1) {
            self.parts.wait.fail(Fault::SelfMessages);
            return Err(Stop);
        }
        for ((src, len), (dst, _)) in self.self_sends.iter().zip(&self.self_recvs) {
            // SAFETY: obligation 1: both are valid for `len`; in place they are the same.
            unsafe { std::ptr::copy(*src, *dst, *len) };
        }
        Ok(())
    }
}

/// Tells links and networks of the messages that are to come, which they may receive where they belong.
///
/// # Safety
/// 1. Each received message's buffer is writable for its length and nobody else's until the operation is over.
unsafe fn expect(wait: &WaitContext, mesh: &Channel, works: &[P2pWork], steps: &mut Vec<Step>) {
    let (links, net) = (&mut *wait.links().borrow_mut(), &mut *wait.net_links());
    let is_worth_it = works.iter().any(|work| !work.is_send && work.len_bytes >= BYPASS_MIN_BYTES);
    if (links.is_empty() && net.is_none()) || !is_worth_it {
        return;
    }
    steps.clear();
    steps.extend(mesh.recv.iter().map(RecvConn::step));
    for work in works.iter().filter(|work| !work.is_send) {
        let (conn, first) = (&mesh.recv[work.conn as usize], &mut steps[work.conn as usize]);
        let message = Expected { first: *first, dst: work.buffer, len_bytes: work.len_bytes, tag: work.tag };
        let slots = work.len_bytes.div_ceil(proto::payload_bytes(work.protocol, conn.layout())).max(1);
        *first = Step(first.0 + slots as u64);
        if work.protocol != Protocol::Simple {
            continue;
        }
        // SAFETY: obligation 1; all that empties slots of messages is `LendingBlock`, which asks. What is given up is followed by
        // `begin` and `begin_messages` before anything is driven.
        unsafe { links.expect(conn.peer(), message) };
        if let Some(net) = net {
            // SAFETY: as above.
            unsafe { net.expect(conn.peer(), message) };
        }
    }
}

//! A communicator's operations, put on streams.

use super::conns::{ConnLists, ConnTables};
use super::driver::{CudaError, Device, Function, HostNode, StreamRef};
use super::exchange::Exchange;
use super::kernels::{DeviceKernels, KernelError};
use super::monitor::Monitor;
use super::net::NetProxy;
use super::order::Order;
use crate::launch::{Health, History, NAP, Outstanding, RawCall, Tell, messages};
use crate::plan::device::{DeviceFacts, DevicePlan, KernelId, message_kernels, plan_device};
use crate::plan::{Call, Forced};
use crate::transport::p2p::Arena;
use oxccl_shared::abi::{
    Algorithm, CollArgs, Func, KERNEL_POST, KERNEL_PRE, KERNEL_TWO_HOPS, KernelColl, KernelLaunch, Protocol,
    RedOp,
};
use oxccl_shared::algo::chunk::ChannelCut;
use oxccl_shared::reduce::{self, Resolved};
use std::ffi::c_void;
use std::sync::Arc;
use std::time::{Duration, Instant};
use thiserror::Error;

/// What `channel` makes at init, and what the communicator has.
pub struct DeviceEngineParts {
    /// This rank.
    pub rank: u32,
    /// What plans depend on.
    pub facts: DeviceFacts,
    /// Its GPU.
    pub device: Device,
    /// That GPU's kernels.
    pub kernels: Arc<DeviceKernels>,
    /// Where connections are.
    pub tables: ConnTables,
    /// What connections lie in; nothing for a rank that is alone.
    pub arena: Option<Arena>,
    /// How kernels are stopped.
    pub monitor: Arc<Monitor>,
    /// The communicator's health.
    pub health: Arc<Health>,
    /// How the others hear of a fault.
    pub tell: Arc<dyn Tell + Sync>,
    /// The proxy, where some ranks are reached over a network.
    pub net: Option<NetProxy>,
    /// How long a kernel waits for a peer.
    pub timeout: Duration,
}

/// Why a call was not put on its stream.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum EnqueueError {
    /// The communicator has stopped, or stops now.
    #[error("{0}")]
    Stopped(Outstanding),
    /// There is no kernel for it.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The driver refused it.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

/// Puts a communicator's operations on streams.
pub struct DeviceEngine {
    pub(super) parts: DeviceEngineParts,
    pub(super) order: Order,
    /// Where the graph that was captured last tells the proxy of its latest kernel.
    pub(super) replayed: Option<HostNode>,
    pub(super) history: History,
    /// Kernels that were used, to be found without a lock.
    functions: Vec<(KernelId, Function)>,
    pub(super) exchange: Exchange,
}

// SAFETY: the raw pointers are device addresses of the group being enqueued, which the host never follows.
unsafe impl Send for DeviceEngine {}

impl DeviceEngine {
    /// An engine over finished connections.
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn new(parts: DeviceEngineParts) -> Result<DeviceEngine, CudaError> {
        let monitor = Arc::downgrade(&parts.monitor);
        parts.health.set_alarm(move || monitor.upgrade().iter().for_each(|monitor| monitor.abort()));
        Ok(DeviceEngine {
            order: Order::new(&parts.device)?,
            replayed: None,
            parts,
            history: History::default(),
            functions: Vec::new(),
            exchange: Exchange::default(),
        })
    }

    /// The GPU.
    pub fn device(&self) -> &Device {
        &self.parts.device
    }

    /// What plans depend on.
    pub fn facts(&self) -> &DeviceFacts {
        &self.parts.facts
    }

    /// Loads every kernel that `calls` need. A thread with several communicators does so for all before it enqueues on any: the
    /// driver may make loading wait for kernels that already run.
    ///
    /// # Errors
    /// [`EnqueueError::Kernel`].
    pub(crate) fn prepare(&mut self, calls: &[RawCall]) -> Result<(), EnqueueError> {
        for raw in calls {
            if self.goes_as_messages(raw) {
                let facts = self.parts.facts;
                for (kernel, threads) in message_kernels(&facts).filter(|_| facts.nranks > 1) {
                    self.function(kernel, threads)?;
                }
            } else if let Some(plan) = self.plan(raw) {
                self.function(plan.kernel, plan.threads)?;
            }
        }
        Ok(())
    }

    /// Puts `calls` on `stream`: collectives in order, then all messages. They begin when `others` have come to here too, which go
    /// on when all is done.
    ///
    /// # Errors
    /// The communicator's fault, if there is one by now; what was put on the stream before stays there.
    ///
    /// # Safety
    /// 1. Each call's buffers are memory of this device, valid for what its function reads and writes until the stream has done
    ///    it, and overlap only as `CollWork` allows.
    /// 2. The streams live until then.
    pub(crate) unsafe fn enqueue<'s>(
        &mut self,
        calls: &[RawCall],
        stream: StreamRef<'s>,
        others: impl Iterator<Item = StreamRef<'s>> + Clone,
    ) -> Result<(), EnqueueError> {
        self.check().map_err(EnqueueError::Stopped)?;
        let device = self.parts.device.clone();
        let put = device.bind().map_err(EnqueueError::from).and_then(|_bound| {
            self.prepare(calls)?;
            self.order.enter(stream, others.clone())?;
            // SAFETY: obligations 1 and 2.
            unsafe { self.put(calls, stream)? };
            Ok(self.order.leave(stream, others)?)
        });
        put.map_err(|error| self.stopped_by(error))
    }

    /// # Safety
    /// 1. As [`Self::enqueue`].
    unsafe fn put(&mut self, calls: &[RawCall], stream: StreamRef<'_>) -> Result<(), EnqueueError> {
        for raw in calls {
            if !self.goes_as_messages(raw) {
                // SAFETY: obligation 1.
                unsafe { self.collective(raw, stream)? };
            }
        }
        // SAFETY: obligation 1.
        unsafe { self.all_messages(calls, stream) }
    }

    /// Whether a call is made of messages; short all-to-alls are a kernel of their own.
    pub(super) fn goes_as_messages(&self, raw: &RawCall) -> bool {
        messages::is_made_of_messages(raw.call.func) && !self.parts.facts.is_one_hop_all_to_all(&raw.call)
    }

    /// Whether this call reduces in a way that a copy does not.
    fn operator(&self, raw: &RawCall) -> Resolved {
        let Call { func, dtype, op, .. } = raw.call;
        let reduces = matches!(func, Func::AllReduce | Func::ReduceScatter | Func::Reduce);
        let op = if reduces { op } else { RedOp::Sum };
        reduce::resolve(op, dtype, self.parts.facts.nranks, raw.scalar_bits)
    }

    /// How a collective is carried out; nothing if no kernel is needed.
    fn plan(&self, raw: &RawCall) -> Option<DevicePlan> {
        let facts = &self.parts.facts;
        let call = &raw.call;
        if facts.nranks > 1 {
            return match call.func {
                _ if call.count == 0 && call.func != Func::Barrier => None,
                _ => Some(plan_device(call, facts)),
            };
        }
        let operator = self.operator(raw);
        let changes = (operator.pre || operator.post) && call.count > 0;
        // Alone, the one-hop kernel only takes its own input.
        let forced = Forced::only(Some(Algorithm::Direct), Some(Protocol::Simple));
        let call = Call { func: Func::AllReduce, ..*call };
        changes.then(|| plan_device(&call, &DeviceFacts { forced, ..*facts }))
    }

    pub(super) fn function(&mut self, id: KernelId, threads: u32) -> Result<&Function, KernelError> {
        let known = self.functions.iter().position(|(known, _)| *known == id);
        let at = match known {
            Some(at) => at,
            None => {
                self.functions.push((id, self.parts.kernels.get(id, threads)?));
                self.functions.len() - 1
            }
        };
        Ok(&self.functions[at].1)
    }

    /// # Safety
    /// 1. As [`Self::enqueue`].
    unsafe fn collective(&mut self, raw: &RawCall, stream: StreamRef<'_>) -> Result<(), EnqueueError> {
        self.history.begin(&raw.call, &self.parts.health);
        let Some(plan) = self.plan(raw) else {
            // SAFETY: obligation 1.
            return unsafe { self.copy_own(raw, stream) };
        };
        let mut coll = collective_args(raw, &plan, &self.operator(raw), self.history.tag());
        if raw.call.func == Func::Barrier {
            let scratch: *mut u8 = std::ptr::without_provenance_mut(self.parts.tables.scratch as usize);
            coll = KernelColl { src: scratch, dst: scratch, ..coll };
        }
        let lists = match plan.algorithm {
            // Chains would be of the mesh's connections; no kernel goes along them.
            Algorithm::Direct | Algorithm::CollnetChain => &self.parts.tables.mesh,
            Algorithm::Ring => &self.parts.tables.ring,
            Algorithm::Tree => &self.parts.tables.tree,
        };
        let mut args = CollArgs { launch: self.launch(lists, plan.channels), coll };
        if let Some(net) = &mut self.parts.net {
            net.collective(&coll, &plan);
        }
        let is_told = self.tell_proxy(stream)?;
        let function = self.function(plan.kernel, plan.threads)?;
        let mut params = [(&raw mut args).cast::<c_void>()];
        let (grid, block) = ([plan.channels, 1, 1], [plan.threads, 1, 1]);
        // SAFETY: the entry takes one `CollArgs`; its buffers are valid by obligation 1, and the lists, the monitor and what they
        // point to live until `close` has seen every operation end.
        let launched = unsafe { function.launch(grid, block, 0, stream, &mut params) };
        let launched = launched.map_err(|error| error.in_kernel(function.name()));
        launched.map_err(|error| self.launch_refused(error, is_told, stream))
    }

    /// A collective of a rank that is alone, or of nothing.
    ///
    /// # Safety
    /// 1. As [`Self::enqueue`].
    unsafe fn copy_own(&self, raw: &RawCall, stream: StreamRef<'_>) -> Result<(), EnqueueError> {
        if raw.call.func == Func::Barrier || raw.call.count == 0 {
            return Ok(());
        }
        // SAFETY: obligation 1: with one rank every shape is `count` elements.
        unsafe { copy(raw.send, raw.recv, raw.call.bytes() as usize, stream) }.map_err(EnqueueError::from)
    }

    /// What every kernel is told.
    pub(super) fn launch(&self, lists: &ConnLists, channels: u32) -> KernelLaunch {
        let mut launch = KernelLaunch {
            send: std::ptr::null(),
            recv: std::ptr::null(),
            send_cursors: std::ptr::null_mut(),
            recv_cursors: std::ptr::null_mut(),
            rings: std::ptr::null(),
            trees: std::ptr::null(),
            monitor: self.parts.monitor.address(),
            timeout_ns: u64::try_from(self.parts.timeout.as_nanos()).unwrap_or(u64::MAX),
            nconns: 0,
            nchannels: channels,
            rank: self.parts.rank,
            nranks: self.parts.facts.nranks,
            nmessages: 0,
            reserved: 0,
        };
        lists.fill(&mut launch);
        launch
    }

    /// Whether every operation that was put on a stream has ended, and what it sent over a network has left, if there is time for
    /// that.
    fn is_done(&self, is_overdue: bool) -> bool {
        // An error means that the context is broken: nothing runs any more.
        let has_ended = self.order.is_done().unwrap_or(true);
        // A proxy that was stopped leaves things undone.
        let gives_up = is_overdue || self.parts.health.is_stopped();
        has_ended && (gives_up || self.parts.net.as_ref().is_none_or(NetProxy::is_done))
    }

    /// Ends the engine once every operation is done that was put on a stream. An operation that does not end within the timeout
    /// is aborted.
    pub fn close(mut self, bootstrap: &crate::bootstrap::Bootstrap) {
        let started = Instant::now();
        while !self.is_done(started.elapsed() > self.parts.timeout) {
            if started.elapsed() > self.parts.timeout {
                self.parts.monitor.abort();
            }
            if started.elapsed() > self.parts.timeout.saturating_add(ABORT_TIME) {
                tracing::warn!(rank = self.parts.rank, "operations do not end: their memory is not freed");
                return std::mem::forget(self);
            }
            std::thread::sleep(NAP);
        }
        drop(self.parts.net.take());
        if let Some(arena) = self.parts.arena {
            arena.close(bootstrap);
        }
    }
}

/// How long a kernel may take to see that it is to stop, with what else is on its stream.
const ABORT_TIME: Duration = Duration::from_secs(10);

/// What a collective's kernel is told of it.
pub(crate) fn collective_args(raw: &RawCall, plan: &DevicePlan, operator: &Resolved, tag: u32) -> KernelColl {
    let flag = |set: bool, flag: u32| if set { flag } else { 0 };
    KernelColl {
        src: raw.send,
        dst: raw.recv,
        cut: ChannelCut::new(plan.count as usize, plan.channels, plan.grain_elems as usize),
        chunk_elems: plan.chunk_elems,
        slice_elems: plan.slice_elems,
        arg: operator.arg,
        kind: operator.kind as u32,
        flags: flag(operator.pre, KERNEL_PRE)
            | flag(operator.post, KERNEL_POST)
            | flag(plan.two_hops, KERNEL_TWO_HOPS),
        func: plan.func as u32,
        root: raw.call.root,
        tag,
        reserved: 0,
    }
}

/// Copies between buffers that are apart or the same.
///
/// # Safety
/// 1. Both are valid for the length, until the stream has done it.
pub(super) unsafe fn copy(
    from: *const u8,
    to: *mut u8,
    len_bytes: usize,
    stream: StreamRef<'_>,
) -> Result<(), CudaError> {
    if len_bytes == 0 || from == to.cast_const() {
        return Ok(());
    }
    // SAFETY: (1, 2) obligation 1.
    unsafe { stream.copy_on_device(to.addr() as u64, from.addr() as u64, len_bytes) }
}

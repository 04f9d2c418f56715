//! A communicator's kernels, enqueued on streams.

use super::connected::Connected;
use super::copies::CopyEngines;
use super::custom::{CustomFacts, CustomKernels, CustomLaunch};
use super::driver::{CudaError, Device, Function, HostNode, StreamRef};
use super::kernels::DeviceKernels;
use super::messages::MessageScratch;
use super::monitor::Monitor;
use super::one_sided::OneSided;
use super::order::Order;
use super::tiles::Tiles;
use crate::bootstrap::Bootstrap;
use crate::gpu::KernelError;
use crate::launch::{
    BACK_OFF, Behind, BehindError, Fault, GroupMachine, Health, Job, Machine, Message, Notify, Occupied,
    Outstanding, Probe, RawCall, RawQueue, RunError, StartError, StreamMachine,
};
use crate::machine::{ConnKind, ConnLists, ConnTables, Connector, NetProxy, Verdict, collective_args};
use crate::plan::tuning::Explanation;
use crate::plan::{Call, CallPlan, Facts, Forced, Placement, Plan, SymmetricPlan, message_kernels};
use crate::transport::p2p::SignalTable;
use crate::tuner::Tuner;
use oxccl_shared::abi::{CollArgs, KERNEL_DIRECT, KernelColl, KernelLaunch, Rank, RedOp};
use oxccl_shared::algo::kernels::Kernel;
use oxccl_shared::algo::registry::spec_of;
use oxccl_shared::reduce::{self, Resolved};
use std::ffi::c_void;
use std::io;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

/// The parts that `connect` creates at init, and the communicator's own.
pub struct CudaParts {
    /// This rank.
    pub rank: Rank,
    /// Facts for plans.
    pub facts: Facts,
    /// A plugin that chooses with them, or none.
    pub tuner: Tuner,
    /// Its GPU.
    pub device: Device,
    /// That GPU's kernels.
    pub kernels: Arc<DeviceKernels>,
    /// Kernels of algorithms from outside the library, used before its own.
    pub custom: Vec<CustomKernels>,
    /// The tiles of blocks of its kernels with slots.
    pub tiles: Tiles,
    /// Bytes of those of symmetric kernels, if the user says so.
    pub tile_bytes: Option<u32>,
    /// Whether all kernels that plans may choose are loaded.
    pub has_all_kernels: bool,
    /// Addresses of the connections.
    pub tables: ConnTables,
    /// What makes connections as they are needed.
    pub connector: Arc<dyn Connector>,
    /// Aborts kernels.
    pub monitor: Arc<Monitor>,
    /// The communicator's health.
    pub health: Arc<Health>,
    /// Reports faults to the other ranks.
    pub notify: Arc<dyn Notify + Sync>,
    /// The proxy, if some ranks are reached over a network.
    pub net: Option<NetProxy>,
    /// Timeout of a kernel's wait for a peer.
    pub timeout: Duration,
    /// Whether kernels that can may start before the one in front of them on their stream has ended.
    pub starts_early: bool,
}

/// The first generation with programmatic dependent launch.
const EARLY_SM_MIN: u32 = 90;

/// Runs a rank's kernels on a GPU of NVIDIA, on users' streams.
pub struct Cuda {
    pub(super) parts: CudaParts,
    pub(super) order: Order,
    /// The latest capture's node that issues the orders of its latest kernel.
    pub(super) replayed: Option<HostNode>,
    /// Kernels used so far, found without a lock.
    functions: Vec<(Kernel, Function)>,
    pub(super) scratch: MessageScratch,
    pub(super) connected: Connected,
    /// One-sided operations, once they are connected.
    one_sided: Option<OneSided>,
    /// Collectives by copy engines, once a symmetric window is registered.
    pub(super) copies: Option<CopyEngines>,
    /// The words that a fault releases.
    signals: Arc<OnceLock<Arc<SignalTable>>>,
}

impl Machine for Cuda {
    type Flight = ();
    const RETURNS_DONE: bool = false;

    fn flight(&self) {}

    fn rank(&self) -> Rank {
        self.parts.rank
    }

    fn nranks(&self) -> u32 {
        self.parts.facts.nranks
    }

    fn health(&self) -> &Arc<Health> {
        &self.parts.health
    }

    fn explain(&self, call: &Call) -> Explanation {
        self.parts.tuner.explain(&self.parts.facts, call)
    }

    fn facts(&self) -> &Facts {
        &self.parts.facts
    }

    fn check(&self) -> Result<(), Outstanding> {
        self.check_kernels()
    }

    fn probe(&self) -> Arc<dyn Probe> {
        Arc::new(self.new_probe())
    }

    fn drain(&self) -> Result<(), Outstanding> {
        let started = Instant::now();
        while !self.is_done(false) && started.elapsed() < self.parts.timeout {
            self.check()?;
            std::thread::sleep(BACK_OFF);
        }
        self.check()
    }

    fn stopped_by(&self, error: RunError) -> RunError {
        self.note_fault(error)
    }

    fn plan(&self, call: &Call, forced: Option<Forced>) -> CallPlan {
        let facts = &self.parts.facts;
        match self.parts.tuner.plan(facts, call, forced) {
            CallPlan::Collective(_) if facts.nranks == 1 => self.plan_alone(call),
            plan => plan,
        }
    }

    fn sees_buffers(&self) -> bool {
        self.copies.is_some()
    }

    fn plan_placed(&self, raw: &RawCall, plan: CallPlan) -> CallPlan {
        self.placed(raw, plan)
    }

    fn compare(&mut self, calls: &[RawCall], plans: &[CallPlan]) -> Result<(), RunError> {
        self.compare_choices(calls, plans)
    }

    fn connect_for(&mut self, calls: &[RawCall], plans: &[CallPlan]) -> Result<(), RunError> {
        self.connect_calls(calls, plans)
    }

    /// Loads every kernel that the calls need, unless all were loaded when the communicator was created: a bundle may have PTX alone, or
    /// lack some, and a rank that is alone seldom needs any.
    ///
    /// # Errors
    /// [`RunError::Kernel`].
    fn prepare(&mut self, plans: &[CallPlan]) -> Result<(), RunError> {
        for plan in plans {
            match plan {
                CallPlan::Symmetric(plan) => {
                    self.function(plan.kernel(), plan.threads)?;
                }
                _ if self.parts.has_all_kernels => {}
                CallPlan::Messages => {
                    let facts = self.parts.facts;
                    for (kernel, threads) in message_kernels(&facts).filter(|_| facts.nranks > 1) {
                        self.function(kernel, threads)?;
                    }
                }
                CallPlan::Collective(plan) => {
                    self.function(plan.kernel(), plan.threads)?;
                }
                CallPlan::Local | CallPlan::CopyEngines(_) => {}
            }
        }
        Ok(())
    }

    unsafe fn within(
        &mut self,
        queues: &[RawQueue],
        plans: &[CallPlan],
        body: impl FnOnce(&mut Self) -> Result<(), RunError>,
    ) -> Result<(), RunError> {
        let device = self.parts.device.clone();
        // SAFETY: (1, 2) obligation 1.
        let stream = |queue: RawQueue| unsafe { StreamRef::from_raw(&device, queue.cast()) };
        let first = queues[0];
        let others = queues[1..].iter().copied().filter(|other| *other != first).map(stream);
        let put = device.bind().map_err(RunError::from).and_then(|_bound| {
            self.prepare(plans)?;
            let kernels = self.parts.kernels.clone();
            let _launching = kernels.launching();
            self.order.enter(stream(first), others.clone())?;
            body(self)?;
            Ok(self.order.leave(stream(first), others)?)
        });
        put.map_err(|error| self.note_fault(error))
    }

    unsafe fn collective(
        &mut self,
        raw: &RawCall,
        plan: &Plan,
        tag: u32,
        queue: RawQueue,
    ) -> Result<(), RunError> {
        let device = self.parts.device.clone();
        // SAFETY: (1, 2) obligation 1.
        let stream = unsafe { StreamRef::from_raw(&device, queue.cast()) };
        self.note_call(false);
        // SAFETY: (1) obligation 2.
        unsafe { self.launch_collective(raw, plan, tag, stream) }
    }

    unsafe fn copy(
        &mut self,
        from: *const u8,
        to: *mut u8,
        len_bytes: usize,
        queue: RawQueue,
    ) -> Result<(), RunError> {
        // SAFETY: (1, 2) obligation 1.
        let stream = unsafe { StreamRef::from_raw(&self.parts.device, queue.cast()) };
        // SAFETY: obligation 1.
        unsafe { copy(from, to, len_bytes, stream) }.map_err(RunError::from)
    }

    unsafe fn copies(
        &mut self,
        raw: &RawCall,
        placement: Placement,
        queue: RawQueue,
    ) -> Result<(), RunError> {
        let device = self.parts.device.clone();
        // SAFETY: (1, 2) obligation 1.
        let stream = unsafe { StreamRef::from_raw(&device, queue.cast()) };
        self.note_call(true);
        // SAFETY: (1) obligations 1 and 2.
        unsafe { self.enqueue_copies(raw, placement, stream) }
    }

    unsafe fn symmetric(
        &mut self,
        raw: &RawCall,
        plan: &SymmetricPlan,
        tag: u32,
        queue: RawQueue,
    ) -> Result<(), RunError> {
        let device = self.parts.device.clone();
        // SAFETY: (1, 2) obligation 1.
        let stream = unsafe { StreamRef::from_raw(&device, queue.cast()) };
        self.note_call(false);
        // SAFETY: (1) obligations 1 and 2.
        unsafe { self.launch_symmetric(raw, plan, tag, stream) }
    }

    unsafe fn messages(&mut self, messages: &[(Message, u32)], queue: RawQueue) -> Result<(), RunError> {
        let device = self.parts.device.clone();
        // SAFETY: (1, 2) obligation 1.
        let stream = unsafe { StreamRef::from_raw(&device, queue.cast()) };
        self.note_call(false);
        // SAFETY: (1) obligation 1.
        unsafe { self.launch_messages(messages, stream) }
    }

    fn own_messages_differ(&mut self) -> RunError {
        // The latest collective, which other faults name, has no part in it.
        let verdict = Verdict { latest: None, ..self.verdict() };
        RunError::Stopped(verdict.fail(Fault::SelfMessages))
    }

    /// Waits until every enqueued operation is done. An operation that does not end within the timeout is aborted.
    fn close(mut self, bootstrap: &Bootstrap) -> Option<Cuda> {
        let started = Instant::now();
        while !self.is_done(started.elapsed() > self.parts.timeout) {
            let is_overdue = started.elapsed() > self.parts.timeout;
            if is_overdue {
                self.parts.monitor.abort();
            }
            // Again and again: a rank that does not know yet may signal meanwhile.
            if is_overdue || self.parts.health.is_stopped() {
                self.one_sided.iter().for_each(OneSided::release);
                self.copies.iter().for_each(CopyEngines::release);
            }
            if started.elapsed() > self.parts.timeout.saturating_add(ABORT_TIME) {
                tracing::warn!(rank = %self.parts.rank, "operations do not end: their memory is not freed");
                std::mem::forget(self);
                return None;
            }
            std::thread::sleep(BACK_OFF);
        }
        drop(self.parts.net.take());
        self.parts.connector.close(bootstrap);
        None
    }
}

impl StreamMachine for Cuda {
    type Stream<'s> = StreamRef<'s>;

    fn raw(stream: StreamRef<'_>) -> RawQueue {
        stream.raw().cast()
    }

    fn ordinal_of(stream: StreamRef<'_>) -> u32 {
        stream.device().ordinal()
    }

    fn synchronize(stream: StreamRef<'_>) -> Result<(), CudaError> {
        stream.synchronize()
    }
}

impl GroupMachine for Cuda {
    const GROUP_MAX: usize = 128;

    /// Connects, and loads the kernels of all calls, before any communicator of the thread enqueues: the driver may make loading
    /// wait for running kernels.
    unsafe fn run_together(jobs: &mut [Job<'_, Cuda>]) -> io::Result<()> {
        for job in jobs.iter_mut() {
            job.engine.plan(job.calls);
            job.result = job.engine.prepare(job.calls);
        }
        // Ranks of the others wait for this one, whatever has become of one communicator.
        for job in jobs.iter_mut().filter(|job| job.result.is_ok()) {
            // SAFETY: obligation 1.
            job.result = unsafe { job.engine.run_planned(job.calls, job.queues) };
        }
        Ok(())
    }

    /// Streams order calls: an engine that cannot be had is in use.
    unsafe fn run_behind(jobs: &mut [Behind<'_, Cuda>]) {
        let busy = BehindError::Start(StartError::Occupied(Occupied::Busy));
        jobs.iter_mut().for_each(|job| job.result = Err(busy.clone()));
    }
}

impl Cuda {
    /// A machine over finished connections.
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn new(parts: CudaParts) -> Result<Cuda, CudaError> {
        let (monitor, signals) = (Arc::downgrade(&parts.monitor), Arc::new(OnceLock::new()));
        let released: Weak<OnceLock<Arc<SignalTable>>> = Arc::downgrade(&signals);
        parts.health.set_alarm(move || {
            monitor.upgrade().iter().for_each(|monitor| monitor.abort());
            released.upgrade().iter().filter_map(|signals| signals.get()).for_each(|table| table.release());
        });
        parts.monitor.set_timeout(parts.timeout);
        let order = Order::new(&parts.device)?;
        parts.kernels.watch(order.done());
        Ok(Cuda {
            order,
            replayed: None,
            connected: Connected::of_none(parts.facts.nranks),
            parts,
            functions: Vec::new(),
            scratch: MessageScratch::default(),
            one_sided: None,
            copies: None,
            signals,
        })
    }

    /// One-sided operations, if they are connected.
    pub(crate) fn one_sided(&mut self) -> Option<&mut OneSided> {
        self.one_sided.as_mut()
    }

    /// Gives it one-sided operations.
    pub(crate) fn connect_one_sided(&mut self, table: SignalTable) {
        let table = self.signals.get_or_init(|| Arc::new(table)).clone();
        if self.parts.health.is_stopped() {
            table.release();
        }
        self.one_sided = Some(OneSided::new(self.parts.rank, table));
    }

    fn note_call(&self, is_silent: bool) {
        self.parts.monitor.note_call(is_silent, self.order.capture().is_some());
    }

    /// The operator of a call, or a sum where the call copies.
    pub(super) fn operator(&self, call: &Call, scalar_bits: u64) -> Resolved {
        let Call { func, dtype, op, .. } = *call;
        let op = if func.is_reduction() { op } else { RedOp::Sum };
        reduce::resolve(op, dtype, self.parts.facts.nranks, scalar_bits)
    }

    /// The plan of a rank that is alone: its own input is its result, unless the operator changes it.
    fn plan_alone(&self, call: &Call) -> CallPlan {
        // Whether there is a multiplier does not depend on which.
        let operator = self.operator(call, 0);
        if !operator.pre && !operator.post {
            return CallPlan::Local;
        }
        CallPlan::Collective(self.parts.facts.plan_alone(call))
    }

    pub(super) fn function(&mut self, id: Kernel, threads: u32) -> Result<&Function, KernelError> {
        let known = self.functions.iter().position(|(known, _)| *known == id);
        let at = match known {
            Some(at) => at,
            None => {
                let health = &self.parts.health;
                let loaded = self.parts.kernels.get(id, threads, &|| health.is_stopped())?;
                self.functions.push((id, loaded));
                self.functions.len() - 1
            }
        };
        Ok(&self.functions[at].1)
    }

    /// # Safety
    /// 1. As [`Machine::collective`]'s second.
    unsafe fn launch_collective(
        &mut self,
        raw: &RawCall,
        plan: &Plan,
        tag: u32,
        stream: StreamRef<'_>,
    ) -> Result<(), RunError> {
        // SAFETY: obligation 1.
        if let Some(launched) = unsafe { self.launch_custom(raw, tag, stream) } {
            return launched;
        }
        let mut coll = collective_args(raw, plan, &self.operator(&raw.call, raw.scalar_bits), tag);
        if !raw.call.func.has_buffers() {
            let scratch: *mut u8 = std::ptr::without_provenance_mut(self.parts.tables.scratch as usize);
            coll = KernelColl { src: scratch, dst: scratch, ..coll };
        }
        if self.parts.net.is_none() {
            coll.flags |= KERNEL_DIRECT;
        }
        let kind = ConnKind::of(spec_of(plan.algorithm).connections);
        let lists = self.parts.tables.of(kind, plan.protocol);
        let tiles = self.parts.tiles.of(plan.kernel());
        let launch = KernelLaunch { tile_bytes: tiles.tile_bytes, ..self.launch(lists, plan.channels) };
        let mut args = CollArgs { launch, coll };
        if let Some(net) = &mut self.parts.net {
            net.collective(&coll, plan);
        }
        let has_orders = self.issue_orders(stream)?;
        let may_start_early = self.parts.starts_early && plan.kernel().starts_early();
        let function = self.function(plan.kernel(), plan.threads)?;
        let mut params = [(&raw mut args).cast::<c_void>()];
        let (grid, block) = ([plan.channels, 1, 1], [plan.threads, 1, 1]);
        // Only what was compiled for a generation that has programmatic dependent launch waits by itself.
        let launched = if may_start_early && function.sm() >= EARLY_SM_MIN {
            // SAFETY: as below; such a kernel waits for those before it (`starts_early`).
            unsafe { function.launch_early(grid, block, tiles.shared_bytes, stream, &mut params) }
        } else {
            // SAFETY: the entry takes one `CollArgs`; its buffers are valid by obligation 1, and the lists, the monitor and what they
            // point to live until `close` has seen every operation end.
            unsafe { function.launch(grid, block, tiles.shared_bytes, stream, &mut params) }
        };
        let launched = launched.map_err(|error| error.in_kernel(function.name()));
        launched.map_err(|error| self.launch_refused(error, has_orders, stream))
    }

    /// A call that an algorithm from outside the library carries out; none if there is no such algorithm.
    ///
    /// # Safety
    /// 1. As [`Machine::collective`]'s second.
    unsafe fn launch_custom(
        &self,
        raw: &RawCall,
        tag: u32,
        stream: StreamRef<'_>,
    ) -> Option<Result<(), RunError>> {
        let CustomLaunch { function, channels, threads, protocol, coll } = self.custom(raw, tag)?;
        let lists = self.parts.tables.of(ConnKind::Mesh, protocol);
        let mut args = CollArgs { launch: self.launch(lists, channels), coll };
        let mut params = [(&raw mut args).cast::<c_void>()];
        let (grid, block) = ([channels, 1, 1], [threads, 1, 1]);
        // SAFETY: as in `launch_collective`: the entry was made for one `CollArgs`.
        let launched = unsafe { function.launch(grid, block, 0, stream, &mut params) };
        Some(launched.map_err(|error| error.in_kernel(function.name()).into()))
    }

    /// The launch of an algorithm from outside the library, if one carries out the call.
    pub(super) fn custom(&self, raw: &RawCall, tag: u32) -> Option<CustomLaunch<'_>> {
        let facts = &self.parts.facts;
        if self.parts.custom.is_empty() || facts.crosses_network() || raw.forced.is_some() {
            return None;
        }
        let (nranks, layout, channels) = (facts.nranks, &facts.mesh_layout, facts.mesh_channels);
        let host_ranks = facts.hosts.ranks_each();
        let facts = CustomFacts {
            nranks,
            host_ranks,
            layout,
            channels,
            forced: &facts.forced,
            lines: facts.has_mesh_of_lines(),
        };
        let operator = self.operator(&raw.call, raw.scalar_bits);
        let launches =
            self.parts.custom.iter().filter_map(|custom| custom.launch(raw, &facts, &operator, tag));
        { launches }.next()
    }

    /// The arguments that all kernels have.
    pub(super) fn launch(&self, lists: &ConnLists, channels: u32) -> KernelLaunch {
        let mut launch = KernelLaunch {
            send: std::ptr::null(),
            recv: std::ptr::null(),
            send_cursors: std::ptr::null_mut(),
            recv_cursors: std::ptr::null_mut(),
            rings: std::ptr::null(),
            trees: std::ptr::null(),
            monitor: self.parts.monitor.address(),
            number: self.parts.health.recorder().next().wrapping_sub(1),
            nconns: 0,
            nchannels: channels,
            rank: self.parts.rank,
            nranks: self.parts.facts.nranks,
            nmessages: 0,
            tile_bytes: 0,
        };
        lists.fill(&mut launch);
        launch
    }

    /// Whether every enqueued operation has ended, and, unless overdue, whether the proxy has sent everything.
    fn is_done(&self, is_overdue: bool) -> bool {
        // An error means that the context is broken: no kernel runs any more.
        let has_ended =
            self.order.is_done().unwrap_or(true) && self.one_sided.as_ref().is_none_or(OneSided::is_done);
        // A stopped proxy leaves orders incomplete.
        let gives_up = is_overdue || self.parts.health.is_stopped();
        has_ended && (gives_up || self.parts.net.as_ref().is_none_or(NetProxy::is_done))
    }
}

/// How long a kernel may take to see the abort, with the other work on its stream.
const ABORT_TIME: Duration = Duration::from_secs(10);

/// Copies between buffers that are apart or the same.
///
/// # Safety
/// 1. Both are valid for the length, until the stream has completed the copy.
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

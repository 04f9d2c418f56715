//! What a rank on a GPU consists of, and what all its launches have alike.

use super::beside::Beside;
use super::call_times::CallTimes;
use super::connected::Connected;
use super::copies::CopyEngines;
use super::driver::{CudaError, Function, HostNode};
use super::one_sided::OneSided;
use super::order::Order;
use super::parts::CudaParts;
use crate::gpu::KernelError;
use crate::plan::{Arrangement, MessageWant};
use crate::transport::p2p::SignalTable;
use oxccl_shared::algo::kernels::Kernel;
use std::sync::{Arc, OnceLock, Weak};

/// Runs a rank's kernels on a GPU of NVIDIA, on users' streams.
pub struct Cuda {
    pub(super) parts: CudaParts,
    pub(super) order: Order,
    pub(super) beside: Beside,
    /// Whether something of the present calls that other ranks see is on the stream.
    pub(super) has_enqueued: bool,
    /// The latest capture's node that issues the orders of its latest kernel.
    pub(super) replayed: Option<HostNode>,
    /// Kernels used so far, found without a lock.
    pub(super) functions: Vec<(Kernel, Function)>,
    pub(super) scratch: MessageScratch,
    pub(super) connected: Connected,
    /// One-sided operations, once they are connected.
    pub(super) one_sided: Option<OneSided>,
    /// Collectives by copy engines, once a symmetric window is registered.
    pub(super) copies: Option<CopyEngines>,
    /// When calls ran, where the program has asked for it.
    pub(super) times: Option<Arc<CallTimes>>,
    /// The words that a fault releases.
    pub(super) signals: Arc<OnceLock<Arc<SignalTable>>>,
}

/// Memory for the messages of the group being enqueued, kept from one group to the next.
#[derive(Default)]
pub(super) struct MessageScratch {
    pub(super) wants: Vec<MessageWant>,
    pub(super) arrangement: Arrangement,
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
        let (order, beside) = (Order::new(&parts.device)?, Beside::new(&parts.device)?);
        parts.kernels.watch(order.done());
        Ok(Cuda {
            order,
            beside,
            has_enqueued: false,
            replayed: None,
            connected: Connected::of_none(parts.facts.nranks),
            parts,
            functions: Vec::new(),
            scratch: MessageScratch::default(),
            one_sided: None,
            copies: None,
            times: None,
            signals,
        })
    }

    /// From now on it keeps when calls run on the GPU.
    ///
    /// # Errors
    /// [`CudaError`].
    pub(crate) fn time_calls(&mut self) -> Result<(), CudaError> {
        self.times = Some(Arc::new(CallTimes::new(&self.parts.device, &self.parts.side)?));
        Ok(())
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

    pub(super) fn note_call(&self, is_silent: bool) {
        self.parts.monitor.note_call(is_silent, self.order.capture().is_some());
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
}

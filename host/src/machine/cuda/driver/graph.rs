//! Graphs: captured from a stream once, launched many times. As far as tests and the performance tool need them.

use super::api::KernelNodeParams;
use super::capture::RELAXED;
use super::device::Device;
use super::stream::StreamRef;
use crate::gpu::CudaError;
use cudarc::driver::sys::{CUgraph, CUgraphExec};

/// A capture in progress; dropping it without [`Self::end`] discards the captured work.
#[must_use = "what is enqueued is captured only while this lives"]
pub struct Capture<'a> {
    stream: Option<StreamRef<'a>>,
}

impl<'a> Capture<'a> {
    /// Starts to capture `stream`. With `strict` this thread may not make calls that could break a capture (the CUDA
    /// runtime's thread-local mode), as for a careful user.
    ///
    /// # Errors
    /// [`CudaError::Call`] if it is capturing already or is the legacy default stream.
    pub fn begin(stream: StreamRef<'a>, strict: bool) -> Result<Capture<'a>, CudaError> {
        const THREAD_LOCAL: u32 = 1;
        let device = stream.device();
        let _bound = device.bind()?;
        let mode = if strict { THREAD_LOCAL } else { RELAXED };
        // SAFETY: the stream lives while it is borrowed.
        let code = unsafe { (device.api().cuStreamBeginCapture_v2)(stream.raw(), mode) };
        device.check("cuStreamBeginCapture", code)?;
        Ok(Capture { stream: Some(stream) })
    }

    /// Ends the capture.
    ///
    /// # Errors
    /// [`CudaError::Call`] if enqueued work cannot be captured.
    pub fn end(mut self) -> Result<Graph, CudaError> {
        self.stream.take().map_or_else(|| unreachable!("only `end` takes it"), end_capture)
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        // An error here means that the capture was broken already, which was reported then.
        self.stream.take().map(end_capture);
    }
}

fn end_capture(stream: StreamRef<'_>) -> Result<Graph, CudaError> {
    let device = stream.device();
    let _bound = device.bind()?;
    let mut raw = std::ptr::null_mut();
    // SAFETY: `raw` is valid for a write and the stream lives.
    let code = unsafe { (device.api().cuStreamEndCapture)(stream.raw(), &mut raw) };
    device.check("cuStreamEndCapture", code)?;
    Ok(Graph { device: device.clone(), raw })
}

/// Captured work.
#[derive(Debug)]
pub struct Graph {
    device: Device,
    raw: CUgraph,
}

// SAFETY: the driver's graphs may be used by any one thread at a time; methods that change nothing take `&self`.
unsafe impl Send for Graph {}

impl Graph {
    /// Instantiates it for any number of launches.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    pub fn instantiate(&self) -> Result<GraphExec, CudaError> {
        let _bound = self.device.bind()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` is valid for a write and the graph lives.
        let code = unsafe { (self.device.api().cuGraphInstantiateWithFlags)(&mut raw, self.raw, 0) };
        self.device.check("cuGraphInstantiate", code)?;
        Ok(GraphExec { device: self.device.clone(), raw })
    }

    /// The blocks of its kernels, of all together: whoever enqueued them.
    ///
    /// # Errors
    /// [`CudaError::Call`], also of a kernel that the driver describes to newer callers only.
    pub fn blocks(&self) -> Result<u32, CudaError> {
        /// `CU_GRAPH_NODE_TYPE_KERNEL`.
        const KERNEL: u32 = 0;
        let device = &self.device;
        let _bound = device.bind()?;
        let mut count = 0;
        // SAFETY: without an array the driver writes the number of nodes; the graph lives.
        let code = unsafe { (device.api().cuGraphGetNodes)(self.raw, std::ptr::null_mut(), &mut count) };
        device.check("cuGraphGetNodes", code)?;
        let mut nodes = vec![std::ptr::null_mut(); count];
        // SAFETY: the array has room for as many as the graph has.
        let code = unsafe { (device.api().cuGraphGetNodes)(self.raw, nodes.as_mut_ptr(), &mut count) };
        device.check("cuGraphGetNodes", code)?;
        let mut blocks = 0;
        for node in nodes {
            let mut kind = 0;
            // SAFETY: the node is of a graph that lives.
            let code = unsafe { (device.api().cuGraphNodeGetType)(node, &mut kind) };
            device.check("cuGraphNodeGetType", code)?;
            if kind != KERNEL {
                continue;
            }
            let mut params = std::mem::MaybeUninit::<KernelNodeParams>::zeroed();
            // SAFETY: it is a kernel's node, and there is room for what describes one.
            let code = unsafe { (device.api().cuGraphKernelNodeGetParams)(node, params.as_mut_ptr()) };
            device.check("cuGraphKernelNodeGetParams", code)?;
            // SAFETY: numbers and pointers, for which zeros are values too.
            let params = unsafe { params.assume_init() };
            blocks += params.grid.iter().product::<u32>();
        }
        Ok(blocks)
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made by the capture for this value alone; what was instantiated from it does not need it.
        let code = unsafe { (self.device.api().cuGraphDestroy)(self.raw) };
        self.device.released("cuGraphDestroy", code);
    }
}

/// An instantiated graph.
#[derive(Debug)]
pub struct GraphExec {
    device: Device,
    raw: CUgraphExec,
}

// SAFETY: as for `Graph`.
unsafe impl Send for GraphExec {}

impl GraphExec {
    /// Launches the graph once. Launches of the same value run one after the other.
    ///
    /// # Errors
    /// [`CudaError::Fault`], [`CudaError::Call`].
    ///
    /// # Safety
    /// 1. The memory of the captured work is still valid, until it is complete.
    pub unsafe fn launch(&self, stream: StreamRef<'_>) -> Result<(), CudaError> {
        let _bound = self.device.bind()?;
        // SAFETY: graph and stream live, and by 1.
        let code = unsafe { (self.device.api().cuGraphLaunch)(self.raw, stream.raw()) };
        self.device.check("cuGraphLaunch", code)
    }
}

impl Drop for GraphExec {
    fn drop(&mut self) {
        // SAFETY: instantiated for this value alone; a run in progress has its own reference.
        let code = unsafe { (self.device.api().cuGraphExecDestroy)(self.raw) };
        self.device.released("cuGraphExecDestroy", code);
    }
}

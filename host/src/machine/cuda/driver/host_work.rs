//! Host functions in streams and graphs.

use super::api::HostNodeParams;
use super::stream::StreamRef;
use crate::gpu::{CudaError, HostWork, code};
use cudarc::driver::sys::{CUgraph, CUgraphNode};
use std::ffi::c_void;
use std::sync::Arc;

/// # Safety
/// 1. `work` is of `Arc::into_raw` of a `W`, and this is the only use of it.
unsafe extern "C" fn run_once<W: HostWork>(work: *mut c_void) {
    // SAFETY: 1.
    let work = unsafe { Arc::from_raw(work.cast::<W>().cast_const()) };
    work.run();
}

/// # Safety
/// 1. `work` points to a `W` that lives meanwhile.
unsafe extern "C" fn run_again<W: HostWork>(work: *mut c_void) {
    // SAFETY: 1.
    let work = unsafe { &*work.cast::<W>() };
    work.run();
}

/// # Safety
/// 1. `work` is of `Box::into_raw` of a `W`, and is not used any more.
unsafe extern "C" fn end<W: HostWork>(work: *mut c_void) {
    // SAFETY: 1.
    drop(unsafe { Box::from_raw(work.cast::<W>()) });
}

impl<'a> StreamRef<'a> {
    /// Enqueues a host function: it runs after all earlier work of the stream and before later work. If the context
    /// breaks before, it is neither run nor dropped.
    ///
    /// # Errors
    /// [`CudaError::Fault`], [`CudaError::Call`]; the function does not run then.
    ///
    /// # Safety
    /// 1. The stream is not being captured: a graph would run it again, after it is dropped.
    pub unsafe fn run_once<W: HostWork>(&self, work: Arc<W>) -> Result<(), CudaError> {
        let _bound = self.device().bind()?;
        let raw = Arc::into_raw(work);
        let data = raw.cast_mut().cast::<c_void>();
        // SAFETY: the stream lives; the function gets its argument, and gets it once by obligation 1.
        let code = unsafe { (self.device().api().cuLaunchHostFunc)(self.raw(), Some(run_once::<W>), data) };
        let put = self.device().check("cuLaunchHostFunc", code);
        if put.is_err() {
            // SAFETY: the driver has not taken it.
            drop(unsafe { Arc::from_raw(raw) });
        }
        put
    }

    /// The graph that the stream is being captured into; `None` if it is not capturing.
    ///
    /// # Errors
    /// [`CudaError::Call`], also for a broken capture.
    pub fn capturing(&self) -> Result<Option<Capturing<'a>>, CudaError> {
        Ok(self.capture_info(false)?.map(|(capturing, _)| capturing))
    }

    /// The graph of the capture `id`, which was in progress and should still be.
    ///
    /// # Errors
    /// As for [`Self::capturing`], and if it has ended.
    pub fn still_capturing(&self, id: CaptureId) -> Result<Capturing<'a>, CudaError> {
        let capturing = self.capturing()?.filter(|capturing| capturing.id == id);
        capturing.ok_or_else(|| self.capture_is_broken())
    }

    /// The same as [`Self::capturing`]; with `asks` also the only node on which the next one would depend, if there
    /// is exactly one.
    fn capture_info(&self, asks: bool) -> Result<Option<(Capturing<'a>, Option<CUgraphNode>)>, CudaError> {
        const NONE: u32 = 0;
        const ACTIVE: u32 = 1;
        let _bound = self.device().bind()?;
        let (mut status, mut id, mut graph) = (NONE, 0, std::ptr::null_mut());
        let (mut nodes, mut count) = (std::ptr::null(), 0);
        let (mut to_nodes, mut to_count) = (std::ptr::null_mut(), std::ptr::null_mut());
        if asks {
            (to_nodes, to_count) = (&raw mut nodes, &raw mut count);
        }
        let get = self.device().api().cuStreamGetCaptureInfo_v2;
        // SAFETY: each pointer is null or valid for a write; the stream lives.
        let code = unsafe { get(self.raw(), &mut status, &mut id, &mut graph, to_nodes, to_count) };
        self.device().check("cuStreamGetCaptureInfo", code)?;
        match status {
            NONE => return Ok(None),
            ACTIVE => {}
            _ => return Err(self.capture_is_broken()),
        }
        // SAFETY: the array has this length until the next call for this stream.
        let only = (count == 1).then(|| unsafe { *nodes });
        Ok(Some((Capturing { stream: *self, id: CaptureId(id), graph }, only)))
    }

    #[cold]
    fn capture_is_broken(&self) -> CudaError {
        let result = self.device().api().result(code::STREAM_CAPTURE_INVALIDATED);
        CudaError::of_call(self.device().id(), "cuStreamGetCaptureInfo", result)
    }
}

/// Identifies a capture of this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CaptureId(u64);

/// A graph that is being captured from a stream, for the moment: the code that started the capture ends it.
#[derive(Debug)]
pub struct Capturing<'a> {
    stream: StreamRef<'a>,
    id: CaptureId,
    graph: CUgraph,
}

/// A host node of a graph that is, or was, being captured.
#[derive(Debug)]
pub struct HostNode {
    capture: CaptureId,
    node: CUgraphNode,
}

// SAFETY: a node's handle, which is only used while its graph is being captured.
unsafe impl Send for HostNode {}
// SAFETY: as above.
unsafe impl Sync for HostNode {}

impl Capturing<'_> {
    /// Which capture it is.
    pub fn id(&self) -> CaptureId {
        self.id
    }

    /// Adds `work` to the graph as a host node: every launch runs it, before work enqueued on the stream from now on.
    /// It is dropped with the last graph that contains it.
    ///
    /// A node that follows another node of the same capture (`after`) depends on that only, so that it runs while
    /// earlier work of the graph is still running; otherwise it keeps its position on the stream. Returns `None` if
    /// its node cannot be determined.
    ///
    /// # Errors
    /// [`CudaError::Call`]. A launch of the graph may run the function nevertheless.
    pub fn run_each_time<W: HostWork>(
        &self,
        work: Box<W>,
        after: Option<HostNode>,
    ) -> Result<Option<HostNode>, CudaError> {
        let _bound = self.stream.device().bind()?;
        // The graph may have been ended, and freed, since this value was made.
        let now = self.stream.still_capturing(self.id)?;
        let data = now.keep(work)?;
        match after.filter(|after| after.capture == now.id) {
            Some(after) => now.add_after::<W>(data, &after).map(Some),
            None => now.in_stream::<W>(data),
        }
    }

    /// Passes ownership of the work to the graph.
    fn keep<W: HostWork>(&self, work: Box<W>) -> Result<*mut c_void, CudaError> {
        const NO_DESTRUCTOR_SYNC: u32 = 1;
        const MOVE: u32 = 1;
        let device = self.stream.device();
        let (raw, mut object) = (Box::into_raw(work), std::ptr::null_mut());
        let data = raw.cast::<c_void>();
        // SAFETY: `object` is valid for a write; the function gets what it takes, when the last reference is gone.
        let code = unsafe {
            (device.api().cuUserObjectCreate)(&mut object, data, Some(end::<W>), 1, NO_DESTRUCTOR_SYNC)
        };
        if let Err(error) = device.check("cuUserObjectCreate", code) {
            // SAFETY: the driver has not taken it.
            drop(unsafe { Box::from_raw(raw) });
            return Err(error);
        }
        // SAFETY: the graph is being captured; the object has one reference, which becomes the graph's.
        let code = unsafe { (device.api().cuGraphRetainUserObject)(self.graph, object, 1, MOVE) };
        let kept = device.check("cuGraphRetainUserObject", code);
        if kept.is_err() {
            // SAFETY: the reference is still ours. The driver drops the work.
            let code = unsafe { (device.api().cuUserObjectRelease)(object, 1) };
            device.released("cuUserObjectRelease", code);
        }
        kept.map(|()| data)
    }

    fn in_stream<W: HostWork>(&self, data: *mut c_void) -> Result<Option<HostNode>, CudaError> {
        let (stream, device) = (self.stream, self.stream.device());
        // SAFETY: the graph keeps what the function uses, whenever it runs.
        let code = unsafe { (device.api().cuLaunchHostFunc)(stream.raw(), Some(run_again::<W>), data) };
        device.check("cuLaunchHostFunc", code)?;
        // A capture that breaks here reports that to its next user.
        let node = stream.capture_info(true).ok().flatten().and_then(|(_, only)| only);
        Ok(node.map(|node| HostNode { capture: self.id, node }))
    }

    fn add_after<W: HostWork>(&self, data: *mut c_void, after: &HostNode) -> Result<HostNode, CudaError> {
        const ADD: u32 = 0;
        let (stream, device) = (self.stream, self.stream.device());
        let params = HostNodeParams { function: Some(run_again::<W>), data };
        let mut node = std::ptr::null_mut();
        // SAFETY: `node` is valid for a write. Graph and node before are of the capture in progress, during which no node may be
        // removed; the graph keeps what the function uses.
        let code =
            unsafe { (device.api().cuGraphAddHostNode)(&mut node, self.graph, &after.node, 1, &params) };
        device.check("cuGraphAddHostNode", code)?;
        let mut added = node;
        // SAFETY: one node of the stream's graph.
        let code =
            unsafe { (device.api().cuStreamUpdateCaptureDependencies)(stream.raw(), &mut added, 1, ADD) };
        device.check("cuStreamUpdateCaptureDependencies", code)?;
        Ok(HostNode { capture: self.id, node })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// Counts its runs.
    struct Count(Arc<Mutex<u32>>);

    impl HostWork for Count {
        fn run(&self) {
            *self.0.lock().unwrap() += 1;
        }
    }

    /// Simulates the driver's use of the pointers.
    #[test]
    fn work_is_done_as_often_as_the_driver_says_and_dropped_once() {
        let count = Arc::new(Mutex::new(0));
        let once = Arc::into_raw(Arc::new(Count(count.clone()))).cast_mut().cast();
        // SAFETY: (1) of `into_raw`, and used here only.
        unsafe { run_once::<Count>(once) };
        assert_eq!((*count.lock().unwrap(), Arc::strong_count(&count)), (1, 1));
        let again = Box::into_raw(Box::new(Count(count.clone()))).cast();
        for _ in 0..2 {
            // SAFETY: (1) lives until `end`.
            unsafe { run_again::<Count>(again) };
        }
        assert_eq!((*count.lock().unwrap(), Arc::strong_count(&count)), (3, 2));
        // SAFETY: (1) of `into_raw`, and not used any more.
        unsafe { end::<Count>(again) };
        assert_eq!(Arc::strong_count(&count), 1);
    }
}

//! Streams: own ones, and the users'.

use super::api::BatchMemOp;
use super::capture::RelaxedCapture;
use super::device::Device;
use super::event::Event;
use crate::gpu::{CudaError, code};
use cudarc::driver::sys::{CUdeviceptr, CUstream};
use std::ffi::c_void;

/// `CU_STREAM_NON_BLOCKING`: does not wait for the legacy default stream, nor that for it.
const NON_BLOCKING: u32 = 1;

/// `CU_STREAM_WAIT_VALUE_GEQ`: as signed numbers, the word minus the value is not negative.
const AT_LEAST: u32 = 0;
/// `CU_STREAM_WRITE_VALUE_DEFAULT`: all earlier work of the stream is visible to the whole system before the word is.
const AFTER_ALL: u32 = 0;

/// `CU_STREAM_MEM_OP_WAIT_VALUE_32` and the like.
const WAIT_32: u32 = 1;
/// See [`WAIT_32`].
const WRITE_32: u32 = 2;
/// See [`WAIT_32`].
const WAIT_64: u32 = 4;
/// See [`WAIT_32`].
const WRITE_64: u32 = 5;
/// Operations of one call, of which the driver takes 256.
const BATCH_MAX: usize = 128;

/// A wait for a word, or a write to one: see [`StreamRef::word_ops`].
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct WordOp(BatchMemOp);

impl WordOp {
    /// As [`StreamRef::write_word`].
    pub fn write(to: CUdeviceptr, value: u64) -> WordOp {
        WordOp::new(WRITE_64, to, value, AFTER_ALL)
    }

    /// The same of a word of 32 bits.
    pub fn write_half(to: CUdeviceptr, value: u32) -> WordOp {
        WordOp::new(WRITE_32, to, u64::from(value), AFTER_ALL)
    }

    /// As [`StreamRef::wait_for_word`].
    pub fn wait(word: CUdeviceptr, value: u64) -> WordOp {
        WordOp::new(WAIT_64, word, value, AT_LEAST)
    }

    /// The same of a word of 32 bits.
    pub fn wait_half(word: CUdeviceptr, value: u32) -> WordOp {
        WordOp::new(WAIT_32, word, u64::from(value), AT_LEAST)
    }

    fn new(operation: u32, address: CUdeviceptr, value: u64, flags: u32) -> WordOp {
        WordOp(BatchMemOp { operation, address, value, flags, alias: 0, reserved: 0 })
    }
}

/// A stream created here, destroyed on drop; its enqueued work still completes.
#[derive(Debug)]
pub struct Stream {
    device: Device,
    raw: CUstream,
}

// SAFETY: a stream is a handle that every thread may use.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// Creates a stream that is independent of the default stream.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    pub fn new(device: &Device) -> Result<Stream, CudaError> {
        let _bound = device.bind()?;
        let _relaxed = RelaxedCapture::enter(device.driver());
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` is valid for a write; a context is current.
        let code = unsafe { (device.api().cuStreamCreate)(&mut raw, NON_BLOCKING) };
        device.check("cuStreamCreate", code)?;
        Ok(Stream { device: device.clone(), raw })
    }

    /// A reference, to enqueue on.
    pub fn by_ref(&self) -> StreamRef<'_> {
        StreamRef { device: &self.device, raw: self.raw }
    }

    /// Waits until all work enqueued so far is complete.
    ///
    /// # Errors
    /// [`CudaError::Fault`] if a kernel broke the context, [`CudaError::Call`].
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.by_ref().synchronize()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: created by `new` and destroyed once; code that enqueues has borrowed it.
        let code = unsafe { (self.device.api().cuStreamDestroy_v2)(self.raw) };
        self.device.released("cuStreamDestroy", code);
    }
}

/// A stream that its owner keeps alive: this crate, a user's program, PyTorch.
#[derive(Clone, Copy, Debug)]
pub struct StreamRef<'a> {
    device: &'a Device,
    raw: CUstream,
}

// SAFETY: as for `Stream`; the owner's obligation to keep it alive does not depend on the thread.
unsafe impl Send for StreamRef<'_> {}
// SAFETY: as above.
unsafe impl Sync for StreamRef<'_> {}

impl<'a> StreamRef<'a> {
    /// A stream given as a raw handle: null for the default stream of `device`, 1 and 2 for CUDA's legacy and per-thread
    /// ones.
    ///
    /// # Safety
    /// 1. `raw` is a stream of the primary context of `device`.
    /// 2. It is not destroyed while the value or a copy of it is used.
    pub unsafe fn from_raw(device: &'a Device, raw: CUstream) -> StreamRef<'a> {
        StreamRef { device, raw }
    }

    /// The handle.
    pub fn raw(&self) -> CUstream {
        self.raw
    }

    /// The device it is on.
    pub fn device(&self) -> &'a Device {
        self.device
    }

    /// Waits until all work enqueued so far is complete. Works while this thread captures another stream.
    ///
    /// # Errors
    /// [`CudaError::Fault`] if a kernel broke the context, [`CudaError::Call`] (also if the stream is capturing).
    pub fn synchronize(&self) -> Result<(), CudaError> {
        let _bound = self.device.bind()?;
        let _relaxed = RelaxedCapture::enter(self.device.driver());
        // SAFETY: the stream lives (2 of `from_raw`).
        let code = unsafe { (self.device.api().cuStreamSynchronize)(self.raw) };
        self.device.check("cuStreamSynchronize", code)
    }

    /// Whether all work enqueued so far is complete.
    ///
    /// # Errors
    /// As for [`Self::synchronize`].
    pub fn is_done(&self) -> Result<bool, CudaError> {
        let _bound = self.device.bind()?;
        let _relaxed = RelaxedCapture::enter(self.device.driver());
        // SAFETY: the stream lives (2 of `from_raw`).
        match unsafe { (self.device.api().cuStreamQuery)(self.raw) } {
            code::NOT_READY => Ok(false),
            code => self.device.check("cuStreamQuery", code).map(|()| true),
        }
    }

    /// Whether the stream is being captured into a graph.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    pub fn is_capturing(&self) -> Result<bool, CudaError> {
        let _bound = self.device.bind()?;
        let mut status = 0;
        // SAFETY: `status` is valid for a write, the stream lives (2 of `from_raw`).
        let code = unsafe { (self.device.api().cuStreamIsCapturing)(self.raw, &mut status) };
        // 1: active; 2: invalidated, which the end of the capture will report.
        self.device.check("cuStreamIsCapturing", code).map(|()| status != 0)
    }

    /// Makes later work on the stream wait for `event`.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    pub fn wait(&self, event: &Event) -> Result<(), CudaError> {
        let _bound = self.device.bind()?;
        // SAFETY: stream and event live.
        let code = unsafe { (self.device.api().cuStreamWaitEvent)(self.raw, event.raw(), 0) };
        self.device.check("cuStreamWaitEvent", code)
    }

    /// Records `event` after all work enqueued so far. The event is of this stream's device.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    pub fn record(&self, event: &Event) -> Result<(), CudaError> {
        let _bound = self.device.bind()?;
        // SAFETY: stream and event live.
        let code = unsafe { (self.device.api().cuEventRecord)(event.raw(), self.raw) };
        self.device.check("cuEventRecord", code)
    }

    /// Copies from the host. From pageable memory it returns when the source has been read, from pinned memory at once.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    ///
    /// # Safety
    /// 1. `to` is valid for `len_bytes` of device writes and `from` for reads, until the copy is complete.
    /// 2. Nobody else writes either meanwhile, or reads `to`.
    pub unsafe fn copy_to_device(
        &self,
        to: CUdeviceptr,
        from: *const c_void,
        len_bytes: usize,
    ) -> Result<(), CudaError> {
        let _bound = self.device.bind()?;
        // SAFETY: by 1 and 2.
        let code = unsafe { (self.device.api().cuMemcpyHtoDAsync_v2)(to, from, len_bytes, self.raw) };
        self.device.check("cuMemcpyHtoDAsync", code)
    }

    /// Copies to the host. To pageable memory it returns when the copy is complete, to pinned memory at once.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    ///
    /// # Safety
    /// 1. `from` is valid for `len_bytes` of device reads and `to` for writes, until the copy is complete.
    /// 2. Nobody else writes either meanwhile, or reads `to`.
    pub unsafe fn copy_to_host(
        &self,
        to: *mut c_void,
        from: CUdeviceptr,
        len_bytes: usize,
    ) -> Result<(), CudaError> {
        let _bound = self.device.bind()?;
        // SAFETY: by 1 and 2.
        let code = unsafe { (self.device.api().cuMemcpyDtoHAsync_v2)(to, from, len_bytes, self.raw) };
        self.device.check("cuMemcpyDtoHAsync", code)
    }

    /// Copies between device-visible addresses.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    ///
    /// # Safety
    /// 1. `from` is valid for `len_bytes` of reads and `to` for writes by this device, until the copy is complete.
    /// 2. Nobody else writes either meanwhile, or reads `to`.
    pub unsafe fn copy_on_device(
        &self,
        to: CUdeviceptr,
        from: CUdeviceptr,
        len_bytes: usize,
    ) -> Result<(), CudaError> {
        let _bound = self.device.bind()?;
        // SAFETY: by 1 and 2.
        let code = unsafe { (self.device.api().cuMemcpyDtoDAsync_v2)(to, from, len_bytes, self.raw) };
        self.device.check("cuMemcpyDtoDAsync", code)
    }

    /// Sets every byte to `value`.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    ///
    /// # Safety
    /// 1. `to` is valid for `len_bytes` of writes by this device until it is done, and nobody else uses it meanwhile.
    pub unsafe fn fill(&self, to: CUdeviceptr, value: u8, len_bytes: usize) -> Result<(), CudaError> {
        let _bound = self.device.bind()?;
        // SAFETY: by 1.
        let code = unsafe { (self.device.api().cuMemsetD8Async)(to, value, len_bytes, self.raw) };
        self.device.check("cuMemsetD8Async", code)
    }

    /// Writes `value` to an aligned word, once all earlier work of the stream is visible to every GPU and to the host.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    ///
    /// # Safety
    /// 1. `to` is valid for eight bytes of writes by this device until the write is done; others access it as an atomic word only.
    pub unsafe fn write_word(&self, to: CUdeviceptr, value: u64) -> Result<(), CudaError> {
        let _bound = self.device.bind()?;
        // SAFETY: by 1.
        let code = unsafe { (self.device.api().cuStreamWriteValue64_v2)(self.raw, to, value, AFTER_ALL) };
        self.device.check("cuStreamWriteValue64", code)
    }

    /// Makes later work on the stream wait until an aligned word is at least `value`. The wait has no timeout.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    ///
    /// # Safety
    /// 1. `word` is valid for eight bytes of reads by this device until the wait is over.
    pub unsafe fn wait_for_word(&self, word: CUdeviceptr, value: u64) -> Result<(), CudaError> {
        let _bound = self.device.bind()?;
        // SAFETY: by 1.
        let code = unsafe { (self.device.api().cuStreamWaitValue64_v2)(self.raw, word, value, AT_LEAST) };
        self.device.check("cuStreamWaitValue64", code)
    }

    /// Writes words and waits for words, in order; in a graph too.
    ///
    /// # Errors
    /// [`CudaError::Call`].
    ///
    /// # Safety
    /// 1. As [`Self::write_word`] and [`Self::wait_for_word`], for each.
    pub unsafe fn word_ops(&self, ops: &mut [WordOp]) -> Result<(), CudaError> {
        let _bound = self.device.bind()?;
        for ops in ops.chunks_mut(BATCH_MAX) {
            let first = ops.as_mut_ptr().cast::<BatchMemOp>();
            // SAFETY: by 1; so many lie there, and the driver copies them.
            let code =
                unsafe { (self.device.api().cuStreamBatchMemOp_v2)(self.raw, ops.len() as u32, first, 0) };
            self.device.check("cuStreamBatchMemOp", code)?;
        }
        Ok(())
    }
}

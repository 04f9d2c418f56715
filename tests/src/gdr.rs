//! A network with access to GPU memory, on top of one without: the driver's copies replace a NIC's accesses.
//!
//! A rank's ends copy on its stream, between the GPU's memory and the pinned memory of the network below. Received
//! data reaches the GPU by a flush, or without one before the receive completes.

use oxccl::cuda::{CudaError, Device, PinnedMemory, Stream};
use oxccl::net::{
    Comm, Connector, Listener, MemoryKinds, Net, NetError, NetHandle, NetMemory, NetMemoryKind,
    NetProperties, RecvComm, Registration, Request, SendComm,
};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The network of a rank with this GPU.
#[derive(Debug)]
pub struct CopyNet {
    /// What carries the bytes.
    pub inner: Arc<dyn Net>,
    /// Whose memory it reaches.
    pub device: Device,
    /// On which it copies. Connections are made while kernels wait for them, and the driver makes no more streams than some while a kernel runs.
    pub stream: Arc<Stream>,
    /// The kinds of memory that it can access.
    pub memory: MemoryKinds,
    /// Whether what came reaches the GPU by flushes only.
    pub awaits_flush: bool,
    /// What it did, over all ranks.
    pub moved: Arc<Moved>,
}

/// Messages from and to memory of GPUs, and flushes.
#[derive(Debug, Default)]
pub struct Moved {
    /// From GPUs.
    pub sent: AtomicUsize,
    /// To GPUs.
    pub received: AtomicUsize,
    /// Of what came.
    pub flushed: AtomicUsize,
    /// Registrations by descriptor.
    pub dma_bufs: AtomicUsize,
}

impl Moved {
    /// Sent, received, flushed, registered by descriptor.
    pub fn all(&self) -> [usize; 4] {
        [&self.sent, &self.received, &self.flushed, &self.dma_bufs].map(|count| count.load(Ordering::Relaxed))
    }
}

fn count(counter: &AtomicUsize) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// What an end needs of its network.
#[derive(Clone, Debug)]
struct Shared {
    device: Device,
    stream: Arc<Stream>,
    awaits_flush: bool,
    moved: Arc<Moved>,
}

impl CopyNet {
    fn shared(&self) -> Shared {
        let CopyNet { device, stream, awaits_flush, moved, .. } = self;
        let (device, stream, moved) = (device.clone(), stream.clone(), moved.clone());
        Shared { device, stream, awaits_flush: *awaits_flush, moved }
    }
}

impl Net for CopyNet {
    fn name(&self) -> &str {
        "Copies"
    }
    fn devices(&self) -> u32 {
        self.inner.devices()
    }
    fn is_moved_by_processors(&self) -> bool {
        self.inner.is_moved_by_processors()
    }
    fn properties(&self, device: u32) -> Result<NetProperties, NetError> {
        let memory = MemoryKinds::HOST | self.memory;
        self.inner.properties(device).map(|facts| NetProperties { memory, ..facts })
    }
    fn listen(&self, device: u32) -> Result<(NetHandle, Box<dyn Listener>), NetError> {
        let (handle, inner) = self.inner.listen(device)?;
        Ok((handle, Box::new(Making { inner, shared: self.shared() })))
    }
    fn connect(&self, device: u32, handle: &NetHandle) -> Result<Box<dyn Connector>, NetError> {
        Ok(Box::new(Making { inner: self.inner.connect(device, handle)?, shared: self.shared() }))
    }
}

/// A connection being made.
struct Making<T> {
    inner: T,
    shared: Shared,
}

impl Listener for Making<Box<dyn Listener>> {
    fn poll_accept(&mut self) -> Result<Option<Box<dyn RecvComm>>, NetError> {
        let Some(comm) = self.inner.poll_accept()? else { return Ok(None) };
        Ok(Some(Box::new(End::new(comm, &self.shared))))
    }
}

impl Connector for Making<Box<dyn Connector>> {
    fn poll_connect(&mut self) -> Result<Option<Box<dyn SendComm>>, NetError> {
        let Some(comm) = self.inner.poll_connect()? else { return Ok(None) };
        Ok(Some(Box::new(End::new(comm, &self.shared))))
    }
}

fn failed(error: CudaError) -> NetError {
    NetError::Unsupported { device: "copies".to_owned(), what: error.to_string() }
}

/// Memory of the GPU, and the host's in whose place the network below has it.
struct Staged {
    start: usize,
    len_bytes: usize,
    stage: PinnedMemory,
}

/// Bytes of the GPU's memory and their place in a stage.
#[derive(Clone, Copy)]
struct Piece {
    address: u64,
    stage: *mut u8,
    len_bytes: usize,
}

struct End<C> {
    // Dropped before the stages.
    inner: C,
    shared: Shared,
    /// By number: that of the network below, and the stage of what is the GPU's.
    known: Vec<(Registration, Option<Staged>)>,
    receives: HashMap<Request, Piece>,
    /// Copies end in their order: a flush is done when all are.
    flushes: u32,
}

// SAFETY: stages are reachable from every thread, and used by one at a time.
unsafe impl<C: Send> Send for End<C> {}

/// Requests from here on are flushes.
const FLUSHES: u32 = 1 << 20;

impl<C> End<C> {
    fn new(inner: C, shared: &Shared) -> End<C> {
        let (known, receives) = (Vec::new(), HashMap::new());
        End { inner, shared: shared.clone(), known, receives, flushes: 0 }
    }

    /// Where a message of the GPU's memory is staged; nothing for one of the host's.
    fn piece(&self, start: usize, len_bytes: usize, registration: Registration) -> Option<Piece> {
        let staged = self.known[registration.0 as usize].1.as_ref()?;
        let offset = start.checked_sub(staged.start).expect("a message in front of what was registered");
        assert!(offset + len_bytes <= staged.len_bytes, "a message beyond what was registered");
        let stage = staged.stage.host().wrapping_add(offset);
        Some(Piece { address: start as u64, stage, len_bytes })
    }

    fn below(&self, registration: Registration) -> Registration {
        self.known[registration.0 as usize].0
    }

    /// Begins to bring what came to the GPU.
    fn deliver(&self, piece: Piece) -> Result<(), NetError> {
        if piece.len_bytes == 0 {
            return Ok(());
        }
        // SAFETY: (1) as `piece` checked; both stay until the end is dropped, which waits; (2) the slot is published after that.
        let copied = unsafe {
            self.shared.stream.by_ref().copy_to_device(piece.address, piece.stage.cast(), piece.len_bytes)
        };
        copied.map_err(failed)
    }
}

impl<C> Drop for End<C> {
    fn drop(&mut self) {
        // What is still being copied ends before its memory does.
        let _ = self.shared.stream.synchronize();
    }
}

impl<C: Comm + ?Sized> Comm for End<Box<C>> {
    unsafe fn register(&mut self, memory: NetMemory<'_>) -> Result<Registration, NetError> {
        let mut staged = None;
        if !matches!(memory.kind, NetMemoryKind::Host) {
            if let NetMemoryKind::DmaBuf { .. } = memory.kind {
                count(&self.shared.moved.dma_bufs);
            }
            let (start, len_bytes) = (memory.start.addr(), memory.len_bytes);
            let stage = PinnedMemory::zeroed(&self.shared.device, len_bytes).map_err(failed)?;
            staged = Some(Staged { start, len_bytes, stage });
        }
        let below = match &staged {
            Some(Staged { stage, len_bytes, .. }) => {
                NetMemory { start: stage.host().cast(), len_bytes: *len_bytes, kind: NetMemoryKind::Host }
            }
            None => memory,
        };
        // SAFETY: the caller's; stages stay longer than the end below.
        let below = unsafe { self.inner.register(below)? };
        self.known.push((below, staged));
        Ok(Registration(self.known.len() as u32 - 1))
    }

    fn set_tag(&mut self, tag: u32) -> bool {
        self.inner.set_tag(tag)
    }

    fn deregister(&mut self, registration: Registration) -> Result<(), NetError> {
        self.inner.deregister(self.below(registration))
    }

    fn test(&mut self, request: Request) -> Result<Option<usize>, NetError> {
        if request.0 >= FLUSHES {
            return Ok(self.shared.stream.by_ref().is_done().map_err(failed)?.then_some(0));
        }
        let done = self.inner.test(request)?;
        if let Some(len_bytes) = done
            && let Some(piece) = self.receives.remove(&request)
        {
            count(&self.shared.moved.received);
            if !self.shared.awaits_flush {
                self.deliver(Piece { len_bytes, ..piece })?;
                self.shared.stream.synchronize().map_err(failed)?;
            }
        }
        Ok(done)
    }
}

impl SendComm for End<Box<dyn SendComm>> {
    unsafe fn isend(
        &mut self,
        start: *const u8,
        len_bytes: usize,
        registration: Registration,
    ) -> Result<Option<Request>, NetError> {
        let below = self.below(registration);
        let Some(piece) = self.piece(start.addr(), len_bytes, registration) else {
            // SAFETY: the caller's.
            return unsafe { self.inner.isend(start, len_bytes, below) };
        };
        if len_bytes > 0 {
            // SAFETY: (1) as `piece` checked; (2) the slot is full, and its stage empty since its last send was done.
            let copied = unsafe {
                self.shared.stream.by_ref().copy_to_host(piece.stage.cast(), piece.address, len_bytes)
            };
            copied.and_then(|()| self.shared.stream.synchronize()).map_err(failed)?;
        }
        // SAFETY: the stage is registered, and written for the slot's next step only.
        let sent = unsafe { self.inner.isend(piece.stage, len_bytes, below)? };
        sent.iter().for_each(|_| count(&self.shared.moved.sent));
        Ok(sent)
    }
}

impl RecvComm for End<Box<dyn RecvComm>> {
    fn be_prompt(&mut self) {
        self.inner.be_prompt();
    }

    unsafe fn irecv(
        &mut self,
        start: *mut u8,
        max_bytes: usize,
        registration: Registration,
    ) -> Result<Option<Request>, NetError> {
        let below = self.below(registration);
        let Some(piece) = self.piece(start.addr(), max_bytes, registration) else {
            // SAFETY: the caller's.
            return unsafe { self.inner.irecv(start, max_bytes, below) };
        };
        // SAFETY: the stage is registered, and read when this is done.
        let posted = unsafe { self.inner.irecv(piece.stage, max_bytes, below)? };
        if let Some(request) = posted {
            self.receives.insert(request, piece);
        }
        Ok(posted)
    }

    unsafe fn flush(
        &mut self,
        start: *mut u8,
        len_bytes: usize,
        registration: Registration,
    ) -> Result<Option<Request>, NetError> {
        assert!(self.shared.awaits_flush, "a flush that nobody needs");
        let piece = self.piece(start.addr(), len_bytes, registration).expect("a flush of the GPU's memory");
        self.deliver(piece)?;
        count(&self.shared.moved.flushed);
        self.flushes = (self.flushes + 1) % 64;
        Ok(Some(Request(FLUSHES + self.flushes)))
    }
}

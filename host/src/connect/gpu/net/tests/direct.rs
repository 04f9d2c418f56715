//! A network that reads and writes "device" memory itself, over one that does not; and ranks that use it.
//!
//! The memory is the process's, full of rubbish, and kernels look at it there. Everybody else is checked to go through what was registered.
//! Where flushes are expected, received bytes reach it by a flush only: whoever leaves one out shows its kernel rubbish.

use super::super::gdr::{Gdr, KnownBy};
use super::super::memory::{HostMemory, Source};
use super::cases::{call, every_function};
use super::{Player, Scene};
use crate::gpu::{CudaError, NicMemory, RDMA_PAGE_BYTES};
use crate::mem::Segment;
use crate::net::*;
use crate::plan::Forced;
use crate::plan::plan;
use oxccl_shared::abi::{Algorithm, Func, Protocol, Rank};
use oxccl_shared::fifo::STEPS;
use std::collections::HashMap;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// How a rank's NIC uses its GPU's memory, and what it does not do.
#[derive(Clone, Copy, Debug)]
pub struct Direct {
    pub gdr: Gdr,
    /// Whether the device does not register that memory, by how often it has been asked to.
    pub refuses: fn(usize) -> bool,
}

const DMA_BUF: KnownBy = KnownBy::DmaBuf { over_pcie: false, or_address: false };
const BOTH_WAYS: Direct =
    Direct { gdr: Gdr { known_by: DMA_BUF, reads: true, needs_flush: true }, refuses: |_| false };

/// A rank's GPU: its memory, and who has been there.
#[derive(Debug)]
pub struct Gpu {
    direct: Direct,
    /// The addresses of its memory, as long as there is any.
    memory: Mutex<Vec<Range<usize>>>,
    /// Descriptors that stand for it.
    descriptors: Mutex<Vec<i32>>,
    registrations: AtomicUsize,
    /// Messages from it, to it, and flushes.
    moved: [AtomicUsize; 3],
}

const SENT: usize = 0;
const RECEIVED: usize = 1;
const FLUSHED: usize = 2;

impl Gpu {
    pub fn new(direct: Direct) -> Arc<Gpu> {
        Arc::new(Gpu {
            direct,
            memory: Mutex::default(),
            descriptors: Mutex::default(),
            registrations: AtomicUsize::new(0),
            moved: [const { AtomicUsize::new(0) }; 3],
        })
    }

    fn count(&self, what: usize) {
        self.moved[what].fetch_add(1, Relaxed);
    }

    pub fn moved(&self) -> [usize; 3] {
        [SENT, RECEIVED, FLUSHED].map(|what| self.moved[what].load(Relaxed))
    }

    fn has(&self, address: usize) -> bool {
        self.memory.lock().unwrap().iter().any(|memory| memory.contains(&address))
    }
}

impl Source for Arc<Gpu> {
    fn host(&self, len_bytes: usize) -> Result<HostMemory, CudaError> {
        Ok(HostMemory::of_process(len_bytes))
    }

    fn reached(&self, len_bytes: usize) -> Result<Arc<dyn NicMemory>, CudaError> {
        let all_bytes = len_bytes + RDMA_PAGE_BYTES;
        let segment = Segment::private(all_bytes).unwrap();
        // SAFETY: the segment was just made.
        unsafe { segment.base().write_bytes(0x5a, all_bytes) };
        let start = segment.base().expose_provenance().next_multiple_of(RDMA_PAGE_BYTES);
        self.memory.lock().unwrap().push(start..start + len_bytes);
        Ok(Arc::new(GpuMemory { start, gpu: self.clone(), _segment: segment }))
    }
}

struct GpuMemory {
    start: usize,
    gpu: Arc<Gpu>,
    _segment: Segment,
}

impl Drop for GpuMemory {
    fn drop(&mut self) {
        self.gpu.memory.lock().unwrap().retain(|memory| memory.start != self.start);
    }
}

impl NicMemory for GpuMemory {
    fn address(&self) -> u64 {
        self.start as u64
    }

    fn dma_buf(&self, _: bool) -> Result<OwnedFd, CudaError> {
        let fd: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
        self.gpu.descriptors.lock().unwrap().push(fd.as_raw_fd());
        Ok(fd)
    }
}

/// The network of a rank with a GPU.
#[derive(Debug)]
pub struct DirectNet {
    pub inner: Arc<dyn Net>,
    pub gpu: Arc<Gpu>,
}

impl Net for DirectNet {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn devices(&self) -> u32 {
        self.inner.devices()
    }
    fn is_moved_by_processors(&self) -> bool {
        self.inner.is_moved_by_processors()
    }
    fn properties(&self, device: u32) -> Result<NetProperties, NetError> {
        self.inner.properties(device).map(|facts| NetProperties { memory: MemoryKinds::all(), ..facts })
    }
    fn listen(&self, device: u32) -> Result<(NetHandle, Box<dyn Listener>), NetError> {
        let (handle, inner) = self.inner.listen(device)?;
        Ok((handle, Box::new(Listening { inner, gpu: self.gpu.clone() })))
    }
    fn connect(&self, device: u32, handle: &NetHandle) -> Result<Box<dyn Connector>, NetError> {
        let inner = self.inner.connect(device, handle)?;
        Ok(Box::new(Listening { inner, gpu: self.gpu.clone() }))
    }
}

struct Listening<T> {
    inner: T,
    gpu: Arc<Gpu>,
}

impl Listener for Listening<Box<dyn Listener>> {
    fn poll_accept(&mut self) -> Result<Option<Box<dyn RecvComm>>, NetError> {
        let comm = self.inner.poll_accept()?;
        Ok(comm.map(|comm| Box::new(End::new(comm, &self.gpu)) as Box<dyn RecvComm>))
    }
}

impl Connector for Listening<Box<dyn Connector>> {
    fn poll_connect(&mut self) -> Result<Option<Box<dyn SendComm>>, NetError> {
        let comm = self.inner.poll_connect()?;
        Ok(comm.map(|comm| Box::new(End::new(comm, &self.gpu)) as Box<dyn SendComm>))
    }
}

/// Memory of the device, and the host's in whose place the network below has it.
struct Staged {
    start: usize,
    stage: Box<[u8]>,
}

/// What has come, or is to come, into a stage.
#[derive(Clone, Copy)]
struct Coming {
    registration: usize,
    start: usize,
    len_bytes: usize,
}

struct End<C> {
    // Dropped before the stages.
    inner: C,
    gpu: Arc<Gpu>,
    /// By number: that of the network below, and the stage of what is the device's.
    known: Vec<(Registration, Option<Staged>)>,
    receives: HashMap<Request, Coming>,
    /// With how often each was asked for.
    flushes: [Option<(Coming, u32)>; STEPS],
}

/// Requests from here on are flushes.
const FLUSHES: u32 = 1 << 20;

impl<C> End<C> {
    fn new(inner: C, gpu: &Arc<Gpu>) -> End<C> {
        End { inner, gpu: gpu.clone(), known: Vec::new(), receives: HashMap::new(), flushes: [None; STEPS] }
    }

    /// The stage of a message and the network's registration of it; of the host's memory nothing.
    fn stage(&mut self, start: usize, len_bytes: usize, registration: Registration) -> Option<*mut u8> {
        let (_, staged) = &mut self.known[registration.0 as usize];
        let Some(Staged { start: first, stage }) = staged else {
            assert!(!self.gpu.has(start), "memory of the device in the name of the host's");
            return None;
        };
        let offset = start.checked_sub(*first).expect("a message in front of what was registered");
        assert!(offset + len_bytes <= stage.len(), "a message beyond what was registered");
        Some(stage[offset..].as_mut_ptr())
    }

    fn below(&self, registration: Registration) -> Registration {
        self.known[registration.0 as usize].0
    }

    /// Lets the device see what came.
    fn deliver(&mut self, coming: Coming) {
        let Coming { registration, start, len_bytes } = coming;
        let stage = self.stage(start, len_bytes, Registration(registration as u32)).unwrap();
        // SAFETY: both are that long; nobody looks at the slot before it is published.
        unsafe { std::ptr::with_exposed_provenance_mut::<u8>(start).copy_from(stage, len_bytes) };
    }

    fn test_flush(&mut self, slot: usize) -> Option<usize> {
        let (coming, asked) = self.flushes[slot].as_mut().expect("a flush that is under way");
        *asked += 1;
        if *asked < 3 {
            return None;
        }
        let coming = *coming;
        self.flushes[slot] = None;
        self.deliver(coming);
        Some(coming.len_bytes)
    }
}

impl<C: Comm + ?Sized> Comm for End<Box<C>> {
    unsafe fn register(&mut self, memory: NetMemory<'_>) -> Result<Registration, NetError> {
        let Gpu { direct, registrations, descriptors, .. } = &*self.gpu;
        let (start, len_bytes) = (memory.start.addr(), memory.len_bytes);
        let mut staged = None;
        if !matches!(memory.kind, NetMemoryKind::Host) {
            let pieces = self.gpu.memory.lock().unwrap().clone();
            let all = pieces.into_iter().find(|piece| piece.contains(&start)).expect("the GPU's");
            assert!(start + len_bytes <= all.end && start.is_multiple_of(RDMA_PAGE_BYTES));
            match (memory.kind, direct.gdr.known_by) {
                (NetMemoryKind::Cuda, KnownBy::Address) => {}
                (NetMemoryKind::DmaBuf { fd, offset_bytes }, KnownBy::DmaBuf { .. }) => {
                    assert!(descriptors.lock().unwrap().contains(&fd.as_raw_fd()));
                    assert_eq!(offset_bytes as usize, start - all.start);
                }
                other => panic!("known by other means than wanted: {other:?}"),
            }
            let number = registrations.fetch_add(1, Relaxed);
            if (direct.refuses)(number) {
                let (device, what) = ("a test's device".to_owned(), "this memory".to_owned());
                return Err(NetError::Unsupported { device, what });
            }
            staged = Some(Staged { start, stage: vec![0; len_bytes].into() });
        }
        let below = match &mut staged {
            Some(Staged { stage, .. }) => {
                let start = stage.as_mut_ptr().cast();
                NetMemory { start, len_bytes, kind: NetMemoryKind::Host }
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
        if let Some(slot) = request.0.checked_sub(FLUSHES) {
            return Ok(self.test_flush(slot as usize));
        }
        let done = self.inner.test(request)?;
        if let Some(len_bytes) = done
            && let Some(coming) = self.receives.remove(&request)
        {
            self.gpu.count(RECEIVED);
            if !self.gpu.direct.gdr.needs_flush {
                self.deliver(Coming { len_bytes, ..coming });
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
        let Some(stage) = self.stage(start.addr(), len_bytes, registration) else {
            // SAFETY: the caller's.
            return unsafe { self.inner.isend(start, len_bytes, below) };
        };
        let from = std::ptr::with_exposed_provenance::<u8>(start.addr());
        // SAFETY: both are that long, and the slot is full.
        unsafe { stage.copy_from(from, len_bytes) };
        // SAFETY: the stage is registered, and written for the slot's next step only.
        let sent = unsafe { self.inner.isend(stage, len_bytes, below)? };
        sent.iter().for_each(|_| self.gpu.count(SENT));
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
        let Some(stage) = self.stage(start.addr(), max_bytes, registration) else {
            // SAFETY: the caller's.
            return unsafe { self.inner.irecv(start, max_bytes, below) };
        };
        // SAFETY: the stage is registered, and read when this is done.
        let posted = unsafe { self.inner.irecv(stage, max_bytes, below)? };
        if let Some(request) = posted {
            let registration = registration.0 as usize;
            let coming = Coming { registration, start: start.addr(), len_bytes: max_bytes };
            self.receives.insert(request, coming);
        }
        Ok(posted)
    }

    unsafe fn flush(
        &mut self,
        start: *mut u8,
        len_bytes: usize,
        registration: Registration,
    ) -> Result<Option<Request>, NetError> {
        assert!(self.gpu.direct.gdr.needs_flush, "a flush that nobody needs");
        self.stage(start.addr(), len_bytes, registration).expect("a flush of the device's memory");
        let slot = self.flushes.iter().position(Option::is_none).expect("as many flushes as slots");
        let registration = registration.0 as usize;
        self.flushes[slot] = Some((Coming { registration, start: start.addr(), len_bytes }, 0));
        self.gpu.count(FLUSHED);
        Ok(Some(Request(FLUSHES + slot as u32)))
    }
}

/// Everything by slots that a counter announces, which alone may lie on a device.
const SIMPLE: Option<Protocol> = Some(Protocol::Simple);

/// What each rank's NIC moved.
fn moved(player: &Player) -> [usize; 3] {
    player.gpu.as_ref().map_or([0; 3], |gpu| gpu.moved())
}

fn by_rings(direct: &[Option<Direct>]) -> Scene {
    let hosts: Vec<u64> = (0..direct.len() as u64).collect();
    Scene { threads: 2, direct: direct.to_vec(), forced: Forced::only(None, SIMPLE), ..Scene::new(&hosts) }
}

#[test]
fn slots_on_gpus_carry_everything_both_ways() {
    by_rings(&[Some(BOTH_WAYS); 3]).play(|player| {
        every_function(player);
        let [sent, received, flushed] = moved(player);
        assert!(sent > 100 && received > 100, "{sent} {received}");
        assert_eq!(flushed, received, "every slot is flushed before a kernel is told");
    });
}

/// Lines stay on the host, and so does the operation header: whatever protocol comes next finds its slots.
#[test]
fn protocols_take_turns_between_both_memories() {
    let scene = Scene { direct: vec![Some(BOTH_WAYS); 2], ..Scene::new(&[1, 2]) };
    scene.play(|player| {
        every_function(player);
        assert!(moved(player)[SENT] > 0);
    });
}

/// One rank with, one without, one that only receives there, by address, on a GPU that orders what NICs write.
#[test]
fn each_end_chooses_for_itself() {
    let orders = Gdr { known_by: KnownBy::Address, reads: false, needs_flush: false };
    let ordered = Direct { gdr: orders, refuses: |_| false };
    by_rings(&[Some(BOTH_WAYS), None, Some(ordered), Some(BOTH_WAYS)]).play(|player| {
        every_function(player);
        let [sent, received, flushed] = moved(player);
        match player.rank {
            Rank(1) => assert_eq!([sent, received, flushed], [0; 3]),
            Rank(2) => assert!(sent == 0 && received > 0 && flushed == 0),
            _ => assert!(sent > 0 && received > 0 && flushed == received),
        }
    });
}

/// Connections whose memory the device does not register are had on the host, the others stay where they are.
#[test]
fn what_the_device_refuses_is_had_on_the_host() {
    let every_other: fn(usize) -> bool = |number| number.is_multiple_of(2);
    for refuses in [every_other, |_| true] {
        let direct = Direct { refuses, ..BOTH_WAYS };
        Scene { by_need: false, ..by_rings(&[Some(direct), Some(BOTH_WAYS)]) }.play(|player| {
            every_function(player);
            let is_used = moved(player)[SENT] > 0;
            assert_eq!(is_used, player.rank == Rank(1) || !refuses(1));
        });
    }
}

#[test]
fn trees_over_hosts_that_share_memory_inside() {
    let forced = Forced::only(Some(Algorithm::Tree), SIMPLE);
    let direct = vec![Some(BOTH_WAYS), Some(BOTH_WAYS), None, Some(BOTH_WAYS)];
    Scene { forced, direct, ..Scene::new(&[1, 1, 2, 3]) }.play(|player| {
        for (tag, count) in [(1, 1), (2, 3000), (3, 60_001)] {
            let call = call(Func::AllReduce, count);
            assert_eq!(plan(&call, &player.facts).algorithm, Algorithm::Tree);
            assert!(player.collective(&call, tag).is_ok(), "{:?}", player.health.fault());
        }
        player.finish();
    });
}

/// Where the first connections are refused, later ones are not tried: everything goes on in the host's memory.
#[test]
fn what_the_device_refuses_at_init_it_is_not_asked_again() {
    let direct = Direct { refuses: |_| true, ..BOTH_WAYS };
    by_rings(&[Some(direct), Some(BOTH_WAYS)]).play(|player| {
        every_function(player);
        assert_eq!(moved(player)[SENT] > 0, player.rank == Rank(1));
    });
}

/// Kernels know where a later connection's slots are before the device has been asked: an error that says what to do.
#[test]
fn what_the_device_refuses_later_is_an_error() {
    let direct = Direct { refuses: |number| number >= 2, ..BOTH_WAYS };
    by_rings(&[Some(direct), Some(direct)]).play(|player| {
        assert!(player.collective(&call(Func::AllReduce, 10), 1).is_ok());
        assert!(player.exchange(50_000, 2).is_err());
        let fault = player.health.fault().map(|was| was.to_string()).unwrap_or_default();
        for part in ["pair channel", "register memory of the GPU", "NCCL_NET_GDR_LEVEL=LOC"] {
            assert!(fault.contains(part), "{part}: {fault}");
        }
    });
}

//! Parts among ranks that are threads, on GPUs whose memory is the host's: who needs what, in which order, and what may go wrong.

mod hosts;

use super::*;
use crate::bootstrap::{Bootstrap, BootstrapConfig, InterfaceFilter, PeerEvent, UniqueId, Watch};
use crate::connect::connect;
use crate::connect::gpu::part::Part;
use crate::connect::gpu::{DeviceWanted, RouteSettings};
use crate::gpu::{
    CudaError, DeviceId, Gpu, GpuMemory, HostVisible, IPC_HANDLE_BYTES, MemoryKind, NicMemory, PciBus,
    RdmaFacts,
};
use crate::launch::{Fault, Health, LinkError, Notice, Notify, Outstanding};
use crate::machine::{ConnKind, ConnTables, Connector, Need, NetEnds};
use crate::mem::Segment;
use crate::net::NetConfig;
use crate::net::socket::SocketConfig;
use crate::plan::{Call, CallRecord, ChannelLimits, Forced};
use crate::topology::TopologySettings;
use crate::transport::PeerInfo;
use crate::transport::p2p::P2pSettings;
use oxccl_shared::abi::{ConnControl, ConnEnd, DataType, Func, Protocol, Rank, RedOp};
use proptest::prelude::*;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// What no step takes, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(100);

/// A GPU whose memory is the process's.
#[derive(Debug)]
struct HostGpu {
    number: u8,
    /// It has no memory any more.
    is_full: AtomicBool,
}

#[derive(Debug)]
struct HostMemory(Segment);

impl GpuMemory for HostMemory {
    fn address(&self) -> u64 {
        self.0.base().expose_provenance() as u64
    }
    fn len_bytes(&self) -> usize {
        self.0.len()
    }
}

impl Gpu for HostGpu {
    fn id(&self) -> DeviceId {
        let bus = PciBus { domain: 0, bus: self.number, device: 0 };
        DeviceId { ordinal: self.number.into(), bus }
    }
    fn uuid(&self) -> [u8; 16] {
        [self.number + 1; 16]
    }
    fn sm(&self) -> u32 {
        90
    }
    fn sm_count(&self) -> u32 {
        132
    }
    fn exports_fds(&self) -> Result<bool, CudaError> {
        Ok(false)
    }
    fn can_access(&self, _: &[u8; 16]) -> Result<Option<bool>, CudaError> {
        Ok(Some(true))
    }
    fn enable_peer(&self, _: u32) -> Result<(), CudaError> {
        Ok(())
    }
    fn rdma(&self) -> Result<RdmaFacts, CudaError> {
        Ok(RdmaFacts { is_supported: false, dma_buf: false, writes_are_ordered: false })
    }
    fn allocate(&self, len_bytes: usize) -> Result<Arc<dyn GpuMemory>, CudaError> {
        if self.is_full.load(Relaxed) {
            return Err(CudaError::OutOfMemory {
                device: self.id(),
                kind: MemoryKind::Device,
                wanted_bytes: len_bytes,
                free_bytes: 0,
                total_bytes: 1 << 30,
            });
        }
        Ok(Arc::new(HostMemory(Segment::private(len_bytes).unwrap())))
    }
    fn allocate_shareable(&self, _: usize, _: &[u32]) -> Result<Arc<dyn GpuMemory>, CudaError> {
        unreachable!("all ranks are in one process")
    }
    fn pin(&self, len_bytes: usize) -> Result<HostVisible, CudaError> {
        let memory = self.allocate(len_bytes)?;
        let host = std::ptr::with_exposed_provenance_mut(memory.address() as usize);
        Ok(HostVisible { host: NonNull::new(host).unwrap(), memory })
    }
    fn register(&self, _: Segment) -> Result<Arc<dyn GpuMemory>, CudaError> {
        unreachable!("all pairs meet on GPUs")
    }
    fn import(&self, _: BorrowedFd<'_>, _: usize) -> Result<Arc<dyn GpuMemory>, CudaError> {
        unreachable!("all ranks are in one process")
    }
    fn open_ipc(&self, _: &[u8; IPC_HANDLE_BYTES]) -> Result<Arc<dyn GpuMemory>, CudaError> {
        unreachable!("all ranks are in one process")
    }
    fn allocate_for_nic(&self, _: usize) -> Result<Arc<dyn NicMemory>, CudaError> {
        unreachable!("there is no NIC")
    }
    fn upload(&self, bytes: &[u8]) -> Result<Arc<dyn GpuMemory>, CudaError> {
        let memory = Arc::new(HostMemory(Segment::private(bytes.len()).unwrap()));
        self.write(memory.address(), bytes)?;
        Ok(memory)
    }
    fn write(&self, to: u64, bytes: &[u8]) -> Result<(), CudaError> {
        let to: *mut u8 = std::ptr::with_exposed_provenance_mut(to as usize);
        // SAFETY: the address is of memory of `upload`, which nobody else writes.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }
}

/// A rank that has joined.
struct Member {
    rank: Rank,
    parts: Arc<Parts>,
    health: Arc<Health>,
    gpu: Arc<HostGpu>,
    watch: Option<Arc<Watch>>,
    tables: ConnTables,
}

struct Speaker(Weak<Watch>);

impl Notify for Speaker {
    fn notify(&self, what: Notice) {
        use crate::wire::Message;
        self.0.upgrade().iter().for_each(|watch| watch.note(&what.to_bytes()));
    }
    fn gave_up(&self, why: &Outstanding) {
        self.0.upgrade().iter().for_each(|watch| watch.abort(&why.to_string()));
    }
}

/// How ranks are made.
#[derive(Clone, Copy)]
struct World {
    nranks: u32,
    timeout: Duration,
    /// Each rank loses so many of its first notes.
    loses: u32,
    /// This rank does not open its parts.
    shut: Option<Rank>,
    /// Ranks of each host.
    each: u32,
    by_need: fn(Rank) -> bool,
}

impl World {
    fn new(nranks: u32) -> World {
        World { nranks, timeout: PATIENCE, loses: 0, shut: None, each: nranks, by_need: |_| true }
    }

    fn members(self) -> Vec<Member> {
        let bind_addr = Some("127.0.0.1".parse().unwrap());
        let config = BootstrapConfig { timeout: PATIENCE, bind_addr, ..BootstrapConfig::default() };
        let id = UniqueId::create_by(&config).unwrap();
        std::thread::scope(|scope| {
            let join = |rank| {
                let (id, config) = (&id, &config);
                scope.spawn(move || self.join(Bootstrap::connect(id, rank, self.nranks, config).unwrap()))
            };
            let threads: Vec<_> = (0..self.nranks).map(Rank).map(join).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    fn join(self, bootstrap: Bootstrap) -> Member {
        let rank = bootstrap.rank();
        let gpu = Arc::new(HostGpu { number: rank.0 as u8, is_full: AtomicBool::new(false) });
        let info = PeerInfo { host: u64::from(rank.0 / self.each), ..PeerInfo::local(None, 1).unwrap() };
        let socket = SocketConfig { interfaces: InterfaceFilter::parse("=lo"), ..SocketConfig::default() };
        let net = NetConfig { name: Some("Socket".into()), socket, ..NetConfig::default() };
        let topology = TopologySettings::default();
        let wanted = DeviceWanted {
            device: Ok(&*gpu),
            info: &info,
            settings: &[],
            routes: RouteSettings { memory: true, network: true },
            p2p: &P2pSettings::default(),
            net: &net,
            by_need: (self.by_need)(rank),
            net_timeout: self.timeout,
            timeout: PATIENCE,
            topology: &topology,
            forced: Forced::default(),
            limits: ChannelLimits::default(),
            table: None,
            buffer_bytes: None,
        };
        let connected = connect(&bootstrap, &wanted).unwrap();
        let (parts, health) = (connected.parts.clone(), Arc::new(Health::new(rank, self.nranks)));
        let (reader, monitor) = (parts.clone(), health.clone());
        let watch = Arc::new(bootstrap.watch(Box::new(move |event| match event {
            PeerEvent::PeerNote { rank, note } => reader.note(rank, &note),
            PeerEvent::PeerDied { rank } => drop(monitor.fail(Fault::PeerDied { rank }, None)),
            PeerEvent::PeerAborted { rank, .. } => drop(monitor.fail(Fault::PeerAborted { rank }, None)),
            PeerEvent::GaveUp { .. } => {}
            PeerEvent::PeerLeft { rank } => monitor.note_left(rank),
        })));
        let (says, lost) = (Arc::downgrade(&watch), AtomicU32::new(0));
        let say = Box::new(move |note: &[u8]| {
            if lost.fetch_add(1, Relaxed) >= self.loses {
                says.upgrade().iter().for_each(|watch| watch.note(note));
            }
        });
        let notify = Arc::new(Speaker(Arc::downgrade(&watch)));
        if self.shut != Some(rank) {
            parts.open(PartsOpen { device: gpu.clone(), health: health.clone(), notify, say });
        }
        Member { rank, parts, health, gpu, watch: Some(watch), tables: connected.tables }
    }
}

impl Member {
    fn begin(&self, needs: &[Need]) -> Result<NetEnds, Fault> {
        self.parts.connect(needs, None)
    }

    fn connect(&self, needs: &[Need]) -> Result<(), Fault> {
        self.begin(needs).map(|made| assert!(made.ends.is_empty(), "all share memory"))
    }

    fn watch(&mut self) -> Watch {
        let mut watch = self.watch.take().unwrap();
        loop {
            match Arc::try_unwrap(watch) {
                Ok(watch) => return watch,
                Err(shared) => watch = shared,
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn bytes(&self) -> usize {
        self.parts.bytes()
    }

    /// The end of a connection as a kernel would find it.
    fn end(&self, kind: ConnKind, protocol: Protocol, index: usize, is_send: bool) -> ConnEnd {
        let lists = self.tables.of(kind, protocol);
        let list = if is_send { lists.send } else { lists.recv };
        let at: *const ConnEnd = std::ptr::with_exposed_provenance(list as usize);
        // SAFETY: the list has room for every connection; every bit pattern is an end.
        unsafe { at.add(index).read_unaligned() }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if self.watch.is_some() {
            let watch = self.watch();
            self.parts.close(watch.bootstrap());
            watch.close();
        }
    }
}

fn need(kind: ConnKind, protocol: Protocol, channels: u32) -> Need {
    Need { kind, protocol, channels, peer: None }
}

fn pair(peer: u32, protocol: Protocol, channels: u32) -> Need {
    Need { kind: ConnKind::Pair, protocol, channels, peer: Some(Rank(peer)) }
}

/// Runs something on all members at once.
fn each<T: Send>(members: &[Member], run: impl Fn(&Member) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = members.iter().map(|member| scope.spawn(move || run(member))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Every connection of a part leads from one end to the other, in memory of its own that is zero.
fn check(members: &[Member], part: Part) {
    let layout = members[0].parts.layout().of_part(part);
    let mut taken = Vec::new();
    for member in members {
        for name in layout.conns(member.rank).filter(|name| name.is_send) {
            let here = layout.index_of(member.rank, name);
            let theirs = crate::connect::gpu::ConnName { peer: member.rank, is_send: false, ..name };
            let there = layout.index_of(name.peer, theirs);
            let protocol = part.protocol.unwrap_or(Protocol::LL);
            let send = member.end(part.kind, protocol, here, true);
            let recv = members[name.peer.index()].end(part.kind, protocol, there, false);
            assert_eq!((send.peer, recv.peer), (name.peer, member.rank), "{part:?} {name:?}");
            assert_eq!(
                (send.producer_side, send.consumer_side, send.counted),
                (recv.producer_side, recv.consumer_side, recv.counted),
                "{part:?} {name:?}"
            );
            let bytes = layout.slots(part.kind).total_bytes();
            taken.push((send.consumer_side.addr(), bytes));
            taken.push((send.producer_side.addr(), size_of::<ConnControl>()));
        }
    }
    assert!(!taken.is_empty());
    taken.sort_unstable();
    assert!(taken.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0), "{part:?} overlaps");
}

/// Bytes of a rank's connections by arithmetic: `channels` of them to so many ranks, each with so many bytes of slots, and the words that
/// come back.
fn bytes(peers: usize, channels: usize, slots_bytes: usize) -> usize {
    peers * channels * (2 * size_of::<ConnControl>() + slots_bytes)
}

const KIB: usize = 1 << 10;

#[test]
fn memory_grows_with_what_is_called() {
    const LL_SLOTS: usize = 8 * (16 * KIB + 128);
    for nranks in [2, 4] {
        let members = World::new(nranks).members();
        let peers = nranks as usize - 1;
        // A barrier and the smallest all-reduces.
        let mut expected = bytes(peers, 1, LL_SLOTS);
        let all = |expected: usize| each(&members, |member| assert_eq!(member.bytes(), expected));
        all(expected);
        assert!(expected <= 1 << 20);
        let first = need(ConnKind::Mesh, Protocol::LL, 1);
        each(&members, |member| member.connect(&[first]).unwrap());
        all(expected);
        // All-reduces of all sizes: hops by LL, then LL128, then rings by Simple.
        for (kind, protocol, channels, conns, slots) in [
            (ConnKind::Mesh, Protocol::LL, 32, peers, LL_SLOTS),
            (ConnKind::Mesh, Protocol::LL128, 32, peers, 4 * 72 * KIB),
            (ConnKind::Ring, Protocol::Simple, 24, 1, 8 * 240 * KIB),
        ] {
            each(&members, |member| member.connect(&[need(kind, protocol, channels)]).unwrap());
            let there = if (kind, protocol) == (ConnKind::Mesh, Protocol::LL) { 1 } else { 0 };
            expected += bytes(conns, channels as usize - there, slots);
            all(expected);
        }
        assert!(expected <= 86 << 20, "{expected}");
        check(&members, Part { kind: ConnKind::Ring, protocol: Some(Protocol::Simple), cut: 3, pair: None });
        // Messages between two ranks take nothing of the others.
        members[0].connect(&[pair(1, Protocol::LL, 1)]).unwrap();
        members[1].connect(&[pair(0, Protocol::LL, 1)]).unwrap();
        for member in &members {
            let of_pair = if member.rank.0 < 2 { bytes(1, 1, LL_SLOTS) } else { 0 };
            assert_eq!(member.bytes(), expected + of_pair);
        }
    }
}

/// Whoever needs a part gets it, although no other rank calls anything.
#[test]
fn nobody_waits_for_anothers_call() {
    let members = World::new(3).members();
    members[1].connect(&[need(ConnKind::Ring, Protocol::LL, 5)]).unwrap();
    members[2].connect(&[pair(0, Protocol::Simple, 2), need(ConnKind::Mesh, Protocol::Simple, 1)]).unwrap();
    for cut in 0..3 {
        check(&members, Part { kind: ConnKind::Ring, protocol: Some(Protocol::LL), cut, pair: None });
    }
    let between = Some([Rank(0), Rank(2)]);
    check(&members, Part { kind: ConnKind::Pair, protocol: Some(Protocol::Simple), cut: 1, pair: between });
    // The others have it too.
    let before = members[0].bytes();
    members[0].connect(&[need(ConnKind::Ring, Protocol::LL, 16)]).unwrap();
    assert_eq!(members[0].bytes(), before);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// Any needs, in another order on every rank, some of them at once.
    #[test]
    fn any_order_of_needs_ends(
        nranks in 2u32..6,
        orders in proptest::collection::vec(proptest::collection::vec((0u8..4, 0u8..3, 1u32..9, 0u32..6), 0..6), 6),
    ) {
        let members = World::new(nranks).members();
        let needs = |member: &Member| -> Vec<Need> {
            let of = |&(kind, protocol, channels, peer): &(u8, u8, u32, u32)| {
                let protocol = Protocol::try_from(protocol).unwrap();
                match kind {
                    0 => need(ConnKind::Ring, protocol, channels),
                    1 => need(ConnKind::Mesh, protocol, channels),
                    _ => pair((member.rank.0 + 1 + peer % (nranks - 1)) % nranks, protocol, channels),
                }
            };
            orders[member.rank.index()].iter().map(of).collect()
        };
        each(&members, |member| {
            let needs = needs(member);
            for some in needs.chunks(2) {
                member.connect(some).unwrap();
            }
        });
        let made = members.iter().flat_map(|member| {
            let layout = member.parts.layout();
            needs(member).into_iter().flat_map(|need| layout.parts_of(&need, member.rank))
        });
        made.for_each(|part| check(&members, part));
        // No table has anything else than what the device was told.
        for member in &members {
            let tables = member.parts.tables();
            let (bytes, _) = tables.on_device();
            let at: *const u8 = std::ptr::with_exposed_provenance(member.tables.memory.address() as usize);
            // SAFETY: the memory of the tables, as long as the image of them.
            let device = unsafe { std::slice::from_raw_parts(at, bytes.len()) };
            prop_assert!(device == bytes);
        }
    }
}

fn is_refused_by(fault: Fault, guilty: u32) -> bool {
    matches!(fault, Fault::Link { error: LinkError::Connect { rank: Rank(rank), reason } }
        if rank == guilty && reason.contains("bytes of device memory"))
}

#[test]
fn a_rank_without_memory_is_named_on_all() {
    let members = World::new(4).members();
    members[2].gpu.is_full.store(true, Relaxed);
    let ring = need(ConnKind::Ring, Protocol::Simple, 1);
    let said = each(&members, |member| member.connect(&[ring]).unwrap_err());
    assert!(said.iter().all(|fault| is_refused_by(*fault, 2)), "{said:?}");
    // The communicator is over, on all ranks and for the same reason.
    for member in &members {
        assert!(is_refused_by(member.health.fault().unwrap().fault, 2));
        assert!(member.connect(&[need(ConnKind::Mesh, Protocol::LL128, 1)]).is_err());
    }
}

#[test]
fn a_pair_without_memory_is_named_by_both_and_ends_the_others() {
    let members = World::new(4).members();
    members[3].gpu.is_full.store(true, Relaxed);
    assert!(is_refused_by(members[1].connect(&[pair(3, Protocol::LL, 1)]).unwrap_err(), 3));
    let started = Instant::now();
    while members[0].health.fault().is_none() && started.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(members[0].health.fault().unwrap().fault, Fault::PeerAborted { rank: Rank(3) });
    assert!(is_refused_by(members[3].health.fault().unwrap().fault, 3));
}

#[test]
fn a_rank_that_dies_meanwhile_is_named() {
    let world = World { shut: Some(Rank(1)), ..World::new(3) };
    let mut members = world.members();
    let mut dead = members.remove(1);
    let said = std::thread::scope(|scope| {
        let waits = scope.spawn(|| members[0].connect(&[need(ConnKind::Ring, Protocol::LL, 1)]));
        std::thread::sleep(Duration::from_millis(50));
        dead.watch().die();
        waits.join().unwrap()
    });
    assert_eq!(said, Err(Fault::PeerDied { rank: Rank(1) }));
}

#[test]
fn a_rank_that_has_left_is_named_and_the_rest_goes_on() {
    let mut members = World::new(3).members();
    drop(members.remove(2));
    let left = members[0].connect(&[need(ConnKind::Ring, Protocol::LL, 1)]);
    assert_eq!(left, Err(Fault::PeerLeft { rank: Rank(2) }));
    assert_eq!(members[1].health.fault(), None);
    members[0].connect(&[pair(1, Protocol::LL, 4)]).unwrap();
    members[1].connect(&[pair(0, Protocol::LL, 4)]).unwrap();
}

#[test]
fn a_rank_that_never_answers_is_named_in_time() {
    let world = World { shut: Some(Rank(1)), timeout: Duration::from_millis(300), ..World::new(3) };
    let members = world.members();
    let started = Instant::now();
    let said = members[2].connect(&[need(ConnKind::Mesh, Protocol::LL128, 1)]).unwrap_err();
    // Rank 0 waits for it too, and may be the first to give up.
    let names_it = |fault| matches!(fault, Fault::Timeout { rank: Rank(1), .. });
    let zero_said = members[0].health.fault().map(|failure| failure.fault);
    let zero_was_first = said == Fault::PeerAborted { rank: Rank(0) } && zero_said.is_some_and(names_it);
    assert!(names_it(said) || zero_was_first, "{said:?}, rank 0: {zero_said:?}");
    assert!(started.elapsed() < PATIENCE);
}

/// Others see for whom a call waits that has not come to its kernels, and in which operation.
#[test]
fn a_wait_that_lasts_shows_in_what_the_rank_says() {
    let world = World { shut: Some(Rank(1)), ..World::new(3) };
    let members = world.members();
    let call = Call { func: Func::AllReduce, dtype: DataType::F32, op: RedOp::Sum, root: Rank(0), count: 9 };
    let record = CallRecord { seq: 4, call };
    let (parts, health) = (&members[0].parts, &members[0].health);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| parts.connect(&[need(ConnKind::Ring, Protocol::LL, 1)], Some(record)));
        let started = Instant::now();
        while health.standing().waits_for.is_none() && started.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
        let standing = health.standing();
        assert_eq!((standing.waits_for, standing.during), (Some(Rank(1)), Some(record)));
        assert_eq!(health.fail(Fault::Aborted, health.present()).during, Some(record));
        assert_eq!(waits.join().unwrap().err(), Some(Fault::Aborted));
    });
    assert_eq!(health.standing().waits_for, None, "the wait is over");
}

/// Who joins the bootstrap's ring anew misses notes.
#[test]
fn lost_notes_are_said_again() {
    let members = World { loses: 2, ..World::new(3) }.members();
    each(&members, |member| member.connect(&[need(ConnKind::Ring, Protocol::LL, 1)]).unwrap());
    check(&members, Part { kind: ConnKind::Ring, protocol: Some(Protocol::LL), cut: 0, pair: None });
}

#[test]
fn an_abort_ends_the_wait() {
    let members = World { shut: Some(Rank(1)), ..World::new(2) }.members();
    let said = std::thread::scope(|scope| {
        let waits = scope.spawn(|| members[0].connect(&[need(ConnKind::Ring, Protocol::LL, 1)]));
        std::thread::sleep(Duration::from_millis(50));
        members[0].health.fail(Fault::Aborted, None);
        waits.join().unwrap()
    });
    assert_eq!(said, Err(Fault::Aborted));
}

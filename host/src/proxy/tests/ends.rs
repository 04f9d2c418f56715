//! The two ends of a connection between real kernels, over a network with bad manners.

use super::network::{Manners, pair};
use crate::mem::Segment;
use crate::net::io::{Piece, StreamIo, pieces_bytes};
use crate::net::message::{Ends, Sender};
use crate::net::{Comm, NetError, NetMemory, NetMemoryKind};
use crate::proxy::*;
use oxccl_device::coll::{P2pWork, send_recv};
use oxccl_device::conn::{Conns, RecvConn, SendConn};
use oxccl_device::gpu::cpu::{CpuBlock, Waiter};
use oxccl_device::gpu::{Stop, Wait};
use oxccl_shared::abi::{
    ChannelId, ConnControl, ConnLayout, DataType, Protocol, Rank, RedOp, SlotHeader, Step,
};
use oxccl_shared::fifo::{STEPS, split};
use oxccl_shared::proto;
use oxccl_shared::reduce::resolve;
use proptest::prelude::*;
use rustix::io::Errno;
use std::cell::RefCell;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

const LAYOUT: ConnLayout = ConnLayout { ll_slot_bytes: 512, ll128_slot_bytes: 1024, simple_slot_bytes: 768 };

/// Leaked: tests are short.
pub(super) fn memory() -> NonNull<u8> {
    let segment: &'static Segment = Box::leak(Box::new(Segment::private(LAYOUT.total_bytes()).unwrap()));
    NonNull::new(segment.base()).unwrap()
}

fn place(is_send: bool) -> EndId {
    EndId { peer: Rank(1 - u32::from(!is_send)), channel: ChannelId(3), is_send }
}

pub(super) fn host_block(base: NonNull<u8>) -> ProxyBlock {
    // SAFETY: leaked, zeroed, page aligned and long enough.
    unsafe { ProxyBlock::in_host(base, LAYOUT) }
}

/// Makes a block whose network end is this.
type MakeBlock = fn(&mut dyn Comm) -> ProxyBlock;

fn together(_: &mut dyn Comm) -> ProxyBlock {
    host_block(memory())
}

/// The counted slots elsewhere, in "device" memory that needs a flush, as with a GPU that the NIC reaches.
fn apart(comm: &mut dyn Comm) -> ProxyBlock {
    let first = memory();
    let slots = NetMemory {
        start: first.as_ptr().cast(),
        len_bytes: LAYOUT.total_bytes(),
        kind: NetMemoryKind::Cuda,
    };
    // SAFETY: leaked.
    let registration = unsafe { comm.register(slots) }.unwrap();
    let slots = DeviceSlots { first, registration, needs_flush: true };
    // SAFETY: leaked, zeroed, page aligned and long enough; the communicator is the one that the end is made with.
    unsafe { host_block(memory()).with_counted_slots(slots) }
}

/// What a kernel waits with: the end that it works with.
struct Driving<'a>(&'a RefCell<dyn FnMut() -> Result<usize, Arc<EndError>> + 'a>);

impl Waiter for Driving<'_> {
    fn spins(&self) -> u32 {
        1
    }
    fn wait(&self, _: Wait, _: u32) -> Result<(), Stop> {
        (self.0.borrow_mut())().map(|_| ()).map_err(|error| panic!("{error}"))
    }
    fn refuse(&self, on: Wait, expected: SlotHeader, found: SlotHeader) -> Stop {
        panic!("{on:?}: {found:?} instead of {expected:?}")
    }
}

/// A message: protocol, length.
type Message = (Protocol, usize);

fn sub((protocol, len_bytes): Message, tag: u32) -> SubOp {
    let capacity = proto::payload_bytes(protocol, &LAYOUT);
    SubOp { tag, protocol, steps: len_bytes.div_ceil(capacity).max(1) as u64 }
}

fn bytes(len_bytes: usize, tag: u32) -> Vec<u8> {
    (0..len_bytes as u32).map(|i| (i * 31).wrapping_add(tag * 7).to_le_bytes()[0] ^ (i >> 8) as u8).collect()
}

fn work((protocol, len_bytes): Message, tag: u32, buffer: &mut [u8], is_send: bool) -> P2pWork {
    P2pWork::new(is_send, 0, protocol, (buffer.as_mut_ptr(), len_bytes), tag)
}

/// Runs a kernel on `conns` for every message, driving its end with `drive` meanwhile and then until it is idle.
fn run_kernels(
    conns: Conns<'_>,
    messages: &[Message],
    is_send: bool,
    begin: &mut dyn FnMut(SubOp),
    drive: &RefCell<dyn FnMut() -> Result<usize, Arc<EndError>> + '_>,
    idle: &dyn Fn() -> bool,
) {
    let resolved = resolve(RedOp::Sum, DataType::U8, 2, 0);
    let driving = Driving(drive);
    let block = CpuBlock::new(&driving, DataType::U8, &resolved);
    for (tag, message) in messages.iter().enumerate() {
        let tag = tag as u32 + 1;
        let mut buffer = if is_send { bytes(message.1, tag) } else { vec![0; message.1] };
        begin(sub(*message, tag));
        // SAFETY: the buffer is as long as it says, and connection 0 is there.
        unsafe { send_recv::run(&block, conns, &mut [work(*message, tag, &mut buffer, is_send)]) }.unwrap();
        while !idle() {
            (drive.borrow_mut())().unwrap();
            std::thread::yield_now();
        }
        assert_eq!(buffer, bytes(message.1, tag), "{message:?}");
    }
}

/// Sends all messages from one kernel to the other.
fn converse(messages: &[Message], manners: Manners, far: MakeBlock) -> Vec<usize> {
    let (mut send_comm, mut recv_comm) = pair(manners);
    let log = send_comm.log();
    let (from, to) = (far(&mut send_comm), far(&mut recv_comm));
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // SAFETY: the only consumer and producer of a leaked block.
            let end = RefCell::new(unsafe { SendEnd::new(Box::new(send_comm), from, place(true)) }.unwrap());
            // SAFETY: as above. Kernels know one address: `kernel_end` says which.
            let conn = unsafe { SendConn::resume(from.kernel_end(Rank(1)), Default::default()) };
            let conns = Conns { send: &[conn], recv: &[] };
            let drive = RefCell::new(|| end.borrow_mut().progress());
            let mut begin = |sub| end.borrow_mut().begin(sub);
            run_kernels(conns, messages, true, &mut begin, &drive, &|| end.borrow().is_idle());
        });
        scope.spawn(move || {
            // SAFETY: as above.
            let end = RefCell::new(unsafe { RecvEnd::new(Box::new(recv_comm), to, place(false)) }.unwrap());
            // SAFETY: as above.
            let conn = unsafe { RecvConn::resume(to.kernel_end(Rank(0)), Default::default()) };
            let conns = Conns { send: &[], recv: &[conn] };
            let drive = RefCell::new(|| end.borrow_mut().progress());
            let mut begin = |sub| end.borrow_mut().begin(sub);
            run_kernels(conns, messages, false, &mut begin, &drive, &|| end.borrow().is_idle());
        });
    });
    log()
}

impl ProxyBlock {
    /// The same connection as a kernel sees it.
    fn kernel_end(&self, peer: Rank) -> oxccl_shared::abi::ConnEnd {
        let words = self.words();
        let (producer_side, consumer_side) = (words.producer_side, words.consumer_side);
        oxccl_shared::abi::ConnEnd {
            producer_side,
            consumer_side,
            counted: self.slot(Protocol::Simple, Step(0)),
            layout: LAYOUT,
            peer,
        }
    }
}

fn any_message() -> impl Strategy<Value = Message> {
    let lens = prop_oneof![Just(0), 1..200usize, Just(768), Just(840), 1..9000usize];
    (proptest::sample::select(Protocol::ALL), lens)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn messages_arrive_whatever_the_network_does(
        messages in proptest::collection::vec(any_message(), 1..12),
        seed in 1u64..u64::MAX,
        burst_bytes in 1usize..2000,
        lazy_eighths in 0u64..6,
        is_apart: bool,
    ) {
        let manners = Manners { seed, burst_bytes, lazy_eighths, breaks_after: None };
        converse(&messages, manners, if is_apart { apart } else { together });
    }
}

/// One message a slot, of as many bytes as were filled; and one in front of an operation whose slots do not say whose they are.
#[test]
fn what_travels_is_what_was_filled() {
    for protocol in Protocol::ALL {
        let capacity = proto::payload_bytes(*protocol, &LAYOUT);
        let lens = converse(&[(*protocol, 2 * capacity + 8)], Manners::GOOD, together);
        let wire = |len| proto::wire_bytes(*protocol, len);
        let mut expected = vec![wire(capacity), wire(capacity), wire(8)];
        if !protocol.is_flagged() {
            expected.insert(0, crate::proxy::op_header::OP_HEADER_BYTES);
        }
        assert_eq!(lens, expected, "{protocol}");
    }
}

/// Ends over blocks whose kernels the test plays, and those kernels' ends of the blocks.
pub(super) fn ends(manners: Manners) -> (SendEnd, RecvEnd, [&'static ConnControl; 2]) {
    let (send_comm, recv_comm) = pair(manners);
    let [from, to] = [(); 2].map(|()| host_block(memory()));
    // SAFETY: the only consumer and producer of leaked blocks.
    unsafe {
        (
            SendEnd::new(Box::new(send_comm), from, place(true)).unwrap(),
            RecvEnd::new(Box::new(recv_comm), to, place(false)).unwrap(),
            [from.words().consumer_side, to.words().consumer_side],
        )
    }
}

/// The protocol that a counter announces.
pub(super) fn counted() -> Protocol {
    *Protocol::ALL.iter().find(|protocol| !protocol.is_flagged()).unwrap()
}

#[test]
fn eight_steps_are_under_way_and_counted() {
    let (mut send, mut recv, [from, to]) = ends(Manners::GOOD);
    let steps = SubOp { tag: 7, protocol: counted(), steps: 20 };
    send.begin(steps);
    let (mut producer, _) = split(from);
    let (_, mut consumer) = split(to);
    while producer.poll_credit(STEPS) {
        producer.publish(SlotHeader { tag: 7, len_bytes: 64 });
    }
    send.progress().unwrap();
    let counters = |end: &SendEnd| end.outstanding().unwrap().counters;
    let all = Counters { posted: 8, received: 8, flushed: 8, transmitted: 8, done: 0 };
    assert_eq!(counters(&send), all);
    recv.begin(steps);
    for _ in 0..100 {
        recv.progress().unwrap();
        send.progress().unwrap();
    }
    let arrived = recv.outstanding().unwrap().counters;
    assert_eq!(arrived, Counters { posted: 8, received: 8, flushed: 8, transmitted: 8, done: 0 });
    assert_eq!(counters(&send), Counters { posted: 16, done: 8, ..all });
    assert!(arrived.is_consistent(20) && counters(&send).is_consistent(20));
    for _ in 0..3 {
        assert_eq!(consumer.poll(), Some(SlotHeader { tag: 7, len_bytes: 64 }));
        consumer.release();
    }
    assert_eq!(recv.outstanding().unwrap().counters.done, 3);
    recv.progress().unwrap();
    assert_eq!(recv.outstanding().unwrap().counters.posted, 11);
}

#[test]
fn ranks_that_do_not_do_the_same_are_told_what_the_other_does() {
    let (mut send, mut recv, [from, _]) = ends(Manners::GOOD);
    send.begin(SubOp { tag: 7, protocol: counted(), steps: 2 });
    recv.begin(SubOp { tag: 8, protocol: counted(), steps: 3 });
    split(from).0.publish(SlotHeader { tag: 7, len_bytes: 64 });
    let error = loop {
        send.progress().unwrap();
        if let Err(error) = recv.progress() {
            break error;
        }
    };
    let said = error.to_string();
    for part in ["from rank 0 on channel 3", "0x00000007 of 2", "0x00000008 of 3", "same order"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_eq!(recv.outstanding().unwrap().counters.transmitted, 0, "nothing was shown to the kernel");
    assert_eq!(recv.progress(), Err(error), "it stays so");
}

#[test]
fn a_kernel_in_another_operation_is_found_before_anything_leaves() {
    let (mut send, _recv, [from, _]) = ends(Manners::GOOD);
    send.begin(SubOp { tag: 7, protocol: counted(), steps: 2 });
    split(from).0.publish(SlotHeader { tag: 9, len_bytes: 64 });
    let error = send.progress().unwrap_err();
    assert!(matches!(error.why, EndFault::OtherOperation { found: 9, .. }), "{error}");
}

#[test]
fn a_broken_network_is_named_with_what_was_under_way() {
    let (mut send, mut recv, [from, _]) = ends(Manners { breaks_after: Some(2), ..Manners::GOOD });
    let sub = SubOp { tag: 7, protocol: counted(), steps: 5 };
    send.begin(sub);
    recv.begin(sub);
    let (mut producer, _) = split(from);
    for _ in 0..5 {
        producer.publish(SlotHeader { tag: 7, len_bytes: 64 });
    }
    let error = loop {
        let moved = send.progress().and_then(|_| recv.progress());
        if let Err(error) = moved {
            break error;
        }
    };
    assert!(matches!(error.why, EndFault::Net(NetError::Closed { .. })), "{error}");
    let outstanding = error.outstanding.unwrap();
    assert_eq!(outstanding.sub, sub);
    if !error.place.is_send {
        assert_eq!(outstanding.counters.transmitted, 1, "what came before is published: {error}");
    }
    assert!(error.to_string().contains("5 simple steps"), "{error}");
}

/// What a peer sends as a line slot must be one, of this very step.
#[test]
fn a_slot_of_another_step_is_refused() {
    let flagged = *Protocol::ALL.iter().find(|protocol| protocol.is_flagged()).unwrap();
    let (mut send, mut recv, [from, _]) = ends(Manners::GOOD);
    send.begin(SubOp { tag: 7, protocol: counted(), steps: 1 });
    recv.begin(SubOp { tag: 7, protocol: flagged, steps: 1 });
    split(from).0.publish(SlotHeader { tag: 7, len_bytes: 64 });
    let error = loop {
        send.progress().unwrap();
        if let Err(error) = recv.progress() {
            break error;
        }
    };
    assert!(matches!(error.why, EndFault::NoSlot { .. }), "{error}");
}

/// A stream that takes everything, and notes how much in each call.
struct Noting(Arc<Mutex<Vec<usize>>>);

impl StreamIo for Noting {
    unsafe fn write(&mut self, pieces: &[Piece]) -> Result<usize, Errno> {
        self.0.lock().unwrap().push(pieces_bytes(pieces));
        Ok(pieces_bytes(pieces))
    }

    unsafe fn read(&mut self, _: &mut [Piece]) -> Result<usize, Errno> {
        Err(Errno::AGAIN)
    }
}

/// Each call is a segment, an interrupt and a wake-up too; and messages that carry tags need no operation header.
#[test]
fn the_slots_of_an_operation_leave_in_one_call_and_alone() {
    let calls: Arc<Mutex<Vec<usize>>> = Arc::default();
    let names = Ends { device: "a stream".into(), peer: "a peer".into() };
    let comm = Box::new(Sender::new(names, vec![Noting(calls.clone())]));
    let block = host_block(memory());
    // SAFETY: the only consumer of a leaked block.
    let mut send = unsafe { SendEnd::new(comm, block, place(true)) }.unwrap();
    let mut producer = split(block.words().consumer_side).0;
    for (tag, slots) in [(7, 1), (8, 3)] {
        send.begin(SubOp { tag, protocol: counted(), steps: slots });
        send.progress().unwrap();
        assert!(calls.lock().unwrap().is_empty(), "nothing is there to be sent");
        (0..slots).for_each(|_| producer.publish(SlotHeader { tag, len_bytes: 64 }));
        send.progress().unwrap();
        assert!(send.is_idle());
        assert_eq!(std::mem::take(&mut *calls.lock().unwrap()), [(16 + 64) * slots as usize]);
    }
}

/// A stream that takes some bytes at every second call, and keeps them.
struct Taking {
    taken: Arc<Mutex<Vec<u8>>>,
    calls: usize,
}

impl StreamIo for Taking {
    unsafe fn write(&mut self, pieces: &[Piece]) -> Result<usize, Errno> {
        self.calls += 1;
        if self.calls.is_multiple_of(2) {
            return Err(Errno::AGAIN);
        }
        let (mut taken, mut left) = (self.taken.lock().unwrap(), 300);
        for piece in pieces {
            let n = piece.iov_len.min(left);
            // SAFETY: the caller's pieces are readable.
            taken.extend(unsafe { std::slice::from_raw_parts(piece.iov_base.cast::<u8>(), n) });
            left -= n;
        }
        Ok(300 - left)
    }

    unsafe fn read(&mut self, _: &mut [Piece]) -> Result<usize, Errno> {
        Err(Errno::AGAIN)
    }
}

/// An operation in place writes where it has lent from; whether all, some or none of it has left by then.
#[test]
fn what_was_lent_leaves_as_it_was_whatever_becomes_of_its_memory() {
    const SLOT_BYTES: usize = LAYOUT.simple_slot_bytes as usize;
    for turns in 0..16 {
        let taken: Arc<Mutex<Vec<u8>>> = Arc::default();
        let names = Ends { device: "a stream".into(), peer: "a peer".into() };
        let comm = Box::new(Sender::new(names, vec![Taking { taken: taken.clone(), calls: 0 }]));
        let block = host_block(memory());
        let slots = [0, 1, 2].map(|step| block.slot(counted(), Step(step)));
        let mut producer = split(block.words().consumer_side).0;
        // SAFETY: the only consumer of a leaked block.
        let mut send = unsafe { SendEnd::new(comm, block, place(true)) }.unwrap();
        let mut lent = vec![0; 4096 + 4096];
        let middle = 4096 + 1024 - lent.as_ptr().addr() % 4096;
        let lent = &mut lent[middle..][..3 * SLOT_BYTES];
        lent.iter_mut().enumerate().for_each(|(i, byte)| *byte = (i * 7 + i / 251) as u8);
        let (was, range) = (lent.to_vec(), lent.as_ptr_range());
        send.begin(SubOp { tag: 7, protocol: counted(), steps: 3 });
        for (slot, body) in slots.into_iter().zip(lent.chunks(SLOT_BYTES)) {
            // SAFETY: the slot is published below; the bytes are returned before they are written.
            assert!(unsafe { send.lend(slot, body.as_ptr(), SLOT_BYTES) });
            assert_eq!(send.lent(slot), Some(body.as_ptr()));
            producer.publish(SlotHeader { tag: 7, len_bytes: SLOT_BYTES as u32 });
        }
        for _ in 0..turns {
            send.progress().unwrap();
        }
        send.return_loans(&(range.start.addr()..range.end.addr()));
        assert_eq!(slots.map(|slot| send.lent(slot)), [None; 3]);
        lent.fill(0xee);
        while !send.is_idle() {
            send.progress().unwrap();
        }
        let taken = std::mem::take(&mut *taken.lock().unwrap());
        let bodies: Vec<u8> = taken.chunks(16 + SLOT_BYTES).flat_map(|frame| &frame[16..]).copied().collect();
        assert!(bodies == was, "returned after {turns} turns");
    }
}

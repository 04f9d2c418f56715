//! A proxy allocates nothing for an operation: not when it is given, not for its steps, not in the network under it.
//!
//! One test only: the counter sees the whole process, so nothing else may run in it.

use oxccl::bootstrap::InterfaceFilter;
use oxccl::net::loopback::Loopback;
use oxccl::net::socket::{self, SocketConfig};
use oxccl::net::{Net, RecvComm, SendComm};
use oxccl::proxy::{
    EndId, Progress, ProxyBlock, ProxyChannel, ProxyEnd, ProxyOrder, ProxyOrders, ProxyParts, RecvEnd,
    SendEnd, proxy,
};
use oxccl_shared::abi::{Algorithm, ChannelId, ConnControl, ConnLayout, Func, Protocol, Rank, SlotHeader};
use oxccl_shared::fifo::{StepConsumer, StepProducer, split};
use oxccl_tests::counting::{Counting, calls, check_that_it_counts};
use oxccl_tests::deadline::Deadline;
use std::alloc::{Layout, alloc_zeroed};
use std::ptr::NonNull;
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const LAYOUT: ConnLayout =
    ConnLayout { ll_slot_bytes: 512, ll128_slot_bytes: 1024, simple_slot_bytes: 64 << 10 };
/// Operations measured after as many to warm up.
const OPERATIONS: u32 = 200;
/// Slots of an operation.
const STEPS: u32 = 11;

/// A block that lives for ever.
fn block() -> (&'static ConnControl, ProxyBlock) {
    let layout = Layout::from_size_align(LAYOUT.total_bytes(), 4096).expect("a power of two");
    // SAFETY: not of no bytes.
    let base = NonNull::new(unsafe { alloc_zeroed(layout) }).expect("memory");
    // SAFETY: leaked, zeroed, page aligned and long enough; all access goes through words from now on.
    unsafe { (base.cast().as_ref(), ProxyBlock::in_host(base, LAYOUT)) }
}

fn connect(net: &dyn Net) -> (Box<dyn SendComm>, Box<dyn RecvComm>) {
    let (handle, mut listener) = net.listen(0).expect("a device");
    let mut connector = net.connect(0, &handle).expect("its own handle");
    let (mut send, mut recv) = (None, None);
    while send.is_none() || recv.is_none() {
        send = send.or_else(|| connector.poll_connect().expect("connected"));
        recv = recv.or_else(|| listener.poll_accept().expect("accepted"));
    }
    (send.expect("both"), recv.expect("both"))
}

/// A rank with one connection.
fn rank(me: u32, end: ProxyEnd) -> (ProxyOrders, Progress) {
    let channels = [ProxyChannel::default()].into();
    proxy(ProxyParts { rank: Rank(me), nranks: 2, channels, ends: vec![end], timeout: None })
}

struct Pair {
    orders: [ProxyOrders; 2],
    progress: [Progress; 2],
    producer: StepProducer<'static>,
    consumer: StepConsumer<'static>,
}

impl Pair {
    fn new(net: &dyn Net) -> Pair {
        let (send, recv) = connect(net);
        let ((from, near), (to, far)) = (block(), block());
        let place = |peer, is_send| EndId { peer: Rank(peer), channel: ChannelId(0), is_send };
        // SAFETY: leaked blocks, each with one producer and one consumer.
        let (send, recv) = unsafe {
            (
                SendEnd::new(send, near, place(1, true)).unwrap(),
                RecvEnd::new(recv, far, place(0, false)).unwrap(),
            )
        };
        let (zero, zero_progress) = rank(0, ProxyEnd::Send(send));
        let (one, one_progress) = rank(1, ProxyEnd::Recv(recv));
        Pair {
            orders: [zero, one],
            progress: [zero_progress, one_progress],
            producer: split(from).0,
            consumer: split(to).1,
        }
    }

    /// One message of rank 0 to rank 1; the kernels only publish and release.
    fn message(&mut self, tag: u32) {
        let slot_bytes = LAYOUT.simple_slot_bytes;
        for (me, func) in [Func::Send, Func::Recv].into_iter().enumerate() {
            let order = ProxyOrder {
                count: u64::from(STEPS * slot_bytes),
                grain_elems: 1,
                tag,
                rank: Rank(1 - me as u32),
                nchannels: 1,
                func: func as u8,
                algorithm: Algorithm::Ring as u8,
                protocol: Protocol::Simple as u8,
                ..ProxyOrder::default()
            };
            self.orders[me].give(order).expect("room");
        }
        let header = SlotHeader { tag, len_bytes: slot_bytes };
        let (mut filled, mut emptied) = (0, 0);
        while emptied < STEPS || !self.orders.iter().all(ProxyOrders::is_all_done) {
            if filled < STEPS && self.producer.poll_credit(Protocol::Simple.slots()) {
                self.producer.publish(header);
                filled += 1;
            }
            self.progress.iter_mut().for_each(|progress| {
                progress.do_work();
            });
            if emptied < STEPS
                && let Some(found) = self.consumer.poll()
            {
                assert_eq!(found, header);
                self.consumer.release();
                emptied += 1;
            }
        }
    }
}

#[test]
fn a_proxy_allocates_nothing_for_an_operation() {
    let _deadline = Deadline::start("a_proxy_allocates_nothing_for_an_operation", Duration::from_secs(120));
    check_that_it_counts();
    allocates_nothing_over(&Loopback::new(2));
    let interfaces = InterfaceFilter::parse("=lo");
    let config = SocketConfig { interfaces, ipv6: Some(false), encrypt: true, ..SocketConfig::default() };
    allocates_nothing_over(&*socket::open(&config).expect("the kernel lists its interfaces"));
}

fn allocates_nothing_over(net: &dyn Net) {
    let mut pair = Pair::new(net);
    (0..OPERATIONS).for_each(|tag| pair.message(tag));
    let before = calls();
    (0..OPERATIONS).for_each(|tag| pair.message(tag));
    let name = net.name();
    assert_eq!(
        calls() - before,
        0,
        "allocator calls of {OPERATIONS} operations of {STEPS} steps over {name}"
    );
    assert!(pair.progress.iter_mut().all(|progress| progress.do_work() == 0 && progress.is_quiet()));
}

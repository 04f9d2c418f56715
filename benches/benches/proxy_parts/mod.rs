//! A proxy over a network that costs nothing: what is measured is the proxy.

use oxccl::net::{Comm, NetError, NetMemory, RecvComm, Registration, Request, SendComm};
use oxccl::proxy::{
    EndId, Progress, ProxyBlock, ProxyChannel, ProxyEnd, ProxyOrder, ProxyOrders, ProxyParts, RecvEnd,
    SendEnd, proxy,
};
use oxccl_shared::abi::{ChannelId, ConnControl, ConnLayout, Func, Protocol, Rank, SlotHeader};
use oxccl_shared::fifo::{StepConsumer, StepProducer, split};
use std::alloc::{Layout, alloc_zeroed};
use std::ptr::NonNull;

const LAYOUT: ConnLayout = ConnLayout { ll_slot_bytes: 512, ll128_slot_bytes: 1024, simple_slot_bytes: 4096 };
const TAG: u32 = 7;
/// Bytes of a message that says what comes.
const OP_HEADER_BYTES: usize = 24;

/// Everything is done as soon as it is asked for. The first message of an operation is its operation header.
struct Instantly {
    op_header: [u8; OP_HEADER_BYTES],
    is_op_header: bool,
}

impl Instantly {
    fn new(steps: u64) -> Instantly {
        let mut op_header = [0; OP_HEADER_BYTES];
        op_header[..4].copy_from_slice(&[b'O', b'P', 1, Protocol::Simple as u8]);
        op_header[4..8].copy_from_slice(&TAG.to_le_bytes());
        op_header[16..].copy_from_slice(&steps.to_le_bytes());
        Instantly { op_header, is_op_header: true }
    }
}

impl Comm for Instantly {
    unsafe fn register(&mut self, _: NetMemory<'_>) -> Result<Registration, NetError> {
        Ok(Registration(0))
    }
    fn deregister(&mut self, _: Registration) -> Result<(), NetError> {
        Ok(())
    }
    fn test(&mut self, request: Request) -> Result<Option<usize>, NetError> {
        Ok(Some(request.0 as usize))
    }
}

impl SendComm for Instantly {
    unsafe fn isend(
        &mut self,
        _: *const u8,
        len: usize,
        _: Registration,
    ) -> Result<Option<Request>, NetError> {
        Ok(Some(Request(len as u32)))
    }
}

impl RecvComm for Instantly {
    unsafe fn irecv(
        &mut self,
        to: *mut u8,
        max: usize,
        _: Registration,
    ) -> Result<Option<Request>, NetError> {
        if self.is_op_header && max == OP_HEADER_BYTES {
            self.is_op_header = false;
            // SAFETY: the caller gives as many bytes.
            unsafe { to.cast::<[u8; OP_HEADER_BYTES]>().write(self.op_header) };
        }
        Ok(Some(Request(max as u32)))
    }
    unsafe fn flush(&mut self, _: *mut u8, _: usize, _: Registration) -> Result<Option<Request>, NetError> {
        Ok(None)
    }
}

/// A block that lives for ever.
fn block() -> (&'static ConnControl, ProxyBlock) {
    let layout = Layout::from_size_align(LAYOUT.total_bytes(), 4096).expect("a power of two");
    // SAFETY: not of no bytes.
    let base = NonNull::new(unsafe { alloc_zeroed(layout) }).expect("memory");
    // SAFETY: leaked, zeroed, page aligned and long enough; all access goes through words from now on.
    unsafe { (base.cast().as_ref(), ProxyBlock::in_host(base, LAYOUT)) }
}

/// Rank 0's proxy, with so many connections each way, and the kernels' ends of the first two.
pub struct Bed {
    pub orders: ProxyOrders,
    pub progress: Progress,
    producer: StepProducer<'static>,
    consumer: StepConsumer<'static>,
}

impl Bed {
    /// `steps` of one operation each way are announced.
    pub fn new(connections: u32, steps: u64) -> Bed {
        let (mut ends, mut producers, mut consumers) = (Vec::new(), Vec::new(), Vec::new());
        for peer in 1..=connections {
            let ((from, near), (to, far)) = (block(), block());
            let place = |is_send| EndId { peer: Rank(peer), channel: ChannelId(0), is_send };
            let (send, recv) = (Instantly::new(steps), Instantly::new(steps));
            // SAFETY: leaked blocks, each with one producer and one consumer.
            unsafe {
                ends.push(ProxyEnd::Send(SendEnd::new(Box::new(send), near, place(true)).expect("memory")));
                ends.push(ProxyEnd::Recv(RecvEnd::new(Box::new(recv), far, place(false)).expect("memory")));
            }
            producers.push(split(from).0);
            consumers.push(split(to).1);
        }
        let channels = [ProxyChannel::default()].into();
        let parts = ProxyParts { rank: Rank(0), nranks: connections + 1, channels, ends, timeout: None };
        let (orders, progress) = proxy(parts);
        Bed { orders, progress, producer: producers.remove(0), consumer: consumers.remove(0) }
    }

    /// Gives the operation of `steps` to (or from) rank 1.
    pub fn give(&mut self, func: Func, steps: u64) {
        let order = ProxyOrder {
            count: steps * u64::from(LAYOUT.simple_slot_bytes),
            grain_elems: 1,
            tag: TAG,
            rank: Rank(1),
            nchannels: 1,
            func: func as u8,
            protocol: Protocol::Simple as u8,
            ..ProxyOrder::default()
        };
        self.orders.give(order).expect("room");
        self.progress.do_work();
    }

    /// A kernel fills a slot, the proxy sends it.
    #[inline(never)]
    pub fn send_step(&mut self) {
        assert!(self.producer.poll_credit(Protocol::Simple.slots()));
        self.producer.publish(SlotHeader { tag: TAG, len_bytes: 4096 });
        self.progress.do_work();
    }

    /// The proxy receives a slot, a kernel empties it.
    #[inline(never)]
    pub fn recv_step(&mut self) {
        assert!(self.consumer.poll().is_some());
        self.consumer.release();
        self.progress.do_work();
    }
}

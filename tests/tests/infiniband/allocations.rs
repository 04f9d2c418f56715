//! Once a connection stands, messages allocate nothing on the thread that sends and receives them.

use super::infiniband;
use oxccl::net::{Comm, NetMemory, NetMemoryKind, Registration};
use oxccl_tests::net::{Pair, pair, until};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Counts the calls of each thread.
struct Counting;

thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    CALLS.with(|calls| calls.set(calls.get() + 1));
}

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's obligations are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count();
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn register<C: Comm + ?Sized>(comm: &mut C, bytes: &mut [u8]) -> Registration {
    let memory =
        NetMemory { start: bytes.as_mut_ptr().cast(), len_bytes: bytes.len(), kind: NetMemoryKind::Host };
    // SAFETY: the test drops the communicator before the bytes.
    unsafe { comm.register(memory) }.expect("host memory")
}

#[test]
#[ignore = "needs two RoCE devices: cargo xtask test --only softroce"]
fn messages_allocate_nothing() {
    let (mut from, mut to) = (vec![5u8; 100_000], vec![0u8; 100_000]);
    let net = infiniband(&[("NCCL_IB_QPS_PER_CONNECTION", "2")]);
    let Pair { mut send, mut recv } = pair(&net);
    let (sends, receives) = (register(&mut *send.comm, &mut from), register(&mut *recv.comm, &mut to));
    let before = CALLS.with(Cell::get);
    for len_bytes in [1, 64, 5000, 100_000, 0, 100_000] {
        // SAFETY: the bytes are registered, and nobody accesses them until the requests complete.
        let awaited = until("a receive", || unsafe {
            recv.comm.irecv(to.as_mut_ptr(), to.len(), receives).expect("the connection is whole")
        });
        // SAFETY: as above.
        let sent = until("a send", || unsafe {
            send.comm.isend(from.as_ptr(), len_bytes, sends).expect("the connection is whole")
        });
        until("the send's end", || send.comm.test(sent).expect("the connection is whole"));
        let got = until("the message", || recv.comm.test(awaited).expect("the connection is whole"));
        assert_eq!(got, len_bytes);
    }
    assert_eq!(CALLS.with(Cell::get), before, "nothing was allocated or freed");
    assert!(to.iter().all(|byte| *byte == 5));
    drop((send, recv));
}

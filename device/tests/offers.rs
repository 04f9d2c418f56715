//! Messages that their receiver copies out of the sender's memory, between two threads: right bytes, in order, beside messages through
//! slots; a receiver that cannot read; a sender that fails; reductions of what is read.

use oxccl_device::coll::reading::{self, PairReduction};
use oxccl_device::coll::{Offered, P2pWork, send_recv};
use oxccl_device::conn::{Conns, RecvConn, SendConn, buffers_bytes, share_buffers};
use oxccl_device::gpu::cpu::{CpuBlock, Waiter};
use oxccl_device::gpu::{Stop, Wait};
use oxccl_device::remote::{RemoteMemory, Unreadable};
use oxccl_shared::abi::{ConnLayout, DataType, Func, Protocol, Rank, RedOp, SlotHeader};
use oxccl_shared::reduce;
use proptest::prelude::*;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::Cell;
use std::sync::{Arc, Mutex};

const LAYOUT: ConnLayout = ConnLayout { ll_slot_bytes: 256, ll128_slot_bytes: 256, simple_slot_bytes: 512 };
/// Messages of so many bytes and more are offered.
const FROM_BYTES: usize = 300;

/// Waits so often, and is stopped then.
struct Patience(Cell<u32>);

impl Waiter for Patience {
    fn spins(&self) -> u32 {
        4
    }

    fn wait(&self, _: Wait, _: u32) -> Result<(), Stop> {
        std::thread::yield_now();
        let left = self.0.get().checked_sub(1).ok_or(Stop)?;
        self.0.set(left);
        Ok(())
    }

    fn refuse(&self, _: Wait, _: SlotHeader, _: SlotHeader) -> Stop {
        Stop
    }
}

/// Memory of this process, some of which "cannot be read".
struct Here {
    declines: fn(usize) -> bool,
}

impl RemoteMemory for Here {
    unsafe fn read(&self, dst: *mut u8, address: u64, len_bytes: usize) -> Result<(), Unreadable> {
        if (self.declines)(len_bytes) {
            return Err(Unreadable);
        }
        let src = std::ptr::with_exposed_provenance::<u8>(address as usize);
        // SAFETY: obligations 1 and 2.
        unsafe { dst.copy_from_nonoverlapping(src, len_bytes) };
        Ok(())
    }
}

/// Of each buffer of a pair: three slots.
const BUFFER_BYTES: usize = 1536;

/// The memory of a connection.
struct Memory(*mut u8);

impl Memory {
    const LAYOUT: Layout =
        match Layout::from_size_align(LAYOUT.total_bytes() + buffers_bytes(BUFFER_BYTES), 128) {
            Ok(layout) => layout,
            Err(_) => panic!("a valid layout"),
        };

    fn new() -> Memory {
        // SAFETY: the layout has bytes.
        Memory(unsafe { alloc_zeroed(Self::LAYOUT) })
    }

    /// Both ends. The consumer's invites.
    fn ends(&self, declines: fn(usize) -> bool) -> (SendConn, RecvConn) {
        self.ends_over(Arc::new(Here { declines }))
    }

    fn ends_over(&self, memory: Arc<dyn RemoteMemory>) -> (SendConn, RecvConn) {
        // SAFETY: zeroed and aligned until both are gone; the only consumer.
        let mut recv = unsafe { RecvConn::new(Rank(0), self.0, LAYOUT) };
        recv.read_from(memory, FROM_BYTES);
        // SAFETY: as above; the only producer.
        let mut send = unsafe { SendConn::new(Rank(1), self.0, LAYOUT) };
        send.offer_from(FROM_BYTES);
        (send, recv)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout; the ends are gone.
        unsafe { dealloc(self.0, Self::LAYOUT) };
    }
}

fn works(buffers: &mut [Vec<u8>], is_send: bool) -> Vec<P2pWork> {
    let work = |(tag, buffer): (u32, &mut Vec<u8>)| {
        P2pWork::new(is_send, 0, Protocol::Simple, (buffer.as_mut_ptr(), buffer.len()), tag)
    };
    (0..).zip(buffers).map(work).collect()
}

fn transfer(conns: Conns<'_>, works: &mut [P2pWork], patience: u32) -> Result<(), Stop> {
    let operator = reduce::resolve(RedOp::Sum, DataType::U8, 2, 0);
    let patience = Patience(Cell::new(patience));
    let block = CpuBlock::new(&patience, DataType::U8, &operator);
    // SAFETY: the buffers outlive the works; connection 0 is there.
    unsafe { send_recv::run(&block, conns, works) }
}

/// Sends messages of these lengths, on two threads.
fn exchange(lens: &[usize], declines: fn(usize) -> bool) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let byte = |message: usize, at: usize| (message * 31 + at * 7 + at / 251) as u8;
    let mut sent: Vec<Vec<u8>> =
        lens.iter().enumerate().map(|(k, len)| (0..*len).map(|at| byte(k, at)).collect()).collect();
    let mut received: Vec<Vec<u8>> = lens.iter().map(|len| vec![0; *len]).collect();
    let memory = Memory::new();
    let (send, recv) = memory.ends(declines);
    std::thread::scope(|scope| {
        let sent = &mut sent;
        scope.spawn(move || {
            transfer(Conns { send: &[send], recv: &[] }, &mut works(sent, true), u32::MAX).unwrap();
        });
        transfer(Conns { send: &[], recv: &[recv] }, &mut works(&mut received, false), u32::MAX).unwrap();
    });
    (sent, received)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 200 }))]

    #[test]
    fn messages_arrive_as_they_were_sent(
        lens in prop::collection::vec(prop_oneof![0..700usize, Just(FROM_BYTES), Just(FROM_BYTES - 1), 5000..9000usize], 1..20),
    ) {
        let declines: [fn(usize) -> bool; 3] = [|_| false, |_| true, |len| len % 2 == 1];
        for declines in declines {
            let (sent, received) = exchange(&lens, declines);
            prop_assert!(sent == received);
        }
    }
}

#[test]
fn who_was_not_invited_offers_nothing() {
    let memory = Memory::new();
    // SAFETY: zeroed and aligned until it is gone; the only producer.
    let mut send = unsafe { SendConn::new(Rank(1), memory.0, LAYOUT) };
    send.offer_from(1);
    let mut buffers = vec![vec![1; 1000]];
    let mut works = works(&mut buffers, true);
    // It fills slots, for which it needs no receiver.
    assert!(transfer(Conns { send: &[send], recv: &[] }, &mut works, 10).is_ok());
    assert_eq!((works[0].offered, works[0].done_bytes), (Offered::NotYet, 1000));
}

#[test]
fn what_a_sender_has_taken_back_is_not_received() {
    let memory = Memory::new();
    let (send, recv) = memory.ends(|_| false);
    let mut sent = vec![vec![7; 5000]];
    let mut offers = works(&mut sent, true);
    let send = [send];
    let conns = Conns { send: &send, recv: &[] };
    assert!(transfer(conns, &mut offers, 10).is_err(), "nobody receives");
    assert_eq!(offers[0].offered, Offered::Made);
    send_recv::withdraw(conns, &offers);
    // The memory is the user's again.
    sent[0].fill(8);
    let mut received = vec![vec![0; 5000]];
    let mut wanted = works(&mut received, false);
    assert!(transfer(Conns { send: &[], recv: &[recv] }, &mut wanted, 10).is_err());
    assert!(!wanted[0].finished);
}

#[test]
fn another_length_is_refused() {
    for (sent, received) in [(5000, 5001), (5001, 5000), (5000, 200), (200, 5000)] {
        let memory = Memory::new();
        let (send, recv) = memory.ends(|_| false);
        let mut buffers = vec![vec![7; sent]];
        let _ = transfer(Conns { send: &[send], recv: &[] }, &mut works(&mut buffers, true), 10);
        let mut buffers = vec![vec![0; received]];
        let mut wanted = works(&mut buffers, false);
        assert!(transfer(Conns { send: &[], recv: &[recv] }, &mut wanted, 10).is_err(), "{sent} {received}");
        assert!(!wanted[0].finished && buffers[0].iter().all(|byte| *byte == 0));
    }
}

/// Memory of this process, and what has been read of it.
#[derive(Default)]
struct Noted(Mutex<Vec<(u64, usize)>>);

impl RemoteMemory for Noted {
    unsafe fn read(&self, dst: *mut u8, address: u64, len_bytes: usize) -> Result<(), Unreadable> {
        self.0.lock().unwrap().push((address, len_bytes));
        // SAFETY: obligations 1 and 2.
        unsafe { Here { declines: |_| false }.read(dst, address, len_bytes) }
    }
}

#[test]
#[cfg_attr(miri, ignore = "a piece is too long for miri")]
fn every_other_long_message_is_read_from_its_end() {
    const LEN: usize = 1_300_000;
    let noted = Arc::new(Noted::default());
    let memory = Memory::new();
    let (send, recv) = memory.ends_over(noted.clone());
    let mut sent: Vec<Vec<u8>> = (0..4).map(|k| (0..LEN).map(|at| (at / 7 + k) as u8).collect()).collect();
    let mut received = vec![vec![0; LEN]; 4];
    let begins: Vec<u64> = sent.iter().map(|message| message.as_ptr().expose_provenance() as u64).collect();
    std::thread::scope(|scope| {
        let sent = &mut sent;
        scope.spawn(move || {
            transfer(Conns { send: &[send], recv: &[] }, &mut works(sent, true), u32::MAX).unwrap();
        });
        transfer(Conns { send: &[], recv: &[recv] }, &mut works(&mut received, false), u32::MAX).unwrap();
    });
    assert!(sent == received);
    let reads = noted.0.lock().unwrap();
    let mut left = &reads[..];
    for (message, begin) in begins.into_iter().enumerate() {
        let (of_it, others) = left.split_at(3);
        let mut in_order: Vec<(u64, usize)> = of_it.to_vec();
        if message % 2 == 1 {
            in_order.reverse();
        }
        let piece = in_order[0].1 as u64;
        let places = [(begin, piece), (begin + piece, piece), (begin + 2 * piece, LEN as u64 - 2 * piece)];
        assert_eq!(in_order, places.map(|(at, len)| (at, len as usize)), "message {message}");
        left = others;
    }
    assert!(left.is_empty());
}

/// What `rank` has at element `at`, and what it gets of an all-reduce.
fn input(rank: u32, at: usize) -> i32 {
    (at as i32 + 1) * (1 + 6 * rank as i32)
}

/// One rank's part of a reduction of blocks of so many elements: its output, or none if both said no.
fn reduce_part(conns: Conns<'_>, rank: u32, func: Func, count: usize, in_place: bool) -> Option<Vec<i32>> {
    let blocks = if func == Func::ReduceScatter { 2 } else { 1 };
    let mut src: Vec<i32> = (0..blocks * count).map(|at| input(rank, at)).collect();
    let mut out = vec![0; count];
    let own_block = (blocks - 1) * rank as usize * count;
    let dst = if in_place { src[own_block..].as_mut_ptr() } else { out.as_mut_ptr() };
    let work = PairReduction {
        func,
        src: src.as_ptr().cast(),
        dst: dst.cast(),
        len_bytes: 4 * count,
        rank: Rank(rank),
        tag: 5,
        send: 0,
        recv: 0,
    };
    let operator = reduce::resolve(RedOp::Sum, DataType::I32, 2, 0);
    let patience = Patience(Cell::new(u32::MAX));
    let block = CpuBlock::new(&patience, DataType::I32, &operator);
    // SAFETY: both buffers are as long as the call says; connection 0 is there.
    let ran = unsafe { reading::run(&block, conns, &work) }.unwrap();
    ran.then(|| if in_place { src[own_block..own_block + count].to_vec() } else { out })
}

/// Both ranks' outputs. They reduce three times, and so read both ways.
fn reduce_both(
    func: Func,
    count: usize,
    in_place: [bool; 2],
    declines: fn(usize) -> bool,
) -> [Option<Vec<i32>>; 2] {
    let memories = [Memory::new(), Memory::new()];
    let [(mut send_0, mut recv_1), (mut send_1, mut recv_0)] =
        [memories[0].ends(declines), memories[1].ends(declines)];
    for (send, recv) in [(&mut send_0, &mut recv_0), (&mut send_1, &mut recv_1)] {
        send.spread();
        recv.spread();
        // SAFETY: behind either connection is room for the buffers.
        unsafe { share_buffers(send, recv, BUFFER_BYTES, true, None) };
    }
    let thrice = |(send, recv): (SendConn, RecvConn), rank: u32| {
        let conns = Conns { send: &[send], recv: &[recv] };
        let got = [(); 3].map(|()| reduce_part(conns, rank, func, count, in_place[rank as usize]));
        assert!(got[0] == got[1] && got[1] == got[2], "{func:?} {count} {in_place:?}");
        got.into_iter().last().flatten()
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(move || thrice((send_1, recv_1), 1));
        let mine = thrice((send_0, recv_0), 0);
        [mine, other.join().unwrap()]
    })
}

/// Declines every third read of its thread.
fn declines_some(_len: usize) -> bool {
    thread_local!(static READS: Cell<u32> = const { Cell::new(0) });
    READS.set(READS.get() + 1);
    READS.get().is_multiple_of(3)
}

#[test]
fn what_is_read_is_reduced_whoever_declines_it_and_when() {
    // A piece is a slot of 512 bytes: some numbers of elements are declined at once, some at their last piece, and 128 at none.
    let declines: [fn(usize) -> bool; 4] = [|_| false, |_| true, |len| len < 500, declines_some];
    for (count, declines) in [75, 100, 128, 1000, 5003].into_iter().flat_map(|n| declines.map(|d| (n, d))) {
        for in_place in [[false, false], [true, true], [true, false]] {
            let got = reduce_both(Func::ReduceScatter, count, in_place, declines);
            for (rank, got) in got.into_iter().enumerate() {
                let sum = |at| input(0, at) + input(1, at);
                let wanted: Vec<i32> = (rank * count..(rank + 1) * count).map(sum).collect();
                assert!(got == Some(wanted), "{count} {in_place:?}");
            }
        }
        let wanted: Vec<i32> = (0..count).map(|at| input(0, at) + input(1, at)).collect();
        let got = reduce_both(Func::AllReduce, count, [false, false], declines);
        assert!(got.iter().all(|got| got.as_ref() == Some(&wanted)), "{count}");
    }
}

#[test]
fn an_all_reduce_that_is_in_place_at_either_rank_is_read_by_neither() {
    for in_place in [[true, false], [false, true], [true, true]] {
        assert_eq!(reduce_both(Func::AllReduce, 1000, in_place, |_| false), [None, None]);
    }
}

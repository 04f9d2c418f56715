//! Slots that are filled past the caches, between two threads: what is published has arrived.
//!
//! Non-temporal stores are ordered with later ones by a fence alone, so that a `tail` without one may be seen before the last bytes of its
//! slot. Loom knows no non-temporal stores, and few processors show the mistake; so builds with debug assertions, as this test's, keep account
//! of fences, and publishing without one panics (`device/src/gpu/cpu/reduce/stream.rs`).

use oxccl_device::conn::{Conns, RecvConn, SendConn};
#[cfg(all(target_arch = "x86_64", not(miri)))]
use oxccl_device::distance::Fill;
use oxccl_device::distance::{LONG_SLOT_BYTES, SlotStores};
use oxccl_device::gpu::cpu::{CpuBlock, Waiter};
use oxccl_device::gpu::{Stop, Wait};
use oxccl_device::prims::{Simple, Slice, run_slice};
use oxccl_shared::abi::{ConnLayout, DataType, Rank, RedOp, SlotHeader};
use oxccl_shared::algo::Action;
use oxccl_shared::reduce;
use proptest::prelude::*;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const LAYOUT: ConnLayout =
    ConnLayout { ll_slot_bytes: 256, ll128_slot_bytes: 256, simple_slot_bytes: 16 << 10 };
const STEPS: u64 = if cfg!(miri) { 20 } else { 20_000 };

/// Waits until it is stopped.
struct Patient;

/// A thread has failed: nobody waits for it.
static STOPPED: AtomicBool = AtomicBool::new(false);

struct StopOnPanic;

impl Drop for StopOnPanic {
    fn drop(&mut self) {
        STOPPED.fetch_or(std::thread::panicking(), Relaxed);
    }
}

impl Waiter for Patient {
    fn spins(&self) -> u32 {
        64
    }

    fn wait(&self, _: Wait, _: u32) -> Result<(), Stop> {
        std::thread::yield_now();
        if STOPPED.load(Relaxed) { Err(Stop) } else { Ok(()) }
    }

    fn refuse(&self, _: Wait, expected: SlotHeader, found: SlotHeader) -> Stop {
        panic!("{found:?} instead of {expected:?}")
    }
}

/// Words of step `step`: lengths from two kilobytes to a whole slot, some of which end within a line.
fn words_of(step: u64) -> usize {
    let least = LONG_SLOT_BYTES / 8;
    least
        + (step.wrapping_mul(0x9e37_79b9) % (LAYOUT.simple_slot_bytes as u64 / 8 - least as u64 + 1)) as usize
}

fn word(step: u64, at: usize) -> u64 {
    (step << 32 | at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// One rank's part of all steps.
fn run(
    conns: Conns<'_>,
    action: Action,
    before: impl FnMut(u64, &mut [u64]),
    after: impl FnMut(u64, &[u64]),
) {
    run_bypassing(false, conns, action, before, after);
}

/// As [`run`], with outputs that bypass the caches.
fn run_bypassing(
    bypasses: bool,
    conns: Conns<'_>,
    action: Action,
    mut before: impl FnMut(u64, &mut [u64]),
    mut after: impl FnMut(u64, &[u64]),
) {
    let _others_stop = StopOnPanic;
    let operator = reduce::resolve(RedOp::Sum, DataType::U64, 2, 0);
    let block = CpuBlock::new(&Patient, DataType::U64, &operator);
    let mut buffer = vec![0u64; LAYOUT.simple_slot_bytes as usize / 8];
    for step in 0..STEPS {
        let words = &mut buffer[..words_of(step)];
        before(step, words);
        let slice = Slice {
            action,
            header: SlotHeader { tag: 7, len_bytes: 8 * words.len() as u32 },
            recv: &[0],
            send: &[0],
            src_position: 0,
            src: if action.src { words.as_ptr().cast() } else { null() },
            dst: if action.dst { words.as_mut_ptr().cast() } else { null_mut() },
            stream: bypasses,
        };
        // SAFETY: the buffer is as long as the slice, which fits a slot.
        unsafe { run_slice::<_, Simple>(&block, conns, &slice) }.unwrap();
        after(step, words);
    }
}

/// A connection in memory of its own.
struct Pipe {
    base: *mut u8,
    memory: Layout,
}

impl Pipe {
    fn new() -> Pipe {
        let memory = Layout::from_size_align(LAYOUT.total_bytes(), 128).unwrap();
        // SAFETY: the layout has bytes.
        Pipe { base: unsafe { alloc_zeroed(memory) }, memory }
    }

    /// Its ends; the producer's fills slots by `stores`.
    fn ends(&self, stores: SlotStores) -> ([SendConn; 1], [RecvConn; 1]) {
        // SAFETY: zeroed and aligned, until all threads have ended; the only producer.
        let send = [unsafe { SendConn::new(Rank(1), self.base, LAYOUT) }];
        send[0].set_stores(stores);
        send[0].spread();
        // SAFETY: as above; the only consumer.
        let recv = [unsafe { RecvConn::new(Rank(0), self.base, LAYOUT) }];
        recv[0].spread();
        (send, recv)
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout; nobody uses it any more.
        unsafe { dealloc(self.base, self.memory) };
    }
}

fn fill(step: u64, words: &mut [u64]) {
    (0..).zip(words).for_each(|(at, to)| *to = word(step, at));
}

/// The words are `times` the sender's.
fn check(step: u64, words: &[u64], stores: SlotStores, times: u64) {
    let wrong = (0..).zip(words).find(|(at, found)| **found != word(step, *at).wrapping_mul(times));
    assert!(wrong.is_none(), "{stores:?}, step {step}: {wrong:?} of {} words", words.len());
}

/// Receives slots of such words.
fn receive(recv: &[RecvConn], stores: SlotStores, times: u64) {
    let received = |step, words: &[u64]| check(step, words, stores, times);
    run(Conns { send: &[], recv }, Action::RECV, |_, _| (), received);
}

#[test]
fn what_is_published_has_arrived() {
    for stores in [SlotStores::Streamed, SlotStores::Measured, SlotStores::Cached] {
        let pipe = Pipe::new();
        let (send, recv) = pipe.ends(stores);
        std::thread::scope(|scope| {
            scope.spawn(move || run(Conns { send: &send, recv: &[] }, Action::SEND, fill, |_, _| ()));
            receive(&recv, stores, 1);
        });
    }
}

/// Now and then a slot's time is taken, and then it is copied apart from the output.
#[test]
fn what_is_handed_on_has_arrived() {
    for (stores, bypasses) in
        [(SlotStores::Streamed, false), (SlotStores::Measured, false), (SlotStores::Measured, true)]
    {
        let (first, second) = (Pipe::new(), Pipe::new());
        let ((send, recv), (onward, last)) = (first.ends(stores), second.ends(stores));
        std::thread::scope(|scope| {
            scope.spawn(move || run(Conns { send: &send, recv: &[] }, Action::SEND, fill, |_, _| ()));
            scope.spawn(move || {
                let kept = |step, words: &[u64]| check(step, words, stores, 1);
                let conns = Conns { send: &onward, recv: &recv };
                run_bypassing(bypasses, conns, Action::RECV_COPY_SEND, |_, _| (), kept)
            });
            receive(&last, stores, 1);
        });
    }
}

#[test]
fn what_is_reduced_and_published_has_arrived() {
    let stores = [SlotStores::Streamed, SlotStores::Measured];
    let actions = [Action::RECV_REDUCE_SEND, Action::RECV_REDUCE_COPY_SEND];
    for (action, stores) in actions.into_iter().flat_map(|action| stores.map(|stores| (action, stores))) {
        let (first, second) = (Pipe::new(), Pipe::new());
        let ((send, recv), (onward, last)) = (first.ends(stores), second.ends(stores));
        std::thread::scope(|scope| {
            scope.spawn(move || run(Conns { send: &send, recv: &[] }, Action::SEND, fill, |_, _| ()));
            scope.spawn(move || run(Conns { send: &onward, recv: &recv }, action, fill, |_, _| ()));
            receive(&last, stores, 2);
        });
    }
}

/// What two upstream ranks send, this rank combines and hands on, step by step on one thread: the results of the last rank, and this one's.
fn chained(stores: SlotStores, case: &Case, steps: u64) -> (Vec<Vec<u8>>, Conn) {
    let (firsts, second) = ([Pipe::new(), Pipe::new()], Pipe::new());
    let [(one, from_one), (two, from_two)] = firsts.each_ref().map(|pipe| pipe.ends(SlotStores::Cached));
    let (onward, last) = second.ends(stores);
    let operator = reduce::resolve(case.op, case.dtype, 3, 2f64.to_bits());
    let copies = reduce::resolve(RedOp::Sum, case.dtype, 3, 0);
    let (through, plain) =
        (CpuBlock::new(&Patient, case.dtype, &operator), CpuBlock::new(&Patient, case.dtype, &copies));
    let recv = [from_one, from_two].map(|[conn]| conn);
    let mut results = Vec::new();
    for step in 0..steps {
        let elems = 2 * LONG_SLOT_BYTES / case.dtype.size_bytes() + (step % 5) as usize;
        let len = elems * case.dtype.size_bytes();
        let content = |rank: u64| -> Vec<u8> {
            (0..len as u64).map(|at| (word(step + rank, at as usize) >> 40) as u8 & 0x3f).collect()
        };
        let slice = |action, src: *const u8, dst: *mut u8, count: usize| Slice {
            action,
            header: SlotHeader { tag: 7, len_bytes: len as u32 },
            recv: &[0, 1][..count],
            send: &[0],
            src_position: case.src_position,
            src,
            dst,
            stream: case.bypasses && action.dst,
        };
        for (rank, send) in [(1, &one), (2, &two)].into_iter().take(case.inputs) {
            let sent = content(rank);
            let slice = slice(Action::SEND, sent.as_ptr(), null_mut(), 1);
            // SAFETY: the buffer is as long as the slice, which fits a slot.
            unsafe { run_slice::<_, Simple>(&plain, Conns { send, recv: &[] }, &slice) }.unwrap();
        }
        let (own, mut kept, mut got) = (content(0), content(0), vec![0; len]);
        let src = if case.in_place { kept.as_ptr() } else { own.as_ptr() };
        let handed = slice(case.action, src, kept.as_mut_ptr(), case.inputs);
        // SAFETY: as above.
        unsafe { run_slice::<_, Simple>(&through, Conns { send: &onward, recv: &recv }, &handed) }.unwrap();
        let received = slice(Action::RECV, null(), got.as_mut_ptr(), 1);
        // SAFETY: as above.
        unsafe { run_slice::<_, Simple>(&plain, Conns { send: &[], recv: &last }, &received) }.unwrap();
        results.extend([got, kept]);
    }
    let [onward] = onward;
    (results, Conn { send: onward, _memory: second })
}

/// The connection on, and its memory.
struct Conn {
    send: SendConn,
    _memory: Pipe,
}

/// What the rank between does.
#[derive(Clone, Copy, Debug)]
struct Case {
    action: Action,
    inputs: usize,
    src_position: usize,
    op: RedOp,
    dtype: DataType,
    in_place: bool,
    bypasses: bool,
}

fn cases() -> impl Strategy<Value = Case> {
    let actions = [Action::RECV_COPY_SEND, Action::RECV_REDUCE_SEND, Action::RECV_REDUCE_COPY_SEND];
    let actions = prop::sample::select(actions.to_vec());
    let ops = prop::sample::select(vec![RedOp::Sum, RedOp::Max, RedOp::Avg, RedOp::PreMulSum]);
    let dtypes = prop::sample::select(vec![DataType::U8, DataType::F16, DataType::F32, DataType::U64]);
    (actions, 1..3usize, 0..3usize, ops, dtypes, any::<[bool; 2]>()).prop_map(
        |(action, inputs, src_position, op, dtype, [in_place, bypasses])| {
            let inputs = if action.src { inputs } else { 1 };
            let src_position = src_position.min(inputs);
            Case { action, inputs, src_position, op, dtype, in_place, bypasses }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 60 }))]

    /// Taking the time changes no bit, of what is sent and of what is kept.
    #[test]
    fn slots_that_are_timed_hold_the_same(case in cases()) {
        let steps = if cfg!(miri) { 4 } else { 300 };
        let [(usual, _), (timed, _)] =
            [SlotStores::Cached, SlotStores::Measured].map(|stores| chained(stores, &case, steps));
        for (at, (usual, timed)) in usual.iter().zip(&timed).enumerate() {
            prop_assert!(usual == timed, "{case:?}: result {at}");
        }
    }
}

/// The slots of ranks between others are counted, so that some are timed.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[test]
fn slots_of_a_chain_are_timed() {
    for action in [Action::RECV_COPY_SEND, Action::RECV_REDUCE_SEND, Action::RECV_REDUCE_COPY_SEND] {
        let (op, dtype) = (RedOp::Sum, DataType::U64);
        let case = Case { action, inputs: 1, src_position: 0, op, dtype, in_place: false, bypasses: false };
        let (_, conn) = chained(SlotStores::Measured, &case, 150);
        // 128 slots are not counted at first, and one in 64 is timed then.
        let until_timed =
            (0..1000).take_while(|_| conn.send.fill(LONG_SLOT_BYTES, true) != Fill::Timed).count();
        assert!(until_timed < 64, "{action:?}: {until_timed}");
    }
}

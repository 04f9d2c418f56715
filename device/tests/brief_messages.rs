//! Messages between two threads, most of them brief: they arrive whichever way either end takes, in slots or in buffers that change hands,
//! and nobody waits for a credit that only its own receiving would free.

mod common;

use common::{BUFFER_BYTES, LAYOUT, Memory, Patience};
use oxccl_device::coll::P2pWork;
use oxccl_device::coll::pair::{self, PairWork};
use oxccl_device::coll::send_recv::{self, BriefExchange};
use oxccl_device::conn::{Conns, RecvConn, SendConn};
use oxccl_device::gpu::cpu::CpuBlock;
use oxccl_device::gpu::cpu::reduce::set_asking_pays;
use oxccl_device::prims::brief::Brief;
use oxccl_shared::abi::{DataType, Func, Protocol, Rank, RedOp};
use oxccl_shared::reduce;
use proptest::prelude::*;
use std::sync::{Barrier, Mutex, PoisonError};

/// How two ranks are tested.
#[derive(Clone, Copy, Debug)]
struct Kind {
    /// Which ranks send in buffers that change hands.
    uses: [bool; 2],
    /// As on processors where asking ahead pays.
    asks: bool,
}

fn kinds() -> impl Strategy<Value = Kind> {
    any::<([bool; 2], bool)>().prop_map(|(uses, asks)| Kind { uses, asks })
}

/// What is decided for the process is decided for one test at a time.
static PROCESSOR: Mutex<()> = Mutex::new(());

/// Runs `body` on both ranks, a thread each.
fn on_both<R: Send>(kind: Kind, body: impl Fn(u32, &SendConn, &RecvConn) -> R + Sync) -> [R; 2] {
    let _alone = PROCESSOR.lock().unwrap_or_else(PoisonError::into_inner);
    set_asking_pays(kind.asks);
    let memory = Memory::new(2, false);
    let [first, second] = [0, 1].map(|rank| memory.ends(rank, kind.uses[rank as usize]));
    std::thread::scope(|scope| {
        let body = &body;
        let other = scope.spawn(move || body(1, &second.0[0], &second.1[0]));
        [body(0, &first.0[0], &first.1[0]), other.join().unwrap()]
    })
}

/// Runs `body` with a block of this thread.
fn with_block<R>(body: impl FnOnce(&CpuBlock<'_, Patience>) -> R) -> R {
    let operator = reduce::resolve(RedOp::Sum, DataType::U8, 2, 0);
    body(&CpuBlock::new(&Patience, DataType::U8, &operator))
}

fn content(rank: u32, message: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251 + message * 31 + rank as usize * 101) as u8).collect()
}

fn work(is_send: bool, tag: u32, buffer: &mut [u8]) -> P2pWork {
    P2pWork::new(is_send, 0, Protocol::Simple, (buffer.as_mut_ptr(), buffer.len()), tag)
}

/// How a rank carries out an exchange.
#[derive(Clone, Copy, Debug)]
enum Path {
    /// If it can be, at once.
    AtOnce,
    /// As a list of messages, the receive first or the send.
    Listed { recv_first: bool },
}

/// Exchanges one message with the other rank.
fn exchange(
    path: Path,
    (send, recv): (&SendConn, &RecvConn),
    tag: u32,
    sent: &mut [u8],
    received: &mut [u8],
) {
    let conns = Conns { send: std::slice::from_ref(send), recv: std::slice::from_ref(recv) };
    with_block(|block| {
        let message = |len_bytes| Brief { tag, len_bytes };
        let brief = BriefExchange {
            send: 0,
            src: sent.as_ptr(),
            sent: message(sent.len()),
            recv: 0,
            dst: received.as_mut_ptr(),
            received: message(received.len()),
        };
        // SAFETY: the buffers have these lengths; connection 0 is there, and nothing else under way.
        if matches!(path, Path::AtOnce) && unsafe { send_recv::exchange_brief(block, conns, &brief) }.unwrap()
        {
            return;
        }
        let mut works = [work(true, tag, sent), work(false, tag, received)];
        if matches!(path, Path::Listed { recv_first: true }) {
            works.reverse();
        }
        // SAFETY: as above.
        unsafe { send_recv::run(block, conns, &mut works) }.unwrap();
    });
}

fn paths() -> impl Strategy<Value = Path> {
    prop_oneof![
        Just(Path::AtOnce),
        Just(Path::Listed { recv_first: true }),
        Just(Path::Listed { recv_first: false })
    ]
}

fn lens() -> impl Strategy<Value = usize> {
    prop_oneof![
        0..300usize,
        1022..1100usize,
        1500..1600usize,
        2000..2200usize,
        4000..4200usize,
        8000..8300usize,
        16_383..=16_384usize,
        40_000..100_000usize
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 200 }))]

    #[test]
    fn messages_arrive_whichever_way_either_rank_takes(
        messages in prop::collection::vec((lens(), lens(), paths(), paths()), 1..30),
        kind in kinds(),
    ) {
        let received = on_both(kind, |rank, send, recv| {
            let each = messages.iter().enumerate().map(|(at, (of_0, of_1, by_0, by_1))| {
                let (own, theirs, path) = if rank == 0 { (*of_0, *of_1, *by_0) } else { (*of_1, *of_0, *by_1) };
                let (mut sent, mut received) = (content(rank, at, own), vec![0; theirs]);
                exchange(path, (send, recv), 7, &mut sent, &mut received);
                received
            });
            each.collect::<Vec<_>>()
        });
        for (at, (of_0, of_1, ..)) in messages.iter().enumerate() {
            prop_assert_eq!(&received[0][at], &content(1, at, *of_1));
            prop_assert_eq!(&received[1][at], &content(0, at, *of_0));
        }
    }

    #[test]
    fn collectives_are_those_of_whole_messages(len in lens(), in_place in any::<bool>(), by_rank in any::<bool>(), kind in kinds()) {
        prop_assume!(len < 8 << 10);
        let results = on_both(kind, |rank, send, recv| {
            let (input, mut output) = (content(rank, 0, len), vec![0; len]);
            if in_place {
                output.copy_from_slice(&input);
            }
            let src = if in_place { output.as_ptr() } else { input.as_ptr() };
            let (dst, rank) = (output.as_mut_ptr(), Rank(rank));
            let func = Func::AllReduce;
            let work = PairWork { func, src, dst, len_bytes: len, rank, root: Rank(0), tag: 9, by_rank };
            // SAFETY: both buffers have that length; a sum without scaling, on one thread.
            with_block(|block| unsafe { pair::run(block, (send, recv), &work) }).unwrap();
            output
        });
        let sum = content(0, 0, len).iter().zip(content(1, 0, len)).map(|(a, b)| a.wrapping_add(b)).collect();
        prop_assert_eq!(results, [&sum, &sum].map(Vec::clone));
    }
}

/// Both ends count on it, whichever way the peer takes.
#[test]
fn a_message_of_a_slot_at_most_takes_one() {
    let lens = [0, 1 << 10, 2 << 10, (8 << 10) - 1, 8 << 10, 16 << 10];
    for (len, asks) in lens.into_iter().flat_map(|len| [(len, false), (len, true)]) {
        let paths = [Path::AtOnce, Path::Listed { recv_first: true }, Path::Listed { recv_first: false }];
        let steps = on_both(Kind { uses: [true; 2], asks }, |rank, send, recv| {
            paths.map(|path| {
                let (mut sent, mut received) = (content(rank, 0, len), vec![0; len]);
                exchange(path, (send, recv), 7, &mut sent, &mut received);
                (send.step().0, recv.step().0)
            })
        });
        assert_eq!(steps, [[(1, 1), (2, 2), (3, 3)]; 2], "{len} bytes");
    }
}

/// A buffer is longer than a slot, and parts that go in buffers are equal. A rank without buffers fills slots.
#[test]
fn a_long_message_takes_as_few_steps_as_its_places_allow() {
    let slot_bytes = LAYOUT.simple_slot_bytes as usize;
    for len in [slot_bytes + 1, BUFFER_BYTES, BUFFER_BYTES + 1, 2 * BUFFER_BYTES] {
        let steps = on_both(Kind { uses: [true, false], asks: false }, |rank, send, recv| {
            let (mut sent, mut received) = (content(rank, 0, len), vec![0; len]);
            exchange(Path::AtOnce, (send, recv), 7, &mut sent, &mut received);
            assert_eq!(received, content(1 - rank, 0, len));
            send.step().0 as usize
        });
        assert_eq!(steps, [len.div_ceil(BUFFER_BYTES), len.div_ceil(slot_bytes)], "{len} bytes");
    }
}

/// What a rank has just read is what it fills next, if it uses buffers; what its peer does makes no difference.
#[test]
fn the_next_message_goes_where_the_latest_came() {
    for (uses, len) in
        [([true; 2], 1 << 10), ([true; 2], 9000), ([true; 2], 16 << 10), ([true, false], 16 << 10)]
    {
        let [first, second] = on_both(Kind { uses, asks: false }, |rank, send, recv| {
            let (mut sent, mut received) = (content(rank, 0, len), vec![0; len]);
            let place = || send.message(len).addr();
            let mut places = vec![place()];
            for _ in 0..2 {
                exchange(Path::Listed { recv_first: false }, (send, recv), 7, &mut sent, &mut received);
                places.push(place());
            }
            assert_eq!(received, content(1 - rank, 0, len));
            places
        });
        if uses[1] {
            assert_eq!((first[1], second[1]), (second[0], first[0]), "{len} bytes: each has the other's");
            assert_eq!((first[2], second[2]), (first[0], second[0]), "{len} bytes");
        } else {
            // Two buffers go away, and none comes back.
            assert_eq!(first[1], first[0] + BUFFER_BYTES);
            assert!(
                first[2] < first[0] && second.iter().all(|place| !first.contains(place)),
                "{first:?} {second:?}"
            );
        }
    }
}

/// Neither rank has a free slot. If either waited for one before it receives, neither would ever receive.
#[test]
fn nobody_waits_for_a_credit_before_it_receives() {
    let (met, len) = (Barrier::new(2), 4 << 10);
    let received = on_both(Kind { uses: [true; 2], asks: true }, |rank, send, recv| {
        let conns = Conns { send: std::slice::from_ref(send), recv: std::slice::from_ref(recv) };
        let mut small = [[rank as u8; 8]; 8];
        for buffer in &mut small {
            // SAFETY: the buffer outlives it; connection 0 is there.
            with_block(|block| unsafe { send_recv::run(block, conns, &mut [work(true, 1, buffer)]) })
                .unwrap();
        }
        met.wait();
        let message = Brief { tag: 2, len_bytes: len };
        let (mut sent, mut got) = (content(rank, 0, len), vec![0; len]);
        let (src, dst) = (sent.as_ptr(), got.as_mut_ptr());
        let brief = BriefExchange { send: 0, src, sent: message, recv: 0, dst, received: message };
        // SAFETY: as above, and nothing else would be under way if it began.
        let began = with_block(|block| unsafe { send_recv::exchange_brief(block, conns, &brief) }).unwrap();
        assert!(!began && send.step().0 == 8, "it has no room");
        met.wait();
        let mut works: Vec<P2pWork> = small.iter_mut().map(|buffer| work(false, 1, buffer)).collect();
        works.extend([work(false, 2, &mut got), work(true, 2, &mut sent)]);
        // SAFETY: as above.
        with_block(|block| unsafe { send_recv::run(block, conns, &mut works) }).unwrap();
        (small, got)
    });
    assert_eq!(received[0], ([[1; 8]; 8], content(1, 0, len)));
    assert_eq!(received[1], ([[0; 8]; 8], content(0, 0, len)));
}

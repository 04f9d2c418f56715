//! All-reduce, all-gather, reduce-scatter and reduce among a few threads, to all peers at once and by recursive doubling: the same outcome
//! whichever ranks take the short way of brief messages and which walk over slices, and operation after operation on the same connections.

mod common;

use common::{LAYOUT, Memory, Patience};
use oxccl_device::coll::{self, CollWork, Endpoints, InTurn, MeshEnds, RingEnds, TreeEnds, oneshot, twoshot};
use oxccl_device::conn::{Conns, RecvConn, SendConn};
use oxccl_device::gpu::cpu::CpuBlock;
use oxccl_device::prims::{Simple, Slice, run_slice};
use oxccl_shared::abi::{Algorithm, DataType, Func, Protocol, Rank, RedOp, SlotHeader};
use oxccl_shared::algo::Action;
use oxccl_shared::reduce;
use proptest::prelude::*;

/// Bytes of an element, and how far buffers lie behind an aligned address.
const SIZE: usize = size_of::<u32>();
const OFF: usize = 1;

/// One operation, the same on all ranks.
#[derive(Clone, Copy, Debug)]
struct Operation {
    algorithm: Algorithm,
    func: Func,
    count: usize,
    in_place: bool,
}

impl Operation {
    fn blocks(&self, has_blocks: bool, n: u32) -> usize {
        self.count * if has_blocks { n as usize } else { 1 }
    }

    fn input(&self, rank: u32, n: u32) -> Vec<u32> {
        let len = self.blocks(self.func == Func::ReduceScatter, n);
        (0..len).map(|at| (at as u32).wrapping_mul(0x9e37_79b9) ^ (rank * 257)).collect()
    }

    /// What a rank must have in the end, if its output is to be looked at. The root of a reduce is the last rank.
    fn expected(&self, rank: u32, n: u32) -> Option<Vec<u32>> {
        let inputs: Vec<Vec<u32>> = (0..n).map(|rank| self.input(rank, n)).collect();
        let sum = |at: usize| inputs.iter().fold(0u32, |sum, input| sum.wrapping_add(input[at]));
        let first = rank as usize * self.count;
        match self.func {
            Func::AllGather => Some(inputs.concat()),
            Func::ReduceScatter => Some((first..first + self.count).map(sum).collect()),
            Func::Reduce if rank + 1 < n => None,
            _ => Some((0..self.count).map(sum).collect()),
        }
    }

    /// Runs it on a rank. Returns its output.
    fn run(&self, rank: u32, n: u32, conns: Conns<'_>, walks: bool) -> Vec<u32> {
        let input = self.input(rank, n);
        let output_len = self.blocks(self.func == Func::AllGather, n);
        // In place, one is a part of the other: an all-gather's input is its block of the output, a reduce-scatter's output that of the input.
        let (own, longest) = (rank as usize * self.count * SIZE, input.len().max(output_len) * SIZE);
        let mut bytes = vec![0u8; OFF + 2 * longest];
        let src_at = OFF + if self.in_place && self.func == Func::AllGather { own } else { 0 };
        let dst_at = match (self.in_place, self.func) {
            (true, Func::ReduceScatter) => OFF + own,
            (true, _) => OFF,
            (false, _) => OFF + longest,
        };
        for (to, from) in bytes[src_at..].chunks_exact_mut(SIZE).zip(&input) {
            to.copy_from_slice(&from.to_ne_bytes());
        }
        let base = bytes.as_mut_ptr();
        let work = CollWork {
            func: self.func,
            algorithm: self.algorithm,
            protocol: Protocol::Simple,
            dtype: DataType::U32,
            src: base.wrapping_add(src_at),
            dst: base.wrapping_add(dst_at),
            count: self.count,
            part: 0..self.count,
            chunk_elems: LAYOUT.simple_slot_bytes as usize / SIZE,
            slice_elems: LAYOUT.simple_slot_bytes as usize / SIZE,
            grain_elems: 1,
            rank: Rank(rank),
            nranks: n,
            root: Rank(n - 1),
            host_ranks: 0,
            tag: 5,
            stream: false,
            is_direct: false,
        };
        let list: Vec<u16> = (0..n as u16 - 1).collect();
        let operator = reduce::resolve(RedOp::Sum, DataType::U32, n, 0);
        let block = CpuBlock::new(&Patience, DataType::U32, &operator);
        let mesh = MeshEnds { conns, send: &list, recv: &list };
        // SAFETY: the buffers are as long as the function says; the lists name the connections, each with all other ranks.
        let ran = unsafe {
            match self.algorithm {
                Algorithm::OneShot if walks => oneshot::run::<_, InTurn<Simple>>(&block, &mesh, &work),
                Algorithm::TwoShot if walks => twoshot::run::<_, InTurn<Simple>>(&block, &mesh, &work),
                _ => coll::run(&block, conns, &endpoints(&list), &work),
            }
        };
        ran.unwrap();
        let output = bytes[dst_at..].chunks_exact(SIZE).take(output_len);
        output.map(|elem| u32::from_ne_bytes([elem[0], elem[1], elem[2], elem[3]])).collect()
    }
}

fn endpoints(list: &[u16]) -> Endpoints<'_> {
    static NO_TREE: std::sync::OnceLock<TreeEnds> = std::sync::OnceLock::new();
    Endpoints {
        ring: RingEnds::default(),
        tree: NO_TREE.get_or_init(TreeEnds::default),
        chain: Default::default(),
        star: Default::default(),
        mesh_recv: list,
        mesh_send: list,
    }
}

fn operations() -> impl Strategy<Value = Operation> {
    let what = prop_oneof![
        Just((Algorithm::OneShot, Func::AllReduce)),
        Just((Algorithm::OneShot, Func::AllGather)),
        Just((Algorithm::OneShot, Func::ReduceScatter)),
        Just((Algorithm::OneShot, Func::Reduce)),
        Just((Algorithm::TwoShot, Func::AllReduce)),
        Just((Algorithm::Doubling, Func::AllReduce)),
        Just((Algorithm::OneShot, Func::Barrier)),
        Just((Algorithm::Doubling, Func::Barrier)),
    ];
    // Around where messages leave their line, go in buffers, are more than a tile, are not brief, and fill more than a slot.
    let count = prop_oneof![
        0..30usize,
        250..260usize,
        510..520usize,
        1020..1030usize,
        2040..2060usize,
        4090..4100usize,
        8000..10_000usize
    ];
    (what, count, any::<bool>()).prop_map(|((algorithm, func), count, in_place)| Operation {
        algorithm,
        func,
        // A reduce in place is one of the root alone.
        in_place: in_place && func != Func::Reduce,
        count: if func == Func::Barrier { 0 } else { count },
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 100 }))]

    #[test]
    fn outcomes_are_right_whichever_ranks_walk(
        n in 1u32..7,
        walks in any::<[bool; 6]>(),
        has_outboxes in any::<bool>(),
        operations in prop::collection::vec(operations(), 1..12),
    ) {
        let memory = Memory::new(n, has_outboxes);
        let outputs: Vec<Vec<Vec<u32>>> = std::thread::scope(|scope| {
            let ranks: Vec<_> = (0..n).map(|rank| {
                let (send, recv) = memory.ends(rank, true);
                let operations = &operations;
                scope.spawn(move || {
                    let conns = Conns { send: &send, recv: &recv };
                    let run = |op: &Operation| op.run(rank, n, conns, walks[rank as usize]);
                    operations.iter().map(run).collect::<Vec<_>>()
                })
            }).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        for (rank, outputs) in (0..n).zip(&outputs) {
            for (op, output) in operations.iter().zip(outputs) {
                if let Some(expected) = op.expected(rank, n) {
                    prop_assert_eq!(output, &expected, "{:?} on rank {}", op, rank);
                }
            }
        }
    }
}

/// Ranks of which the first sends to all others, in turns on this thread.
struct Turns(Vec<(Vec<SendConn>, Vec<RecvConn>)>);

impl Turns {
    const LEN: usize = 2 << 10;

    fn conns(&self, rank: usize) -> Conns<'_> {
        let (send, recv) = &self.0[rank];
        Conns { send, recv }
    }

    /// Where the next message to a rank lies.
    fn place(&self, reader: usize) -> usize {
        self.conns(reader).recv[0].message(Self::LEN).addr()
    }

    fn send(&self, to: &[u16], value: u8) {
        step(self.conns(0), Action::COPY_SEND, to, &mut [value; Self::LEN]);
    }

    fn read(&self, reader: usize, value: u8) {
        let mut got = [0; Self::LEN];
        step(self.conns(reader), Action::RECV, &[0], &mut got);
        assert_eq!(got, [value; Self::LEN]);
    }
}

/// One step of a rank on this thread, in place: to these places of `peers`, or from these others.
fn step(conns: Conns<'_>, action: Action, list: &[u16], bytes: &mut [u8]) {
    let operator = reduce::resolve(RedOp::Sum, DataType::U8, 1, 0);
    let block = CpuBlock::new(&Patience, DataType::U8, &operator);
    let slice = Slice {
        action,
        header: SlotHeader { tag: 5, len_bytes: bytes.len() as u32 },
        recv: list,
        send: list,
        src_position: 0,
        src: bytes.as_ptr(),
        dst: bytes.as_mut_ptr(),
        stream: false,
    };
    // SAFETY: the buffer has that length; the lists name connections.
    unsafe { run_slice::<_, Simple>(&block, conns, &slice) }.unwrap();
}

/// A message to several peers is stored once, in a buffer of the outbox that nobody reads any more. If there is none, it fills a slot for each
/// peer.
#[test]
fn a_buffer_of_an_outbox_is_filled_once_all_have_read_it() {
    let memory = Memory::new(3, true);
    let ranks = Turns((0..3).map(|rank| memory.ends(rank, true)).collect());
    ranks.send(&[0, 1], 1);
    let first = ranks.place(1);
    assert_eq!(ranks.place(2), first, "one place for both");
    ranks.read(1, 1);
    // Rank 2 still reads the first buffer, although the next message is not for it alone.
    ranks.send(&[0, 1], 2);
    let second = ranks.place(1);
    assert_ne!(second, first);
    ranks.read(1, 2);
    ranks.send(&[0, 1], 3);
    assert!(ranks.place(1) != first && ranks.place(1) != second, "both buffers are being read: slots");
    ranks.read(1, 3);
    ranks.read(2, 1);
    assert_eq!(ranks.place(2), second);
    ranks.read(2, 2);
    assert_ne!(ranks.place(2), second, "a slot of its own");
    ranks.read(2, 3);
    ranks.send(&[0, 1], 4);
    assert_eq!([ranks.place(1), ranks.place(2)], [first; 2], "it is free again");
    ranks.read(1, 4);
    ranks.read(2, 4);
}

/// The next message need not go to all who read the one before.
#[test]
fn a_reader_that_the_next_message_does_not_go_to_is_waited_for() {
    let memory = Memory::new(4, true);
    let ranks = Turns((0..4).map(|rank| memory.ends(rank, true)).collect());
    for value in 1..=2 {
        ranks.send(&[0, 1, 2], value);
        ranks.read(1, value);
        ranks.read(2, value);
    }
    // Rank 3 has read neither.
    let theirs = ranks.place(3);
    ranks.send(&[0, 1], 3);
    assert!(ranks.place(1) != theirs && ranks.place(1) != ranks.place(2), "slots");
    ranks.read(1, 3);
    ranks.read(2, 3);
    ranks.read(3, 1);
    ranks.read(3, 2);
}

//! A group of calls on every rank, with buffers and what they must hold afterwards.

use oxccl::{Communicator, DataType, Error, Func, Group, RedOp, ReduceOp, Untyped};
use oxccl_tests::deck::Deck;
use oxccl_tests::guarded::{Guarded, bytes_of};
use oxccl_tests::harness::{World, first_error, on_threads};
use oxccl_tests::model::mix;
use oxccl_tests::oracle::Inputs;

/// What happens in a group.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    /// So many bytes from one rank to another, perhaps itself.
    Message { from: u32, to: u32, len: usize },
    /// All ranks together.
    Collective { func: Func, op: RedOp, root: u32, count: usize },
}

/// One rank's call.
pub struct Step {
    pub func: Func,
    dtype: DataType,
    op: RedOp,
    peer: u32,
    count: usize,
    send: Guarded,
    recv: Guarded,
    expected: Vec<u8>,
}

/// A group: each rank's calls in the order in which it adds them.
pub struct Program {
    ranks: Vec<Vec<Step>>,
}

impl Program {
    /// The calls of `ops`; each rank adds them in its own order where order does not matter.
    pub fn new(ops: &[Op], nranks: u32, seed: u64) -> Program {
        let ranks = (0..nranks).map(|rank| {
            let mut steps = Vec::new();
            for (k, op) in ops.iter().enumerate() {
                steps.extend(steps_of(op, mix(seed ^ k as u64), rank, nranks));
            }
            reorder(steps, mix(seed ^ u64::from(rank) << 32))
        });
        Program { ranks: ranks.collect() }
    }

    /// Runs it with so many ranks on each thread.
    pub fn run(&mut self, world: &mut World, ranks_per_thread: usize) -> Result<(), Error> {
        let mine = world.ranks.chunks_mut(ranks_per_thread).zip(self.ranks.chunks_mut(ranks_per_thread));
        first_error(on_threads(mine, |(ranks, parts)| {
            oxccl::group(|group| {
                ranks
                    .iter()
                    .zip(parts)
                    .try_for_each(|(rank, steps)| steps.iter_mut().try_for_each(|step| step.add(group, rank)))
            })
        }))
    }

    /// What is wrong after it has run.
    pub fn wrong(&self) -> Option<String> {
        for (rank, steps) in self.ranks.iter().enumerate() {
            for step in steps {
                if let Some(wrong) = step.wrong() {
                    return Some(format!("rank {rank}: {wrong}"));
                }
            }
        }
        None
    }
}

impl Step {
    fn add<'env>(&mut self, group: &mut Group<'env>, rank: &'env Communicator) -> Result<(), Error> {
        let call = self.untyped();
        // SAFETY: `steps_of` gave the buffers the lengths of the function's shape; the program outlives the group.
        unsafe { group.add_untyped(rank, &call) }
    }

    /// The call.
    pub fn untyped(&mut self) -> Untyped {
        let (send, recv) = (self.send.bytes().as_ptr(), self.recv.bytes_mut().as_mut_ptr());
        let Step { func, dtype, peer, count, .. } = *self;
        let op = ReduceOp::of_kind(self.op, dtype, 0);
        Untyped { send, recv, count, op, peer, ..Untyped::new(func, dtype) }
    }

    /// What is wrong after it has run.
    pub fn wrong(&self) -> Option<String> {
        let Step { func, count, peer, .. } = self;
        let is_right = self.recv.bytes() == self.expected && self.recv.is_intact() && self.send.is_intact();
        (!is_right).then(|| format!("{func} of {count} with peer or root {peer}"))
    }
}

fn noise(key: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| mix(key ^ i << 20) as u8).collect()
}

/// What one rank does for an operation: nothing, one call, or a send and a receive.
pub fn steps_of(op: &Op, key: u64, rank: u32, nranks: u32) -> Vec<Step> {
    let buffer = |contents: &[u8]| {
        let mut buffer = Guarded::new(contents.len(), key as usize >> 8);
        buffer.bytes_mut().copy_from_slice(contents);
        buffer
    };
    match *op {
        Op::Message { from, to, len } => {
            let data = noise(key, len);
            let base = |func, peer| Step {
                func,
                dtype: DataType::U8,
                op: RedOp::Sum,
                peer,
                count: len,
                send: buffer(&[]),
                recv: buffer(&[]),
                expected: Vec::new(),
            };
            let send = (rank == from).then(|| Step { send: buffer(&data), ..base(Func::Send, to) });
            let recv = (rank == to).then(|| Step {
                recv: Guarded::new(len, key as usize),
                expected: data.clone(),
                ..base(Func::Recv, from)
            });
            send.into_iter().chain(recv).collect()
        }
        Op::Collective { func, op, root, count } => {
            let shape = |rank| {
                oxccl_tests::oracle::shape(func, nranks as usize, rank, root as usize, count).0.unwrap_or(0)
            };
            let input = |rank| -> Vec<i32> {
                (0..shape(rank)).map(|i| mix(key ^ (rank << 40 | i) as u64) as i32).collect()
            };
            let send: Vec<_> = (0..nranks as usize).map(input).collect();
            let inputs = Inputs { func, op, root: root as usize, count, send: &send, scalars: &[] };
            let output = inputs.output(rank as usize).unwrap_or_default();
            vec![Step {
                func,
                dtype: DataType::I32,
                op,
                peer: root,
                count,
                send: buffer(bytes_of(&send[rank as usize])),
                recv: Guarded::new(size_of_val(&output[..]), key as usize),
                expected: bytes_of(&output).to_vec(),
            }]
        }
    }
}

/// Whether a rank must add two calls in the order in which all ranks think of them.
pub fn is_ordered(a: &Step, b: &Step) -> bool {
    let is_message = |step: &Step| matches!(step.func, Func::Send | Func::Recv);
    // These are made of messages, so they keep their place among those of every pair.
    let is_both = |step: &Step| matches!(step.func, Func::AllToAll | Func::Gather | Func::Scatter);
    match (is_message(a), is_message(b)) {
        (true, true) => a.func == b.func && a.peer == b.peer,
        (false, false) => true,
        _ => is_both(a) || is_both(b),
    }
}

/// Any order that keeps ordered calls ordered.
fn reorder(steps: Vec<Step>, seed: u64) -> Vec<Step> {
    let mut deck = Deck::new(1 << 16, seed);
    let (mut left, mut done) = (steps, Vec::new());
    while !left.is_empty() {
        let free: Vec<usize> = (0..left.len())
            .filter(|at| left[..*at].iter().all(|before| !is_ordered(before, &left[*at])))
            .collect();
        done.push(left.remove(free[deck.draw() % free.len()]));
    }
    done
}

//! A machine of ranks and connections on which a schedule runs, one slice at a time, in an order drawn at random.
//!
//! An element's value counts contributions: three bits per rank, so adding a rank's input twice or never shows, and one
//! bit for the post-operation. A message carries which elements it holds, so a mix-up of blocks shows even where values
//! agree. The machine is as strict as real ones: an operation that receives and sends waits for both at once and keeps
//! the received slots until then.

use std::collections::VecDeque;
use std::ops::Range;

use super::params::Call;
use oxccl_shared::algo::Action;

const BITS_PER_RANK: u32 = 3;
const RANKS_MAX: u32 = 20;
const FINISHED: u64 = 1 << (BITS_PER_RANK * RANKS_MAX);

/// What rank `r` adds to a reduction.
pub fn contribution(rank: u32) -> u64 {
    assert!(rank < RANKS_MAX);
    1 << (BITS_PER_RANK * rank)
}

/// Every rank's contribution once, and the post-operation once.
pub fn reduced(n: u32) -> u64 {
    (0..n).map(contribution).sum::<u64>() + FINISHED
}

/// One action on one slice.
#[derive(Clone, Debug)]
pub struct Op {
    pub action: Action,
    pub from: Vec<u32>,
    pub to: Vec<u32>,
    /// Which of the collective's elements: the same at both ends.
    pub elems: Range<usize>,
    /// Where `action.src` reads the input.
    pub src_at: usize,
    /// Where `action.dst` writes.
    pub dst_at: usize,
}

/// One thread of control: a rank has one, or two if it runs the halves of a tree concurrently.
pub struct Agent {
    pub rank: u32,
    pub ops: Vec<Op>,
}

/// The user's buffers of all ranks. Unwritten output is 0.
pub struct Buffers {
    pub input: Vec<Vec<u64>>,
    pub output: Vec<Vec<u64>>,
}

impl Buffers {
    pub fn new(n: u32, input_elems: usize, output_elems: usize) -> Self {
        Buffers {
            input: (0..n).map(|r| vec![contribution(r); input_elems]).collect(),
            output: vec![vec![0; output_elems]; n as usize],
        }
    }
}

/// The agents that could not end: rank and number of the operation each waits in.
#[derive(Debug, PartialEq, Eq)]
pub struct Deadlock(pub Vec<(u32, usize)>);

struct Message {
    elems: Range<usize>,
    values: Vec<u64>,
}

struct Machine<'a> {
    n: usize,
    slots_max: usize,
    slots: Vec<VecDeque<Message>>,
    buffers: &'a mut Buffers,
}

impl Machine<'_> {
    fn slots(&mut self, from: u32, to: u32) -> &mut VecDeque<Message> {
        &mut self.slots[from as usize * self.n + to as usize]
    }

    fn ready(&mut self, rank: u32, op: &Op) -> bool {
        op.from.iter().all(|&peer| !self.slots(peer, rank).is_empty())
            && op.to.iter().all(|&peer| self.slots(rank, peer).len() < self.slots_max)
    }

    fn execute(&mut self, rank: u32, op: &Op) {
        assert_eq!(
            op.action.recv,
            !op.from.is_empty(),
            "receives from somebody exactly if it says so: {op:?}"
        );
        assert_eq!(op.action.send, !op.to.is_empty(), "sends to somebody exactly if it says so: {op:?}");
        let len = op.elems.len();
        let mut values = vec![0; len];
        for &peer in &op.from {
            let message = self.slots(peer, rank).pop_front().expect("ready() saw it");
            assert_eq!(message.elems, op.elems, "rank {rank} expected other elements from rank {peer}");
            add(&mut values, &message.values);
        }
        if op.action.src {
            add(&mut values, &self.buffers.input[rank as usize][op.src_at..op.src_at + len]);
        }
        if op.action.finish {
            values.iter_mut().for_each(|value| *value += FINISHED);
        }
        if op.action.dst {
            let output = &mut self.buffers.output[rank as usize][op.dst_at..op.dst_at + len];
            assert!(output.iter().all(|&value| value == 0), "rank {rank} writes an element twice: {op:?}");
            output.copy_from_slice(&values);
        }
        for &peer in &op.to {
            self.slots(rank, peer).push_back(Message { elems: op.elems.clone(), values: values.clone() });
        }
    }
}

fn add(sum: &mut [u64], term: &[u64]) {
    sum.iter_mut().zip(term).for_each(|(sum, term)| *sum += term);
}

/// Runs all agents of `n` ranks to their end, over connections of the call's slots, a random agent for a random number of operations at a time.
///
/// Panics on anything a schedule must never do, a message left in a slot included.
pub fn run(n: u32, agents: &[Agent], buffers: &mut Buffers, call: &Call) -> Result<(), Deadlock> {
    let slots = (0..n * n).map(|_| VecDeque::new()).collect();
    let mut machine = Machine { n: n as usize, slots_max: call.slots, slots, buffers };
    let mut random = Random(call.seed);
    let mut done = vec![0; agents.len()];
    loop {
        let first = random.below(agents.len());
        let burst = 1 + random.below(3 * call.slots);
        let ran = (0..agents.len()).any(|i| {
            let chosen = (first + i) % agents.len();
            advance(&mut machine, &agents[chosen], &mut done[chosen], burst)
        });
        if !ran {
            break;
        }
    }
    let stuck: Vec<_> = agents.iter().zip(done).filter(|(a, done)| *done < a.ops.len()).collect();
    if !stuck.is_empty() {
        return Err(Deadlock(stuck.into_iter().map(|(agent, done)| (agent.rank, done)).collect()));
    }
    assert!(machine.slots.iter().all(VecDeque::is_empty), "a step was sent that nobody received");
    Ok(())
}

/// Runs up to `burst` operations of one agent; whether any could run.
fn advance(machine: &mut Machine, agent: &Agent, done: &mut usize, burst: usize) -> bool {
    let before = *done;
    while *done < agent.ops.len() && *done - before < burst && machine.ready(agent.rank, &agent.ops[*done]) {
        machine.execute(agent.rank, &agent.ops[*done]);
        *done += 1;
    }
    *done > before
}

/// xorshift64*: enough to draw interleavings, and reproducible from proptest's seed.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: usize) -> usize {
        let mut x = self.0 | 1;
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        self.0 = x;
        (x.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % bound.max(1)
    }

    /// `0..n` in some order.
    pub fn permutation(&mut self, n: u32) -> Vec<u32> {
        let mut order: Vec<u32> = (0..n).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, self.below(i + 1));
        }
        order
    }
}

//! Ranks, their connections, and launches of blocks on them.

use super::arith::Arith;
use super::block::{BlockState, Quitter, Reason, Shape, Slow, ThreadBlock};
use oxccl_device::conn::{Conns, RecvConn, SendConn};
use oxccl_device::gpu::{Block, Stop};
use oxccl_shared::abi::{ConnControl, ConnEnd, ConnLayout, Rank, Step};
use oxccl_shared::fifo::{ConsumerCursor, ProducerCursor};
use oxccl_shared::sync::{Sys, Word};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::time::Duration;

/// Small slots: 120 bytes of payload under LL, 240 under LL128, 256 under Simple.
pub const LAYOUT: ConnLayout =
    ConnLayout { ll_slot_bytes: 256, ll128_slot_bytes: 384, simple_slot_bytes: 256 };

/// Zeroed memory on a 128-byte line.
struct Memory {
    at: *mut u8,
    layout: Layout,
}

impl Memory {
    fn new(len_bytes: usize) -> Self {
        let layout = Layout::from_size_align(len_bytes, 128).expect("small");
        // SAFETY: the length is not 0.
        let at = unsafe { alloc_zeroed(layout) };
        assert!(!at.is_null());
        Memory { at, layout }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.at, self.layout) }
    }
}

/// One connection. As between GPUs, each end polls words of its own memory.
struct Link {
    producer_side: Memory,
    consumer_side: Memory,
}

impl Link {
    fn end(&self, peer: usize) -> ConnEnd {
        ConnEnd {
            producer_side: self.producer_side.at.cast(),
            consumer_side: self.consumer_side.at.cast(),
            counted: self.consumer_side.at.wrapping_add(LAYOUT.simple_offset()),
            layout: LAYOUT,
            peer: Rank(peer as u32),
        }
    }
}

/// `n` ranks, each with a connection to and from every other. Between launches it keeps what a GPU keeps: the cursors.
pub struct World {
    pub n: usize,
    /// From `p` to `c` at `p * n + c`; a rank's link to itself is not used.
    links: Vec<Link>,
    producers: Vec<ProducerCursor>,
    consumers: Vec<ConsumerCursor>,
}

/// The connections of one block.
pub struct Owned {
    send: Vec<SendConn>,
    recv: Vec<RecvConn>,
    /// Which links they are.
    send_links: Vec<usize>,
    recv_links: Vec<usize>,
}

/// What several threads use although the compiler cannot tell that they may.
pub struct Shared<T>(pub T);
// SAFETY: connections and buffers are shared by design; whether the threads of a block keep to its barriers is what is tested.
unsafe impl<T> Sync for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Send for Shared<T> {}

type Body<'a, const LINE: usize> = dyn Fn(&ThreadBlock<'_, LINE>, Conns<'_>) -> Result<(), Stop> + 'a;

/// One block of a launch.
pub struct Job<'a, const LINE: usize> {
    pub conns: Owned,
    pub arith: Arith,
    pub quitter: Option<Quitter>,
    pub slow: Option<Slow>,
    pub abort_delay: Duration,
    pub body: Box<Body<'a, LINE>>,
}

/// How a block ended.
#[derive(Debug)]
pub struct Ended {
    /// Of each thread.
    pub results: Vec<Result<(), Stop>>,
    pub reasons: Vec<Reason>,
}

impl Ended {
    pub fn is_ok(&self) -> bool {
        self.results.iter().all(Result::is_ok)
    }
}

impl World {
    pub fn new(n: usize) -> Self {
        World::at(n, Step(0))
    }

    /// A world in which every connection has carried as many steps.
    pub fn at(n: usize, step: Step) -> Self {
        let link = || Link {
            producer_side: Memory::new(size_of::<ConnControl>()),
            consumer_side: Memory::new(LAYOUT.total_bytes()),
        };
        let links = (0..n * n).map(|_| link()).collect();
        let mut world = World { n, links, producers: Vec::new(), consumers: Vec::new() };
        world.go_to(step);
        world
    }

    /// Takes every connection to `step`, what lies in the slots staying as it is.
    pub fn go_to(&mut self, step: Step) {
        self.producers = vec![ProducerCursor::at(step); self.n * self.n];
        self.consumers = vec![ConsumerCursor::at(step); self.n * self.n];
        for link in &self.links {
            let end = link.end(0);
            // SAFETY: both blocks are live.
            let (producer_side, consumer_side) = unsafe { (&*end.producer_side, &*end.consumer_side) };
            producer_side.head.store_relaxed(step.0);
            consumer_side.tail.store_relaxed(step.0);
        }
    }

    /// The memory of all slots from `from` to `to`, to be looked at between launches.
    pub fn slots(&self, from: usize, to: usize) -> &[u8] {
        let memory = &self.links[from * self.n + to].consumer_side;
        let skip = size_of::<ConnControl>();
        // SAFETY: initialised, and nobody writes it while the world is borrowed.
        unsafe { std::slice::from_raw_parts(memory.at.add(skip), LAYOUT.total_bytes() - skip) }
    }

    /// All connections of a rank, peers in rank order.
    pub fn all_of(&self, rank: usize) -> Owned {
        let peers = || (0..self.n).filter(move |peer| *peer != rank);
        self.some_of(rank, peers(), peers())
    }

    /// A rank's connections to `consumers` and from `producers`.
    pub fn some_of(
        &self,
        rank: usize,
        consumers: impl Iterator<Item = usize>,
        producers: impl Iterator<Item = usize>,
    ) -> Owned {
        let mut owned =
            Owned { send: Vec::new(), recv: Vec::new(), send_links: Vec::new(), recv_links: Vec::new() };
        for peer in consumers {
            let link = rank * self.n + peer;
            // SAFETY: the world outlives the launch, and this is the only producer of the link.
            let conn = unsafe { SendConn::resume(self.links[link].end(peer), self.producers[link]) };
            owned.send.push(conn);
            owned.send_links.push(link);
        }
        for peer in producers {
            let link = peer * self.n + rank;
            // SAFETY: as above, the only consumer.
            let conn = unsafe { RecvConn::resume(self.links[link].end(peer), self.consumers[link]) };
            owned.recv.push(conn);
            owned.recv_links.push(link);
        }
        owned
    }

    /// Runs all blocks to their end, each of `shape`, and keeps the cursors. Whoever stops early makes the others stop.
    pub fn launch<const LINE: usize>(&mut self, shape: Shape, jobs: Vec<Job<'_, LINE>>) -> Vec<Ended> {
        let abort = Word::new(0u32);
        let states: Vec<_> =
            jobs.iter().map(|job| BlockState::new(shape, &abort, job.quitter, job.slow)).collect();
        let shared = Shared(&jobs);
        let results: Vec<Vec<_>> = std::thread::scope(|scope| {
            let start = |job: usize, thread: usize| {
                let (shared, state, abort) = (&shared, &states[job], &abort);
                scope.spawn(move || run_thread(&shared.0[job], thread, state, abort))
            };
            let blocks: Vec<Vec<_>> =
                (0..jobs.len()).map(|job| (0..shape.threads()).map(|t| start(job, t)).collect()).collect();
            let join =
                |thread: std::thread::ScopedJoinHandle<'_, _>| thread.join().expect("a thread panicked");
            blocks.into_iter().map(|threads| threads.into_iter().map(join).collect()).collect()
        });
        let mut ended = Vec::new();
        for ((results, state), job) in results.into_iter().zip(states).zip(&jobs) {
            let saved = state.saved.into_inner().expect("nobody panicked");
            job.conns.send_links.iter().zip(saved.producers).for_each(|(at, new)| self.producers[*at] = new);
            job.conns.recv_links.iter().zip(saved.consumers).for_each(|(at, new)| self.consumers[*at] = new);
            ended.push(Ended { results, reasons: state.reasons.into_inner().expect("nobody panicked") });
        }
        ended
    }
}

fn run_thread<const LINE: usize>(
    job: &Job<'_, LINE>,
    thread: usize,
    state: &BlockState<'_>,
    abort: &Word<u32, Sys>,
) -> Result<(), Stop> {
    // Whoever ends badly, in a panic too, ends the others.
    struct Alarm<'a> {
        abort: &'a Word<u32, Sys>,
        rings: bool,
        delay: Duration,
    }
    impl Drop for Alarm<'_> {
        fn drop(&mut self) {
            if self.rings {
                std::thread::sleep(self.delay);
                self.abort.store_relaxed(1);
            }
        }
    }
    let mut alarm = Alarm { abort, rings: true, delay: job.abort_delay };
    let block = ThreadBlock::new(thread, state, job.arith);
    let conns = Conns { send: &job.conns.send, recv: &job.conns.recv };
    let result = (job.body)(&block, conns);
    alarm.rings = result.is_err();
    if block.leads() && result.is_ok() {
        // In the thread and without another barrier, as a kernel does.
        let mut saved = state.saved.lock().expect("nobody panics inside");
        saved.producers = conns.send.iter().map(SendConn::cursor).collect();
        saved.consumers = conns.recv.iter().map(RecvConn::cursor).collect();
    }
    result
}

//! Graphs of GPUs whose ranks go over sockets: what a graph does each time, among calls, and whatever becomes of the graph.

use super::net::world;
use oxccl::cuda::{Capture, DeviceMemory, Event, Graph, GraphExec, Stream, StreamRef};
use oxccl::{DataType, Error, Fault, Func, Untyped, device_group};
use oxccl_tests::deadline::{Deadline, doing};
use oxccl_tests::devices::{
    DeviceRank, DeviceWorld, capture_graphs, enqueue_graphs, instantiate_graphs, ranks_max,
};
use oxccl_tests::harness::Settings;
use std::time::Duration;

/// Slices that are summed, each on its own.
const SLICES: usize = 100;
/// Some slots of each channel, in the shape of 64-bit numbers.
const SLICE_ELEMS: usize = 40_000;
/// What a message carries.
const TOKEN_ELEMS: usize = 30_000;
const MEMORY_ELEMS: usize = SLICES * SLICE_ELEMS + 2 * TOKEN_ELEMS;

/// Operations whose effects memory shows: each changes it in a different way each time.
#[derive(Clone, Copy, Debug)]
enum Op {
    /// Every rank's slice becomes the sum.
    AllReduce(usize),
    /// Every rank sends one of its two tokens to the next rank, which has it in the place of the other.
    Exchange(usize),
}
use Op::{AllReduce, Exchange};

/// Ranks with memory, and what must be in it when all is done. All elements of a slice or token are the same.
struct Play {
    world: DeviceWorld,
    memories: Vec<DeviceMemory>,
    expected: Vec<Vec<u64>>,
}

impl Play {
    fn new(nranks: u32) -> Play {
        Play::of(world(nranks, Settings::default()))
    }

    fn of(world: DeviceWorld) -> Play {
        let nranks = world.ranks.len() as u64;
        let memory = |rank: &DeviceRank| DeviceMemory::zeroed(rank.comm.device(), 8 * MEMORY_ELEMS);
        let memories = world.ranks.iter().map(|rank| memory(rank).expect("32 MiB")).collect();
        let numbers = |rank| (0..SLICES as u64 + 2).map(move |at| 1000 * (rank + 1) + at).collect();
        let play = Play { world, memories, expected: (0..nranks).map(numbers).collect() };
        for ((rank, memory), numbers) in play.world.ranks.iter().zip(&play.memories).zip(&play.expected) {
            let content = content(numbers);
            // SAFETY: (1, 2) of the memory's length, and the stream is waited for.
            let copied = unsafe {
                rank.stream.by_ref().copy_to_device(memory.address(), content.as_ptr().cast(), memory.len())
            };
            copied.and_then(|()| rank.stream.synchronize()).expect("a copy");
        }
        play
    }

    fn streams(&self) -> Vec<StreamRef<'_>> {
        self.world.ranks.iter().map(|rank| rank.stream.by_ref()).collect()
    }

    /// Puts operations on streams, each as a group of its own.
    fn put(&self, ops: &[Op], streams: &[StreamRef<'_>]) -> Result<(), Error> {
        ops.iter().try_for_each(|op| self.put_as_one(std::slice::from_ref(op), &[streams]))
    }

    /// Puts operations on streams as one group, each on its own streams.
    fn put_as_one(&self, ops: &[Op], streams: &[&[StreamRef<'_>]]) -> Result<(), Error> {
        device_group(|group| {
            for (op, streams) in ops.iter().zip(streams) {
                for (at, rank) in self.world.ranks.iter().enumerate() {
                    for call in self.calls(*op, at).iter().flatten() {
                        // SAFETY: within this rank's memory, which nobody else uses until the streams are
                        // synchronised.
                        unsafe { group.add_untyped(&rank.comm, call, streams[at])? };
                    }
                }
            }
            Ok(())
        })
    }

    /// What rank `at` calls.
    fn calls(&self, op: Op, at: usize) -> [Option<Untyped>; 2] {
        let n = self.world.ranks.len();
        let call = |elem: usize, peer: usize, count: usize, func: Func| {
            let address = self.memories[at].address() as usize + 8 * elem;
            let buffer: *mut u8 = std::ptr::without_provenance_mut(address);
            let untyped = Untyped::new(func, DataType::U64);
            Some(Untyped { send: buffer, recv: buffer, count, peer: peer as u32, ..untyped })
        };
        let token = |which: usize| SLICES * SLICE_ELEMS + which * TOKEN_ELEMS;
        match op {
            AllReduce(slice) => [call(slice * SLICE_ELEMS, 0, SLICE_ELEMS, Func::AllReduce), None],
            Exchange(which) => [
                call(token(which), (at + 1) % n, TOKEN_ELEMS, Func::Send),
                call(token(1 - which), (at + n - 1) % n, TOKEN_ELEMS, Func::Recv),
            ],
        }
    }

    fn expect(&mut self, ops: &[Op]) {
        let n = self.expected.len();
        for op in ops {
            match *op {
                AllReduce(slice) => {
                    let sum = self.expected.iter().fold(0, |sum: u64, rank| sum.wrapping_add(rank[slice]));
                    self.expected.iter_mut().for_each(|rank| rank[slice] = sum);
                }
                Exchange(which) => {
                    let sent: Vec<u64> = self.expected.iter().map(|rank| rank[SLICES + which]).collect();
                    for (at, rank) in self.expected.iter_mut().enumerate() {
                        rank[SLICES + 1 - which] = sent[(at + n - 1) % n];
                    }
                }
            }
        }
    }

    fn call(&mut self, ops: &[Op]) {
        self.put(ops, &self.streams()).unwrap_or_else(|error| panic!("{error}"));
        self.expect(ops);
    }

    fn capture(&self, ops: &[Op]) -> Vec<Graph> {
        let graphs = capture_graphs(&self.world.ranks, || self.put(ops, &self.streams()));
        graphs.unwrap_or_else(|error| panic!("{error}"))
    }

    fn launch(&mut self, graphs: &[GraphExec], ops: &[Op]) {
        enqueue_graphs(&self.world.ranks, graphs);
        self.expect(ops);
    }

    /// Synchronises all streams, and compares every byte.
    fn compare(&self) {
        for ((rank, memory), numbers) in self.world.ranks.iter().zip(&self.memories).zip(&self.expected) {
            rank.comm.synchronize(rank.stream.by_ref()).unwrap_or_else(|error| panic!("{error}"));
            let mut found = vec![0u64; MEMORY_ELEMS];
            // SAFETY: (1, 2) of the memory's length, and the stream is waited for.
            let copied = unsafe {
                rank.stream.by_ref().copy_to_host(found.as_mut_ptr().cast(), memory.address(), memory.len())
            };
            copied.and_then(|()| rank.stream.synchronize()).expect("a copy");
            let wrong = found.iter().zip(content(numbers)).position(|(found, expected)| *found != expected);
            assert_eq!(wrong, None, "rank {}, by element", rank.comm.rank());
        }
    }
}

fn content(numbers: &[u64]) -> Vec<u64> {
    let lens = std::iter::repeat_n(SLICE_ELEMS, SLICES).chain([TOKEN_ELEMS; 2]);
    numbers.iter().zip(lens).flat_map(|(number, len)| std::iter::repeat_n(*number, len)).collect()
}

/// The numbers of ranks to try; none on a machine with one GPU.
fn sizes() -> Vec<u32> {
    let sizes: Vec<u32> = [2, 3, 4].into_iter().filter(|nranks| *nranks <= ranks_max()).collect();
    if sizes.is_empty() {
        println!("skipped: this machine has one GPU, and OXCCL_DUPLICATE_GPUS=1 is not set");
    }
    sizes
}

/// Several graphs, one of them instantiated twice, launched in turn with calls between and nothing waited for; destroyed while their
/// last launches wait on the stream.
#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_net_graphs_replayed_among_calls() {
    let _deadline = Deadline::start("needs_gpu_net_graphs_replayed_among_calls", Duration::from_secs(200));
    for nranks in sizes() {
        doing(|| format!("graphs of {nranks} GPUs"));
        replayed_among_calls(world(nranks, Settings::default()));
    }
}

/// The same in such a world.
pub fn replayed_among_calls(world: DeviceWorld) {
    let mut play = Play::of(world);
    {
        play.call(&[AllReduce(0), Exchange(0)]);
        let (short, long) =
            ([AllReduce(0), Exchange(0)], [Exchange(1), AllReduce(1), AllReduce(0), Exchange(1)]);
        let short_graphs = play.capture(&short);
        let short_execs = instantiate_graphs(&short_graphs);
        play.call(&[AllReduce(2)]);
        let long_graphs = play.capture(&long);
        let (first, second) = (instantiate_graphs(&long_graphs), instantiate_graphs(&long_graphs));
        drop(short_graphs);
        for _ in 0..4 {
            play.launch(&short_execs, &short);
            play.call(&[AllReduce(0), Exchange(1)]);
            play.launch(&first, &long);
            play.launch(&second, &long);
            play.launch(&first, &long);
            play.call(&[AllReduce(1)]);
        }
        drop((long_graphs, first));
        play.call(&[Exchange(0), AllReduce(3)]);
        play.launch(&second, &long);
        play.launch(&short_execs, &short);
        drop((second, short_execs));
        play.call(&[AllReduce(0), Exchange(0)]);
        play.compare();
        play.call(&[AllReduce(4), Exchange(1)]);
        play.compare();
    }
}

/// More operations in a graph than the proxy's FIFO has places.
#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_net_graphs_of_many_operations() {
    let _deadline = Deadline::start("needs_gpu_net_graphs_of_many_operations", Duration::from_secs(200));
    for nranks in sizes() {
        let mut play = Play::new(nranks);
        let ops: Vec<Op> = (0..SLICES).map(AllReduce).collect();
        let graphs = instantiate_graphs(&play.capture(&ops));
        for _ in 0..5 {
            play.launch(&graphs, &ops);
            play.launch(&graphs, &ops);
            play.call(&[AllReduce(7), Exchange(0)]);
        }
        play.compare();
    }
}

/// One capture on two streams, on which the same communicator's operations take turns without the user's doing.
#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_net_graphs_captured_from_two_streams() {
    let _deadline =
        Deadline::start("needs_gpu_net_graphs_captured_from_two_streams", Duration::from_secs(120));
    for nranks in sizes() {
        let mut play = Play::new(nranks);
        let device = |rank: &DeviceRank| rank.comm.device().clone();
        let devices: Vec<_> = play.world.ranks.iter().map(device).collect();
        let more = || -> Vec<Stream> {
            devices.iter().map(|device| Stream::new(device).expect("a stream")).collect()
        };
        let (others, strangers) = (more(), more());
        let events: Vec<Event> = devices.iter().map(|device| Event::new(device).expect("an event")).collect();
        let join = |from: &[StreamRef<'_>], to: &[StreamRef<'_>]| {
            for ((from, to), event) in from.iter().zip(to).zip(&events) {
                from.record(event).and_then(|()| to.wait(event)).expect("an event");
            }
        };
        let others: Vec<StreamRef<'_>> = others.iter().map(Stream::by_ref).collect();
        // Not in the capture before the communicator brings them there.
        let strangers: Vec<StreamRef<'_>> = strangers.iter().map(Stream::by_ref).collect();
        let graphs = capture_graphs(&play.world.ranks, || {
            let streams = play.streams();
            join(&streams, &others);
            play.put(&[AllReduce(0)], &streams)?;
            play.put(&[AllReduce(0), Exchange(0)], &others)?;
            play.put(&[Exchange(1), AllReduce(0)], &streams)?;
            play.put(&[AllReduce(1)], &others)?;
            join(&others, &streams);
            play.put_as_one(&[AllReduce(2), AllReduce(1)], &[&strangers, &streams])
        });
        let graphs = instantiate_graphs(&graphs.unwrap_or_else(|error| panic!("{error}")));
        let all = [
            AllReduce(0),
            AllReduce(0),
            Exchange(0),
            Exchange(1),
            AllReduce(0),
            AllReduce(1),
            AllReduce(2),
            AllReduce(1),
        ];
        for _ in 0..5 {
            play.launch(&graphs, &all);
            play.call(&[AllReduce(1)]);
        }
        play.compare();
    }
}

/// A discarded capture, one that is never ended, and a graph that is never launched.
#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_net_captures_that_come_to_nothing() {
    let _deadline = Deadline::start("needs_gpu_net_captures_that_come_to_nothing", Duration::from_secs(120));
    for nranks in sizes() {
        let mut play = Play::new(nranks);
        drop(play.capture(&[AllReduce(0), Exchange(0)]));
        play.call(&[AllReduce(0)]);
        let never_launched = instantiate_graphs(&play.capture(&[AllReduce(1)]));
        play.call(&[Exchange(0)]);
        let streams: Vec<Stream> = play
            .world
            .ranks
            .iter()
            .map(|rank| Stream::new(rank.comm.device()))
            .map(|stream| stream.expect("a stream"))
            .collect();
        // Left as they are for the rest of the process.
        let streams: &'static [Stream] = streams.leak();
        let open: Vec<StreamRef<'_>> = streams.iter().map(Stream::by_ref).collect();
        open.iter().for_each(|stream| std::mem::forget(Capture::begin(*stream, false).expect("a capture")));
        play.put(&[AllReduce(2), Exchange(1)], &open).unwrap_or_else(|error| panic!("{error}"));
        play.call(&[AllReduce(0), Exchange(1)]);
        drop(never_launched);
        play.call(&[AllReduce(0), Exchange(0)]);
        play.compare();
    }
}

/// A launch whose peer does not come is aborted; what is launched afterwards ends by itself; graphs outlive communicators.
#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_net_abort_ends_a_graphs_kernels() {
    let _deadline = Deadline::start("needs_gpu_net_abort_ends_a_graphs_kernels", Duration::from_secs(120));
    for nranks in sizes() {
        let mut play = Play::new(nranks);
        let ops = [AllReduce(0), Exchange(0), AllReduce(1)];
        let graphs = instantiate_graphs(&play.capture(&ops));
        play.launch(&graphs, &ops);
        play.compare();
        let rank = &play.world.ranks[0];
        enqueue_graphs(std::slice::from_ref(rank), &graphs);
        std::thread::sleep(Duration::from_millis(200));
        assert!(!rank.stream.by_ref().is_done().expect("a stream"), "rank 1 has not launched");
        rank.comm.abort();
        let reported = rank.comm.synchronize(rank.stream.by_ref()).unwrap_err().fault();
        assert_eq!(reported, Some(Fault::Aborted));
        enqueue_graphs(std::slice::from_ref(rank), &graphs);
        rank.stream.synchronize().expect("kernels of a communicator that has stopped end");
        drop(play);
        drop(graphs);
    }
}

//! Random groups of sends and receives.

use oxccl::cuda::DeviceMemory;
use oxccl::{DataType, DeviceSlice, DeviceSliceMut, Error, Func, Untyped, device_group};
use oxccl_tests::deadline::{Deadline, doing};
use oxccl_tests::devices::{DeviceRank, DeviceWorld, launch_graphs, ranks_max};
use oxccl_tests::guarded::bytes_of;
use oxccl_tests::harness::{Settings, first_error, on_threads};
use oxccl_tests::random::Random;
use oxccl_tests::uneven::{Part, Uneven};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use std::time::Duration;

fn length(numbers: &mut Random) -> usize {
    let most = numbers.of(&[1, 100, 16 << 10, 40_000, 300_000, 2_000_000]);
    numbers.below(most) as usize
}

/// Message `number` from one rank to another, at `at` of both ranks' memory.
#[derive(Clone, Copy, Debug)]
struct Message {
    from: usize,
    to: usize,
    len: usize,
    at: usize,
}

fn content(number: usize, i: usize) -> u8 {
    (number * 31 + i * 7 + i / 256) as u8
}

const MEMORY_BYTES: usize = 64 << 20;

struct Memories {
    send: DeviceMemory,
    recv: DeviceMemory,
}

impl Memories {
    fn new(rank: &DeviceRank) -> Memories {
        let memory = || DeviceMemory::zeroed(rank.comm.device(), MEMORY_BYTES).expect("64 MiB");
        Memories { send: memory(), recv: memory() }
    }
}

fn group(numbers: &mut Random, nranks: usize) -> Vec<Message> {
    let mut at = 0;
    let mut messages = Vec::new();
    for _ in 0..numbers.below(40) {
        let (from, to) = (numbers.below(nranks as u64) as usize, numbers.below(nranks as u64) as usize);
        let len = length(numbers);
        messages.push(Message { from, to, len, at });
        at += len.next_multiple_of(16) + 16;
    }
    messages
}

/// Writes message `number` to a rank's memory.
fn upload(rank: &DeviceRank, to: u64, number: usize, len: usize) {
    let bytes: Vec<u8> = (0..len).map(|i| content(number, i)).collect();
    // SAFETY: (1, 2) within the rank's memory, and the stream is waited for before `bytes` go.
    unsafe { rank.stream.by_ref().copy_to_device(to, bytes.as_ptr().cast(), len) }.expect("a copy");
    rank.stream.synchronize().expect("a stream");
}

/// The first byte in a rank's memory that is not message `number`'s.
fn first_wrong(rank: &DeviceRank, from: u64, number: usize, len: usize) -> Option<usize> {
    let mut bytes = vec![0u8; len];
    // SAFETY: (1, 2) as above.
    unsafe { rank.stream.by_ref().copy_to_host(bytes.as_mut_ptr().cast(), from, len) }.expect("a copy");
    rank.stream.synchronize().expect("a stream");
    (0..len).find(|i| bytes[*i] != content(number, *i))
}

/// One half of a message.
fn half(func: Func, address: u64, peer: usize, count: usize) -> Untyped {
    let buffer: *mut u8 = std::ptr::without_provenance_mut(address as usize);
    let peer = peer as u32;
    Untyped { send: buffer, recv: buffer, count, peer, ..Untyped::new(func, DataType::U8) }
}

/// Enqueues the ranks' halves as one group.
fn enqueue(world: &DeviceWorld, halves: impl Iterator<Item = (usize, Untyped)>) -> Result<(), Error> {
    device_group(|group| {
        for (rank, call) in halves {
            let DeviceRank { comm, stream, .. } = &world.ranks[rank];
            // SAFETY: within memory that nobody else uses until the streams are synchronised.
            unsafe { group.add_untyped(comm, &call, stream.by_ref())? };
        }
        Ok(())
    })
}

fn synchronize(world: &DeviceWorld) {
    for rank in &world.ranks {
        rank.comm.synchronize(rank.stream.by_ref()).unwrap_or_else(|error| panic!("{error}"));
    }
}

fn fill(world: &DeviceWorld, memories: &[Memories], messages: &[Message]) {
    for (number, message) in messages.iter().enumerate() {
        let to = memories[message.from].send.address() + message.at as u64;
        upload(&world.ranks[message.from], to, number, message.len);
    }
}

fn exchange(world: &DeviceWorld, memories: &[Memories], messages: &[Message]) {
    let halves = messages.iter().flat_map(|&Message { from, to, len, at }| {
        let (sent, received) = (memories[from].send.address(), memories[to].recv.address());
        [
            (from, half(Func::Send, sent + at as u64, to, len)),
            (to, half(Func::Recv, received + at as u64, from, len)),
        ]
    });
    enqueue(world, halves).unwrap_or_else(|error| panic!("{error}"));
    synchronize(world);
}

/// Random groups of messages; compares every byte.
pub fn run(world: &DeviceWorld, rounds: usize) {
    let nranks = world.ranks.len();
    let memories: Vec<Memories> = world.ranks.iter().map(Memories::new).collect();
    let mut numbers = Random(nranks as u64);
    for round in 0..rounds {
        let messages = group(&mut numbers, nranks);
        doing(|| format!("group {round} of {nranks} GPUs: {messages:?}"));
        fill(world, &memories, &messages);
        exchange(world, &memories, &messages);
        for (number, message) in messages.iter().enumerate() {
            let from = memories[message.to].recv.address() + message.at as u64;
            let wrong = first_wrong(&world.ranks[message.to], from, number, message.len);
            assert_eq!(wrong, None, "group {round}, message {number}: {message:?}");
        }
    }
}

#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_random_groups_of_messages() {
    let _deadline = Deadline::start("needs_gpu_random_groups_of_messages", Duration::from_secs(300));
    for nranks in 1..=ranks_max().min(4) {
        run(&DeviceWorld::new(nranks, Settings::default(), None), 100);
    }
}

/// Bytes of a rank's window: what it sends, and what it receives there.
const WINDOW_BYTES: usize = 2 * MEMORY_BYTES;

/// Where a rank's messages lie: those that are sent, those received in the window and those received elsewhere.
struct Places {
    send: u64,
    recv: u64,
    elsewhere: DeviceMemory,
}

/// A message between two windows, or from a window to other memory; on a multiple of 16 bytes, or off it at either end.
#[derive(Clone, Copy, Debug)]
struct WindowMessage {
    from: usize,
    to: usize,
    len: usize,
    at: usize,
    off: [usize; 2],
    is_elsewhere: bool,
}

impl WindowMessage {
    fn send(&self, places: &[Places]) -> u64 {
        places[self.from].send + (self.at + self.off[0]) as u64
    }

    fn recv(&self, places: &[Places]) -> u64 {
        let Places { recv, elsewhere, .. } = &places[self.to];
        let base = if self.is_elsewhere { elsewhere.address() } else { *recv };
        base + (self.at + self.off[1]) as u64
    }

    /// Both ends, by rank.
    fn halves(&self, places: &[Places]) -> [(usize, Untyped); 2] {
        [
            (self.from, half(Func::Send, self.send(places), self.to, self.len)),
            (self.to, half(Func::Recv, self.recv(places), self.from, self.len)),
        ]
    }
}

fn window_group(numbers: &mut Random, nranks: usize) -> Vec<WindowMessage> {
    let mut at = 0;
    let mut messages = Vec::new();
    for _ in 0..1 + numbers.below(9) {
        let (from, to) = (numbers.below(nranks as u64) as usize, numbers.below(nranks as u64) as usize);
        // Around the shortest that goes straight, and long enough for several tiles of each block.
        let len =
            numbers.of(&[100, 1_000_000, (2 << 20) - 1, 2 << 20, (2 << 20) + 13, (6 << 20) + 4]) as usize;
        let mut off = || numbers.of(&[0, 0, 0, 16, 4, 1]) as usize;
        let off = [off(), off()];
        let is_elsewhere = numbers.below(4) == 0;
        messages.push(WindowMessage { from, to, len, at, off, is_elsewhere });
        at += len.next_multiple_of(16) + 32;
    }
    messages
}

fn check_window_group(world: &DeviceWorld, places: &[Places], messages: &[WindowMessage], in_graphs: bool) {
    for (number, message) in messages.iter().enumerate() {
        upload(&world.ranks[message.from], message.send(places), number, message.len);
    }
    let enqueue = || enqueue(world, messages.iter().flat_map(|message| message.halves(places)));
    let enqueued = if in_graphs { launch_graphs(&world.ranks, enqueue) } else { enqueue() };
    enqueued.unwrap_or_else(|error| panic!("{error}"));
    synchronize(world);
    for (number, message) in messages.iter().enumerate() {
        let wrong = first_wrong(&world.ranks[message.to], message.recv(places), number, message.len);
        assert_eq!(wrong, None, "message {number}: {message:?}");
    }
}

/// Messages between symmetric windows, which go straight there; beside those that cannot.
#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_messages_between_windows() {
    let _deadline = Deadline::start("needs_gpu_messages_between_windows", Duration::from_secs(200));
    for nranks in 2..=ranks_max().min(4) {
        let mut world =
            DeviceWorld::with(nranks, Settings::default(), None, |config| config.symmetric = Some(true));
        world.use_windows(WINDOW_BYTES);
        let places = |rank: usize| Places {
            send: world.address(rank),
            recv: world.address(rank) + MEMORY_BYTES as u64,
            elsewhere: DeviceMemory::zeroed(world.ranks[rank].comm.device(), MEMORY_BYTES).expect("64 MiB"),
        };
        let places: Vec<Places> = (0..nranks as usize).map(places).collect();
        let mut numbers = Random(u64::from(nranks));
        for round in 0..30 {
            let messages = window_group(&mut numbers, nranks as usize);
            doing(|| format!("group {round} of {nranks} GPUs: {messages:?}"));
            check_window_group(&world, &places, &messages, round % 3 == 2);
        }
        drop(places);
        world.leave_windows();
    }
}

/// How ranks come to call an all-to-all-v.
#[derive(Clone, Copy, Debug)]
enum Called {
    Group,
    Threads,
    Graph,
}

fn all_to_all_v(
    world: &mut DeviceWorld,
    memories: &mut [Memories],
    parts: &[Part<i64>],
    called: Called,
) -> Result<(), oxccl::Error> {
    let together = |ranks: &[DeviceRank], memories: &mut [Memories]| {
        device_group(|group| {
            let mut all = ranks.iter().zip(memories).zip(parts);
            all.try_for_each(|((DeviceRank { comm, stream, .. }, memory), part)| {
                let send = DeviceSlice::<i64>::new(&memory.send, 0..part.send.len());
                let recv = DeviceSliceMut::<i64>::new(&mut memory.recv, 0..part.recv.len());
                let (sent, received) = (part.sent.blocks(), part.received.blocks());
                // SAFETY: (1) nobody else uses the memory until the streams are synchronised, and they live longer.
                unsafe { group.all_to_all_v(comm, send, sent, recv, received, stream.by_ref()) }
            })
        })
    };
    match called {
        Called::Group => together(&world.ranks, memories)?,
        Called::Graph => launch_graphs(&world.ranks, || together(&world.ranks, memories))?,
        Called::Threads => {
            let all = world.ranks.iter_mut().zip(memories).zip(parts);
            first_error(on_threads(all, |((DeviceRank { comm, stream, .. }, memory), part)| {
                let send = DeviceSlice::<i64>::new(&memory.send, 0..part.send.len());
                let recv = DeviceSliceMut::<i64>::new(&mut memory.recv, 0..part.recv.len());
                let (sent, received) = (part.sent.blocks(), part.received.blocks());
                // SAFETY: (1, 2) as above.
                unsafe { comm.all_to_all_v(send, sent, recv, received, stream.by_ref()) }
            }))?;
        }
    }
    world.ranks.iter().try_for_each(|rank| rank.comm.synchronize(rank.stream.by_ref()))
}

#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_random_all_to_all_v() {
    let _deadline = Deadline::start("needs_gpu_random_all_to_all_v", Duration::from_secs(300));
    let mut random = TestRunner::deterministic();
    for nranks in 1..=ranks_max().min(8) {
        let mut world = DeviceWorld::new(nranks, Settings::default(), None);
        let mut memories: Vec<Memories> = world.ranks.iter().map(Memories::new).collect();
        for called in [Called::Group, Called::Threads, Called::Graph].repeat(10) {
            let uneven = Uneven::any(nranks as usize).new_tree(&mut random).expect("any exchange").current();
            doing(|| format!("{called:?} of {nranks} GPUs: {uneven:?}"));
            let mut parts = uneven.parts::<i64>();
            for ((rank, memory), part) in world.ranks.iter().zip(&memories).zip(&parts) {
                for (to, from) in [(&memory.send, &part.send), (&memory.recv, &part.recv)] {
                    let bytes = bytes_of(from);
                    // SAFETY: (1, 2) within the memory, and the stream is waited for before the elements go.
                    unsafe {
                        rank.stream.by_ref().copy_to_device(to.address(), bytes.as_ptr().cast(), bytes.len())
                    }
                    .expect("a copy");
                }
                rank.stream.synchronize().expect("a stream");
            }
            let ran = all_to_all_v(&mut world, &mut memories, &parts, called);
            ran.unwrap_or_else(|error| panic!("{error}"));
            for ((rank, memory), part) in world.ranks.iter().zip(&memories).zip(&mut parts) {
                let (stream, len_bytes) = (rank.stream.by_ref(), size_of_val(part.recv.as_slice()));
                // SAFETY: (1, 2) as above.
                unsafe {
                    stream.copy_to_host(part.recv.as_mut_ptr().cast(), memory.recv.address(), len_bytes)
                }
                .expect("a copy");
                stream.synchronize().expect("a stream");
                part.compare().unwrap_or_else(|what| panic!("rank {}: {what}\n{uneven:?}", rank.comm.rank()));
            }
        }
    }
}

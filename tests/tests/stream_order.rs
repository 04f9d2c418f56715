//! Operations on cudarc's streams and buffers (`comm.on(&stream)`, `stream_group`): what they read and write is recorded, so that no buffer
//! is freed, overwritten or read on another stream before the stream has done its work.
//!
//! A program of random steps runs over a driver without a GPU, in a process of its own. The driver writes down each use of memory
//! and each record and wait of a stream. From these the test computes what happens before what: two uses of one buffer, one of which
//! writes or frees it, must be ordered by the streams themselves, whatever the host does.

use oxccl::cudarc::driver::{CudaContext, CudaSlice, CudaStream};
use oxccl::{Config, DeviceCommunicator, ReduceOp, stream_group};
use oxccl_tests::fake_driver::FakeDriver;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::process::Command;
use std::sync::Arc;

const CHILD: &str = "OXCCL_TEST_STREAM_ORDER";
const STREAMS: usize = 4;
const LEN: usize = 64;

/// One step of a program. Buffers and streams are numbers modulo those that there are.
#[derive(Clone, Debug)]
enum Step {
    Alloc {
        stream: usize,
    },
    /// By cudarc.
    Overwrite {
        stream: usize,
        buffer: usize,
    },
    AllReduce {
        comm: usize,
        stream: usize,
        send: usize,
        recv: usize,
    },
    /// The halves of a buffer, as views.
    Halves {
        comm: usize,
        stream: usize,
        buffer: usize,
    },
    /// Both communicators, on streams of their own.
    Group {
        streams: (usize, usize),
        send: usize,
        recv: usize,
    },
    /// All communicators read the same, on streams of their own.
    Readers {
        streams: (usize, usize),
        send: usize,
    },
    Drop {
        buffer: usize,
    },
    /// Drops a stream, with work on it.
    Replace {
        stream: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let (stream, buffer, comm) = (|| 0..STREAMS, || 0usize..1000, 0usize..2);
    prop_oneof![
        3 => stream().prop_map(|stream| Step::Alloc { stream }),
        2 => (stream(), buffer()).prop_map(|(stream, buffer)| Step::Overwrite { stream, buffer }),
        6 => (comm.clone(), stream(), buffer(), buffer())
            .prop_map(|(comm, stream, send, recv)| Step::AllReduce { comm, stream, send, recv }),
        2 => (comm, stream(), buffer()).prop_map(|(comm, stream, buffer)| Step::Halves { comm, stream, buffer }),
        3 => ((stream(), stream()), buffer(), buffer())
            .prop_map(|(streams, send, recv)| Step::Group { streams, send, recv }),
        3 => ((stream(), stream()), buffer()).prop_map(|(streams, send)| Step::Readers { streams, send }),
        3 => buffer().prop_map(|buffer| Step::Drop { buffer }),
        1 => stream().prop_map(|stream| Step::Replace { stream }),
    ]
}

/// What a program has while it runs.
struct World {
    context: Arc<CudaContext>,
    comms: Vec<DeviceCommunicator>,
    streams: Vec<Arc<CudaStream>>,
    buffers: Vec<CudaSlice<f32>>,
}

impl World {
    fn new() -> World {
        let alone =
            || DeviceCommunicator::init_all_with(&[0], &Config::from_env().unwrap()).unwrap().remove(0);
        let (context, comms) = (CudaContext::new(0).unwrap(), vec![alone(), alone()]);
        let streams = (0..STREAMS).map(|_| context.new_stream().unwrap()).collect();
        World { context, comms, streams, buffers: Vec::new() }
    }

    fn run(&mut self, step: &Step) {
        while self.buffers.len() < 4 {
            let stream = &self.streams[self.buffers.len() % STREAMS];
            self.buffers.push(stream.alloc_zeros(LEN).unwrap());
        }
        let count = self.buffers.len();
        let World { context, comms, streams, buffers } = self;
        match *step {
            Step::Alloc { stream } => buffers.push(streams[stream].alloc_zeros(LEN).unwrap()),
            Step::Overwrite { stream, buffer } => {
                streams[stream].memset_zeros(&mut buffers[buffer % count]).unwrap();
            }
            Step::AllReduce { comm, stream, send, recv } => {
                let Some((send, recv)) = two(buffers, send, recv) else { return };
                comms[comm].on(&streams[stream]).unwrap().all_reduce(send, recv, ReduceOp::SUM).unwrap();
            }
            Step::Halves { comm, stream, buffer } => {
                let (send, mut recv) = buffers[buffer % count].split_at_mut(LEN / 2);
                comms[comm].on(&streams[stream]).unwrap().all_gather(&send, &mut recv).unwrap();
            }
            Step::Group { streams: (first, second), send, recv } => {
                let mut own = streams[second].alloc_zeros::<f32>(LEN).unwrap();
                let Some((send, recv)) = two(buffers, send, recv) else { return };
                stream_group(|group| {
                    group.on(&comms[0], &streams[first])?.all_reduce(send, recv, ReduceOp::MAX)?;
                    group.on(&comms[1], &streams[second])?.broadcast(send, &mut own, 0)
                })
                .unwrap();
            }
            Step::Readers { streams: (first, second), send } => {
                let send = &buffers[send % count];
                for (comm, stream) in comms.iter().zip([&streams[first], &streams[second]]) {
                    let mut recv = stream.alloc_zeros::<f32>(LEN).unwrap();
                    comm.on(stream).unwrap().reduce(send, &mut recv, ReduceOp::SUM, 0).unwrap();
                }
            }
            Step::Drop { buffer } => drop(buffers.swap_remove(buffer % count)),
            Step::Replace { stream } => streams[stream] = context.new_stream().unwrap(),
        }
    }
}

/// Two different ones.
fn two(
    buffers: &mut [CudaSlice<f32>],
    send: usize,
    recv: usize,
) -> Option<(&CudaSlice<f32>, &mut CudaSlice<f32>)> {
    let [send, recv] = buffers.get_disjoint_mut([send % buffers.len(), recv % buffers.len()]).ok()?;
    Some((send, recv))
}

/// In the child.
fn run_programs() {
    let mut runner = TestRunner::deterministic();
    for _ in 0..8 {
        let program = prop::collection::vec(step(), 150).new_tree(&mut runner).unwrap().current();
        let mut world = World::new();
        program.iter().for_each(|step| world.run(step));
    }
}

/// What has happened before a point, as the number of each stream's entries.
type Clock = HashMap<String, usize>;

fn join(clock: &mut Clock, other: &Clock) {
    for (stream, count) in other {
        let own = clock.entry(stream.clone()).or_default();
        *own = (*own).max(*count);
    }
}

/// A use of a buffer: the entry of a stream.
struct Use {
    line: usize,
    verb: String,
    stream: String,
    number: usize,
}

impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the {} of line {} on stream {}", self.verb, self.line, self.stream)
    }
}

/// Every stream's order, and who has used each buffer.
#[derive(Default)]
struct Trace {
    streams: HashMap<String, Clock>,
    /// What the host has waited for happens before all that it enqueues later.
    host: Clock,
    events: HashMap<u64, Clock>,
    /// By address: where the buffer's uses are. Addresses are used once.
    buffers: BTreeMap<u64, Vec<Use>>,
    /// Pairs of uses that were found to be ordered by an event.
    ordered: usize,
}

impl Trace {
    /// Follows one line of the driver's log. An error: a use that is not ordered after an earlier one.
    fn follow(&mut self, line: usize, text: &str) -> Result<(), String> {
        let words: Vec<&str> = text.split(' ').collect();
        let [verb, stream, what] = words[..] else { panic!("line {line}: {text}") };
        let what = u64::from_str_radix(what, 16).unwrap();
        let clock = self.streams.entry(stream.to_owned()).or_default();
        join(clock, &self.host);
        match verb {
            "stream" => {}
            "record" => drop(self.events.insert(what, clock.clone())),
            "wait" => self.events.get(&what).into_iter().for_each(|recorded| join(clock, recorded)),
            "sync" => self.host = clock.clone(),
            "sync-all" => {
                let all: Vec<Clock> = self.streams.values().cloned().collect();
                all.iter().for_each(|stream| join(&mut self.host, stream));
            }
            _ => {
                let number = clock.entry(stream.to_owned()).or_default();
                *number += 1;
                let now = Use { line, verb: verb.into(), stream: stream.into(), number: *number };
                let clock = clock.clone();
                return self.use_of(what, now, &clock);
            }
        }
        Ok(())
    }

    fn use_of(&mut self, address: u64, now: Use, clock: &Clock) -> Result<(), String> {
        if now.verb == "alloc" {
            self.buffers.insert(address, vec![now]);
            return Ok(());
        }
        // Views begin inside; what was not allocated on a stream is the library's own.
        let Some((start, uses)) = self.buffers.range_mut(..=address).next_back() else { return Ok(()) };
        if address >= start + (LEN * size_of::<f32>()) as u64 {
            return Ok(());
        }
        for earlier in uses.iter().filter(|earlier| earlier.verb != "read" || now.verb != "read") {
            if clock.get(&earlier.stream).is_none_or(|seen| *seen < earlier.number) {
                return Err(format!("buffer {start:x}: {now} is not ordered after {earlier}"));
            }
            self.ordered += usize::from(earlier.stream != now.stream);
        }
        uses.push(now);
        Ok(())
    }
}

#[test]
fn no_buffer_is_freed_or_reused_before_its_streams_are_done() {
    if std::env::var_os(CHILD).is_some() {
        return run_programs();
    }
    let folder = tempfile::tempdir().unwrap();
    let driver = FakeDriver::make(folder.path());
    let mut child = Command::new(std::env::current_exe().unwrap());
    let name = "stream_order::no_buffer_is_freed_or_reused_before_its_streams_are_done";
    child.args(["--exact", name, "--nocapture"]).env(CHILD, "1");
    let output = driver.under(&mut child).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let log = std::fs::read_to_string(driver.log()).unwrap();
    let mut trace = Trace::default();
    for (line, text) in log.lines().enumerate() {
        trace.follow(line + 1, text).unwrap_or_else(|error| panic!("{error}"));
    }
    let count = |verb: &str| log.lines().filter(|line| line.starts_with(verb)).count();
    println!(
        "{} reads, {} frees, {} pairs ordered across streams",
        count("read"),
        count("free"),
        trace.ordered
    );
    // Without these the test would have looked at nothing.
    assert!(count("read") > 500 && count("free") > 500 && trace.ordered > 2000);
}

//! Cases on GPUs.
//!
//! A time is nccl-tests': all ranks meet, each puts the operation on its stream a number of times back to back, and the time from
//! the first to the end of the last is divided by that number. `--timer` says whether events in the stream or the processor's clock
//! are read; the latter contains the launch of the first and the notice of the end of the last. With `--graph` the operations have
//! been captured, and the launches of the graph are timed.

pub mod overlap;

use super::driver::GpuError;
use super::engine::{Extent, GpuEngine, Registration, Seat, SeatCall};
use super::load::Load;
use super::memory::{GpuBuffer, Staging, touched};
use crate::bench::{Bench, Case, MeasureError, Verdict, WarmUp, combine};
use crate::cli::{PerfArgs, Timer};
use crate::data::{Content, Pattern, expected_parts, scalar_bits};
use crate::engine::{Call, EngineError};
use crate::team::{Record, Team, sum_u64};
use oxccl::cuda::{Capture, CudaError, Event, Graph, GraphExec};
use std::ops::Range;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How long to wait without `--timeout`.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(60);
/// Looks at a stream between two looks at everything else.
const POLLS: u32 = 4096;

/// The ranks of one thread.
pub struct GpuBench<'a> {
    /// By engine: the graph of each seat for the case that was warmed up last. Gone before the engines whose work they hold.
    graphs: Vec<Vec<GraphExec>>,
    engines: Vec<Box<dyn GpuEngine>>,
    memories: Vec<SeatMemory>,
    /// What computes beside the operations; empty without `--overlap`.
    loads: Vec<Load>,
    staging: Staging,
    seats: Rc<[Seat]>,
    team: &'a mut dyn Team,
    args: &'a PerfArgs,
    repetition: u64,
}

/// What a seat has for measurements.
struct SeatMemory {
    send: GpuBuffer,
    recv: GpuBuffer,
    begin: Event,
    end: Event,
}

impl<'a> GpuBench<'a> {
    /// Takes all memory that the run needs. `threads` of this machine's processors are this thread's for checks.
    pub fn new(
        team: &'a mut dyn Team,
        seats: Vec<Seat>,
        engines: Vec<Box<dyn GpuEngine>>,
        threads: usize,
        args: &'a PerfArgs,
    ) -> Result<GpuBench<'a>, GpuError> {
        let (room, misalign) = (args.room(), args.misalign as usize);
        let memory = |seat: &Seat| {
            Ok(SeatMemory {
                send: GpuBuffer::new(seat.device(), room, misalign, args.register > 0)?,
                recv: GpuBuffer::new(seat.device(), room, misalign, args.register > 0)?,
                begin: Event::timed(seat.device())?,
                end: Event::timed(seat.device())?,
            })
        };
        let memories = seats.iter().map(memory).collect::<Result<_, GpuError>>()?;
        let staging = Staging::new(seats[0].device(), room, threads)?;
        let graphs = engines.iter().map(|_| Vec::new()).collect();
        let seats = seats.into();
        Ok(GpuBench {
            graphs,
            engines,
            memories,
            loads: Vec::new(),
            staging,
            seats,
            team,
            args,
            repetition: 0,
        })
    }

    /// Tells every engine of the buffers, as `--register` says.
    pub fn register_buffers(&mut self) -> Result<(), EngineError> {
        let kind = match self.args.register {
            0 => return Ok(()),
            1 => Registration::Local,
            _ => Registration::Symmetric,
        };
        let buffers: Vec<[Extent; 2]> =
            self.memories.iter().map(|memory| [memory.send.whole(), memory.recv.whole()]).collect();
        // SAFETY: (1) the buffers outlive the engines, by the order of the fields.
        self.engines.iter_mut().try_for_each(|engine| unsafe { engine.register(&self.seats, &buffers, kind) })
    }

    /// Ends whatever is still on the streams.
    pub fn abort(&mut self) {
        for engine in &mut self.engines {
            engine.abort();
        }
    }

    /// The call of a seat at the beginning of its buffers.
    fn call(&self, seat: usize, case: &Case) -> Call {
        let rank = self.seats[seat].rank;
        let memory = &self.memories[seat];
        let (send, recv) = case.parts(rank);
        let send = if case.in_place { memory.recv.at(send.start) } else { memory.send.at(send.start) };
        let address = |at: u64| std::ptr::without_provenance_mut(at as usize);
        let (send, recv) = (address(send), address(memory.recv.at(recv.start)));
        let scalar_bits = scalar_bits(case.dtype, rank);
        let Case { collective, dtype, op, root, in_place, shape } = *case;
        Call { collective, send, recv, count: shape.count, dtype, op, scalar_bits, root, in_place }
    }

    fn calls(&self, case: &Case) -> Vec<SeatCall> {
        (0..self.seats.len()).map(|seat| SeatCall { seat, call: self.call(seat, case) }).collect()
    }

    /// Puts `iters` groups of operations on the streams. With `--rotate`, each operation lies after the one before it, around the
    /// buffers.
    fn issue(&mut self, engine: usize, case: &Case, iters: u32) -> Result<(), MeasureError> {
        let base = self.calls(case);
        let step = if self.args.rotate { case.bytes() } else { 0 };
        let places = self.args.room().checked_div(step).unwrap_or(1).max(1);
        let mut place = 0;
        let mut group: Vec<SeatCall> = Vec::new();
        for _ in 0..iters {
            if group.is_empty() || places > 1 {
                group.clear();
                for _ in 0..self.args.agg_iters {
                    group.extend(base.iter().map(|one| shifted(one, place * step)));
                    place = (place + 1) % places;
                }
            }
            // SAFETY: the calls are those of `self.calls` for this shape, inside buffers that have room for `places` of them, and
            // nobody touches those before `wait`; the engine was made for these seats.
            let put = unsafe { self.engines[engine].enqueue(&self.seats, &group) };
            put.map_err(|error| self.failed(engine, error))?;
            if self.args.blocking == 1 && self.args.graph == 0 {
                self.wait(engine, case)?;
                self.team.barrier()?;
            }
        }
        Ok(())
    }

    /// Puts `iters` groups of operations on the streams, from graphs where there are some.
    fn launch(&mut self, engine: usize, case: &Case, iters: u32) -> Result<(), MeasureError> {
        if self.args.graph == 0 {
            return self.issue(engine, case, iters);
        }
        for _ in 0..iters.div_ceil(self.args.graph) {
            for (seat, graph) in self.seats.iter().zip(&self.graphs[engine]) {
                // SAFETY: its calls are those of `issue`, on buffers that live as long as `self`.
                unsafe { graph.launch(seat.stream())? };
            }
            if self.args.blocking == 1 {
                self.wait(engine, case)?;
                self.team.barrier()?;
            }
        }
        Ok(())
    }

    /// A graph for each seat, of `iters` groups of operations.
    fn captured(&mut self, engine: usize, case: &Case, iters: u32) -> Result<Vec<Graph>, MeasureError> {
        let seats = self.seats.clone();
        let begin = |seat| Capture::begin(Seat::stream(seat), true);
        let captures: Vec<Capture<'_>> = seats.iter().map(begin).collect::<Result<_, CudaError>>()?;
        self.issue(engine, case, iters)?;
        Ok(captures.into_iter().map(Capture::end).collect::<Result<_, CudaError>>()?)
    }

    fn capture(&mut self, engine: usize, case: &Case) -> Result<(), MeasureError> {
        self.graphs[engine].clear();
        let graphs = self.captured(engine, case, self.args.graph)?;
        self.graphs[engine] = graphs.iter().map(Graph::instantiate).collect::<Result<_, CudaError>>()?;
        Ok(())
    }

    /// Returns when the streams are done; gives up when that takes too long or another rank has given up.
    fn wait(&mut self, engine: usize, case: &Case) -> Result<(), MeasureError> {
        let (start, limit) = (Instant::now(), self.args.patience(TIMEOUT_DEFAULT));
        let mut polls = 0u32;
        for at in 0..self.seats.len() {
            while !self.seats[at].stream().is_done()? {
                polls = polls.wrapping_add(1);
                std::hint::spin_loop();
                if !polls.is_multiple_of(POLLS) {
                    continue;
                }
                self.team.poll()?;
                let health = self.engines[engine].health();
                health.map_err(|error| self.failed(engine, error))?;
                if start.elapsed() > limit {
                    let (rank, device) = (self.seats[at].rank, self.seats[at].device().ordinal());
                    let what = format!("{} of {} bytes", case.collective.name(), case.bytes());
                    let error = EngineError::Gpu(GpuError::Late { rank, device, what, limit });
                    return Err(self.failed(engine, error));
                }
            }
        }
        Ok(())
    }

    fn failed(&self, engine: usize, error: EngineError) -> MeasureError {
        MeasureError::Engine { engine: self.engines[engine].name(), error }
    }

    /// Seconds per operation of each seat.
    fn timed(&mut self, engine: usize, case: &Case, iters: u32) -> Result<Vec<f64>, MeasureError> {
        let groups = if self.args.graph > 0 { iters.next_multiple_of(self.args.graph) } else { iters };
        let operations = f64::from(groups) * f64::from(self.args.agg_iters);
        let events = self.args.timer == Timer::Events;
        self.team.barrier()?;
        let start = Instant::now();
        if events {
            for (seat, memory) in self.seats.iter().zip(&self.memories) {
                seat.stream().record(&memory.begin)?;
            }
        }
        self.launch(engine, case, iters)?;
        if events {
            for (seat, memory) in self.seats.iter().zip(&self.memories) {
                seat.stream().record(&memory.end)?;
            }
        }
        self.wait(engine, case)?;
        let host = start.elapsed().as_secs_f64();
        let seconds = |memory: &SeatMemory| match events {
            true => Ok(memory.end.elapsed_us(&memory.begin)? / 1e6 / operations),
            false => Ok(host / operations),
        };
        Ok(self.memories.iter().map(seconds).collect::<Result<_, CudaError>>()?)
    }

    /// Every rank's number.
    fn gather(&mut self, mine: &[f64]) -> Result<Vec<f64>, MeasureError> {
        let mut record = Record::default();
        for (word, number) in record.iter_mut().zip(mine) {
            *word = number.to_bits();
        }
        let records = self.team.exchange(&record)?;
        Ok(records
            .iter()
            .flat_map(|record| record[..mine.len()].iter().map(|word| f64::from_bits(*word)))
            .collect())
    }

    fn prepare(&mut self, seat: usize, case: &Case, pattern: &Pattern) -> Result<(), GpuError> {
        let rank = self.seats[seat].rank;
        let memory = &self.memories[seat];
        let (send, _) = case.parts(rank);
        let (send_bytes, recv_bytes) = case.extents();
        memory.send.arm(send_bytes)?;
        memory.recv.arm(recv_bytes)?;
        let buffer = if case.in_place { &memory.recv } else { &memory.send };
        let size = case.dtype.size_bytes();
        self.staging
            .fill(buffer, send, &|offset, bytes| pattern.fill(rank, (offset / size) as u64, bytes))?;
        Ok(self.seats[seat].device().synchronize()?)
    }

    fn inspect(&mut self, seat: usize, case: &Case, pattern: &Pattern) -> Result<Verdict, GpuError> {
        let (rank, ranks) = (self.seats[seat].rank, self.ranks());
        let (limit, size) = (self.args.check_bytes, case.dtype.size_bytes());
        let memory = &self.memories[seat];
        let staging = &mut self.staging;
        let (send, recv) = case.parts(rank);
        let (send_bytes, recv_bytes) = case.extents();
        let out_of_bounds = memory.send.violations(send_bytes)? + memory.recv.violations(recv_bytes)?;
        let mut wrong_in = |buffer: &GpuBuffer, part: Range<usize>, limit: usize, content: Content| {
            let wrong = |offset: usize, bytes: &[u8]| pattern.wrong(content.after(offset / size), bytes);
            staging.count(buffer, part, limit, &wrong)
        };
        let expected = expected_parts(case.collective, case.shape, rank, ranks, case.root);
        let share = if limit == 0 { 0 } else { (limit / expected.len().max(1)).max(1) };
        let mut wrong = 0;
        for (range, content) in &expected {
            let part = recv.start + range.start * size..recv.start + range.end * size;
            wrong += wrong_in(&memory.recv, part, share, *content)?;
        }
        let input = Content::Input { rank, first: 0 };
        if !case.in_place {
            wrong += wrong_in(&memory.send, send, limit, input)?;
            if expected.is_empty() {
                wrong += staging.count(&memory.recv, 0..recv_bytes, limit, &|_, bytes| touched(bytes))?;
            }
        } else if expected.is_empty() {
            wrong += wrong_in(&memory.recv, send, limit, input)?;
        }
        Ok(Verdict { wrong, out_of_bounds })
    }
}

fn shifted(one: &SeatCall, bytes: usize) -> SeatCall {
    let (send, recv) = (one.call.send.wrapping_add(bytes), one.call.recv.wrapping_add(bytes));
    SeatCall { seat: one.seat, call: Call { send, recv, ..one.call } }
}

impl Bench for GpuBench<'_> {
    fn ranks(&self) -> u32 {
        self.team.size() * self.seats.len() as u32
    }

    fn engines(&self) -> usize {
        self.engines.len()
    }

    fn checkable(&self, _: usize) -> bool {
        true
    }

    fn refuses(&mut self, engine: usize, case: &Case) -> Option<&'static str> {
        self.engines[engine].refuses(&self.call(0, case))
    }

    fn warm_up_at_most(&mut self, engine: usize, case: &Case, most: u32) -> Result<WarmUp, MeasureError> {
        self.team.barrier()?;
        // The first is not representative: kernels are loaded and peers connected.
        self.issue(engine, case, 1)?;
        self.wait(engine, case)?;
        let mut iters = self.args.warmup_iters.clamp(1, most);
        if self.args.graph > 0 {
            self.capture(engine, case)?;
            self.launch(engine, case, 1)?;
            self.wait(engine, case)?;
            iters = iters.next_multiple_of(self.args.graph);
        }
        let mine = self.timed(engine, case, iters)?;
        let slowest = combine(3, &self.gather(&mine)?);
        let mut plan = WarmUp::plan(slowest, self.args.iters, self.args.min_time, self.args.agg_iters);
        if self.args.graph > 0 {
            let asked = plan.iters;
            let graph = self.args.graph;
            plan.iters = asked.checked_next_multiple_of(graph).unwrap_or(asked / graph * graph);
            plan.seconds *= f64::from(plan.iters) / f64::from(asked);
        }
        Ok(plan)
    }

    fn blocks(&mut self, engine: usize, case: &Case) -> Result<Option<u32>, MeasureError> {
        // With `--blocking` ranks would wait for what is only captured.
        if self.args.blocking == 1 && self.args.graph == 0 {
            return Ok(None);
        }
        let graphs = self.captured(engine, case, 1)?;
        Ok(graphs[0].blocks().ok())
    }

    fn time(&mut self, engine: usize, case: &Case, iters: u32) -> Result<f64, MeasureError> {
        let mine = self.timed(engine, case, iters)?;
        Ok(combine(self.args.average, &self.gather(&mine)?))
    }

    fn check(&mut self, engine: usize, case: &Case) -> Result<Verdict, MeasureError> {
        let mut found = Verdict::default();
        for _ in 0..self.args.check {
            self.repetition += 1;
            let op = case.collective.reduces().then_some(case.op);
            let pattern = Pattern { repetition: self.repetition, ranks: self.ranks(), op, dtype: case.dtype };
            for seat in 0..self.seats.len() {
                self.prepare(seat, case, &pattern)?;
            }
            self.team.barrier()?;
            let calls = self.calls(case);
            // SAFETY: as in `issue`.
            let put = unsafe { self.engines[engine].enqueue(&self.seats, &calls) };
            put.map_err(|error| self.failed(engine, error))?;
            self.wait(engine, case)?;
            let mut mine = [0; 2];
            for seat in 0..self.seats.len() {
                let verdict = self.inspect(seat, case, &pattern)?;
                mine = [mine[0] + verdict.wrong, mine[1] + verdict.out_of_bounds];
            }
            let [wrong, out_of_bounds] = sum_u64(self.team, mine)?;
            found.wrong += wrong;
            found.out_of_bounds += out_of_bounds;
        }
        Ok(found)
    }

    fn agree(&mut self, mine: f64) -> Result<f64, MeasureError> {
        Ok(self.gather(&[mine])?[0])
    }
}

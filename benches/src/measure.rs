//! Layer: perf / measure.
//! Takes: cases, on ranks that are threads of CPUs.
//! Gives: times of every engine on the same buffers, and how many elements and guard bytes are wrong.
//! Never: decides what is measured, or prints.
//!
//! A time is nccl-tests': all ranks meet, each runs the operation a number of times back to back, and its time is divided by that
//! number; then the ranks' times are averaged (or whatever `--average` says).

use crate::bench::{Bench, Case, MeasureError, Verdict, WarmUp, combine};
use crate::buffer::{Buffer, available_bytes};
use crate::cli::PerfArgs;
use crate::data::{Content, Pattern, expected_parts, scalar_bits};
use crate::engine::{Call, Engine};
use crate::team::{Team, gather_f64, sum_u64};
use crate::work::Work;
use std::ops::Range;
use std::time::Instant;

/// A rank has no memory for its buffers.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error(
    "rank {rank} (process {}) has no memory for two buffers of {wanted_bytes} bytes, the largest size (-e, --maxbytes or --sizes): \
     {available_mib} MiB are left on this host",
    std::process::id()
)]
pub struct NoMemory {
    rank: u32,
    wanted_bytes: usize,
    available_mib: u64,
}

/// One rank's memory and place among the others.
pub struct CpuBench<'a> {
    team: &'a mut dyn Team,
    engines: Vec<Box<dyn Engine>>,
    args: &'a PerfArgs,
    send: Buffer,
    recv: Buffer,
    repetition: u64,
    /// Operations are started, and this is computed before they are waited for.
    beside: Option<Work>,
}

impl<'a> CpuBench<'a> {
    /// # Errors
    /// This rank has no memory for its buffers.
    pub fn new(
        team: &'a mut dyn Team,
        engines: Vec<Box<dyn Engine>>,
        args: &'a PerfArgs,
    ) -> Result<CpuBench<'a>, NoMemory> {
        let rank = team.rank();
        let buffer = || {
            Buffer::new(args.room(), args.misalign as usize).ok_or(NoMemory {
                rank,
                wanted_bytes: args.room(),
                available_mib: available_bytes().unwrap_or_default() >> 20,
            })
        };
        let (send, recv) = (buffer()?, buffer()?);
        Ok(CpuBench { team, engines, args, send, recv, repetition: 0, beside: None })
    }

    /// From now on operations are started, and waited for after so much computation; or called, where nothing is given.
    pub fn runs_beside(&mut self, work: Option<Work>) {
        self.beside = work;
    }

    /// Whether this is rank 0, whose report is shown.
    pub fn is_first(&self) -> bool {
        self.team.rank() == 0
    }

    /// An engine's name.
    pub fn name(&self, engine: usize) -> &'static str {
        self.engines[engine].name()
    }

    /// One number out of every rank's: `--average`.
    pub fn combine(&mut self, average: u32, mine: f64) -> Result<f64, MeasureError> {
        Ok(combine(average, &gather_f64(self.team, mine)?))
    }

    /// # Safety
    /// 1. As [`Engine::run`].
    unsafe fn execute(&mut self, engine: usize, calls: &[Call]) -> Result<(), MeasureError> {
        let engine = &mut self.engines[engine];
        let result = match (self.beside, engine.in_flight()) {
            (Some(work), Some(engine)) => calls.iter().try_for_each(|call| {
                // SAFETY: obligation 1.
                unsafe { engine.run_beside(call, &mut work.pieces()) }
            }),
            // SAFETY: obligation 1.
            _ => unsafe { engine.run(calls) },
        };
        result.map_err(|error| MeasureError::Engine { engine: engine.name().into(), error })
    }

    /// The call of this rank at the beginning of the buffers.
    fn call(&mut self, case: &Case) -> Call {
        let rank = self.team.rank();
        let (send, recv) = case.parts(rank);
        let send = if case.in_place { self.recv.at(send.start) } else { self.send.at(send.start) };
        let recv = self.recv.at(recv.start);
        let scalar_bits = scalar_bits(case.dtype, rank);
        let Case { collective, dtype, op, root, in_place, shape } = *case;
        Call { collective, send, recv, count: shape.count, dtype, op, scalar_bits, root, in_place }
    }

    /// Runs `iters` groups of operations. With a step, each operation lies that many bytes after the one before it, around the
    /// buffers.
    fn repeat(&mut self, engine: usize, call: Call, step: usize, iters: u32) -> Result<(), MeasureError> {
        let places = self.args.room().checked_div(step).unwrap_or(1).max(1);
        let mut group = vec![call; self.args.agg_iters as usize];
        let mut place = 0;
        for _ in 0..iters {
            if places > 1 {
                for member in &mut group {
                    let (send, recv) =
                        (call.send.wrapping_add(place * step), call.recv.wrapping_add(place * step));
                    *member = Call { send, recv, ..call };
                    place = if place + 1 == places { 0 } else { place + 1 };
                }
            }
            // SAFETY: `call` made the pointers for this shape inside `send` and `recv`, which have room for `places` of them and
            // which nobody touches meanwhile.
            unsafe { self.execute(engine, &group)? };
            if self.args.blocking == 1 {
                self.team.barrier()?;
            }
        }
        Ok(())
    }

    fn prepare(&mut self, case: &Case, pattern: &Pattern) {
        let rank = self.team.rank();
        let (send, _) = case.parts(rank);
        let (send_bytes, recv_bytes) = case.extents();
        self.send.arm(send_bytes, true);
        self.recv.arm(recv_bytes, true);
        let buffer = if case.in_place { &mut self.recv } else { &mut self.send };
        pattern.fill(rank, 0, buffer.part_mut(send));
    }

    fn inspect(&self, case: &Case, pattern: &Pattern) -> Verdict {
        let (rank, ranks) = (self.team.rank(), self.team.size());
        let bytes = case.dtype.size_bytes();
        let (send, recv) = case.parts(rank);
        let (send_bytes, recv_bytes) = case.extents();
        let out_of_bounds = self.send.violations(send_bytes) + self.recv.violations(recv_bytes);

        let expected = expected_parts(case.collective, case.shape, rank, ranks, case.root);
        let part = |(range, content): &(Range<usize>, Content)| {
            let range = recv.start + range.start * bytes..recv.start + range.end * bytes;
            pattern.wrong(*content, self.recv.part(range))
        };
        let mut wrong: u64 = expected.iter().map(part).sum();
        let input = Content::Input { rank, first: 0 };
        if !case.in_place {
            wrong += pattern.wrong(input, self.send.part(send));
            wrong += if expected.is_empty() { self.recv.touched(recv_bytes) } else { 0 };
        } else if expected.is_empty() {
            wrong += pattern.wrong(input, self.recv.part(send));
        }
        Verdict { wrong, out_of_bounds }
    }
}

impl Bench for CpuBench<'_> {
    fn ranks(&self) -> u32 {
        self.team.size()
    }

    fn engines(&self) -> usize {
        self.engines.len()
    }

    fn checkable(&self, engine: usize) -> bool {
        self.engines[engine].checkable()
    }

    fn refuses(&mut self, engine: usize, case: &Case) -> Option<&'static str> {
        let call = self.call(case);
        let engine = &mut self.engines[engine];
        let refused = engine.refuses(&call);
        if self.beside.is_none() || refused.is_some() {
            return refused;
        }
        engine.in_flight().map_or(Some("no non-blocking calls"), |engine| engine.refuses(&call))
    }

    fn warm_up_at_most(&mut self, engine: usize, case: &Case, most: u32) -> Result<WarmUp, MeasureError> {
        let call = self.call(case);
        let iters = self.args.warmup_iters.clamp(1, most);
        self.team.barrier()?;
        // The first is not representative: connections and pages may be touched for the first time.
        self.repeat(engine, call, 0, 1)?;
        let start = Instant::now();
        self.repeat(engine, call, 0, iters)?;
        let mine = start.elapsed().as_secs_f64() / (f64::from(iters) * f64::from(self.args.agg_iters));
        let slowest = combine(3, &gather_f64(self.team, mine)?);
        Ok(WarmUp::plan(slowest, self.args.iters, self.args.min_time, self.args.agg_iters))
    }

    fn time(&mut self, engine: usize, case: &Case, iters: u32) -> Result<f64, MeasureError> {
        let call = self.call(case);
        let step = if self.args.rotate { case.bytes() } else { 0 };
        self.team.barrier()?;
        let start = Instant::now();
        self.repeat(engine, call, step, iters)?;
        let mine = start.elapsed().as_secs_f64() / (f64::from(iters) * f64::from(self.args.agg_iters));
        Ok(combine(self.args.average, &gather_f64(self.team, mine)?))
    }

    fn check(&mut self, engine: usize, case: &Case) -> Result<Verdict, MeasureError> {
        let mut found = Verdict::default();
        for _ in 0..self.args.check {
            self.repetition += 1;
            let op = case.collective.reduces().then_some(case.op);
            let (ranks, dtype) = (self.team.size(), case.dtype);
            let pattern = Pattern { repetition: self.repetition, ranks, op, dtype };
            self.prepare(case, &pattern);
            self.team.barrier()?;
            let call = self.call(case);
            // SAFETY: as in `repeat`.
            unsafe { self.execute(engine, &[call])? };
            let mine = self.inspect(case, &pattern);
            let [wrong, out_of_bounds] = sum_u64(self.team, [mine.wrong, mine.out_of_bounds])?;
            found.wrong += wrong;
            found.out_of_bounds += out_of_bounds;
        }
        Ok(found)
    }

    fn agree(&mut self, mine: f64) -> Result<f64, MeasureError> {
        Ok(gather_f64(self.team, mine)?[0])
    }
}

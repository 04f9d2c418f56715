//! Layer: perf / measure.
//! Takes: one case: a collective, a size, a type, an operator, a root, one buffer or two.
//! Gives: times of every engine in turns on the same buffers, and how many elements and guard bytes are wrong.
//! Never: decides what is measured, or prints.
//!
//! A time is nccl-tests': all ranks meet, each runs the operation a number of times back to back, and its time is divided by that
//! number; then the ranks' times are averaged (or whatever `--average` says).

use crate::buffer::Buffer;
use crate::cli::PerfArgs;
use crate::collective::{Collective, Shape};
use crate::data::{Content, Pattern, expected_parts, scalar_bits};
use crate::engine::{Call, Engine, EngineError};
use crate::team::{Team, TeamError, gather_f64, sum_u64};
use oxccl_shared::abi::{DataType, RedOp};
use std::ops::Range;
use std::time::Instant;

/// Fewest and most operations of a measurement whose number is not given.
const ITERS_AUTO: std::ops::RangeInclusive<u32> = 4..=20_000;

/// What is measured, but for the engine.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub collective: Collective,
    pub shape: Shape,
    pub dtype: DataType,
    pub op: RedOp,
    pub root: u32,
    pub in_place: bool,
}

/// Why a measurement ended early.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    #[error("{engine}: {error}")]
    Engine { engine: &'static str, error: EngineError },
    #[error(transparent)]
    Team(#[from] TeamError),
}

/// What a check found, over all ranks.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Verdict {
    /// Elements that are not what the oracle says, and bytes that the call had no right to change.
    pub wrong: u64,
    /// Guard bytes around the buffers that changed.
    pub out_of_bounds: u64,
}

/// One rank's memory and place among the others.
pub struct Bench<'a> {
    team: &'a mut dyn Team,
    args: &'a PerfArgs,
    send: Buffer,
    recv: Buffer,
    repetition: u64,
}

impl<'a> Bench<'a> {
    pub fn new(team: &'a mut dyn Team, args: &'a PerfArgs) -> Bench<'a> {
        let misalign = args.misalign as usize;
        let send = Buffer::new(args.maxbytes, misalign);
        let recv = Buffer::new(args.maxbytes, misalign);
        Bench { team, args, send, recv, repetition: 0 }
    }

    /// The call of this rank at the beginning of the buffers.
    pub fn call(&mut self, case: &Case) -> Call {
        let rank = self.team.rank();
        let (send, recv) = self.parts(case);
        let send = if case.in_place { self.recv.at(send.start) } else { self.send.at(send.start) };
        let recv = self.recv.at(recv.start);
        let scalar_bits = scalar_bits(case.dtype, rank);
        let Case { collective, dtype, op, root, in_place, shape } = *case;
        Call { collective, send, recv, count: shape.count, dtype, op, scalar_bits, root, in_place }
    }

    /// Operations per measurement that last `--min-time`, from a few that also warm up. The same on every rank.
    pub fn warm_up(&mut self, engine: &mut dyn Engine, case: &Case) -> Result<u32, MeasureError> {
        let call = self.call(case);
        let iters = self.args.warmup_iters.max(1);
        self.team.barrier()?;
        // The first is not representative: connections and pages may be touched for the first time.
        self.repeat(engine, call, 0, 1)?;
        let start = Instant::now();
        self.repeat(engine, call, 0, iters)?;
        let mine = start.elapsed().as_secs_f64() / f64::from(iters);
        let slowest = gather_f64(self.team, mine)?.into_iter().fold(0.0, f64::max);
        let wanted = f64::from(self.args.min_time) / 1e3 / slowest.max(1e-9);
        let auto = (wanted.ceil() as u32).clamp(*ITERS_AUTO.start(), *ITERS_AUTO.end());
        Ok(self.args.iters.unwrap_or(auto.div_ceil(self.args.agg_iters)))
    }

    /// Seconds per operation.
    pub fn time(&mut self, engine: &mut dyn Engine, case: &Case, iters: u32) -> Result<f64, MeasureError> {
        let call = self.call(case);
        let bytes = case.shape.larger() * case.dtype.size_bytes();
        let step = if self.args.rotate { bytes } else { 0 };
        self.team.barrier()?;
        let start = Instant::now();
        self.repeat(engine, call, step, iters)?;
        let mine = start.elapsed().as_secs_f64() / f64::from(iters * self.args.agg_iters);
        let all = gather_f64(self.team, mine)?;
        Ok(match self.args.average {
            0 => all[0],
            1 => all.iter().sum::<f64>() / all.len() as f64,
            2 => all.into_iter().fold(f64::INFINITY, f64::min),
            _ => all.into_iter().fold(0.0, f64::max),
        })
    }

    /// Runs `iters` groups of operations. With a step, each operation lies that many bytes after the one before it, around the
    /// buffers.
    fn repeat(
        &mut self,
        engine: &mut dyn Engine,
        call: Call,
        step: usize,
        iters: u32,
    ) -> Result<(), MeasureError> {
        let places = self.args.maxbytes.checked_div(step).unwrap_or(1).max(1);
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
            let result = unsafe { engine.run(&group) };
            result.map_err(|error| MeasureError::Engine { engine: engine.name(), error })?;
            if self.args.blocking == 1 {
                self.team.barrier()?;
            }
        }
        Ok(())
    }

    /// Runs the operation `--check` times on fresh data and compares everything it may have touched.
    pub fn check(&mut self, engine: &mut dyn Engine, case: &Case) -> Result<Verdict, MeasureError> {
        let mut found = Verdict::default();
        for _ in 0..self.args.check {
            self.repetition += 1;
            let op = case.collective.reduces().then_some(case.op);
            let (ranks, dtype) = (self.team.size(), case.dtype);
            let pattern = Pattern { repetition: self.repetition, ranks, op, dtype };
            self.prepare(case, &pattern);
            self.team.barrier()?;
            let call = Call { ..self.call(case) };
            // SAFETY: as in `repeat`.
            let result = unsafe { engine.run(&[call]) };
            result.map_err(|error| MeasureError::Engine { engine: engine.name(), error })?;
            let mine = self.inspect(case, &pattern);
            let [wrong, out_of_bounds] = sum_u64(self.team, [mine.wrong, mine.out_of_bounds])?;
            found.wrong += wrong;
            found.out_of_bounds += out_of_bounds;
        }
        Ok(found)
    }

    /// Byte ranges of the send and the receive part, each in its buffer; in place both are in the receive buffer.
    fn parts(&self, case: &Case) -> (Range<usize>, Range<usize>) {
        let bytes = case.dtype.size_bytes();
        let offsets = case.collective.in_place_offsets(case.shape, self.team.rank() as usize);
        let (send, recv) = if case.in_place { offsets } else { (0, 0) };
        let Shape { send: send_elems, recv: recv_elems, .. } = case.shape;
        (send * bytes..(send + send_elems) * bytes, recv * bytes..(recv + recv_elems) * bytes)
    }

    /// Bytes between the guards of the send and the receive buffer.
    fn extents(case: &Case) -> (usize, usize) {
        let bytes = case.dtype.size_bytes();
        let Shape { send, recv, .. } = case.shape;
        if case.in_place { (0, case.shape.larger() * bytes) } else { (send * bytes, recv * bytes) }
    }

    fn prepare(&mut self, case: &Case, pattern: &Pattern) {
        let rank = self.team.rank();
        let (send, _) = self.parts(case);
        let (send_bytes, recv_bytes) = Self::extents(case);
        self.send.arm(send_bytes, true);
        self.recv.arm(recv_bytes, true);
        let buffer = if case.in_place { &mut self.recv } else { &mut self.send };
        pattern.fill(rank, 0, buffer.part_mut(send));
    }

    fn inspect(&self, case: &Case, pattern: &Pattern) -> Verdict {
        let (rank, ranks) = (self.team.rank(), self.team.size());
        let bytes = case.dtype.size_bytes();
        let (send, recv) = self.parts(case);
        let (send_bytes, recv_bytes) = Self::extents(case);
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

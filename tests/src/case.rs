//! One collective call on all ranks of a world, checked byte for byte against the oracle.

use crate::guarded::{Guarded, POISON, bytes_of};
use crate::harness::{Settings, World, first_error};
use crate::model::{Model, Sample};
use crate::oracle::{Inputs, shape};
use crate::with_type;
use oxccl::{Algorithm, Communicator, DataType, Error, Func, Group, RedOp, ReduceOp, Untyped};
use std::ops::Range;

/// Functions with an output; [`Func::Send`] means a shift.
pub const FUNCS: [Func; 9] = [
    Func::AllReduce,
    Func::Reduce,
    Func::ReduceScatter,
    Func::Broadcast,
    Func::AllGather,
    Func::AllToAll,
    Func::Gather,
    Func::Scatter,
    Func::Send,
];

/// Whether the function has an operator.
pub fn reduces(func: Func) -> bool {
    matches!(func, Func::AllReduce | Func::Reduce | Func::ReduceScatter)
}

/// Only all-reduce has more than one algorithm.
pub fn applies(settings: &Settings, func: Func) -> bool {
    func == Func::AllReduce || matches!(settings.algorithm, None | Some(Algorithm::Ring))
}

/// The operators to test it with.
pub fn ops(func: Func) -> &'static [RedOp] {
    if reduces(func) { RedOp::ALL } else { &[RedOp::Sum] }
}

/// Where outputs lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// In a buffer of their own.
    Apart,
    /// In the input's buffer, where the function allows it.
    InPlace,
    /// In a buffer of their own; neither is aligned to its element.
    Unaligned,
}

impl Placement {
    /// All.
    pub const ALL: [Placement; 3] = [Placement::Apart, Placement::InPlace, Placement::Unaligned];
}

/// Which threads do the ranks' parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// One thread, a fiber for each rank: a group over all communicators.
    Fibers,
    /// A thread for each rank.
    Threads,
}

/// A call.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The function; [`Func::Send`] means a shift, see [`Inputs`].
    pub func: Func,
    /// The element type.
    pub dtype: DataType,
    /// The operator.
    pub op: RedOp,
    /// The root.
    pub root: u32,
    /// Elements, counted as the function counts them.
    pub count: usize,
    /// Where outputs lie.
    pub placement: Placement,
    /// Which data.
    pub seed: u64,
}

/// One rank's buffers, what it calls and what the buffers must hold afterwards.
pub(crate) struct Part {
    pub(crate) buffers: Vec<Guarded>,
    /// Buffer and byte offset.
    pub(crate) send: Option<(usize, usize)>,
    pub(crate) recv: Option<(usize, usize)>,
    op: ReduceOp,
    /// Buffer, bytes, contents.
    expected: Vec<(usize, Range<usize>, Vec<u8>)>,
}

impl Case {
    /// Runs the case and compares everything.
    ///
    /// # Errors
    /// What went wrong, and where.
    pub fn check(&self, world: &mut World, by: By) -> Result<(), String> {
        let mut parts = self.all_parts(world.size());
        self.run(world, &mut parts, by).map_err(|error| self.failure(world, by, &error.to_string()))?;
        for (rank, part) in parts.iter().enumerate() {
            part.compare(self.dtype)
                .map_err(|what| self.failure(world, by, &format!("rank {rank}: {what}")))?;
        }
        Ok(())
    }

    fn failure(&self, world: &World, by: By, what: &str) -> String {
        format!("{what}\n  in {self:?}\n  by {by:?} of {} ranks, {:?}", world.size(), world.settings)
    }

    fn run(&self, world: &mut World, parts: &mut [Part], by: By) -> Result<(), Error> {
        match by {
            By::Fibers => oxccl::group(|group| {
                let mut ranks = world.ranks.iter().zip(parts);
                ranks.try_for_each(|(rank, part)| self.add(group, rank, part))
            }),
            By::Threads => first_error(world.each_with(parts, |rank, part| match self.func {
                // A shift that sends before it receives would not end.
                Func::Send => oxccl::group(|group| self.add(group, rank, part)),
                // SAFETY: `parts` allocated the buffers with the lengths of the function, apart or with an allowed
                // overlap.
                func => unsafe { rank.run_untyped(&self.untyped_here(func, rank, part)) },
            })),
        }
    }

    fn add<'env>(
        &self,
        group: &mut Group<'env>,
        rank: &'env Communicator,
        part: &mut Part,
    ) -> Result<(), Error> {
        // SAFETY: as in `run`; the buffers outlive the group, which runs before `run` returns.
        self.funcs()
            .iter()
            .try_for_each(|func| unsafe { group.add_untyped(rank, &self.untyped_here(*func, rank, part)) })
    }

    fn untyped_here(&self, func: Func, rank: &Communicator, part: &mut Part) -> Untyped {
        let bases: Vec<*mut u8> =
            part.buffers.iter_mut().map(|buffer| buffer.bytes_mut().as_mut_ptr()).collect();
        self.untyped(func, (rank.rank(), rank.size()), part, &bases)
    }

    /// A rank's call, with its buffers at `bases`.
    pub(crate) fn untyped(&self, func: Func, (me, n): (u32, u32), part: &Part, bases: &[*mut u8]) -> Untyped {
        let peer = match func {
            Func::Send => (me + 1) % n,
            Func::Recv => (me + n - 1) % n,
            _ => self.root,
        };
        let at = |place: Option<(usize, usize)>| {
            place.map_or(std::ptr::null_mut(), |(buffer, offset)| bases[buffer].wrapping_add(offset))
        };
        let (recv, send) = (at(part.recv), at(part.send).cast_const());
        Untyped { send, recv, count: self.count, op: part.op, peer, ..Untyped::new(func, self.dtype) }
    }

    /// What a rank calls: a shift is made of two.
    pub(crate) fn funcs(&self) -> &[Func] {
        if self.func == Func::Send { &[Func::Send, Func::Recv] } else { std::slice::from_ref(&self.func) }
    }

    /// Every rank's part.
    pub(crate) fn all_parts(&self, nranks: usize) -> Vec<Part> {
        with_type!(self.dtype, T => self.parts::<T>(nranks))
    }

    fn parts<T: Model>(&self, nranks: usize) -> Vec<Part> {
        let shapes = (0..nranks).map(|rank| shape(self.func, nranks, rank, self.root as usize, self.count));
        let send: Vec<Vec<T>> = shapes
            .enumerate()
            .map(|(rank, (elems, _))| self.input(nranks, rank, elems.unwrap_or(0)))
            .collect();
        let scalars: Vec<T> = (0..nranks as u32).map(T::scalar).collect();
        let Case { func, op, count, .. } = *self;
        let inputs = Inputs { func, op, root: self.root as usize, count, send: &send, scalars: &scalars };
        (0..nranks).map(|rank| self.part(rank, &inputs)).collect()
    }

    fn input<T: Model>(&self, nranks: usize, rank: usize, elems: usize) -> Vec<T> {
        let Case { op, seed, .. } = *self;
        let (nranks, rank) = (nranks as u32, rank as u32);
        (0..elems).map(|index| T::sample(Sample { op, nranks, rank, index, seed })).collect()
    }

    fn part<T: Model>(&self, rank: usize, inputs: &Inputs<'_, T>) -> Part {
        let input = bytes_of(&inputs.send[rank]).to_vec();
        let output = inputs.output(rank).map(|output| bytes_of(&output).to_vec());
        let op = ReduceOp::of_kind(self.op, T::DTYPE, inputs.scalars[rank].to_low_bits());
        let (has_input, has_output) =
            shape(self.func, inputs.send.len(), rank, self.root as usize, self.count);
        let input = has_input.map(|_| input);
        debug_assert_eq!(has_output.is_some(), output.is_some());
        if self.placement == Placement::InPlace
            && let Some(part) = self.in_place(rank, op, &input, &output)
        {
            return part;
        }
        self.apart(rank, op, input, output)
    }

    fn apart(&self, rank: usize, op: ReduceOp, input: Option<Vec<u8>>, output: Option<Vec<u8>>) -> Part {
        let unaligned = |salt: usize| match self.placement {
            Placement::Unaligned => 1 + (self.seed as usize + rank * 7 + salt) % 63,
            _ => 0,
        };
        let mut part = Part { buffers: Vec::new(), send: None, recv: None, op, expected: Vec::new() };
        if let Some(input) = input {
            part.send = Some((part.buffers.len(), 0));
            part.fill(unaligned(0), &input);
            // The input is unchanged.
            part.expect(0, input);
        }
        if let Some(output) = output {
            part.recv = Some((part.buffers.len(), 0));
            part.fill(unaligned(5), &vec![POISON; output.len()]);
            part.expect(0, output);
        } else if self.func == Func::Reduce || self.func == Func::Gather {
            // Only the root's output is written, even where others name one.
            let bytes = self.count * self.dtype.size_bytes();
            part.recv = Some((part.buffers.len(), 0));
            part.fill(unaligned(9), &vec![POISON; bytes]);
            part.expect(0, vec![POISON; bytes]);
        }
        part
    }

    /// Input and output in one buffer, where the function allows it on this rank.
    fn in_place(
        &self,
        rank: usize,
        op: ReduceOp,
        input: &Option<Vec<u8>>,
        output: &Option<Vec<u8>>,
    ) -> Option<Part> {
        let own_block = rank * self.count * self.dtype.size_bytes();
        let mut part = Part { buffers: Vec::new(), send: None, recv: None, op, expected: Vec::new() };
        let (contents, send_at, recv_at) = match (self.func, input, output) {
            (Func::AllReduce | Func::Broadcast | Func::Reduce, Some(input), _) => (input.clone(), 0, 0),
            (Func::Broadcast, None, Some(output)) => (vec![POISON; output.len()], 0, 0),
            // A gather's root has its own block in place; the others only send.
            (Func::AllGather | Func::Gather, Some(input), Some(output)) => {
                let mut contents = vec![POISON; output.len()];
                contents[own_block..][..input.len()].copy_from_slice(input);
                (contents, own_block, 0)
            }
            (Func::ReduceScatter, Some(input), Some(_)) => (input.clone(), 0, own_block),
            // A scatter's root leaves its own block where it is; the others' blocks are input and stay.
            (Func::Scatter, Some(input), Some(_)) => (input.clone(), 0, own_block),
            _ => return None,
        };
        part.fill(0, &contents);
        (part.send, part.recv) = (Some((0, send_at)), Some((0, recv_at)));
        // Where this rank has no output the buffer stays as it was.
        match (self.func, output) {
            (Func::Scatter, _) | (_, None) => part.expect(0, contents),
            (_, Some(output)) => part.expect(recv_at, output.clone()),
        }
        Some(part)
    }
}

impl Part {
    fn fill(&mut self, offset: usize, contents: &[u8]) {
        let mut buffer = Guarded::new(contents.len(), offset);
        buffer.bytes_mut().copy_from_slice(contents);
        self.buffers.push(buffer);
    }

    /// Of the last buffer.
    fn expect(&mut self, at: usize, contents: Vec<u8>) {
        self.expected.push((self.buffers.len() - 1, at..at + contents.len(), contents));
    }

    pub(crate) fn compare(&self, dtype: DataType) -> Result<(), String> {
        if let Some(buffer) = self.buffers.iter().position(|buffer| !buffer.is_intact()) {
            return Err(format!("bytes beside buffer {buffer} were written"));
        }
        for (buffer, range, expected) in &self.expected {
            let actual = &self.buffers[*buffer].bytes()[range.clone()];
            if actual == expected {
                continue;
            }
            let size = dtype.size_bytes();
            let wrong: Vec<usize> = (0..expected.len() / size)
                .filter(|i| at(actual, *i, size) != at(expected, *i, size))
                .collect();
            return Err(format!(
                "{} of {} elements are wrong, the first at {}: {:02x?} instead of {:02x?}",
                wrong.len(),
                expected.len() / size,
                wrong[0],
                at(actual, wrong[0], size),
                at(expected, wrong[0], size)
            ));
        }
        Ok(())
    }
}

fn at(bytes: &[u8], index: usize, size: usize) -> &[u8] {
    &bytes[index * size..][..size]
}

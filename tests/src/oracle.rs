//! The result of every collective, in as few lines as possible.

use crate::model::{Model, Wide, mix};
use crate::uneven::Part;
use oxccl::{Func, RedOp};

/// A call and everything that goes into it.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a, T> {
    /// The function. [`Func::Send`] means a shift: every rank sends to the next and receives from the previous one.
    pub func: Func,
    /// The operator.
    pub op: RedOp,
    /// The root.
    pub root: usize,
    /// Elements, counted as the function counts them.
    pub count: usize,
    /// Each rank's input; empty where the rank has none.
    pub send: &'a [Vec<T>],
    /// Each rank's scalar, for a pre-multiplied sum.
    pub scalars: &'a [T],
}

/// Elements of a rank's input and of its output; nothing where the rank has none.
pub fn shape(
    func: Func,
    nranks: usize,
    rank: usize,
    root: usize,
    count: usize,
) -> (Option<usize>, Option<usize>) {
    let at_root = |elems| (rank == root).then_some(elems);
    match func {
        Func::AllReduce | Func::Send => (Some(count), Some(count)),
        Func::Broadcast => (at_root(count), Some(count)),
        Func::Reduce => (Some(count), at_root(count)),
        Func::AllGather => (Some(count), Some(nranks * count)),
        Func::ReduceScatter => (Some(nranks * count), Some(count)),
        Func::AllToAll => (Some(nranks * count), Some(nranks * count)),
        Func::Gather => (Some(count), at_root(nranks * count)),
        Func::Scatter => (at_root(nranks * count), Some(count)),
        Func::Barrier | Func::Recv => (None, None),
    }
}

impl<T: Model> Inputs<'_, T> {
    /// Rank `rank`'s output, where it has one.
    pub fn output(&self, rank: usize) -> Option<Vec<T>> {
        let (n, count, send) = (self.send.len(), self.count, self.send);
        let block = |from: usize, at: usize| send[from][at * count..][..count].to_vec();
        let reduced = |at: usize| (at * count..(at + 1) * count).map(|i| self.reduced(i)).collect();
        shape(self.func, n, rank, self.root, count).1.map(|_| match self.func {
            Func::AllReduce | Func::Reduce => reduced(0),
            Func::ReduceScatter => reduced(rank),
            Func::Broadcast => block(self.root, 0),
            Func::AllGather | Func::Gather => send.concat(),
            Func::Scatter => block(self.root, rank),
            Func::AllToAll => (0..n).flat_map(|from| block(from, rank)).collect(),
            Func::Send => block((rank + n - 1) % n, 0),
            Func::Recv | Func::Barrier => Vec::new(),
        })
    }

    /// Element `i` of all ranks' inputs, combined.
    fn reduced(&self, i: usize) -> T {
        let n = self.send.len() as u32;
        let values = self.send.iter().map(|input| input[i].widen());
        T::narrow(
            match self.op {
                RedOp::Sum => values.reduce(Wide::plus),
                RedOp::Prod => values.reduce(Wide::times),
                RedOp::Max => values.reduce(Wide::greater),
                RedOp::Min => values.reduce(Wide::lesser),
                RedOp::Avg => return T::narrow(T::average(values, n)),
                RedOp::PreMulSum => {
                    values.zip(self.scalars).map(|(x, s)| x.times(s.widen())).reduce(Wide::plus)
                }
            }
            .expect("a communicator has a rank"),
        )
    }
}

/// Every rank's inputs combined by rank, from left to right, where partial results round to the type at each step: the bits that a
/// deterministic communicator promises. `scalar` is that of a pre-multiplied sum.
///
/// A sum or a product of two elements is rounded from binary64 here. That is the same as rounding it to binary32 and then to a narrower
/// type: 53 and 24 bits are more than twice those of the next type and two.
pub fn by_rank<T: Model<Wide = f64>>(op: RedOp, inputs: &[&[T]], scalar: T) -> Vec<T> {
    let share = T::narrow(1.0 / inputs.len() as f64);
    let factor = match op {
        RedOp::PreMulSum => Some(scalar),
        RedOp::Avg if inputs.len() > 1 => Some(share),
        _ => None,
    };
    let operand = |x: T| factor.map_or(x, |factor| T::narrow(x.widen().times(factor.widen())));
    let step = |a: T, b: T| {
        let (a, b) = (a.widen(), b.widen());
        T::narrow(match op {
            RedOp::Prod => a.times(b),
            RedOp::Max => a.greater(b),
            RedOp::Min => a.lesser(b),
            RedOp::Sum | RedOp::Avg | RedOp::PreMulSum => a.plus(b),
        })
    };
    let at = |i: usize| inputs.iter().map(|input| operand(input[i])).reduce(step);
    (0..inputs[0].len()).map(|i| at(i).expect("a communicator has a rank")).collect()
}

/// Numbers of either sign, between 1 and 2 on even ranks and half of that on odd ones: sums round in every type, and no product of a
/// dozen ranks overflows.
pub fn noise<T: Model<Wide = f64>>(seed: u64, rank: usize, count: usize) -> Vec<T> {
    let scale = if rank.is_multiple_of(2) { 1.0 } else { 0.5 };
    let number = |i: usize| {
        let random = mix(seed ^ mix(rank as u64) ^ (i as u64).wrapping_mul(0x2545_f491_4f6c_dd1d));
        let size = scale * (1.0 + (random >> 12) as f64 / 2f64.powi(52));
        T::narrow(if random & 8 == 0 { size } else { -size })
    };
    (0..count).map(number).collect()
}

/// What rank `rank` holds after an all-to-all-v: its block from each rank is that rank's block for it, and the rest is as it was.
pub fn all_to_all_v<T: Copy>(parts: &[Part<T>], rank: usize) -> Vec<T> {
    let mut output = parts[rank].recv.clone();
    for (from, part) in parts.iter().enumerate() {
        let block = part.sent.block(&part.send, rank);
        output[parts[rank].received.displs[from]..][..block.len()].copy_from_slice(block);
    }
    output
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs(func: Func, op: RedOp, count: usize, send: &[Vec<i32>]) -> Vec<Option<Vec<i32>>> {
        let call = Inputs { func, op, root: 1, count, send, scalars: &[2, 10] };
        (0..send.len()).map(|rank| call.output(rank)).collect()
    }

    #[test]
    fn by_hand() {
        let two = [vec![1, 2], vec![-30, 4]];
        let both = |x: &[i32]| vec![Some(x.to_vec()); 2];
        assert_eq!(inputs(Func::AllReduce, RedOp::Sum, 2, &two), both(&[-29, 6]));
        assert_eq!(inputs(Func::AllReduce, RedOp::Avg, 2, &two), both(&[-14, 3]));
        assert_eq!(inputs(Func::AllReduce, RedOp::PreMulSum, 2, &two), both(&[-298, 44]));
        assert_eq!(inputs(Func::Reduce, RedOp::Prod, 2, &two), [None, Some(vec![-30, 8])]);
        assert_eq!(inputs(Func::ReduceScatter, RedOp::Max, 1, &two), [Some(vec![1]), Some(vec![4])]);
        assert_eq!(inputs(Func::AllGather, RedOp::Sum, 2, &two), both(&[1, 2, -30, 4]));
        assert_eq!(inputs(Func::AllToAll, RedOp::Sum, 1, &two), [Some(vec![1, -30]), Some(vec![2, 4])]);
        assert_eq!(inputs(Func::Broadcast, RedOp::Sum, 2, &two), both(&[-30, 4]));
        assert_eq!(inputs(Func::Scatter, RedOp::Sum, 1, &two), [Some(vec![-30]), Some(vec![4])]);
        assert_eq!(inputs(Func::Gather, RedOp::Sum, 2, &two), [None, Some(vec![1, 2, -30, 4])]);
        assert_eq!(inputs(Func::Send, RedOp::Sum, 2, &two), [Some(vec![-30, 4]), Some(vec![1, 2])]);
    }

    #[test]
    fn integers_wrap() {
        let send = [vec![i32::MAX], vec![1]];
        let call =
            Inputs { func: Func::AllReduce, op: RedOp::Sum, root: 0, count: 1, send: &send, scalars: &[] };
        assert_eq!(call.output(0), Some(vec![i32::MIN]));
    }
}

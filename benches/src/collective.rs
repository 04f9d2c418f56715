//! Layer: perf / collective.
//! Takes: a size in bytes and the number of ranks.
//! Gives: counts, buffer sizes, where the parts of an in-place call lie, and bandwidths, as nccl-tests defines them.
//! Never: touches memory.

use clap::ValueEnum;

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Collective {
    #[value(alias = "all_reduce")]
    AllReduce,
    #[value(alias = "all_gather")]
    AllGather,
    #[value(alias = "reduce_scatter")]
    ReduceScatter,
    Broadcast,
    Reduce,
    /// Each rank sends to the next and receives from the one before.
    #[value(alias = "send_recv", alias = "sendrecv")]
    SendRecv,
    #[value(alias = "all_to_all", alias = "alltoall")]
    AllToAll,
    Gather,
    Scatter,
    Barrier,
}

/// Elements of one call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// The count argument.
    pub count: usize,
    /// Elements of the send buffer.
    pub send: usize,
    /// Elements of the receive buffer.
    pub recv: usize,
}

impl Collective {
    /// The name nccl-tests' programs have, without `_perf`.
    pub fn name(self) -> &'static str {
        match self {
            Collective::AllReduce => "all_reduce",
            Collective::AllGather => "all_gather",
            Collective::ReduceScatter => "reduce_scatter",
            Collective::Broadcast => "broadcast",
            Collective::Reduce => "reduce",
            Collective::SendRecv => "sendrecv",
            Collective::AllToAll => "alltoall",
            Collective::Gather => "gather",
            Collective::Scatter => "scatter",
            Collective::Barrier => "barrier",
        }
    }

    /// Whether elements are combined.
    pub fn reduces(self) -> bool {
        matches!(self, Collective::AllReduce | Collective::ReduceScatter | Collective::Reduce)
    }

    /// Whether one rank is special.
    pub fn rooted(self) -> bool {
        matches!(self, Collective::Broadcast | Collective::Reduce | Collective::Gather | Collective::Scatter)
    }

    /// Whether one buffer can be both.
    pub fn in_place(self) -> bool {
        !matches!(self, Collective::SendRecv | Collective::AllToAll | Collective::Barrier)
    }

    /// The call whose larger buffer has at most `elems` elements.
    pub fn shape(self, elems: usize, ranks: usize) -> Shape {
        let share = elems / ranks;
        match self {
            Collective::AllReduce | Collective::Broadcast | Collective::Reduce | Collective::SendRecv => {
                Shape { count: elems, send: elems, recv: elems }
            }
            Collective::AllGather | Collective::Gather => {
                Shape { count: share, send: share, recv: share * ranks }
            }
            Collective::ReduceScatter | Collective::Scatter => {
                Shape { count: share, send: share * ranks, recv: share }
            }
            Collective::AllToAll => Shape { count: share, send: share * ranks, recv: share * ranks },
            Collective::Barrier => Shape { count: 0, send: 0, recv: 0 },
        }
    }

    /// First elements of the send and the receive part within the one buffer of an in-place call.
    pub fn in_place_offsets(self, shape: Shape, rank: usize) -> (usize, usize) {
        match self {
            Collective::AllGather | Collective::Gather => (rank * shape.count, 0),
            Collective::ReduceScatter | Collective::Scatter => (0, rank * shape.count),
            _ => (0, 0),
        }
    }

    /// Bus bandwidth over algorithm bandwidth (nccl-tests, doc/PERFORMANCE.md).
    pub fn bus_factor(self, ranks: usize) -> f64 {
        let n = ranks as f64;
        match self {
            Collective::AllReduce => 2.0 * (n - 1.0) / n,
            Collective::AllGather
            | Collective::ReduceScatter
            | Collective::AllToAll
            | Collective::Gather
            | Collective::Scatter => (n - 1.0) / n,
            Collective::Broadcast | Collective::Reduce | Collective::SendRecv | Collective::Barrier => 1.0,
        }
    }
}

impl Shape {
    /// Elements of the larger buffer: what the size column counts.
    pub fn larger(&self) -> usize {
        self.send.max(self.recv)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_divide_the_larger_buffer() {
        let shape = Collective::AllGather.shape(10, 4);
        assert_eq!(shape, Shape { count: 2, send: 2, recv: 8 });
        assert_eq!(Collective::AllGather.in_place_offsets(shape, 3), (6, 0));
        let shape = Collective::ReduceScatter.shape(10, 4);
        assert_eq!(shape, Shape { count: 2, send: 8, recv: 2 });
        assert_eq!(Collective::ReduceScatter.in_place_offsets(shape, 3), (0, 6));
        assert_eq!(Collective::AllReduce.shape(10, 4).count, 10);
    }

    #[test]
    fn bus_factors_of_the_published_table() {
        for (collective, factor) in [
            (Collective::AllReduce, 1.5),
            (Collective::AllGather, 0.75),
            (Collective::ReduceScatter, 0.75),
            (Collective::AllToAll, 0.75),
            (Collective::Broadcast, 1.0),
            (Collective::Reduce, 1.0),
        ] {
            assert_eq!(collective.bus_factor(4), factor, "{collective:?}");
        }
    }
}

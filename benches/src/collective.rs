//! Layer: perf / collective.
//! Takes: a size in bytes and the number of ranks.
//! Gives: counts, buffer sizes, where the parts of an in-place call lie, and bandwidths, as nccl-tests defines them.
//! Never: touches memory.

use clap::ValueEnum;
use std::ops::Range;

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
    /// The block for the rank d places on is 1 + d units long.
    #[value(alias = "all_to_all_v", alias = "alltoallv")]
    AllToAllV,
    /// The block of rank r is 1 + r units long.
    #[value(alias = "all_gather_v", alias = "allgatherv")]
    AllGatherV,
    /// As all-gather-v.
    #[value(alias = "reduce_scatter_v", alias = "reducescatterv")]
    ReduceScatterV,
    Gather,
    Scatter,
    Barrier,
}

/// One half of a message: what a rank sends to `peer` or receives from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transfer {
    /// Whether it is sent.
    pub is_send: bool,
    /// The other rank.
    pub peer: u32,
    /// Its first element in the rank's buffer.
    pub first: usize,
    /// Its elements.
    pub count: usize,
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
            Collective::AllToAllV => "alltoallv",
            Collective::AllGatherV => "all_gather_v",
            Collective::ReduceScatterV => "reduce_scatter_v",
            Collective::Gather => "gather",
            Collective::Scatter => "scatter",
            Collective::Barrier => "barrier",
        }
    }

    /// Whether elements are combined.
    pub fn reduces(self) -> bool {
        let reducing = [Collective::AllReduce, Collective::ReduceScatter, Collective::ReduceScatterV];
        reducing.contains(&self) || self == Collective::Reduce
    }

    /// Whether one rank is special.
    pub fn rooted(self) -> bool {
        matches!(self, Collective::Broadcast | Collective::Reduce | Collective::Gather | Collective::Scatter)
    }

    /// Whether one buffer can be both.
    pub fn in_place(self) -> bool {
        let two = [Collective::SendRecv, Collective::AllToAll, Collective::AllToAllV, Collective::Barrier];
        let uneven = [Collective::AllGatherV, Collective::ReduceScatterV];
        !two.contains(&self) && !uneven.contains(&self)
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
            Collective::AllToAllV => {
                let units = ranks * (ranks + 1) / 2;
                let count = elems / units;
                Shape { count, send: count * units, recv: count * units }
            }
            Collective::AllGatherV | Collective::ReduceScatterV => {
                let units = ranks * (ranks + 1) / 2;
                let count = elems / units;
                // Of the block's buffer the last rank uses all.
                let (all, block) = (count * units, count * ranks);
                let (send, recv) = if self.reduces() { (all, block) } else { (block, all) };
                Shape { count, send, recv }
            }
            Collective::Barrier => Shape { count: 0, send: 0, recv: 0 },
        }
    }

    /// The messages of one rank in a send/receive: to the next one, from the one before.
    pub fn send_recv(count: usize, rank: u32, ranks: u32) -> [Transfer; 2] {
        let (next, previous) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
        let send = Transfer { is_send: true, peer: next, first: 0, count };
        [send, Transfer { is_send: false, peer: previous, ..send }]
    }

    /// The messages of one rank, in order, as nccl-tests makes these collectives of them: at most one each way for each pair. None
    /// for the others.
    pub fn transfers(self, count: usize, rank: u32, ranks: u32, root: u32) -> Vec<Transfer> {
        let send = |peer, block: u32| Transfer { is_send: true, peer, first: block as usize * count, count };
        let recv = |peer, block| Transfer { is_send: false, ..send(peer, block) };
        let from_all = || (0..ranks).map(|peer| recv(peer, peer));
        let to_all = || (0..ranks).map(|peer| send(peer, peer));
        match self {
            Collective::SendRecv => Collective::send_recv(count, rank, ranks).to_vec(),
            Collective::AllToAll => to_all().zip(from_all()).flat_map(|(s, r)| [s, r]).collect(),
            Collective::AllToAllV => {
                let uneven = |is_send| {
                    let mut first = 0;
                    let message = move |peer: u32| {
                        let places = if is_send { peer + ranks - rank } else { rank + ranks - peer } % ranks;
                        let count = (1 + places as usize) * count;
                        first += count;
                        Transfer { is_send, peer, first: first - count, count }
                    };
                    (0..ranks).map(message)
                };
                uneven(true).zip(uneven(false)).flat_map(|(s, r)| [s, r]).collect()
            }
            Collective::AllGatherV => {
                let own = Collective::uneven_block(count, rank).len();
                let sends = (0..ranks).map(|peer| Transfer { is_send: true, peer, first: 0, count: own });
                let recvs = (0..ranks).map(|peer| {
                    let block = Collective::uneven_block(count, peer);
                    Transfer { is_send: false, peer, first: block.start, count: block.len() }
                });
                sends.zip(recvs).flat_map(|(s, r)| [s, r]).collect()
            }
            Collective::Gather if rank == root => std::iter::once(send(root, 0)).chain(from_all()).collect(),
            Collective::Gather => vec![send(root, 0)],
            Collective::Scatter if rank == root => to_all().chain([recv(root, 0)]).collect(),
            Collective::Scatter => vec![recv(root, 0)],
            _ => Vec::new(),
        }
    }

    /// The block of a rank in an all-gather-v or a reduce-scatter-v.
    pub fn uneven_block(count: usize, rank: u32) -> Range<usize> {
        let rank = rank as usize;
        let first = count * (rank * (rank + 1) / 2);
        first..first + count * (rank + 1)
    }

    /// Counts and displacements by rank of what `rank` sends, or receives, in a collective that is made of messages to and from
    /// every rank.
    pub fn blocks(self, count: usize, rank: u32, ranks: u32, is_send: bool) -> (Vec<usize>, Vec<usize>) {
        let messages = self.transfers(count, rank, ranks, 0).into_iter();
        let blocks = messages.filter(|message| message.is_send == is_send);
        blocks.map(|Transfer { count, first, .. }| (count, first)).unzip()
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
            // Of uneven blocks, the mean over the ranks.
            | Collective::AllGatherV
            | Collective::ReduceScatterV
            | Collective::Scatter => (n - 1.0) / n,
            // A rank's own block is one of the units.
            Collective::AllToAllV => 1.0 - 2.0 / (n * (n + 1.0)),
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

    /// Every send meets a receive of its length, one for each pair: what NCCL needs not to hang.
    #[test]
    fn every_send_has_its_receive() {
        for collective in Collective::value_variants() {
            for ranks in 1..6 {
                for root in 0..ranks {
                    let (mut sends, mut recvs) = (Vec::new(), Vec::new());
                    for rank in 0..ranks {
                        for Transfer { is_send, peer, count, .. } in
                            collective.transfers(3, rank, ranks, root)
                        {
                            match is_send {
                                true => sends.push((rank, peer, count)),
                                false => recvs.push((peer, rank, count)),
                            }
                        }
                    }
                    sends.sort_unstable();
                    recvs.sort_unstable();
                    assert_eq!(sends, recvs, "{collective:?} {ranks} {root}");
                    let pairs = |a: &(u32, u32, usize), b: &(u32, u32, usize)| (a.0, a.1) < (b.0, b.1);
                    assert!(sends.is_sorted_by(pairs), "{collective:?} {ranks} {root}");
                }
            }
        }
    }

    #[test]
    fn messages_of_the_rooted_collectives() {
        let send = |peer, first| Transfer { is_send: true, peer, first, count: 5 };
        let recv = |peer, first| Transfer { is_send: false, peer, first, count: 5 };
        let scatter = Collective::Scatter.transfers(5, 1, 2, 1);
        assert_eq!(scatter, [send(0, 0), send(1, 5), recv(1, 0)]);
        assert_eq!(Collective::Gather.transfers(5, 0, 2, 1), [send(1, 0)]);
        assert!(Collective::AllReduce.transfers(5, 0, 2, 1).is_empty());
    }

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
    fn blocks_of_every_rank_lie_behind_each_other() {
        let blocks: Vec<_> = (0..3).map(|rank| Collective::uneven_block(5, rank)).collect();
        assert_eq!(blocks, [0..5, 5..15, 15..30]);
        assert_eq!(Collective::AllGatherV.shape(32, 3), Shape { count: 5, send: 15, recv: 30 });
        assert_eq!(Collective::ReduceScatterV.shape(32, 3), Shape { count: 5, send: 30, recv: 15 });
    }

    /// Rank 1 of 3 sends 3, 1 and 2 units to the ranks 0, 1 and 2, and receives 2, 1 and 3.
    #[test]
    fn uneven_blocks_are_packed() {
        let of = Collective::AllToAllV;
        assert_eq!(of.shape(49, 3), Shape { count: 8, send: 48, recv: 48 });
        assert_eq!(of.blocks(8, 1, 3, true), (vec![24, 8, 16], vec![0, 24, 32]));
        assert_eq!(of.blocks(8, 1, 3, false), (vec![16, 8, 24], vec![0, 16, 24]));
    }

    #[test]
    fn bus_factors_of_the_published_table() {
        for (collective, factor) in [
            (Collective::AllReduce, 1.5),
            (Collective::AllGather, 0.75),
            (Collective::ReduceScatter, 0.75),
            (Collective::AllToAll, 0.75),
            (Collective::AllToAllV, 0.9),
            (Collective::Broadcast, 1.0),
            (Collective::Reduce, 1.0),
        ] {
            assert_eq!(collective.bus_factor(4), factor, "{collective:?}");
        }
    }
}

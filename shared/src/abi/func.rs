//! What follows from a function's name: its buffers, whom it names, whether it reduces. Written here and nowhere else.

use super::types::Func;

/// How long a buffer is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Extent {
    /// It is not used.
    Unused,
    /// The call's count.
    Count,
    /// The call's count for each rank.
    CountPerRank,
}

impl Extent {
    /// In elements; `None` if there are too many to count.
    pub const fn elems(self, count: usize, nranks: u32) -> Option<usize> {
        match self {
            Extent::Unused => Some(0),
            Extent::Count => Some(count),
            Extent::CountPerRank => count.checked_mul(nranks as usize),
        }
    }

    const fn only_if(self, is_used: bool) -> Extent {
        if is_used { self } else { Extent::Unused }
    }
}

/// The buffers that one rank gives to a call.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Buffers {
    /// The input.
    pub send: Extent,
    /// The output.
    pub recv: Extent,
}

impl Buffers {
    /// Whether one of them has a block for each rank, and the other is such a block.
    pub const fn has_own_block(&self) -> bool {
        matches!(
            (self.send, self.recv),
            (Extent::Count, Extent::CountPerRank) | (Extent::CountPerRank, Extent::Count)
        )
    }
}

impl Func {
    /// The buffers of the root, or of a rank that is not the root. Without a root all ranks are alike.
    pub const fn buffers(self, is_root: bool) -> Buffers {
        use Extent::{Count, CountPerRank, Unused};
        let (send, recv) = match self {
            Func::AllReduce => (Count, Count),
            Func::AllGather => (Count, CountPerRank),
            Func::ReduceScatter => (CountPerRank, Count),
            Func::AllToAll => (CountPerRank, CountPerRank),
            Func::Broadcast => (Count.only_if(is_root), Count),
            Func::Reduce => (Count, Count.only_if(is_root)),
            Func::Scatter => (CountPerRank.only_if(is_root), Count),
            Func::Gather => (Count, CountPerRank.only_if(is_root)),
            Func::Send => (Count, Unused),
            Func::Recv => (Unused, Count),
            Func::Barrier => (Unused, Unused),
        };
        Buffers { send, recv }
    }

    /// Whether it has an operator. The others only move elements, of whatever type.
    pub const fn is_reduction(self) -> bool {
        matches!(self, Func::AllReduce | Func::ReduceScatter | Func::Reduce)
    }

    /// Whether one rank is its root.
    pub const fn is_rooted(self) -> bool {
        matches!(self, Func::Broadcast | Func::Reduce | Func::Scatter | Func::Gather)
    }

    /// Whether it is one message: two ranks call it, and no others.
    pub const fn is_message(self) -> bool {
        matches!(self, Func::Send | Func::Recv)
    }

    /// One end of a message.
    pub const fn of_message(is_send: bool) -> Func {
        if is_send { Func::Send } else { Func::Recv }
    }

    /// Whether a call names another rank: its root or its peer.
    pub const fn names_a_rank(self) -> bool {
        self.is_rooted() || self.is_message()
    }

    /// Whether it is messages between pairs of ranks, as long as it has no kernel of its own.
    pub const fn is_pairwise(self) -> bool {
        self.is_message() || matches!(self, Func::AllToAll | Func::Scatter | Func::Gather)
    }

    /// Whether some rank gives it a buffer; if not, it only waits for all ranks.
    pub const fn has_buffers(self) -> bool {
        let Buffers { send, recv } = self.buffers(true);
        !matches!((send, recv), (Extent::Unused, Extent::Unused))
    }

    /// Whether the longer buffer has a block for each rank.
    pub const fn has_blocks(self) -> bool {
        let Buffers { send, recv } = self.buffers(true);
        matches!(send, Extent::CountPerRank) || matches!(recv, Extent::CountPerRank)
    }

    /// Whether the output may be the input, or its block of it.
    pub const fn may_be_in_place(self) -> bool {
        let Buffers { send, recv } = self.buffers(true);
        !matches!((send, recv), (Extent::CountPerRank, Extent::CountPerRank))
    }

    /// How often the data goes round: an all-reduce is a reduce-scatter and an all-gather.
    pub const fn rounds(self) -> u32 {
        if self.is_reduction() && !self.is_rooted() && !self.has_blocks() { 2 } else { 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_agree_with_each_other() {
        for func in Func::ALL {
            let (root, other) = (func.buffers(true), func.buffers(false));
            assert_eq!(root != other, func.is_rooted(), "{func}");
            assert!(!func.is_reduction() || func.may_be_in_place(), "{func}");
            assert!(!func.is_message() || func.is_pairwise(), "{func}");
            assert_eq!(root.has_own_block(), func.has_blocks() && func.may_be_in_place(), "{func}");
        }
        let all = |has: fn(Func) -> bool| Func::ALL.iter().copied().filter(|func| has(*func)).count();
        assert_eq!((all(Func::is_reduction), all(Func::is_rooted), all(Func::is_pairwise)), (3, 4, 5));
        assert_eq!(
            (all(Func::has_buffers), all(Func::has_blocks), all(|func| func.rounds() == 2)),
            (10, 5, 1)
        );
    }

    #[test]
    fn lengths_are_counted_without_overflow() {
        assert_eq!(Extent::CountPerRank.elems(3, 4), Some(12));
        assert_eq!(Extent::CountPerRank.elems(usize::MAX, 2), None);
        assert_eq!((Extent::Count.elems(3, 4), Extent::Unused.elems(3, 4)), (Some(3), Some(0)));
    }
}

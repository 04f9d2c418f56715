//! A call in plain numbers, and its digest, by which ranks detect different calls.

use core::fmt;
use oxccl_shared::abi::{DataType, Extent, Func, Rank, RedOp};
use serde::{Deserialize, Serialize};

/// One collective call, without its buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Call {
    /// The function.
    pub func: Func,
    /// Element type.
    pub dtype: DataType,
    /// Operator; `Sum` where the function has none.
    pub op: RedOp,
    /// Root rank; 0 if the function has none. For send and receive the peer.
    pub root: Rank,
    /// Elements, counted as NCCL counts them for this function.
    pub count: u64,
}

/// A call and its place in the communicator's history: what an error message says a rank was doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CallRecord {
    /// Collectives started before this one.
    pub seq: u64,
    /// The call.
    pub call: Call,
}

impl Call {
    /// The least that ends when all ranks have called it.
    pub const ONE_BYTE: Call =
        Call { func: Func::AllReduce, dtype: DataType::U8, op: RedOp::Sum, root: Rank(0), count: 1 };

    /// Bytes of one rank's block: `count` elements.
    pub fn bytes(&self) -> u64 {
        self.count.saturating_mul(self.dtype.size_bytes() as u64)
    }

    /// Bytes of the longer buffer of a rank among so many: what sizes are counted in by the model, tables and `oxccl perf`.
    pub fn buffer_bytes(&self, nranks: u32) -> u64 {
        let blocks = if self.func.has_blocks() { nranks } else { 1 };
        self.bytes().saturating_mul(u64::from(blocks))
    }

    /// Bytes of a buffer of that extent among so many ranks.
    pub fn extent_bytes(&self, extent: Extent, nranks: u32) -> u64 {
        match extent {
            Extent::Unused => 0,
            Extent::Count => self.bytes(),
            Extent::CountPerRank => self.bytes().saturating_mul(u64::from(nranks)),
        }
    }

    /// All but the count in one word, for ledgers and digests.
    pub fn to_word(self) -> u64 {
        u64::from(self.func as u8)
            | u64::from(self.dtype as u8) << 8
            | u64::from(self.op as u8) << 16
            | u64::from(self.root.0) << 32
    }

    /// The inverse of [`Self::to_word`]; `None` for an invalid word.
    pub fn from_words(word: u64, count: u64) -> Option<Call> {
        Some(Call {
            func: Func::try_from(word as u32 & 0xff).ok()?,
            dtype: DataType::try_from((word >> 8) as u32 & 0xff).ok()?,
            op: RedOp::try_from((word >> 16) as u32 & 0xff).ok()?,
            root: Rank((word >> 32) as u32),
            count,
        })
    }
}

impl CallRecord {
    /// Digest of call and number. Two different calls have the same by chance once in 2^32.
    #[inline]
    pub fn tag(&self) -> u32 {
        // Multiply and fold: every input bit reaches the upper half, which is what is kept.
        let mix = |h: u64, x: u64| (h ^ x).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        let digest = mix(mix(mix(0x243f_6a88_85a3_08d3, self.seq), self.call.to_word()), self.call.count);
        (digest >> 32) as u32 ^ digest as u32
    }
}

impl fmt::Display for CallRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Call { func, dtype, op, root, count } = self.call;
        match func {
            _ if !func.has_buffers() => write!(f, "{func} (operation {})", self.seq),
            Func::Send => write!(f, "send of {count} {dtype} to rank {root}"),
            Func::Recv => write!(f, "receive of {count} {dtype} from rank {root}"),
            _ => {
                write!(f, "{func} of {count} {dtype}")?;
                if func.is_reduction() {
                    write!(f, ", {op}")?;
                }
                if func.is_rooted() {
                    write!(f, ", root {root}")?;
                }
                write!(f, " (operation {})", self.seq)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: Call =
        Call { func: Func::Reduce, dtype: DataType::BF16, op: RedOp::Max, root: Rank(5), count: 1 << 40 };

    #[test]
    fn words_round_trip() {
        assert_eq!(Call::from_words(CALL.to_word(), CALL.count), Some(CALL));
        assert_eq!(Call::from_words(0xff, 0), None);
    }

    #[test]
    fn every_field_changes_the_tag() {
        let tag = |call, seq| CallRecord { seq, call }.tag();
        let base = tag(CALL, 9);
        assert_ne!(base, tag(CALL, 10));
        for other in [
            Call { func: Func::Broadcast, ..CALL },
            Call { dtype: DataType::F16, ..CALL },
            Call { op: RedOp::Min, ..CALL },
            Call { root: Rank(4), ..CALL },
            Call { count: CALL.count + 1, ..CALL },
        ] {
            assert_ne!(base, tag(other, 9), "{other:?}");
        }
    }
}

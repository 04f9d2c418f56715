//! What ranks tell each other outside of operations.

use crate::plan::CallRecord;
use std::time::Duration;

/// One thing that a rank tells all others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Told {
    /// It is, or was, in this collective: whoever was in another at this point should say so.
    Call(CallRecord),
    /// It has been waiting for this rank for a while, or not any more.
    WaitsFor(Option<u32>),
    /// It gives up because this rank has done nothing for so long.
    TimedOut {
        /// The guilty one.
        rank: u32,
        /// How long it waited, to the millisecond.
        waited: Duration,
    },
}

/// The longest message: a call.
pub const TOLD_BYTES_MAX: usize = 25;

impl Told {
    /// For the wire: a tag and its content.
    pub fn to_bytes(&self) -> heapless::Vec<u8, TOLD_BYTES_MAX> {
        let mut bytes = heapless::Vec::new();
        let mut put = |part: &[u8]| bytes.extend_from_slice(part).expect("no message is longer than a call");
        match self {
            Told::Call(record) => {
                put(&[0]);
                put(&record.to_bytes());
            }
            Told::WaitsFor(None) => put(&[1]),
            Told::WaitsFor(Some(rank)) => {
                put(&[2]);
                put(&rank.to_le_bytes());
            }
            Told::TimedOut { rank, waited } => {
                put(&[3]);
                put(&rank.to_le_bytes());
                put(&u64::try_from(waited.as_millis()).unwrap_or(u64::MAX).to_le_bytes());
            }
        }
        bytes
    }

    /// The reverse of [`Self::to_bytes`]; nothing for bytes that it never gives.
    pub fn from_bytes(bytes: &[u8]) -> Option<Told> {
        let (tag, rest) = bytes.split_first()?;
        match tag {
            0 => CallRecord::from_bytes(rest).map(Told::Call),
            1 => rest.is_empty().then_some(Told::WaitsFor(None)),
            2 => rest.try_into().ok().map(|rank| Told::WaitsFor(Some(u32::from_le_bytes(rank)))),
            3 => {
                let (rank, waited_ms) = rest.split_first_chunk()?;
                let waited = Duration::from_millis(u64::from_le_bytes(waited_ms.try_into().ok()?));
                Some(Told::TimedOut { rank: u32::from_le_bytes(*rank), waited })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Call;
    use oxccl_shared::abi::{DataType, Func, RedOp};
    use proptest::prelude::*;

    #[test]
    fn what_is_told_arrives() {
        let call =
            Call { func: Func::Reduce, dtype: DataType::BF16, op: RedOp::Max, root: 5, count: 1 << 40 };
        for told in [
            Told::Call(CallRecord { seq: 7, call }),
            Told::WaitsFor(None),
            Told::WaitsFor(Some(3)),
            Told::TimedOut { rank: 9, waited: Duration::from_millis(600_000) },
        ] {
            assert_eq!(Told::from_bytes(&told.to_bytes()), Some(told));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Some(told) = Told::from_bytes(&bytes) {
                let again = told.to_bytes();
                prop_assert_eq!(again.as_slice(), bytes.as_slice());
            }
        }
    }
}

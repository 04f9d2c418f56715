//! What ranks tell each other of their calls when they finalize.

use super::health::{Health, LEDGER_RECORDS};
use crate::plan::CallRecord;
use crate::wire::Message;
use serde::{Deserialize, Serialize};

/// A rank's collectives.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CallsMade {
    /// How many.
    pub count: u64,
    /// Of all of them, in order.
    pub digest: u32,
}

impl Message for CallsMade {
    const VERSION: u8 = 1;
    const BYTES_MAX: usize = 16;
}

/// A rank's latest collectives, oldest first.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LatestCalls(pub heapless::Vec<CallRecord, LEDGER_RECORDS>);

impl Message for LatestCalls {
    const VERSION: u8 = 1;
    const BYTES_MAX: usize = 2 + LEDGER_RECORDS * 32;
}

impl LatestCalls {
    /// Those that the ledger still has.
    pub fn of(health: &Health) -> LatestCalls {
        LatestCalls(health.latest().iter().flat_map(|latest| health.remembered(latest.seq)).collect())
    }

    /// The collective of that number.
    pub fn get(&self, seq: u64) -> Option<CallRecord> {
        self.0.iter().find(|record| record.seq == seq).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Call;
    use oxccl_shared::abi::{DataType, Func, Rank, RedOp};

    #[test]
    fn a_full_ledger_fits_its_message() {
        let longest = Call {
            func: Func::Reduce,
            dtype: DataType::F32,
            op: RedOp::Sum,
            root: Rank(u32::MAX),
            count: u64::MAX,
        };
        let records = [CallRecord { seq: u64::MAX, call: longest }; LEDGER_RECORDS];
        let latest = LatestCalls(records.into_iter().collect());
        assert_eq!(LatestCalls::from_bytes(&latest.to_bytes()), Ok(latest));
        let calls = CallsMade { count: u64::MAX, digest: u32::MAX };
        assert_eq!(CallsMade::from_bytes(&calls.to_bytes()), Ok(calls));
    }
}

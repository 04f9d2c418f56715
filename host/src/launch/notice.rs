//! Control messages between ranks, outside of operations.

use super::finalized::LastPart;
use super::stall::{StallNotice, Standing};
use crate::plan::CallRecord;
use crate::wire::Message;
use oxccl_shared::abi::Rank;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// One thing that a rank tells all others.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Notice {
    /// The sender's collective: a rank that was in another one at this point answers with its own.
    Call(CallRecord),
    /// The rank for which the sender has been waiting for a while, or none any more.
    WaitsFor(Option<Rank>),
    /// The sender gives up because this rank has made no progress.
    TimedOut {
        /// The rank at fault.
        rank: Rank,
        /// How long it had for its part.
        limit: Duration,
    },
    /// About an operation without progress.
    Stall(StallNotice),
    /// The sender has been asked what the ranks do: everybody answers with this number.
    Inquiry(u64),
    /// What the sender does, for the inquiry of this number.
    Said(u64, Standing),
    /// The sender's collective of this number makes no progress: ranks that finalized before it say so.
    StandsIn(u64),
    /// The sender has finalized, and has done this with a rank that waits for it.
    Finalized {
        /// The rank that waits.
        to: Rank,
        /// What the sender has done.
        part: LastPart,
    },
    /// The sender leaves after so many collectives.
    Leaves(u64),
    /// The sender gives up because this rank has finalized without its part.
    Missed {
        /// The rank at fault.
        rank: Rank,
        /// The collectives that it made.
        collectives: u64,
        /// The sender's operation.
        during: Option<CallRecord>,
    },
    /// The sender's message does not fit the other half: that one's rank answers with it. `nth` messages from the one to the other came before.
    Message {
        /// How many there were before it.
        nth: u64,
        /// The sender's half.
        half: CallRecord,
    },
}

impl Message for Notice {
    const VERSION: u8 = 11;
    const BYTES_MAX: usize = 328;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::mark::Mark;
    use crate::launch::stall::{
        CommCall, CommCallNow, CommCalls, Elsewhere, Idle, KernelAt, Kernels, LinkUse, Stall, StallClass,
    };
    use crate::plan::Call;
    use oxccl_shared::abi::{DataType, Func, RedOp};
    use proptest::prelude::*;

    #[test]
    fn what_is_told_arrives() {
        let call =
            Call { func: Func::Reduce, dtype: DataType::BF16, op: RedOp::Max, root: Rank(5), count: 1 << 40 };
        for told in [
            Notice::Call(CallRecord { seq: 7, call }),
            Notice::Call(CallRecord {
                seq: u64::MAX,
                call: Call { root: Rank(u32::MAX), count: u64::MAX, ..call },
            }),
            Notice::WaitsFor(None),
            Notice::WaitsFor(Some(Rank(3))),
            Notice::TimedOut { rank: Rank(u32::MAX), limit: Duration::MAX },
            Notice::TimedOut { rank: Rank(9), limit: Duration::from_millis(600_000) },
            Notice::Stall(StallNotice::Over),
            Notice::Stall(StallNotice::Ask(longest_standing())),
            Notice::Stall(StallNotice::Found(longest_stall())),
            Notice::Inquiry(u64::MAX),
            Notice::Said(u64::MAX, longest_standing()),
            Notice::StandsIn(u64::MAX),
            Notice::Leaves(u64::MAX),
            Notice::Finalized { to: Rank(3), part: LastPart::of_all(9) },
            Notice::Finalized {
                to: Rank(u32::MAX),
                part: LastPart { messages: Some([u64::MAX; 2]), ..LastPart::of_all(u64::MAX) },
            },
            Notice::Missed { rank: Rank(3), collectives: 9, during: Some(CallRecord { seq: 9, call }) },
            Notice::Missed { rank: Rank(u32::MAX), collectives: u64::MAX, during: None },
            Notice::Message { nth: u64::MAX, half: CallRecord { seq: u64::MAX, call } },
        ] {
            assert_eq!(Notice::from_bytes(&told.to_bytes()), Ok(told));
        }
    }

    const LONGEST_AT: KernelAt =
        KernelAt { peer: Rank(u32::MAX), is_credit: true, step: u64::MAX, block: u32::MAX, launch: u64::MAX };

    const LONGEST_MARK: Mark = Mark { tag: u64::MAX, stream: u64::MAX };

    const LONGEST_LINK: LinkUse = LinkUse {
        peer: Rank(u32::MAX),
        busy: 100,
        bytes: u64::MAX,
        delivery_kbps: u32::MAX,
        time_ms: u32::MAX,
        retransmits: u32::MAX,
    };

    fn longest_stall() -> Stall {
        let Standing { latest, during, moved, .. } = longest_standing();
        Stall {
            class: StallClass::Slow,
            rank: Rank(u32::MAX),
            waiter: Rank(u32::MAX),
            during: during.expect("a call"),
            mark: LONGEST_MARK,
            waited: Duration::MAX,
            lasted: Duration::MAX,
            latest,
            is_in: during,
            in_comm_call: Some(CommCall::Register),
            elsewhere: longest_standing().elsewhere,
            moved,
            link: Some(LONGEST_LINK),
            waits_at: Some(LONGEST_AT),
            stands_at: Some(LONGEST_AT),
            silent: u32::MAX,
        }
    }

    fn longest_standing() -> Standing {
        let call = Call {
            func: Func::Reduce,
            dtype: DataType::BF16,
            op: RedOp::Max,
            root: Rank(u32::MAX),
            count: u64::MAX,
        };
        let record = Some(CallRecord { seq: u64::MAX, call });
        Standing {
            begun: u64::MAX,
            done: u64::MAX,
            latest: record,
            during: record,
            mark: LONGEST_MARK,
            waits_for: Some(Rank(u32::MAX)),
            is_for_network: true,
            waited_ms: u64::MAX,
            moved: Some([u64::MAX; 2]),
            with_peer: Some([u64::MAX; 2]),
            lasted_ms: u64::MAX,
            idle: Some(Idle { peer: Rank(u32::MAX), for_peer: 100, for_all: 100 }),
            links: Some([Some(LONGEST_LINK); 2]),
            kernels: Some(Kernels { waits: Some(LONGEST_AT), has_graphs: true }),
            comm_calls: CommCalls {
                now: [Some(CommCallNow { call: CommCall::Register, lasted_ms: u32::MAX, is_reported: true });
                    2],
                of_all: u32::MAX,
                shrinks: u32::MAX,
            },
            elsewhere: Some(Elsewhere { func: Func::Reduce, waits_for: Rank(u32::MAX) }),
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(told) = Notice::from_bytes(&bytes) {
                prop_assert_eq!(told.to_bytes(), bytes);
            }
        }
    }
}

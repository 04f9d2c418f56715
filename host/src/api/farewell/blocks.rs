//! What ranks say to each other when they meet at the end.

use crate::bootstrap::BootstrapError;
use crate::launch::Fault;
use crate::plan::CallRecord;
use crate::wire::Message;
use oxccl_shared::abi::Rank;

/// A fault, and a call that it is about.
pub(super) type Difference = (Fault, Option<CallRecord>);

/// Reads what each rank has said.
pub(super) fn read_all<T: Message>(blocks: &[Vec<u8>]) -> Result<Vec<T>, BootstrapError> {
    let read = |(rank, block): (Rank, &Vec<u8>)| {
        T::from_bytes(block)
            .map_err(|_| BootstrapError::Protocol { rank, what: "what it says at finalize cannot be read" })
    };
    (0..).map(Rank).zip(blocks).map(read).collect()
}

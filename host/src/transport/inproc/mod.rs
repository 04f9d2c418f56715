//! Layer: host / transport / inproc.
//! Takes: two ranks on threads of one process.
//! Gives: the consumer's inbox, which the producer finds in the process's table.
//! Never: maps anything.

use crate::mem::{self, MemError, Segment};
use crate::transport::contract::{InboxName, Memory, Transport, TransportError, sealed::Sealed};
use crate::transport::kind::{Allowed, TransportKind};
use crate::transport::peer::PeerInfo;
use std::sync::Arc;

/// Memory of one process.
pub struct InProcess;

impl Sealed for InProcess {}

impl Transport for InProcess {
    fn kind(&self) -> TransportKind {
        TransportKind::InProcess
    }

    fn connects(&self, allowed: &Allowed, a: &PeerInfo, b: &PeerInfo) -> bool {
        allowed.in_process && a.process == b.process && a.host == b.host
    }

    fn memory(&self) -> Memory {
        Memory::Process
    }

    fn show(&self, inbox: InboxName, segment: &Arc<Segment>) -> Result<(), MemError> {
        mem::publish((inbox.comm_hash, inbox.rank), segment)
    }

    fn open(&self, inbox: InboxName, len_bytes: usize) -> Result<Option<Arc<Segment>>, TransportError> {
        let InboxName { comm_hash, rank: peer, .. } = inbox;
        let segment = mem::lookup((comm_hash, peer)).ok_or(TransportError::Gone { peer })?;
        // What is found there has been shown by this rank's own code or another's: nothing else has looked at its length.
        match segment.len() {
            found_bytes if found_bytes < len_bytes => {
                Err(TransportError::Length { peer, expected_bytes: len_bytes, found_bytes })
            }
            _ => Ok(Some(segment)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxccl_shared::abi::Rank;

    /// Kernels would write behind its end.
    #[test]
    fn an_inbox_that_is_too_short_is_refused() {
        let inbox = InboxName { comm_hash: 0x7e57_0002, rank: Rank(3), told: 0 };
        let gone = InProcess.open(inbox, 4096);
        assert!(matches!(gone, Err(TransportError::Gone { peer: Rank(3) })), "{gone:?}");
        let segment = Arc::new(Segment::private(4096).unwrap());
        InProcess.show(inbox, &segment).unwrap();
        assert!(matches!(InProcess.open(inbox, 4096), Ok(Some(_))));
        let short = InProcess.open(inbox, 8192);
        let expected = TransportError::Length { peer: Rank(3), expected_bytes: 8192, found_bytes: 4096 };
        assert_eq!(short.map(drop), Err(expected));
    }
}

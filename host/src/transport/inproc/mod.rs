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
        mem::publish(inbox, segment)
    }

    fn open(&self, inbox: InboxName, _len_bytes: usize) -> Result<Option<Arc<Segment>>, TransportError> {
        let (_, peer) = inbox;
        mem::lookup(inbox).map(Some).ok_or(TransportError::Gone { peer })
    }
}

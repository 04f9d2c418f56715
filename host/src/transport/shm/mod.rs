//! Layer: host / transport / shm.
//! Takes: two ranks of one host.
//! Gives: the consumer's inbox, a file in /dev/shm that both map.
//! Never: leaves a file (`mem`).

use crate::mem::Segment;
use crate::transport::contract::{InboxName, Memory, Transport, TransportError, sealed::Sealed};
use crate::transport::kind::{Allowed, TransportKind};
use crate::transport::peer::PeerInfo;
use std::sync::Arc;

/// Shared memory files.
pub struct Shm;

impl Sealed for Shm {}

impl Transport for Shm {
    fn kind(&self) -> TransportKind {
        TransportKind::Shm
    }

    fn connects(&self, allowed: &Allowed, a: &PeerInfo, b: &PeerInfo) -> bool {
        allowed.shm && a.host == b.host
    }

    fn memory(&self) -> Memory {
        Memory::File
    }

    fn open(&self, inbox: InboxName, len_bytes: usize) -> Result<Option<Arc<Segment>>, TransportError> {
        Ok(Some(Arc::new(Segment::shm_open(&inbox.file(), len_bytes)?)))
    }
}

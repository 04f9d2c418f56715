//! All links of a communicator, in the groups in which operations use them.

use crate::net::stream::{LinkError, StreamRecv, StreamSend};
use oxccl_shared::abi::{Protocol, Rank};

/// The streams of one channel (or of the mesh).
#[derive(Default)]
pub struct LinkGroup {
    /// To consumers on other hosts.
    pub send: Vec<StreamSend<'static>>,
    /// From producers on other hosts.
    pub recv: Vec<StreamRecv<'static>>,
}

/// The streams of a communicator. Only those of the operation under way are looked at: each look is a system call.
#[derive(Default)]
pub struct Links {
    groups: Vec<LinkGroup>,
    active: usize,
    protocol: Option<Protocol>,
}

impl Links {
    /// Groups in the order in which [`Self::begin`] numbers them.
    pub fn new(groups: Vec<LinkGroup>) -> Links {
        let has_any = groups.iter().any(|group| !group.send.is_empty() || !group.recv.is_empty());
        Links { groups: if has_any { groups } else { Vec::new() }, ..Links::default() }
    }

    /// Whether there is no link at all.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// The group of the operation under way.
    pub fn active(&self) -> usize {
        self.active
    }

    /// An operation starts on `group`; its slots are filled under `protocol`. What was sent before has been flushed.
    #[inline]
    pub fn begin(&mut self, group: usize, protocol: Protocol) {
        self.active = group;
        self.protocol = Some(protocol);
    }

    /// Moves what can be moved without waiting. Returns bytes moved.
    ///
    /// # Errors
    /// That the link to or from `awaited`, whom the kernel waits for, is broken. Another link's failure is found when it is
    /// waited for: its data may all have come.
    pub fn do_work(&mut self, awaited: Rank) -> Result<usize, LinkError> {
        let (Some(group), Some(protocol)) = (self.groups.get_mut(self.active), self.protocol) else {
            return Ok(0);
        };
        let mut moved = 0;
        let mut failed = None;
        let mut note = |peer: Rank, result: Result<usize, LinkError>| match result {
            Ok(bytes) => moved += bytes,
            Err(error) if peer == awaited => failed = Some(error),
            Err(_) => {}
        };
        for link in &mut group.send {
            note(link.peer(), link.progress(protocol));
        }
        for link in &mut group.recv {
            note(link.peer(), link.progress());
        }
        match failed {
            Some(error) if moved == 0 => Err(error),
            _ => Ok(moved),
        }
    }
}

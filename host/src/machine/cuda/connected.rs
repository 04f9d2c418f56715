//! Which of a communicator's connections are known to be there.

use crate::machine::{ConnKind, Need};

/// The connections known to be there, by the first channels of each kind and protocol.
#[derive(Debug)]
pub(super) struct Connected {
    collective: [[u32; 3]; ConnKind::COUNT],
    /// To and from each rank.
    pairs: Vec<[u32; 3]>,
    /// What the calls under way need beyond that; the capacity is kept.
    pub needs: Vec<Need>,
}

impl Connected {
    /// Nothing is known.
    pub fn of_none(nranks: u32) -> Connected {
        Connected {
            collective: [[0; 3]; ConnKind::COUNT],
            pairs: vec![[0; 3]; nranks as usize],
            needs: Vec::new(),
        }
    }

    /// The first channels of the need's kind that are known to be there.
    pub fn known(&mut self, need: &Need) -> &mut u32 {
        let of_kind = match need.peer {
            Some(peer) => &mut self.pairs[peer.index()],
            None => &mut self.collective[need.kind as usize],
        };
        &mut of_kind[need.protocol as usize]
    }

    /// Notes a need, unless what it needs is known to be there.
    pub fn want(&mut self, need: Need) {
        if *self.known(&need) < need.channels {
            self.needs.push(need);
        }
    }
}

//! The symmetric windows of a communicator: where each rank's part is mapped.

use crate::gpu::GpuMemory;
use crate::plan::Placement;
use crate::transport::p2p::{Reach, Window};
use oxccl_shared::abi::Rank;
use std::sync::{Arc, Weak};

/// All parts begin at a multiple of this, or none is used.
const ALIGN_BYTES: u64 = 16;

/// The windows, in the order in which all ranks have registered them.
#[derive(Default)]
pub(in crate::machine::cuda) struct Windows {
    mapped: Vec<Mapped>,
    made: u32,
}

/// A symmetric window, as long as its owner has it.
struct Mapped {
    number: u32,
    /// Where each rank's part begins.
    addresses: Box<[u64]>,
    /// Where this rank's part begins for each rank's GPU.
    reached: Box<[u64]>,
    len_bytes: u64,
    alive: Weak<[Arc<dyn GpuMemory>]>,
}

impl Mapped {
    fn is_there(&self) -> bool {
        self.alive.strong_count() > 0
    }
}

impl Windows {
    /// A window that every rank has mapped.
    pub fn add(&mut self, window: &Window, rank: Rank, reached: Box<[u64]>) {
        let len_bytes = match window.reach(rank) {
            Some(Reach::Mapped { len_bytes, .. }) => *len_bytes,
            _ => 0,
        };
        self.mapped.retain(|mapped| mapped.alive.strong_count() > 0);
        let number = self.made;
        self.made += 1;
        let addresses = window.addresses().into();
        self.mapped.push(Mapped { number, addresses, reached, len_bytes, alive: window.alive() });
    }

    /// Where so many bytes at an address of this rank lie, if they do in a window.
    pub fn place(&self, rank: Rank, address: u64, len_bytes: u64) -> Option<Placement> {
        let (mapped, offset) = self.find(rank, address, len_bytes)?;
        Some(Placement { window: mapped.number, offset })
    }

    /// Where another rank's GPU reaches so many bytes at an address of this rank, if they lie in a window.
    pub fn reached_by(&self, peer: Rank, rank: Rank, address: u64, len_bytes: u64) -> Option<u64> {
        let (mapped, offset) = self.find(rank, address, len_bytes)?;
        Some(mapped.reached.get(peer.index())? + offset)
    }

    /// Whether the receiver of a message may be asked where it goes: there are windows, and this rank has dropped none. Of one that it has dropped,
    /// the receiver may still have its own part, and would answer where that was mapped here.
    pub fn may_ask(&self) -> bool {
        self.made > 0 && self.mapped.len() == self.made as usize && self.mapped.iter().all(Mapped::is_there)
    }

    /// The window in which so many bytes at an address of this rank lie, and how far from its beginning.
    fn find(&self, rank: Rank, address: u64, len_bytes: u64) -> Option<(&Mapped, u64)> {
        self.mapped.iter().find_map(|mapped| {
            let offset = address.checked_sub(mapped.addresses[rank.index()])?;
            let is_within = offset.checked_add(len_bytes).is_some_and(|end| end <= mapped.len_bytes);
            (is_within && mapped.is_there()).then_some((mapped, offset))
        })
    }

    /// The same, if every rank's part begins where bulk copies may.
    pub fn place_aligned(&self, rank: Rank, address: u64, len_bytes: u64) -> Option<Placement> {
        let placement = self.place(rank, address, len_bytes)?;
        let addresses = self.addresses(placement.window)?;
        addresses.iter().all(|address| address.is_multiple_of(ALIGN_BYTES)).then_some(placement)
    }

    /// Where each rank's part of a window begins.
    pub fn addresses(&self, number: u32) -> Option<&[u64]> {
        let mapped = self.mapped.iter().find(|mapped| mapped.number == number)?;
        Some(&mapped.addresses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Owner = Arc<[Arc<dyn GpuMemory>]>;

    /// A window of two ranks, whose parts this rank has at 4096 and 8192 times its number and one.
    fn register(windows: &mut Windows) -> Owner {
        let owner: Owner = Arc::from(Vec::new());
        let at = 4096 * u64::from(windows.made + 1);
        let [addresses, reached] = [[at, 2 * at], [at, 3 * at]].map(|all| Box::from(&all[..]));
        let number = windows.made;
        windows.made += 1;
        windows.mapped.push(Mapped {
            number,
            addresses,
            reached,
            len_bytes: 4096,
            alive: Arc::downgrade(&owner),
        });
        owner
    }

    /// One rank drops a window and keeps another, and its peer still has both: it was told where the first one had been, and stored there.
    #[test]
    fn who_has_dropped_a_window_asks_no_more() {
        let (mut ours, mut theirs) = (Windows::default(), Windows::default());
        assert!(!ours.may_ask());
        let mut owners = [register(&mut ours), register(&mut ours)].map(Some);
        let _theirs = [register(&mut theirs), register(&mut theirs)];
        assert!(ours.may_ask() && theirs.may_ask());
        owners[0] = None;
        assert!(theirs.reached_by(Rank(1), Rank(0), 4096, 64).is_some(), "it would answer");
        assert!(!ours.may_ask());
        assert!(theirs.may_ask(), "what it is told of lies in windows that it has");
    }
}

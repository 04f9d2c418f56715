//! A message that its consumer copies out of the producer's memory.

#[cfg(not(any(target_arch = "nvptx64", target_arch = "amdgpu")))]
use crate::sync::fence_full;
use crate::sync::{Sys, Word, fence_acquire};

/// What a Simple slot holds instead of a long message's bytes, where the consumer can read the producer's memory.
///
/// ```text
/// producer                                   consumer
///   address, length, withdrawn = 0
///   publish(header)                            poll(); copies from the address
///                                              withdrawn still 0: what was copied is the message
///                                              reply, then release()
///   is_drained(): reply; the memory is the user's again
///   or gives up: withdrawn = 1, and only then is the memory the user's again
/// ```
#[repr(C)]
#[derive(Default)]
pub struct Offer {
    /// Of the message in the producer's address space. Writer: the producer, before it publishes.
    pub address: Word<u64, Sys>,
    /// Its bytes. Writer: the producer, before it publishes.
    pub len_bytes: Word<u64, Sys>,
    /// Not 0 once the bytes may have changed. Writer: the producer.
    pub withdrawn: Word<u64, Sys>,
    /// [`OfferReply`]. Writer: the consumer, before it releases the slot.
    pub reply: Word<u64, Sys>,
}

/// What a consumer says to an [`Offer`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OfferReply {
    /// It has the message.
    Taken,
    /// It cannot read the memory: the message comes in slots.
    Declined,
}

impl Offer {
    /// Answers; the slot is released next.
    #[inline]
    pub fn answer(&self, reply: OfferReply) {
        self.reply.store_relaxed(match reply {
            OfferReply::Taken => 1,
            OfferReply::Declined => 2,
        });
    }

    /// Producer: the memory is about to be the user's again, whose later writes come behind what a consumer finds in [`Self::stands`].
    #[cfg(not(any(target_arch = "nvptx64", target_arch = "amdgpu")))]
    pub fn withdraw(&self) {
        self.withdrawn.store_release(1);
        // Pairs with the fence in `stands`: who has copied a later byte sees the word.
        fence_full();
    }

    /// Consumer, after it has copied: whether what it copied is the message.
    #[inline]
    pub fn stands(&self) -> bool {
        // Pairs with the fence in `withdraw`.
        fence_acquire();
        self.withdrawn.load_acquire() == 0
    }

    /// The answer, once the slot has been released.
    #[inline]
    pub fn answered(&self) -> OfferReply {
        if self.reply.load_relaxed() == 1 { OfferReply::Taken } else { OfferReply::Declined }
    }
}

#[cfg(not(loom))]
const _: () = {
    use core::mem::{align_of, offset_of, size_of};
    // The smallest slot has room.
    assert!(size_of::<Offer>() == 32 && align_of::<Offer>() == 8);
    assert!(offset_of!(Offer, address) == 0 && offset_of!(Offer, len_bytes) == 8);
    assert!(offset_of!(Offer, withdrawn) == 16 && offset_of!(Offer, reply) == 24);
};

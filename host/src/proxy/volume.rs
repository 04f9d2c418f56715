//! How much a collective moves between a rank and its peers, whatever carries it: through a proxy or in memory.

use super::order::{Operation, ProxyOrder};
use super::pattern::{self, Amount, Carried, ProxyChannel, Way};
use oxccl_shared::abi::Rank;

/// What goes one way between this rank and a peer on a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Volume {
    /// The peer.
    pub peer: Rank,
    /// Whether this rank sends.
    pub is_send: bool,
    /// Whether a slot goes, be it an empty one.
    pub has_slots: bool,
    /// Elements in all slots.
    pub elems: u64,
}

/// Tells `each` what a collective moves on all its channels. `order` means a collective of the library's, and the channels from its first
/// one on are among `places`.
pub fn volumes(
    order: ProxyOrder,
    places: &[ProxyChannel],
    (me, nranks): (Rank, u32),
    each: &mut dyn FnMut(Volume),
) {
    let Some(op): Option<Operation> = order.decode() else { return };
    let mut emit = |peer: Rank, way: Way, amount: Amount| {
        let Amount::Steps(Carried { slots, elems }) = amount else { return };
        each(Volume { peer, is_send: way == Way::Send, has_slots: slots > 0, elems });
    };
    for (index, place) in (0..order.nchannels).zip(places.iter().skip(order.first_channel as usize)) {
        pattern::expand(&op, index, place, me, nranks, &mut emit);
    }
}

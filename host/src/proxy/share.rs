//! Divides a rank's connections among several proxies, for networks whose bytes one thread cannot move fast enough.

use super::error::EndId;
use super::order::ProxyOrder;
use oxccl_shared::abi::Func;

/// The channels on which a proxy sends and those on which it receives.
#[derive(Clone, Debug)]
pub struct Concerns {
    sends: Box<[bool]>,
    receives: Box<[bool]>,
}

impl Concerns {
    /// Of a proxy that has none of so many channels.
    pub fn of_none(channels: usize) -> Concerns {
        Concerns { sends: vec![false; channels].into(), receives: vec![false; channels].into() }
    }

    /// Those of a proxy that has this connection too.
    pub fn add(&mut self, EndId { channel, is_send, .. }: EndId) {
        let channels = if is_send { &mut self.sends } else { &mut self.receives };
        channels[channel.0 as usize] = true;
    }

    /// Whether the proxy must get an order. An order of unknown channels concerns it too, so that it is refused.
    #[inline]
    pub fn has_part_in(&self, order: &ProxyOrder) -> bool {
        let first = order.first_channel as usize;
        let has = |channels: &[bool]| {
            let those = channels.get(first..first.saturating_add(order.nchannels as usize));
            those.is_none_or(|those| those.contains(&true))
        };
        let is_end = |is_send| order.func == Func::of_message(is_send) as u8;
        (!is_end(false) && has(&self.sends)) || (!is_end(true) && has(&self.receives))
    }
}

/// The proxy, of `count`, that drives a connection; an order goes to each proxy that it [concerns](Concerns::has_part_in). Senders are
/// separated from receivers first, because every pattern has as many of both; then channels from each other.
pub fn share(EndId { channel, is_send, .. }: EndId, count: usize) -> usize {
    if count < 2 {
        return 0;
    }
    let senders = count / 2;
    let (first, among) = if is_send { (0, senders) } else { (senders, count - senders) };
    first + channel.0 as usize % among
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxccl_shared::abi::{ChannelId, Rank};

    #[test]
    fn orders_concern_who_has_their_channels_in_their_direction() {
        let concerns = Concerns { sends: [true, false, true].into(), receives: [false; 3].into() };
        let has_part = |func: Func, first_channel, nchannels| {
            let order = ProxyOrder { func: func as u8, first_channel, nchannels, ..ProxyOrder::default() };
            concerns.has_part_in(&order)
        };
        assert!(
            has_part(Func::AllReduce, 0, 3) && has_part(Func::AllReduce, 1, 2) && has_part(Func::Send, 2, 1)
        );
        assert!(!has_part(Func::AllReduce, 1, 1) && !has_part(Func::Recv, 0, 3));
        assert!(has_part(Func::AllReduce, 2, 2) && has_part(Func::Barrier, u32::MAX, u32::MAX));
    }

    #[test]
    fn shares_are_alike_and_directions_apart() {
        for count in 2..9 {
            let mut shares = vec![(0, 0); count];
            for (channel, peer) in (0..24).flat_map(|channel| [(channel, 1), (channel, 2)]) {
                let place = |is_send| EndId { peer: Rank(peer), channel: ChannelId(channel), is_send };
                shares[share(place(true), count)].0 += 1;
                shares[share(place(false), count)].1 += 1;
            }
            assert!(shares.iter().all(|(sends, receives)| (*sends == 0) != (*receives == 0)), "{shares:?}");
            let sends: Vec<i32> = shares.iter().map(|share| share.0).filter(|sends| *sends > 0).collect();
            assert!(sends.iter().max().unwrap() - sends.iter().min().unwrap() <= 2, "{shares:?}");
        }
    }
}

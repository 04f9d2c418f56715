//! A rank's places on the channels of each kind, from which follows what collectives move between it and its peers.

use super::heads::DeviceHeads;
use super::layout::DeviceLayout;
use crate::launch::ChannelPlaces;
use crate::proxy::{ProxyChannel, ProxyPlace};
use oxccl_shared::abi::Rank;

impl DeviceLayout {
    /// The places of a rank.
    pub fn places(&self, rank: Rank) -> ChannelPlaces {
        let ring = |ring: &Vec<Rank>| ProxyChannel { ring: ring.as_slice().into(), ..Default::default() };
        let tree = |channel| ProxyChannel { tree: self.trees.links(channel, rank), ..Default::default() };
        let chain =
            |channel| ProxyChannel { chain: in_host(&self.chains, channel, rank), ..Default::default() };
        let star = |channel| ProxyChannel { star: in_host(&self.stars, channel, rank), ..Default::default() };
        ChannelPlaces {
            rings: self.rings.iter().map(ring).collect(),
            trees: (0..self.trees.channels()).map(tree).collect(),
            mesh: (0..self.mesh_channels).map(|_| ProxyChannel::default()).collect(),
            chains: (0..self.chains.channels()).map(chain).collect(),
            stars: (0..self.stars.channels()).map(star).collect(),
        }
    }
}

/// Above a head is nobody.
fn in_host(heads: &DeviceHeads, channel: usize, rank: Rank) -> ProxyPlace {
    let host = heads.channels[channel].iter().find(|host| host.contains(&rank));
    host.map(|host| ProxyPlace::of(heads.shape, host, rank)).unwrap_or_default()
}

#[cfg(test)]
mod tests;

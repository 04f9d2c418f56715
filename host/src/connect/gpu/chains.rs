//! The chains of GPUs to a network that reduces.

use oxccl_shared::abi::{ConnLayout, KernelTree, Rank};
use oxccl_shared::algo::collnet::Owner;

/// On each channel a chain for each group of ranks that share memory; no channels if no network reduces. Equal on every rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceChains {
    /// The ranks of each chain of each channel, its head first. A group's head differs between channels where its rings enter by several GPUs.
    pub channels: Vec<Vec<Vec<Rank>>>,
    /// Slots.
    pub slots: ConnLayout,
}

/// A rank's place in its chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChainPlace {
    /// The rank above; of a head, which has the network there, the next head.
    pub above: Rank,
    /// The rank below.
    pub below: Option<Rank>,
    /// Whether it is a head.
    pub is_head: bool,
}

impl DeviceChains {
    /// No chains, which have these slots.
    pub fn none(slots: ConnLayout) -> DeviceChains {
        DeviceChains { channels: Vec::new(), slots }
    }

    /// Each group's ranks in the order in which this ring passes them, from where it enters a group on.
    pub fn along(ring: &[Rank], group_of: &[u64]) -> Vec<Vec<Rank>> {
        let group = |rank: Rank| group_of[rank.index()];
        let n = ring.len();
        let enters = |at: usize| group(ring[at]) != group(ring[(at + n - 1) % n]);
        let first = (0..n).find(|at| enters(*at)).unwrap_or(0);
        let mut chains: Vec<Vec<Rank>> = Vec::new();
        for rank in ring.iter().cycle().skip(first).take(n) {
            match chains.iter_mut().find(|chain| group(chain[0]) == group(*rank)) {
                Some(chain) => chain.push(*rank),
                None => chains.push(vec![*rank]),
            }
        }
        chains
    }

    /// Channels of chains.
    pub fn channels(&self) -> usize {
        self.channels.len()
    }

    /// A rank's place on a channel; none if there is no such channel.
    pub fn place(&self, channel: usize, rank: Rank) -> Option<ChainPlace> {
        let chains = self.channels.get(channel)?;
        let (number, at) = chains
            .iter()
            .enumerate()
            .find_map(|(number, chain)| Some((number, chain.iter().position(|other| *other == rank)?)))?;
        let chain = &chains[number];
        let next_head = chains[(number + 1) % chains.len()][0];
        let above = at.checked_sub(1).map_or(next_head, |above| chain[above]);
        Some(ChainPlace { above, below: chain.get(at + 1).copied(), is_head: at == 0 })
    }

    /// Where each rank is on a channel, seen from a rank's place in its chain; empty if there is no such channel.
    pub fn owners(&self, channel: usize, rank: Rank) -> Vec<Owner> {
        let Some(chains) = self.channels.get(channel) else { return Vec::new() };
        let mine = chains.iter().find(|chain| chain.contains(&rank)).map_or(&[][..], Vec::as_slice);
        let n = chains.iter().map(Vec::len).sum::<usize>() as u32;
        (0..n).map(|other| Owner::of(mine, rank, Rank(other))).collect()
    }

    /// A rank's neighbours in its chain, in the order in which kernels list them: below, then above. A head's network is none.
    pub fn neighbours(&self, channel: usize, rank: Rank) -> impl Iterator<Item = Rank> + use<> {
        let place = self.place(channel, rank);
        let above = place.filter(|place| !place.is_head).map(|place| place.above);
        place.and_then(|place| place.below).into_iter().chain(above)
    }

    /// The connections of a rank in each direction on the channel on which it has most.
    pub fn conns_max(&self, rank: Rank) -> usize {
        let conns = |channel| self.place(channel, rank).map_or(0, |place| place.conns());
        (0..self.channels()).map(conns).max().unwrap_or(0)
    }
}

impl ChainPlace {
    /// Connections of each direction, a head's to the network among them.
    pub fn conns(&self) -> usize {
        1 + usize::from(self.below.is_some())
    }

    /// As kernels read it.
    pub fn of_kernel(&self) -> KernelTree {
        KernelTree { children: u32::from(self.below.is_some()), has_parent: u32::from(!self.is_head) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SLOTS: ConnLayout =
        ConnLayout { ll_slot_bytes: 512, ll128_slot_bytes: 256, simple_slot_bytes: 1024 };

    proptest! {
        /// Every rank is in the chain of its group, neighbours agree, and heads follow each other in a circle.
        #[test]
        fn neighbours_agree_and_heads_are_a_circle(
            groups in proptest::collection::vec(0u64..4, 1..12),
            turn in 0usize..12,
        ) {
            let n = groups.len();
            let ring: Vec<Rank> = (0..n).map(|at| Rank(((at + turn) % n) as u32)).collect();
            let other: Vec<Rank> = (0..n).map(|at| Rank(((2 * n - at - 1 + turn) % n) as u32)).collect();
            let channels = [&ring, &other].map(|ring| DeviceChains::along(ring, &groups)).to_vec();
            let chains = DeviceChains { channels, slots: SLOTS };
            for channel in 0..2 {
                check(&chains, channel, &groups)?;
            }
        }
    }

    /// What every channel has.
    fn check(chains: &DeviceChains, channel: usize, groups: &[u64]) -> Result<(), TestCaseError> {
        let n = groups.len();
        let mut all: Vec<Rank> = chains.channels[channel].concat();
        all.sort_unstable();
        prop_assert_eq!(all, (0..n as u32).map(Rank).collect::<Vec<_>>());
        let place = |rank| chains.place(channel, rank).unwrap();
        for rank in (0..n as u32).map(Rank) {
            let ChainPlace { above, below, is_head } = place(rank);
            prop_assert!(below.is_none_or(|below| place(below).above == rank && !place(below).is_head));
            let is_near = groups[above.index()] == groups[rank.index()];
            if is_head {
                prop_assert!(place(above).is_head && (!is_near || chains.channels[channel].len() == 1));
            } else {
                prop_assert!(is_near && place(above).below == Some(rank));
            }
        }
        let heads = chains.channels[channel].len();
        let first = chains.channels[channel][0][0];
        let mut rank = first;
        for at in 0..heads {
            prop_assert!(at == 0 || rank != first);
            rank = place(rank).above;
        }
        prop_assert_eq!(rank, first);
        Ok(())
    }

    /// A ring in rank order that enters a host in the middle of the list: that host's chain still follows the ring.
    #[test]
    fn a_chain_begins_where_its_ring_enters_the_host() {
        let ring = [0, 1, 2, 3, 4].map(Rank);
        let chains = DeviceChains::along(&ring, &[7, 9, 9, 7, 7]);
        assert_eq!(chains, [vec![Rank(1), Rank(2)], vec![Rank(3), Rank(4), Rank(0)]]);
        assert_eq!(DeviceChains::along(&ring, &[7; 5]), [ring.to_vec()]);
    }
}

//! Number of channels of rings.

use crate::plan::tuning::Machine;
use oxccl_shared::abi::Rank;

/// GB/s that one block moves along a ring. Measured on 4 H200: 64 blocks and no fewer fill the 360 GB/s of 12 channels of 30 that
/// the search finds there.
pub(super) const BLOCK_GBYTES: f64 = 360.0 / 64.0;

/// Channels for these rings: at most `tuned`, at least `wanted` by the user.
///
/// As many as the links need blocks, and at least two for each channel of the search, as in NCCL. Different rings are
/// used equally often: otherwise some links would carry more than others.
pub(super) fn ring_channels(rings: &[Vec<Rank>], machine: &Machine, tuned: u32, wanted: Option<u32>) -> u32 {
    let period = period(rings);
    let found = &machine.ring;
    let needed = if machine.is_searched {
        let total = f64::from(found.channels) * found.intra_bw;
        // A speed comes from a file or from a sum of links: to the next whole block, but not for a rounding error.
        ((total / BLOCK_GBYTES - 0.01).ceil() as u32).max(2 * found.channels)
    } else {
        tuned
    };
    let count = needed.max(wanted.unwrap_or(0));
    turns(period, count, tuned)
}

/// So many channels or a few more, at most `most`, that use different rings equally often.
pub(super) fn whole_turns(rings: &[Vec<Rank>], count: u32, most: u32) -> u32 {
    turns(period(rings), count, most)
}

fn turns(period: u32, count: u32, most: u32) -> u32 {
    let count = count.next_multiple_of(period);
    if count <= most { count } else { (most / period * period).max(period.min(most)) }
}

/// Number of rings after which they repeat.
fn period(rings: &[Vec<Rank>]) -> u32 {
    let repeats = |period: &usize| rings.iter().zip(&rings[*period..]).all(|(a, b)| a == b);
    (1..rings.len()).find(repeats).unwrap_or(rings.len()).max(1) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tuning::{Architecture, Speeds};

    fn found<const N: usize>(lanes: &[[u32; N]], bw: f64) -> (Vec<Vec<Rank>>, Machine) {
        let nominal = Machine::nominal(Architecture::Hopper, N as u32);
        let ring = Speeds { channels: lanes.len() as u32, intra_bw: bw, ..nominal.ring };
        // Every lane is a channel twice.
        let rings = [lanes, lanes].concat().iter().map(|lane| lane.map(Rank).to_vec()).collect();
        (rings, Machine { is_searched: bw > 0.0, ring, ..nominal })
    }

    #[test]
    fn as_many_as_the_links_need() {
        let h200 = found(&[[0, 1, 2, 3]; 12], 30.0);
        assert_eq!(ring_channels(&h200.0, &h200.1, 64, None), 64);
        assert_eq!(ring_channels(&h200.0, &h200.1, 7, None), 7);
        let pci = found(&[[0, 1, 2, 3]], 12.0);
        assert_eq!(ring_channels(&pci.0, &pci.1, 64, None), 3);
        assert_eq!(ring_channels(&pci.0, &pci.1, 64, Some(9)), 9);
        let slow = found(&[[0, 1]], 0.1);
        assert_eq!(ring_channels(&slow.0, &slow.1, 64, None), 2);
        let unknown = found(&[[0, 1, 2]], 0.0);
        assert_eq!(ring_channels(&unknown.0, &unknown.1, 32, None), 32);
    }

    /// The six rings of a DGX-1V: three orders, both ways.
    #[test]
    fn different_rings_equally_often() {
        let lanes = [[0, 1, 2, 3], [0, 3, 2, 1], [0, 2, 1, 3], [0, 3, 1, 2], [0, 1, 3, 2], [0, 2, 3, 1]];
        let (rings, machine) = found(&lanes, 20.0);
        assert_eq!(ring_channels(&rings, &machine, 32, None), 24);
        assert_eq!(ring_channels(&rings, &machine, 32, Some(31)), 30);
        assert_eq!(ring_channels(&rings, &machine, 4, None), 4);
    }
}

//! Layer: host / topology / system.
//! Takes: nodes of a draft.
//! Gives: the same nodes, with the halves of each PCI switch chip joined.
//! Never: joins different chips.

use super::NodeKind;
use super::draft::DraftNode;

/// Broadcom's PCI switches appear as a switch above switches. A GPU and a NIC below different halves are as near as
/// below one. The numbers are vendor, device and board of the upper half; the lower half's board differs by one in
/// the fourth digit from the right on generation 5.
const GENERATION_4: u64 = 0x1000_c010_1000_a000;
const GENERATION_5: u64 = 0x1000_c030_1000_0000;
const BOARD_MASK: u64 = !0xfff;

fn generation(chip: u64, is_lower: bool) -> Option<u8> {
    match chip & BOARD_MASK {
        GENERATION_4 => Some(4),
        chip if chip == GENERATION_5 | u64::from(is_lower) << 12 => Some(5),
        _ => None,
    }
}

/// Joins lower halves into their upper ones. The lower halves keep no links.
pub(super) fn flatten(nodes: &mut [DraftNode]) {
    let is_switch = |node: &DraftNode| matches!(node.kind, NodeKind::Pci(_));
    let mut is_merged = vec![false; nodes.len()];
    let mut is_upper = vec![false; nodes.len()];
    for upper in 0..nodes.len() {
        let Some(chip) = generation(nodes[upper].chip, false).filter(|_| is_switch(&nodes[upper])) else {
            continue;
        };
        if is_merged[upper] || is_upper[upper] {
            continue;
        }
        is_upper[upper] = true;
        let lowers: Vec<usize> = nodes[upper]
            .links
            .iter()
            .map(|(to, _, _)| *to)
            .filter(|to| {
                is_switch(&nodes[*to]) && !is_upper[*to] && generation(nodes[*to].chip, true) == Some(chip)
            })
            .collect();
        for lower in lowers {
            is_merged[lower] = true;
            join(nodes, upper, lower);
        }
    }
}

fn join(nodes: &mut [DraftNode], upper: usize, lower: usize) {
    nodes[upper].links.retain(|(to, _, _)| *to != lower);
    let links = std::mem::take(&mut nodes[lower].links);
    for (to, kind, bw) in links.into_iter().filter(|(to, _, _)| *to != upper) {
        nodes[upper].links.push((to, kind, bw));
        for link in
            nodes[to].links.iter_mut().filter(|(back, back_kind, _)| *back == lower && *back_kind == kind)
        {
            link.0 = upper;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::BusId;
    use crate::topology::system::LinkKind;

    fn node(chip: u64, links: &[usize]) -> DraftNode {
        let links = links.iter().map(|to| (*to, LinkKind::Pci, 48.0)).collect();
        DraftNode { host: 0, kind: NodeKind::Pci(BusId(0)), links, chip }
    }

    #[test]
    fn halves_of_one_chip_become_one_switch() {
        let (upper, lower) = (0x1000_c030_1000_0072, 0x1000_c030_1000_1003);
        let mut nodes = [node(upper, &[1, 2]), node(lower, &[0, 3]), node(7, &[0]), node(8, &[1])];
        flatten(&mut nodes);
        let ends = |i: usize| nodes[i].links.iter().map(|link| link.0).collect::<Vec<_>>();
        assert_eq!((ends(0), ends(1), ends(2), ends(3)), (vec![2, 3], vec![], vec![0], vec![0]));
    }
}

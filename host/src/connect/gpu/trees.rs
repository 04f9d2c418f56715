//! The trees of GPUs.

use oxccl_shared::abi::{ConnLayout, KernelTree, Rank};
use oxccl_shared::algo::tree::TreeLinks;

/// Trees over all ranks. Equal on every rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceTrees {
    /// Of each channel: every rank's links. No channels where trees are not connected.
    pub trees: Vec<Vec<TreeLinks>>,
    /// Slots.
    pub slots: ConnLayout,
}

impl DeviceTrees {
    /// Channels that trees use.
    pub fn channels(&self) -> usize {
        self.trees.len()
    }

    /// A rank's links in a channel's tree.
    pub fn links(&self, channel: usize, rank: Rank) -> TreeLinks {
        self.trees[channel][rank.index()]
    }

    /// A rank's neighbours on a channel, in the order in which kernels list them: children, then the parent.
    pub fn neighbours(&self, channel: usize, rank: Rank) -> impl Iterator<Item = Rank> {
        let TreeLinks { up, down } = self.links(channel, rank);
        down.into_iter().flatten().chain(up)
    }

    /// A rank's position, as kernels read it.
    pub fn place(&self, channel: usize, rank: Rank) -> KernelTree {
        let links = self.links(channel, rank);
        KernelTree {
            children: links.down.iter().flatten().count() as u32,
            has_parent: u32::from(!links.is_root()),
        }
    }

    /// The most neighbours that a rank has on any of its channels.
    pub fn neighbours_max(&self, rank: Rank) -> usize {
        let counts = (0..self.channels()).map(|channel| self.neighbours(channel, rank).count());
        counts.max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Channels;

    fn trees(nranks: u32) -> DeviceTrees {
        let slots = ConnLayout { ll_slot_bytes: 512, ll128_slot_bytes: 256, simple_slot_bytes: 1024 };
        let channels = Channels::in_rank_order(nranks);
        DeviceTrees { trees: (0..3).map(|channel| channels.tree(channel).to_vec()).collect(), slots }
    }

    /// A rank's children have it as their parent, every other rank has one, and kernels get the same.
    #[test]
    fn children_and_parents_match_on_every_rank() {
        for nranks in 1..20 {
            let trees = trees(nranks);
            for channel in 0..3 {
                let parent = |rank: Rank| trees.links(channel, rank).up;
                let roots = (0..nranks).map(Rank).filter(|rank| parent(*rank).is_none()).count();
                assert_eq!(roots, 1, "{nranks} ranks, channel {channel}");
                for rank in 0..nranks {
                    let neighbours: Vec<Rank> = trees.neighbours(channel, Rank(rank)).collect();
                    let KernelTree { children, has_parent } = trees.place(channel, Rank(rank));
                    let (children, parents) = neighbours.split_at(children as usize);
                    assert_eq!(parents, parent(Rank(rank)).as_slice());
                    assert_eq!(parents.len(), has_parent as usize);
                    assert!(children.iter().all(|child| parent(*child) == Some(Rank(rank))));
                    let all_children =
                        (0..nranks).map(Rank).filter(|child| parent(*child) == Some(Rank(rank))).count();
                    assert_eq!(children.len(), all_children);
                }
            }
        }
    }

    #[test]
    fn channels_take_the_two_trees_in_turn() {
        let trees = trees(4);
        let root = |channel| (0..4).find(|rank| trees.place(channel, Rank(*rank)).has_parent == 0);
        assert_eq!([root(0), root(1), root(2)], [Some(0), Some(3), Some(0)]);
    }

    #[test]
    fn a_rank_alone_has_no_neighbours() {
        let trees = trees(1);
        assert_eq!(trees.neighbours_max(Rank(0)), 0);
        assert_eq!(trees.place(0, Rank(0)), KernelTree { children: 0, has_parent: 0 });
    }
}

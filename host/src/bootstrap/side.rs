//! Layer: host / bootstrap.
//! Takes: a rank, the number of ranks.
//! Gives: [`Side`]: a rank's connections to others; [`branches`]: its neighbours in the tree, and by which connection it reaches them.
//! Never: has more than five connections, whatever the number of ranks.
//!
//! A rank has two neighbours in the ring and up to three in a binary tree of all ranks ([`tree`]). Odd ranks are leaves of the tree next
//! to their parents, so half of the tree's edges are edges of the ring: only every other rank connects to a parent that is farther away.

use oxccl_shared::abi::Rank;
use oxccl_shared::algo::tree;

/// One of a rank's connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The neighbour with the lower rank, round the ring.
    Prev = 0,
    /// The neighbour with the higher rank, round the ring.
    Next = 1,
    /// The parent in the tree, if that is no neighbour in the ring.
    Up = 2,
    /// The first child in the tree, likewise.
    Left = 3,
    /// The second child in the tree, likewise.
    Right = 4,
}

impl Side {
    /// How many there are.
    pub const COUNT: usize = 5;
    /// All, in order.
    pub const ALL: [Side; Side::COUNT] = [Side::Prev, Side::Next, Side::Up, Side::Left, Side::Right];
    /// Those of the ring, in order.
    pub const RING: [Side; 2] = [Side::Prev, Side::Next];
}

/// A neighbour in the tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Branch {
    /// The neighbour.
    pub rank: Rank,
    /// The connection to it.
    pub side: Side,
}

/// Most neighbours in the tree: a parent and two children.
pub const BRANCHES_MAX: usize = 3;

/// The neighbours of `me` in the tree of `nranks` ranks: the parent, if there is one, then the children.
pub fn branches(me: Rank, nranks: u32) -> heapless::Vec<Branch, BRANCHES_MAX> {
    let [links, _] = tree::double_binary_tree(me, nranks);
    let up = links.up.map(|rank| (rank, Side::Up));
    let down = links.down.into_iter().flatten().zip([Side::Left, Side::Right]);
    let branch = |(rank, side)| Branch { rank, side: ring_side(me, rank, nranks).unwrap_or(side) };
    up.into_iter().chain(down).map(branch).collect()
}

/// The parent to which `me` connects, if that is no neighbour in the ring.
pub fn far_parent(me: Rank, nranks: u32) -> Option<Rank> {
    branches(me, nranks).iter().find(|branch| branch.side == Side::Up).map(|branch| branch.rank)
}

/// The side on which two neighbours in the ring have the connection that the tree uses. Of two ranks, which have two connections, both
/// name the same.
fn ring_side(me: Rank, peer: Rank, nranks: u32) -> Option<Side> {
    let (low, high) = (me.min(peer), me.max(peer));
    match (high.0 - low.0 == 1, low.0 == 0 && high.0 + 1 == nranks) {
        (true, _) => Some(if me == low { Side::Next } else { Side::Prev }),
        (false, true) => Some(if me == low { Side::Prev } else { Side::Next }),
        (false, false) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The other end of a connection.
    fn meets(child: Branch, parent: Branch) -> bool {
        matches!(
            (child.side, parent.side),
            (Side::Next, Side::Prev) | (Side::Prev, Side::Next) | (Side::Up, Side::Left | Side::Right)
        )
    }

    #[test]
    fn both_ends_of_an_edge_name_the_same_connection() {
        for nranks in (1..70).chain([1000, 1024, 1025]) {
            let (mut edges, mut far) = (0, 0);
            for me in (0..nranks).map(Rank) {
                let mine = branches(me, nranks);
                let mut sides: Vec<_> = mine.iter().map(|branch| branch.side as usize).collect();
                sides.sort_unstable();
                sides.dedup();
                assert_eq!(
                    sides.len(),
                    mine.len(),
                    "rank {me} of {nranks}: one connection for each neighbour"
                );
                let is_parent = |branch: &&Branch| {
                    tree::double_binary_tree(me, nranks)[0].up == Some(branch.rank) //
                };
                let Some(parent) = mine.iter().find(is_parent) else { continue };
                let theirs = branches(parent.rank, nranks);
                let back = theirs.iter().find(|branch| branch.rank == me).expect("a child");
                assert!(meets(*parent, *back), "rank {me} of {nranks}: {parent:?} {back:?}");
                edges += 1;
                far += u32::from(far_parent(me, nranks).is_some());
            }
            assert_eq!(edges, nranks - 1);
            assert!(far <= nranks / 2, "{far} connections more among {nranks} ranks");
        }
    }
}

//! What holds of any rings and trees.

use oxccl_shared::abi::Rank;
use oxccl_shared::algo::tree::TreeLinks;
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

pub fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

pub fn is_permutation(ring: &[Rank], nranks: usize) -> bool {
    let mut seen = vec![false; nranks];
    ring.iter().all(|rank| seen.get_mut(rank.index()).is_some_and(|seen| !std::mem::replace(seen, true)))
        && ring.len() == nranks
}

/// Every rank reaches one root by going up, and parents and children agree.
pub fn check_tree(tree: &[TreeLinks]) {
    let roots = tree.iter().filter(|links| links.is_root()).count();
    assert_eq!(roots, 1);
    let mut children = 0;
    for (rank, links) in tree.iter().enumerate() {
        let rank = Rank(rank as u32);
        for child in links.down.iter().flatten() {
            assert_eq!(tree[child.0 as usize].up, Some(rank));
            children += 1;
        }
    }
    assert_eq!(children, tree.len() - 1, "every rank but the root is some rank's child");
    // With one parent each and one root, only a cycle could keep a rank from the root.
    let mut depth = vec![0usize; tree.len()];
    for start in 0..tree.len() {
        let (mut at, mut steps) = (start, 0);
        while let Some(up) = tree[at].up.filter(|_| depth[at] == 0) {
            at = up.0 as usize;
            steps += 1;
            assert!(steps <= tree.len(), "rank {start} is on a cycle");
        }
        depth[start] = (depth[at] + steps).max(1);
    }
}

/// In a ring over hosts, links between them.
pub fn crossings(ring: &[Rank], host_of: impl Fn(Rank) -> usize) -> usize {
    (0..ring.len()).filter(|i| host_of(ring[*i]) != host_of(ring[(i + 1) % ring.len()])).count()
}

/// Hosts with a child on another host in both halves of a double tree. NCCL's tree, and ours, of an odd number of hosts has one
/// at most, its first, with one child in each.
pub fn inner_twice(trees: [&[TreeLinks]; 2], hosts: usize, host_of: impl Fn(Rank) -> usize) -> Vec<usize> {
    let mut inner = vec![[false; 2]; hosts];
    for (half, tree) in trees.into_iter().enumerate() {
        for (rank, links) in tree.iter().enumerate() {
            let host = host_of(Rank(rank as u32));
            inner[host][half] |= links.down.iter().flatten().any(|child| host_of(*child) != host);
        }
    }
    (0..hosts).filter(|host| inner[*host] == [true, true]).collect()
}

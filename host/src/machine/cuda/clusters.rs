//! How many blocks of a kernel start together.
//!
//! Blocks of a cluster run on neighbouring multiprocessors. Where blocks lie decides how fast they fill NVLink, whatever their number: rings
//! with 24 blocks carry 358 GB/s of an all-reduce of 1 GiB among four H200 in clusters of four, and 326 without
//! (docs/measurements/2026-11-27-h200x4.md).

use super::driver::Shape;
use super::tiles::Tiles;

/// The first generation that has clusters.
const SM_MIN: u32 = 90;
/// As in NCCL. Short operations take as long with it as without.
const DEFAULT: u32 = 4;

/// What a rank's launches ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Clusters {
    /// What the user says.
    pub wanted: Option<u32>,
    /// Whether other ranks' kernels must fit beside: clusters leave multiprocessors over that no other cluster can take.
    pub shares_gpu: bool,
    /// Multiprocessors of the GPU.
    pub multiprocessors: u32,
}

impl Clusters {
    /// The launch of a kernel that was compiled for generation `sm`.
    pub(super) fn shape(self, sm: u32, blocks: u32, threads: u32, tiles: Tiles) -> Shape {
        let shared_bytes = tiles.shared_bytes;
        Shape { shared_bytes, cluster: self.of(sm, blocks), ..Shape::new(blocks, threads) }
    }

    /// Blocks of a cluster, for a kernel of so many blocks that was compiled for generation `sm`.
    ///
    /// All blocks must run at once, and a cluster wants its multiprocessors in one group of 16 to 20. So kernels that take more than three
    /// quarters of them have none.
    pub fn of(self, sm: u32, blocks: u32) -> u32 {
        let fits = !self.shares_gpu && blocks * 4 <= self.multiprocessors * 3;
        let most = if sm >= SM_MIN && fits { self.wanted.unwrap_or(DEFAULT) } else { 1 };
        (2..=most).rev().find(|size| blocks.is_multiple_of(*size)).unwrap_or(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_divides_the_blocks() {
        let of =
            |wanted, sm, blocks| Clusters { wanted, shares_gpu: false, multiprocessors: 132 }.of(sm, blocks);
        let by_default = [1, 2, 3, 4, 6, 23, 24, 26].map(|blocks| of(None, 90, blocks));
        assert_eq!(by_default, [1, 2, 3, 4, 3, 1, 4, 2]);
        assert_eq!([0, 1, 2, 8].map(|wanted| of(Some(wanted), 100, 24)), [1, 1, 2, 8]);
        assert_eq!(of(None, 80, 24), 1, "a generation without clusters");
        assert_eq!([96, 99, 100, 132].map(|blocks| of(None, 90, blocks)), [4, 3, 1, 1], "what may not fit");
        let shared = Clusters { wanted: Some(4), shares_gpu: true, multiprocessors: 132 };
        assert_eq!(shared.of(90, 24), 1);
    }
}

//! The memory domain of each pair of ranks of a host.

use oxccl_shared::abi::Rank;

/// A memory domain: one of the two memories that a rank may have.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Domain {
    /// On its GPU.
    Device,
    /// On the host.
    Host,
}

impl Domain {
    /// Both, in the order of tables.
    pub const ALL: [Domain; 2] = [Domain::Device, Domain::Host];
}

/// The domain of every pair; equal on every rank. Most pairs use GPU memory, so only the others are listed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Domains {
    /// Sorted, the lower rank first.
    on_host: Vec<(Rank, Rank)>,
}

impl Domains {
    /// The pairs that use host memory, in any order of their ranks.
    pub fn new(on_host: impl IntoIterator<Item = (Rank, Rank)>) -> Domains {
        let mut on_host: Vec<(Rank, Rank)> = on_host.into_iter().map(|(a, b)| (a.min(b), a.max(b))).collect();
        on_host.sort_unstable();
        on_host.dedup();
        Domains { on_host }
    }

    /// The domain of two ranks.
    pub fn of(&self, a: Rank, b: Rank) -> Domain {
        let pair = (a.min(b), a.max(b));
        if self.on_host.binary_search(&pair).is_ok() { Domain::Host } else { Domain::Device }
    }

    /// The pairs that use host memory.
    pub fn on_host(&self) -> &[(Rank, Rank)] {
        &self.on_host
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_has_one_domain_in_either_order() {
        let domains = Domains::new([(3, 1), (0, 2), (1, 3)].map(|(a, b)| (Rank(a), Rank(b))));
        assert_eq!(domains.on_host(), [(Rank(0), Rank(2)), (Rank(1), Rank(3))]);
        for (a, b) in (0..4).flat_map(|a| (0..4).map(move |b| (a, b))).filter(|(a, b)| a != b) {
            let expected = if (a + b) % 2 == 0 { Domain::Host } else { Domain::Device };
            assert_eq!(domains.of(Rank(a), Rank(b)), expected, "{a} {b}");
        }
        assert_eq!(Domains::default().of(Rank(0), Rank(1)), Domain::Device);
    }
}

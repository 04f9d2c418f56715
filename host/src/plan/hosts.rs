//! Which ranks share a host.

/// The hosts of a communicator, as far as algorithms of two levels ask. The same on every rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hosts {
    /// All ranks are on one.
    One,
    /// Some host has one rank alone, or hosts have different numbers of ranks.
    Uneven,
    /// The ranks of a host do not follow each other.
    Scattered,
    /// Each has so many ranks, several, which follow each other.
    Even(u32),
}

impl Hosts {
    /// From the host of each rank, in rank order.
    pub fn of(host_of: impl Iterator<Item = u64>) -> Hosts {
        let mut runs: Vec<(u64, u32)> = Vec::new();
        for host in host_of {
            match runs.last_mut() {
                Some((last, count)) if *last == host => *count += 1,
                _ => runs.push((host, 1)),
            }
        }
        let (each, nruns) = (runs.first().map_or(1, |(_, count)| *count), runs.len());
        let is_even = each > 1 && runs.iter().all(|(_, count)| *count == each);
        runs.sort_unstable();
        runs.dedup_by_key(|(host, _)| *host);
        match runs.len() {
            0 | 1 => Hosts::One,
            nhosts if nhosts < nruns => Hosts::Scattered,
            _ if is_even => Hosts::Even(each),
            _ => Hosts::Uneven,
        }
    }

    /// Ranks of each host; 0 where there are not two levels.
    pub fn ranks_each(self) -> u32 {
        if let Hosts::Even(ranks) = self { ranks } else { 0 }
    }

    /// Why there are not two levels.
    pub fn why_not(self) -> &'static str {
        match self {
            Hosts::One => "all ranks are on one host",
            Hosts::Uneven => "not every host has equally many ranks, and several",
            Hosts::Scattered => "the ranks of a host do not follow each other",
            Hosts::Even(_) => "a kernel has room for 7 peers, and a network carries no lines of 128 bytes",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Hosts;

    #[test]
    fn hosts_are_even_or_say_why_not() {
        for (host_of, expected) in [
            (&[7, 7][..], Hosts::One),
            (&[], Hosts::One),
            (&[7, 7, 3, 3, 5, 5], Hosts::Even(2)),
            (&[7, 3], Hosts::Uneven),
            (&[7, 7, 3], Hosts::Uneven),
            (&[7, 3, 7, 3], Hosts::Scattered),
            (&[7, 7, 3, 3, 7, 7], Hosts::Scattered),
        ] {
            assert_eq!(Hosts::of(host_of.iter().copied()), expected, "{host_of:?}");
        }
    }
}

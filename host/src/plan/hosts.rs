//! Which ranks share a host.

use oxccl_shared::algo::twolevel::PEERS_MAX;

/// The hosts of a communicator, as far as algorithms of two levels ask. The same on every rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hosts {
    /// All ranks are on one.
    One,
    /// Some host has one rank alone, or hosts have different numbers of ranks.
    Uneven,
    /// The ranks of a host do not follow each other.
    Scattered,
    /// A rank has more peers on its host and of its number than there is room for.
    Crowded,
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
            nhosts if is_even && each as usize + nhosts - 2 > PEERS_MAX => Hosts::Crowded,
            _ if is_even => Hosts::Even(each),
            _ => Hosts::Uneven,
        }
    }

    /// Ranks of each host; 0 where there are not two levels.
    pub fn ranks_each(self) -> u32 {
        if let Hosts::Even(ranks) = self { ranks } else { 0 }
    }

    /// Why there are not two levels, if there are not.
    pub fn lack(self) -> Option<&'static str> {
        (self.ranks_each() == 0).then(|| self.why_not())
    }

    /// Why there are not two levels.
    pub fn why_not(self) -> &'static str {
        match self {
            Hosts::One => "all ranks are on one host",
            Hosts::Uneven => "not every host has equally many ranks, and several",
            Hosts::Crowded => "a rank has more than 64 peers on its host and of its number",
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

    /// 64 peers of both levels are the most: a walk's tables end there.
    #[test]
    fn hosts_whose_ranks_have_too_many_peers_have_no_levels() {
        let of = |hosts: u64, each: u64| Hosts::of((0..hosts * each).map(move |rank| rank / each));
        assert_eq!(of(2, 64), Hosts::Even(64));
        assert_eq!(of(2, 65), Hosts::Crowded);
        assert_eq!(of(64, 2), Hosts::Even(2));
        assert_eq!(of(65, 2), Hosts::Crowded);
        assert_eq!(Hosts::Crowded.ranks_each(), 0);
    }
}

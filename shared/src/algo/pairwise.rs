//! Rounds of point-to-point traffic between all pairs: for all-to-all, and to order grouped sends and receives so
//! that all ranks reach the same pair at the same time.
//!
//! Ranks are cut into equal groups (the ranks of a node, or a part of them). A round is a distance between groups and
//! a distance inside a group. Inside, distances go 0, 1, 2, ...; between groups they go 0, 1, 3, 6, 10, ...:
//! triangular numbers modulo a power of two, which visit every residue once. NCCL orders groups likewise; consecutive
//! distances differ each time, so a group that is one distance late does not follow the same group through all its
//! rounds.

use crate::abi::Rank;

/// A rank's peers in one round. `send_to` receives from this rank in its own round of the same number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Round {
    /// The rank to send to.
    pub send_to: Rank,
    /// The rank to receive from.
    pub recv_from: Rank,
}

/// The `n` rounds of `rank` among `n` ranks in groups of `group_size`; round 0 is the rank itself.
///
/// A `group_size` that does not divide `n` is replaced by the greatest common divisor of both.
pub fn rounds(rank: Rank, n: u32, group_size: u32) -> impl Iterator<Item = Round> + Clone {
    let size = gcd(n, group_size).max(1);
    let ngroups = n / size;
    let (group, local) = (rank.0 / size, rank.0 % size);
    group_deltas(ngroups).flat_map(move |group_delta| {
        let to_base = super::wrap(group + group_delta, ngroups) * size;
        let from_base = super::wrap(group + ngroups - group_delta, ngroups) * size;
        (0..size).map(move |delta| Round {
            send_to: Rank(to_base + super::wrap(local + delta, size)),
            recv_from: Rank(from_base + super::wrap(local + size - delta, size)),
        })
    })
}

/// `0..ngroups` in the order of the triangular numbers modulo the next power of two.
fn group_deltas(ngroups: u32) -> impl Iterator<Item = u32> + Clone {
    let modulus = (ngroups as u64).next_power_of_two();
    (0..modulus)
        .map(move |x| ((x * (x + 1) / 2) & (modulus - 1)) as u32)
        .filter(move |&delta| delta < ngroups)
}

const fn gcd(a: u32, b: u32) -> u32 {
    let (mut a, mut b) = (a, b);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

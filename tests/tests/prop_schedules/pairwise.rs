//! Pairwise rounds: every pair once, and both of a pair in the same round.

use oxccl_shared::abi::Rank;
use oxccl_shared::algo::pairwise::{Round, rounds};

fn all_rounds(n: u32, group_size: u32) -> Vec<Vec<Round>> {
    (0..n).map(|rank| rounds(Rank(rank), n, group_size).collect()).collect()
}

#[test]
fn every_pair_meets_once_in_the_same_round() {
    for n in 1..=128u32 {
        for group_size in (1..=n).filter(|size| n % size == 0) {
            let all = all_rounds(n, group_size);
            for (rank, own) in all.iter().enumerate() {
                let mut sent_to = vec![false; n as usize];
                assert_eq!(own.len(), n as usize);
                assert_eq!(own[0], Round { send_to: Rank(rank as u32), recv_from: Rank(rank as u32) });
                for (number, round) in own.iter().enumerate() {
                    let peer = &all[round.send_to.index()][number];
                    assert_eq!(
                        peer.recv_from.index(),
                        rank,
                        "round {number} of {n} ranks in groups of {group_size}"
                    );
                    let seen = std::mem::replace(&mut sent_to[round.send_to.index()], true);
                    assert!(!seen, "rank {rank} sends twice to {}", round.send_to);
                }
            }
        }
    }
}

/// A whole group is served before the next; groups follow in quadratic order.
#[test]
fn group_distances_are_triangular_numbers() {
    let distances: Vec<u32> = rounds(Rank(0), 64, 4).map(|round| round.send_to.0 / 4).collect();
    let expected = [0, 1, 3, 6, 10, 15, 5, 12, 4, 13, 7, 2, 14, 11, 9, 8];
    assert!(distances.chunks(4).zip(expected).all(|(group, distance)| group == [distance; 4]));
}

#[test]
fn a_group_size_that_does_not_divide_shrinks_to_one_that_does() {
    assert_eq!(all_rounds(12, 8), all_rounds(12, 4));
    assert_eq!(all_rounds(7, 8), all_rounds(7, 1));
    assert_eq!(all_rounds(6, 0), all_rounds(6, 6));
}

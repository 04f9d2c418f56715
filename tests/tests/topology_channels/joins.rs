//! Hosts as lanes, joined.

use super::checks::{check_tree, cpu_time, crossings, inner_twice, is_permutation};
use oxccl::topology::search::Pattern;
use oxccl::topology::{Channels, HostLanes, Inside, JoinError};
use oxccl_shared::abi::Rank;
use oxccl_tests::deck::Deck;
use proptest::prelude::*;

fn host(first: u32, gpus: u32, channels: usize, pattern: Pattern) -> HostLanes {
    let lane: Vec<Rank> = (first..first + gpus).map(Rank).collect();
    HostLanes {
        rings: vec![lane.clone(); channels],
        trees: vec![lane; channels],
        ring_nets: vec![],
        tree_pattern: pattern,
        alternates: false,
        inside: Inside::Chain,
    }
}

/// 2,048 hosts of 8 ranks, 12 channels found on each.
#[test]
fn sixteen_thousand_ranks() {
    for inside in [Inside::Chain, Inside::Binary] {
        let host = |h: u32| HostLanes { inside, ..host(8 * h, 8, 12, Pattern::BalancedTree) };
        let hosts: Vec<HostLanes> = (0..2048).map(host).collect();
        let start = cpu_time();
        let channels = Channels::join(&hosts).unwrap();
        println!("2,048 hosts of 8 ranks, trees {inside:?}: {:?} of one core", cpu_time() - start);
        assert_eq!((channels.rings.len(), channels.trees.len()), (24, 24));
        let host_of = |rank: Rank| rank.index() / 8;
        for ring in &channels.rings {
            assert!(is_permutation(ring, 16_384));
            assert_eq!(crossings(ring, host_of), 2048, "a ring enters each host once");
        }
        channels.trees.iter().for_each(|tree| check_tree(tree));
        let twice = inner_twice([&channels.trees[0], &channels.trees[12]], 2048, host_of);
        assert!(twice.is_empty(), "{twice:?}");
    }
}

#[test]
fn lanes_in_pairs_keep_to_their_rail() {
    let pair = |first: u32| HostLanes {
        rings: vec![vec![Rank(first), Rank(first + 1)], vec![Rank(first + 1), Rank(first)]],
        alternates: true,
        ..host(first, 2, 2, Pattern::Tree)
    };
    let channels = Channels::join(&[pair(0), pair(2), pair(4), pair(6)]).unwrap();
    // GPU 1 of a host sends to GPU 1 of the next, which shares its rail.
    assert_eq!(channels.rings[0], [0, 1, 3, 2, 4, 5, 7, 6].map(Rank));
    assert!(
        channels.rings[0].windows(3).any(|ranks| ranks == [1, 3, 2].map(Rank)),
        "rank 3 is between 1 and 2"
    );
}

#[test]
fn trees_leave_hosts_as_the_pattern_tells() {
    let two = |pattern| {
        Channels::join(&[host(0, 3, 1, pattern), host(3, 3, 1, pattern), host(6, 3, 1, pattern)]).unwrap()
    };
    // In the first tree host 2 is host 0's child, and host 1 is host 2's: a root's only child counts as a second one.
    let links = |pattern, rank: usize| two(pattern).trees[0][rank];
    assert_eq!(links(Pattern::Tree, 6).down, [Some(Rank(7)), Some(Rank(3)), None]);
    assert_eq!(links(Pattern::BalancedTree, 7).down, [Some(Rank(8)), Some(Rank(3)), None]);
    assert_eq!(links(Pattern::SplitTree, 1).down, [Some(Rank(2)), Some(Rank(6)), None]);
    assert_eq!(links(Pattern::BalancedTree, 0).down, [Some(Rank(1)), Some(Rank(6)), None]);
}

/// Two hosts of four: in each half another rank of each host has the links to the other one, and no rank is inside both.
#[test]
fn binary_trees_inside_hosts() {
    let uniform = |first: u32| HostLanes::uniform((first..first + 4).map(Rank).collect());
    let channels = Channels::join(&[uniform(0), uniform(4)]).unwrap();
    let [first, second] = [channels.tree(0), channels.tree(1)];
    assert_eq!(first[0].down, [Some(Rank(2)), Some(Rank(4)), None]);
    assert_eq!(first[2].down, [Some(Rank(1)), Some(Rank(3)), None]);
    assert_eq!(second[7].down, [Some(Rank(5)), Some(Rank(3)), None]);
    assert!((0..8).all(|rank| first[rank].is_leaf() || second[rank].is_leaf()));
    assert_eq!((channels.tree(2), channels.ring(1)), (first, channels.ring(0)));
}

/// Channels beyond those found begin anew, and halves take turns.
#[test]
fn any_number_of_channels() {
    let channels = Channels::join(&[host(0, 3, 2, Pattern::Tree), host(3, 3, 2, Pattern::Tree)]).unwrap();
    for channel in 0..9 {
        assert_eq!(channels.ring(channel), channels.rings[channel % 4]);
        assert_eq!(channels.tree(channel), channels.trees[[0, 2, 1, 3][channel % 4]]);
    }
}

#[test]
fn hosts_that_do_not_join() {
    let good = host(0, 2, 1, Pattern::Tree);
    assert_eq!(
        Channels::join(&[good.clone(), host(1, 2, 1, Pattern::Tree)]),
        Err(JoinError::Rank { rank: Rank(1), host: 1, nranks: 4 })
    );
    assert_eq!(
        Channels::join(&[good.clone(), host(9, 2, 1, Pattern::Tree)]),
        Err(JoinError::Rank { rank: Rank(9), host: 1, nranks: 4 })
    );
    let empty = HostLanes { trees: vec![], ..host(2, 2, 1, Pattern::Tree) };
    assert_eq!(
        Channels::join(&[good.clone(), empty]),
        Err(JoinError::NoChannels { host: 1, hosts: 2, what: "tree" })
    );
    let odd = HostLanes { trees: vec![vec![Rank(2), Rank(2)]], ..host(2, 2, 1, Pattern::Tree) };
    assert_eq!(Channels::join(&[good, odd]), Err(JoinError::Lane { host: 1, channel: 0 }));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_hosts_join(
        sizes in proptest::collection::vec((1u32..5, 0usize..3, any::<bool>()), 1..20),
        channels in 1usize..5,
        seed: u64,
    ) {
        let patterns = [Pattern::BalancedTree, Pattern::SplitTree, Pattern::Tree];
        let nranks = sizes.iter().map(|size| size.0).sum::<u32>();
        // Ranks in any order over hosts.
        let mut deck = Deck::new(nranks as usize, seed);
        let mut host_of = vec![0; nranks as usize];
        let hosts: Vec<HostLanes> = sizes.iter().enumerate().map(|(at, (gpus, pattern, is_uniform))| {
            let mut lane: Vec<Rank> = (0..*gpus).map(|_| Rank(deck.draw() as u32)).collect();
            lane.iter().for_each(|rank| host_of[rank.index()] = at);
            let mut lanes = host(0, *gpus, channels, patterns[*pattern]);
            lanes.rings.iter_mut().zip(&mut lanes.trees).for_each(|(ring, tree)| {
                lane.rotate_left(1);
                ring.clone_from(&lane);
                tree.clone_from(&lane);
            });
            lanes.inside = if *is_uniform { Inside::Binary } else { Inside::Chain };
            lanes
        }).collect();
        let joined = Channels::join(&hosts).unwrap();
        let host_of = |rank: Rank| host_of[rank.index()];
        prop_assert_eq!(joined.rings.len(), 2 * channels);
        for ring in &joined.rings {
            prop_assert!(is_permutation(ring, nranks as usize));
            prop_assert_eq!(crossings(ring, host_of), if hosts.len() > 1 { hosts.len() } else { 0 });
        }
        joined.trees.iter().for_each(|tree| check_tree(tree));
        for channel in 0..channels {
            let halves = [&joined.trees[channel][..], &joined.trees[channel + channels]];
            let twice = inner_twice(halves, hosts.len(), host_of);
            prop_assert!(twice.is_empty() || (hosts.len() % 2 == 1 && twice == [0]), "{:?}", twice);
        }
    }
}

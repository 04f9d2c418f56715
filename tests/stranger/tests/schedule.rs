//! The schedule, carried out by hand, against the oracle; and what the page that tells of it quotes.
#![cfg(not(loom))]

use oxccl::{Func, RedOp};
use oxccl_shared::abi;
use oxccl_shared::algo::Action;
use oxccl_stranger::schedule::{Peers, Place, Step};
use oxccl_tests::oracle::Inputs;
use proptest::prelude::*;
use std::collections::{HashMap, VecDeque};

/// Slots of a connection, by the protocol that has fewest, but one: an exchange between all GPUs may not have given back its last one yet.
const SLOTS: usize = abi::Protocol::LL128.slots() - 1;

/// A rank on its way through its steps, one slice after the other.
struct Rank {
    place: Place,
    steps: Vec<Step>,
    at: usize,
    input: i32,
    output: Option<i32>,
}

type Links = HashMap<(usize, usize), VecDeque<i32>>;

impl Rank {
    fn peers(&self, peers: Peers) -> Vec<usize> {
        match peers {
            Peers::Nobody => Vec::new(),
            Peers::Parent => vec![self.place.parent().expect("a root has no parent").index()],
            Peers::Children => self.place.children().map(|child| child.index()).collect(),
        }
    }

    /// Takes the next step, if it can.
    fn advance(&mut self, rank: usize, links: &mut Links) -> bool {
        let Some(Step { action, from, to }) = self.steps.get(self.at).copied() else { return false };
        let (from, to) = (self.peers(from), self.peers(to));
        let is_ready = from.iter().all(|peer| links.get(&(*peer, rank)).is_some_and(|link| !link.is_empty()))
            && to.iter().all(|peer| links.get(&(rank, *peer)).is_none_or(|link| link.len() < SLOTS));
        if !is_ready {
            return false;
        }
        let received = from.iter().map(|peer| links.get_mut(&(*peer, rank)).unwrap().pop_front().unwrap());
        let value = received.fold(None, |sum: Option<i32>, x| Some(sum.map_or(x, |sum| sum.wrapping_add(x))));
        let own = action.src.then_some(self.input);
        let value = [own, value].into_iter().flatten().reduce(i32::wrapping_add).expect("a step has a value");
        to.iter().for_each(|peer| links.entry((rank, *peer)).or_default().push_back(value));
        self.output = if action.dst { Some(value) } else { self.output };
        self.at += 1;
        true
    }
}

/// Runs all ranks, in an order that `order` decides, until nobody can go on. Returns outputs, if all have ended.
fn simulate(
    func: Func,
    root: u32,
    inputs: &[i32],
    slices: usize,
    mut order: u64,
) -> Result<Vec<Option<i32>>, String> {
    let n = inputs.len() as u32;
    let mut ranks: Vec<Rank> = (0..n)
        .map(|rank| {
            let place = Place::new(abi::Rank(rank), abi::Rank(root), n);
            let steps: Vec<Step> = match func {
                Func::Broadcast => place.broadcast().collect(),
                _ => place.all_reduce().collect(),
            };
            let all = steps.repeat(slices);
            Rank { place, steps: all, at: 0, input: inputs[rank as usize], output: None }
        })
        .collect();
    let mut links = Links::new();
    loop {
        order = order.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let first = (order >> 33) as usize % ranks.len();
        let mut turns = (first..ranks.len()).chain(0..first);
        if !turns.any(|rank| ranks[rank].advance(rank, &mut links)) {
            break;
        }
    }
    match ranks.iter().position(|rank| rank.at < rank.steps.len()) {
        Some(rank) => Err(format!("rank {rank} waits in step {}", ranks[rank].at)),
        None if links.values().any(|link| !link.is_empty()) => Err("something is left in a slot".into()),
        None => Ok(ranks.into_iter().map(|rank| rank.output).collect()),
    }
}

proptest! {
    #[test]
    fn all_ranks_get_the_oracles_result(
        inputs in prop::collection::vec(any::<i32>(), 2..70),
        root in any::<prop::sample::Index>(),
        slices in 1usize..20,
        order in any::<u64>(),
    ) {
        let send: Vec<Vec<i32>> = inputs.iter().map(|input| vec![*input]).collect();
        for func in [Func::AllReduce, Func::Broadcast] {
            let root = if func == Func::Broadcast { root.index(inputs.len()) } else { 0 };
            let oracle = Inputs { func, op: RedOp::Sum, root, count: 1, send: &send, scalars: &[] };
            let outputs = simulate(func, root as u32, &inputs, slices, order).map_err(TestCaseError::fail)?;
            for (rank, output) in outputs.iter().enumerate() {
                prop_assert_eq!(output.map(|output| vec![output]), oracle.output(rank), "{:?}, rank {}", func, rank);
            }
        }
    }

    #[test]
    fn each_input_counts_once_and_the_result_is_finished_once(n in 2u32..200) {
        let steps = (0..n).flat_map(|rank| Place::new(abi::Rank(rank), abi::Rank(0), n).all_reduce().map(move |step| (rank, step)).collect::<Vec<_>>());
        let steps: Vec<(u32, Step)> = steps.collect();
        let with = |of: fn(&Action) -> bool| steps.iter().filter(|(_, step)| of(&step.action)).count() as u32;
        prop_assert_eq!((with(|action| action.src), with(|action| action.dst), with(|action| action.finish)), (n, n, 1));
    }
}

#[test]
fn the_tree_is_the_one_that_is_drawn() {
    let children = |rank| {
        Place::new(abi::Rank(rank), abi::Rank(0), 8).children().map(|child| child.0).collect::<Vec<_>>()
    };
    assert_eq!((children(0), children(4), children(6)), (vec![1, 2, 4], vec![5, 6], vec![7]));
    assert_eq!(
        Place::new(abi::Rank(1), abi::Rank(3), 5).children().count(),
        0,
        "rank 1 is the fourth from rank 3"
    );
    assert_eq!(Place::new(abi::Rank(1), abi::Rank(3), 5).parent(), Some(abi::Rank(0)));
}

/// Every piece of Rust on the page stands in the sources, word for word.
#[test]
fn the_page_quotes_the_sources() {
    let page = include_str!("../../../docs/write-your-own.md");
    let sources = [
        include_str!("../src/lib.rs"),
        include_str!("../src/schedule.rs"),
        include_str!("../src/walk.rs"),
        include_str!("../src/kernels.rs"),
        include_str!("conformance.rs"),
        include_str!("fifos.rs"),
    ];
    let pieces: Vec<&str> =
        page.split("```rust\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(pieces.len() >= 4, "{} pieces", pieces.len());
    for piece in pieces {
        assert!(sources.iter().any(|source| source.contains(piece.trim())), "in no source:\n{piece}");
    }
}

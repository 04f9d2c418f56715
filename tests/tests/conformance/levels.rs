//! All-reduce of two levels: ranks on even hosts, which are texts, by every transport between hosts.

use super::drawn;
use oxccl::{
    Algorithm, Communicator, Config, DataType, Func, Protocol, RedOp, ReduceOp, TransportKind, UniqueId,
    Untyped,
};
use oxccl_tests::case::{By, Case, Placement};
use oxccl_tests::deadline::{Deadline, doing};
use oxccl_tests::deck::Deck;
use oxccl_tests::harness::{Settings, World, on_threads};
use std::collections::HashSet;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(280);

fn settings(protocol: Protocol, transport: Option<TransportKind>) -> Settings {
    Settings {
        algorithm: Some(Algorithm::TwoLevel),
        protocol: Some(protocol),
        transport,
        ..Settings::default()
    }
}

fn placed(hosts: &[u32]) -> impl Fn(u32, &mut Config) + Sync + '_ {
    |rank, config| config.host_id = Some(format!("host {}", hosts[rank as usize]))
}

/// The rank's all-reduce, and why others do not go so.
fn explained(rank: &Communicator) -> (Algorithm, String) {
    explained_of(rank, 1000)
}

fn explained_of(rank: &Communicator, count: usize) -> (Algorithm, String) {
    let explained =
        rank.explain_with(Func::AllReduce, DataType::F32, RedOp::Sum, count as u64).expect("an all-reduce");
    let explained = explained.expect("it is planned");
    (explained.choice.candidate.algorithm, explained.to_string())
}

fn some_cases(world: &mut World, random: &mut Deck, cases: usize) {
    for _ in 0..cases {
        let dtype = DataType::ALL[random.draw() % DataType::ALL.len()];
        let op = RedOp::ALL[random.draw() % RedOp::ALL.len()];
        drawn::all_reduce(world, random, dtype, op);
    }
}

#[test]
fn two_levels_of_every_number_of_hosts_and_ranks() {
    let _deadline = Deadline::start("two_levels_of_every_number_of_hosts_and_ranks", LIMIT);
    let mut random = Deck::new(1 << 16, 21);
    for (nhosts, host_ranks) in [(2, 2), (2, 3), (2, 4), (3, 2), (3, 3), (4, 2), (9, 2)] {
        let hosts: Vec<u32> = (0..nhosts * host_ranks).map(|rank| rank / host_ranks).collect();
        for &protocol in Protocol::ALL {
            let mut world = World::with(hosts.len() as u32, settings(protocol, None), placed(&hosts));
            some_cases(&mut world, &mut random, 30);
            assert!(world.ranks.iter().all(|rank| explained(rank).0 == Algorithm::TwoLevel));
        }
    }
}

#[test]
fn two_levels_over_streams_and_networks() {
    let _deadline = Deadline::start("two_levels_over_streams_and_networks", LIMIT);
    let mut random = Deck::new(1 << 16, 22);
    for transport in [TransportKind::Tcp, TransportKind::Net] {
        for hosts in [&[0, 0, 1, 1][..], &[5, 5, 3, 3, 4, 4]] {
            let settings = settings(Protocol::Simple, Some(transport));
            let mut world = World::with(hosts.len() as u32, settings, placed(hosts));
            some_cases(&mut world, &mut random, 30);
            assert!(world.ranks.iter().all(|rank| explained(rank).0 == Algorithm::TwoLevel));
        }
    }
}

/// What nobody orders: by the model one-shot, trees, two levels and rings come up, all ranks agree on which, and all are right.
#[test]
fn the_model_chooses_over_hosts() {
    let _deadline = Deadline::start("the_model_chooses_over_hosts", LIMIT);
    let mut random = Deck::new(1 << 16, 24);
    let mut chosen = HashSet::new();
    for hosts in [
        &[0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1][..],
        &[0, 0, 1, 1, 2, 2, 3, 3],
        &[0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2],
        &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10],
        &[0, 1, 0, 1, 2, 2, 0, 1, 1, 0],
    ] {
        let mut world = World::with(hosts.len() as u32, Settings::default(), placed(hosts));
        for count in [1, 600, 9_000, 70_000, 400_001] {
            let (algorithm, text) = explained_of(&world.ranks[0], count);
            assert!(text.contains("because the model finds it fastest: "), "{text}");
            assert!(world.ranks.iter().all(|rank| explained_of(rank, count).0 == algorithm));
            chosen.insert(algorithm);
            let by = if count > 600 { By::Threads } else { By::Fibers };
            let (dtype, op) = (DataType::F32, RedOp::Sum);
            let (placement, seed) = (Placement::ALL[0], random.draw() as u64);
            let case = Case { func: Func::AllReduce, dtype, op, root: 0, count, placement, seed };
            doing(|| format!("{case:?} on {hosts:?}"));
            case.check(&mut world, by).expect("it is right");
        }
        some_cases(&mut world, &mut random, 10);
    }
    let all = [Algorithm::OneShot, Algorithm::Tree, Algorithm::TwoLevel, Algorithm::Ring];
    assert_eq!(chosen, HashSet::from(all));
}

/// Hosts that do not allow it say so, and the all-reduce goes another way.
#[test]
fn hosts_that_are_not_even_say_so() {
    let _deadline = Deadline::start("hosts_that_are_not_even_say_so", LIMIT);
    for (hosts, why) in [
        (&[0, 0, 0][..], "all ranks are on one host"),
        (&[0, 0, 1], "equally many ranks"),
        (&[0, 1, 0, 1], "do not follow each other"),
    ] {
        let by_name = Settings { protocol: Some(Protocol::Simple), ..Settings::default() };
        let mut world = World::with(hosts.len() as u32, by_name, placed(hosts));
        let (algorithm, text) = explained(&world.ranks[0]);
        assert_ne!(algorithm, Algorithm::TwoLevel);
        assert!(text.contains(why), "{text}");
        some_cases(&mut world, &mut Deck::new(1 << 16, 23), 3);
    }
}

/// Who orders two levels and nothing else gets them or an error on every rank.
#[test]
fn an_order_for_two_levels_that_cannot_be_obeyed_says_why() {
    let _deadline = Deadline::start("an_order_for_two_levels_that_cannot_be_obeyed_says_why", LIMIT);
    let hosts = [0, 0, 1];
    let config = Settings { algorithm: Some(Algorithm::TwoLevel), ..Settings::default() }.config();
    let id = UniqueId::create_by(&config.bootstrap).expect("a root on the loopback interface");
    let errors = on_threads(0..3, |rank| {
        let mut config = config.clone();
        placed(&hosts)(rank, &mut config);
        let built = Communicator::builder().unique_id(id).rank(rank).ranks(3).config(config).build();
        built.expect_err("it was ordered").to_string()
    });
    for error in errors {
        assert!(error.contains("NCCL_ALGO") && error.contains("equally many ranks"), "{error}");
    }
}

/// Sums that round: every rank gets the same bits.
#[test]
fn two_levels_give_all_ranks_the_same_bits() {
    const COUNT: usize = 70_001;
    let _deadline = Deadline::start("two_levels_give_all_ranks_the_same_bits", LIMIT);
    let hosts = [0, 0, 0, 1, 1, 1];
    let world = World::with(6, settings(Protocol::Simple, None), placed(&hosts));
    let input = |rank: usize| (0..COUNT).map(move |i| 1.0 / (1 + rank * 31 + i % 997) as f32);
    let mut buffers: Vec<Vec<f32>> = (0..6).map(|rank| input(rank).collect()).collect();
    let result = oxccl::group(|group| {
        world.ranks.iter().zip(&mut buffers).try_for_each(|(rank, buffer)| {
            let recv = buffer.as_mut_ptr().cast();
            let op = ReduceOp::SUM;
            let call = Untyped {
                recv,
                send: recv,
                count: COUNT,
                op,
                ..Untyped::new(Func::AllReduce, DataType::F32)
            };
            // SAFETY: the buffer holds `COUNT` elements, input and output are the same, and it outlives the group.
            unsafe { group.add_untyped(rank, &call) }
        })
    });
    result.unwrap();
    let bits = |buffer: &[f32]| buffer.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    assert!(buffers.iter().all(|buffer| bits(buffer) == bits(&buffers[0])));
    let sum = |i: usize| (0..6).map(|rank| input(rank).nth(i).unwrap()).sum::<f32>();
    for i in [0, 1, 35_000, COUNT - 1] {
        assert!((buffers[0][i] - sum(i)).abs() <= 1e-5 * sum(i));
    }
}

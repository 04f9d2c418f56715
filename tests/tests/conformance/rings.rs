//! Rings and trees that do not follow the order of ranks: what a user sees goes by rank all the same.

use super::dims::{FUNCS, applies, ops, settings};
use oxccl::{DataType, Rank, TransportKind};
use oxccl_tests::borders::{Borders, CLASSES};
use oxccl_tests::case::{By, Case, Placement};
use oxccl_tests::deadline::{Deadline, doing};
use oxccl_tests::deck::Deck;
use oxccl_tests::harness::{Settings, World};
use std::time::Duration;

/// Every function with every rank as root, so that roots lie at all positions.
fn check_all(world: &mut World, random: &mut Deck) {
    let (settings, nranks) = (world.settings, world.size() as u32);
    for func in FUNCS.into_iter().filter(|func| applies(&settings, *func)) {
        for root in 0..nranks {
            let dtype = DataType::ALL[random.draw() % DataType::ALL.len()];
            let op = ops(func)[random.draw() % ops(func).len()];
            let borders = Borders::new(&settings.config(), func, dtype, nranks);
            let count = CLASSES[random.draw() % CLASSES.len()].1(&borders);
            let placement = Placement::ALL[random.draw() % Placement::ALL.len()];
            let case = Case { func, dtype, op, root, count, placement, seed: random.draw() as u64 };
            let by = if root % 3 == 2 { By::Threads } else { By::Fibers };
            doing(|| format!("{case:?} by {by:?} of {nranks} ranks, {settings:?}"));
            case.check(world, by).unwrap_or_else(|failure| panic!("{failure}"));
        }
    }
}

/// One to three rings in random orders, a channel each.
fn permuted(name: &'static str, nranks: u32) {
    let _deadline = Deadline::start(name, Duration::from_secs(240));
    let mut random = Deck::new(1 << 16, u64::from(nranks) + 99);
    for (index, setting) in settings().into_iter().enumerate() {
        let mut places = Deck::new(nranks as usize, index as u64);
        let ring = |_| (0..nranks).map(|_| Rank(places.draw() as u32)).collect();
        let rings: Vec<Vec<Rank>> = (0..1 + index % 3).map(ring).collect();
        doing(|| format!("setting up {nranks} ranks with {setting:?} along {rings:?}"));
        let mut world = World::with(nranks, setting, |_, config| config.topology.rings = Some(rings.clone()));
        assert!(world.ranks.iter().all(|rank| rank.rings() == rings));
        check_all(&mut world, &mut random);
    }
}

#[test]
fn permuted_3() {
    permuted("permuted_3", 3);
}

#[test]
fn permuted_4() {
    permuted("permuted_4", 4);
}

#[test]
fn permuted_7() {
    permuted("permuted_7", 7);
}

/// Ranks numbered round over hosts, as `mpirun --map-by node` does: those of a host still stand together in the ring, which so
/// enters and leaves each host once, and only links between hosts are streams.
fn hosts(name: &'static str, nranks: u32, hosts: u32) {
    let _deadline = Deadline::start(name, Duration::from_secs(240));
    let mut random = Deck::new(1 << 16, u64::from(nranks) + 7);
    for setting in settings() {
        doing(|| format!("setting up {nranks} ranks on {hosts} hosts with {setting:?}"));
        let mut world = World::with(nranks, setting, |rank, config| {
            config.host_id = Some(format!("host {}", rank % hosts));
        });
        let ring = &world.ranks[0].rings()[0];
        let crossings =
            (0..ring.len()).filter(|i| ring[*i].0 % hosts != ring[(i + 1) % ring.len()].0 % hosts);
        assert_eq!(crossings.count() as u32, hosts, "{ring:?}");
        for rank in &world.ranks {
            assert_eq!(rank.rings()[0], *ring);
            for peer in &rank.memory().peers {
                let is_near = peer.rank.0 % hosts == rank.rank() % hosts;
                assert_eq!(peer.transport != TransportKind::Tcp, is_near, "{} to {}", rank.rank(), peer.rank);
            }
        }
        check_all(&mut world, &mut random);
    }
}

#[test]
fn two_hosts_of_six_ranks() {
    hosts("two_hosts_of_six_ranks", 6, 2);
}

#[test]
fn three_hosts_of_seven_ranks() {
    hosts("three_hosts_of_seven_ranks", 7, 3);
}

/// A user's ring of four ranks does not apply to the two that split off.
#[test]
fn the_users_rings_are_not_those_of_a_split() {
    let _deadline = Deadline::start("the_users_rings_are_not_those_of_a_split", Duration::from_secs(100));
    let rings = vec![[3, 1, 2, 0].map(Rank).to_vec()];
    let mut world =
        World::with(4, Settings::default(), |_, config| config.topology.rings = Some(rings.clone()));
    let split = world.each(|rank| rank.split(Some(rank.rank() % 2), 0).unwrap().unwrap().rings().to_vec());
    assert!(split.iter().all(|rings| *rings == [[Rank(0), Rank(1)]]), "{split:?}");
}

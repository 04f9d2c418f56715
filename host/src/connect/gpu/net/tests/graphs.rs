//! Graphs: launches are captured once and run many times, between launches that are not captured.

use super::cases::{FUNCS, call};
use super::*;
use crate::launch::Fault;
use crate::proxy::ORDERS_WAITING_MAX;
use oxccl_shared::abi::Protocol;
use std::sync::{Mutex, PoisonError};

/// What was captured, as a driver's graph would have it.
struct PlayedGraph {
    issues: Vec<Issue>,
    works: Vec<Work>,
}

enum Work {
    Collective(Collective),
    Messages(Messages),
}

impl PlayedGraph {
    /// Every function at `count`, and a group of messages before each.
    fn of_everything(player: &mut Player, count: u64, first_tag: u32) -> PlayedGraph {
        PlayedGraph::capture(player, |player| {
            let mut works = Vec::new();
            for (func, tag) in FUNCS.into_iter().zip((first_tag..).step_by(2)) {
                let wants = player.wants_of_exchange(count as usize);
                works.push(Work::Messages(player.launch_messages(&wants, tag)));
                let call = call(func, if func == Func::Barrier { 0 } else { count });
                works.push(Work::Collective(player.launch_collective(&call, tag + 1)));
            }
            works
        })
    }

    fn capture(player: &mut Player, launch: impl FnOnce(&mut Player) -> Vec<Work>) -> PlayedGraph {
        player.captures = true;
        let works = launch(player);
        player.captures = false;
        PlayedGraph { issues: std::mem::take(&mut player.issues), works }
    }

    /// The driver's thread gives all orders as early as it may, while kernels run. It is one for all ranks, so that what waited for
    /// another rank's would wait for ever.
    fn launch(&mut self, player: &mut Player) {
        let PlayedGraph { issues, works } = self;
        let player = &*player;
        std::thread::scope(|scope| {
            scope.spawn(|| issues.iter().for_each(|issue| replay_on(&DRIVER, issue)));
            for work in works {
                let ended = match work {
                    Work::Collective(collective) => player.run_collective(collective),
                    Work::Messages(messages) => player.run_messages(messages),
                };
                assert!(ended.is_ok(), "{:?}", player.health.fault());
            }
        });
    }
}

impl PlayedGraph {
    fn protocols(&self) -> Vec<Protocol> {
        let protocol = |work: &Work| match work {
            Work::Collective(collective) => Some(collective.plan.protocol),
            Work::Messages(_) => None,
        };
        self.works.iter().filter_map(protocol).collect()
    }
}

/// Held by the rank that the driver's thread works for.
static DRIVER: Mutex<()> = Mutex::new(());

fn replay_on(driver: &Mutex<()>, issue: &Issue) {
    let _turn = driver.lock().unwrap_or_else(PoisonError::into_inner);
    replay(issue);
}

fn replay(issue: &Issue) {
    match issue {
        Issue::ByGraph(replay) => replay.run(),
        Issue::Nothing => {}
        Issue::Done | Issue::ByStream(_) => panic!("was captured"),
    }
}

/// One call, and whether its order was given at once.
fn gives_at_once(player: &mut Player, tag: u32) -> bool {
    let mut collective = player.launch_collective(&call(Func::AllReduce, 2000), tag);
    let gave = matches!(player.issues[..], [Issue::Done]);
    player.come_to_turns();
    assert!(player.run_collective(&mut collective).is_ok(), "{:?}", player.health.fault());
    gave
}

/// Several graphs that are launched in any order, with calls between them, and destroyed in another order.
pub(super) fn graphs_and_calls(player: &mut Player) {
    assert!(gives_at_once(player, 1));
    let mut short = PlayedGraph::of_everything(player, 100, 1000);
    let mut long = PlayedGraph::of_everything(player, 60_001, 2000);
    let protocols = [&short, &long].map(|graph| graph.protocols());
    assert!(
        protocols[0].contains(&Protocol::LL) && protocols[1].contains(&Protocol::Simple),
        "{protocols:?}"
    );
    for tag in 2..5 {
        short.launch(player);
        assert!(!gives_at_once(player, tag), "a graph could be launched and wait");
        long.launch(player);
        assert!(player.exchange(5000, 10 + tag).is_ok(), "{:?}", player.health.fault());
    }
    drop(short);
    long.launch(player);
    long.launch(player);
    assert!(!gives_at_once(player, 20));
    drop(long);
    assert!(gives_at_once(player, 21), "no graph is left");
    let mut again = PlayedGraph::of_everything(player, 100, 3000);
    again.launch(player);
    player.finish();
    drop(again);
}

#[test]
fn graphs_run_again_and_again_among_calls() {
    Scene { memory: false, ..Scene::new(&[1, 2]) }.play(graphs_and_calls);
    Scene { threads: 4, ..Scene::new(&[1, 1, 2]) }.play(graphs_and_calls);
}

/// A graph gives everything before its first kernel has done anything.
#[test]
fn a_graph_may_have_more_orders_than_the_proxys_fifo() {
    Scene { memory: false, ..Scene::new(&[1, 2]) }.play(|player| {
        let calls = 3 * ORDERS_WAITING_MAX as u32;
        let mut graph = PlayedGraph::capture(player, |player| {
            let launch = |tag| Work::Collective(player.launch_collective(&call(Func::AllReduce, 10), tag));
            (0..calls).map(launch).collect()
        });
        for tag in 0..2 {
            graph.issues.iter().for_each(replay);
            for work in &mut graph.works {
                let Work::Collective(collective) = work else { unreachable!("only these") };
                assert!(player.run_collective(collective).is_ok(), "{:?}", player.health.fault());
            }
            assert!(!gives_at_once(player, 1000 + tag));
        }
        player.finish();
    });
}

/// A communicator that stops in the middle of a launch, a launch after that, and one when it is gone.
#[test]
fn launches_for_a_communicator_that_has_stopped_tell_nobody_anything() {
    Scene { memory: false, ..Scene::new(&[1, 2]) }.play(|player| {
        let mut graph = PlayedGraph::of_everything(player, 100, 1000);
        graph.launch(player);
        player.finish();
        if player.rank == Rank(1) {
            // Has its part of another launch told to its proxy, and stops before the kernels.
            graph.issues.iter().for_each(replay);
        }
        assert_eq!(player.is_finished(), player.rank == Rank(0));
        player.health.fail(Fault::Aborted, None);
        let was_finished = player.is_finished();
        graph.issues.iter().for_each(replay);
        assert_eq!(player.is_finished(), was_finished, "an order was given, which nobody will do");
        drop(player.net.take());
        graph.issues.iter().for_each(replay);
    });
}

//! What every rank must find, and what it is told when another does not do its part.

use super::{Player, Scene};
use crate::launch::Fault;
use crate::plan::{Call, Forced};
use crate::plan::{MessageWant, plan};
use crate::proxy::ORDERS_OPEN_MAX;
use oxccl_shared::abi::{Algorithm, DataType, Func, Protocol, Rank, RedOp};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub(super) fn call(func: Func, count: u64) -> Call {
    Call { func, dtype: DataType::U32, op: RedOp::Sum, root: Rank(1), count }
}

pub(super) const FUNCS: [Func; 6] =
    [Func::AllReduce, Func::AllGather, Func::ReduceScatter, Func::Broadcast, Func::Reduce, Func::Barrier];

/// Every function at counts that take one word (in one hop to all), two, some slots, and all slots of all channels several times.
pub(super) fn every_function(player: &mut Player) {
    let mut tag = 1;
    for count in [1, 3, 1000, 60_001] {
        for func in FUNCS {
            let call = call(func, if func == Func::Barrier { 0 } else { count });
            assert!(player.collective(&call, tag).is_ok(), "{:?}", player.health.fault());
            tag += 1;
        }
        for len_bytes in [0, 100, 200_000] {
            assert!(player.exchange(len_bytes, tag).is_ok(), "{:?}", player.health.fault());
            tag += 1;
        }
    }
    player.finish();
}

#[test]
fn ranks_that_each_are_a_host_do_everything_over_sockets() {
    Scene { memory: false, ..Scene::new(&[1, 1, 1]) }.play(every_function);
    Scene { threads: 4, ..Scene::new(&[1, 2]) }.play(every_function);
}

/// Some connections in memory that GPUs share, others over the network.
#[test]
fn two_hosts_of_two_ranks_do_everything() {
    Scene::new(&[1, 1, 2, 2]).play(every_function);
}

/// Groups of several times as many messages as a proxy holds open, which every rank adds in an order of its own.
#[test]
fn a_group_has_as_many_messages_as_one_likes() {
    let of_a_pair = ORDERS_OPEN_MAX as u32;
    Scene { memory: false, ..Scene::new(&[1, 2, 3]) }.play(|player| {
        let (me, n) = (player.rank, player.facts.nranks);
        let far = |is_send, peer, len_bytes| MessageWant {
            is_send,
            peer,
            is_far: true,
            is_exchange: false,
            len_bytes,
        };
        let to_or_from = |is_send, peer| {
            let len_bytes = move |number| if number % 100 == 7 { 40_000 } else { u64::from(number % 50) };
            (0..of_a_pair).map(move |number| far(is_send, peer, len_bytes(number)))
        };
        let peers = (1..n).map(|step| Rank((me.0 + step) % n));
        let wants: Vec<MessageWant> = match me {
            // All that comes from one, then what goes there, then the next.
            Rank(0) => peers
                .flat_map(|peer| [false, true].map(|is_send| to_or_from(is_send, peer)))
                .flatten()
                .collect(),
            // All that is sent, from the last rank on.
            Rank(1) => [true, false]
                .into_iter()
                .flat_map(|is_send| peers.clone().rev().flat_map(move |peer| to_or_from(is_send, peer)))
                .collect(),
            _ => [false, true]
                .into_iter()
                .flat_map(|is_send| peers.clone().flat_map(move |peer| to_or_from(is_send, peer)))
                .collect(),
        };
        assert!(wants.len() >= 4 * ORDERS_OPEN_MAX);
        assert!(player.messages(&wants, 1).is_ok(), "{:?}", player.health.fault());
        player.finish();
    });
}

#[test]
fn trees_lead_over_the_network_too() {
    for protocol in [None, Some(Protocol::Simple)] {
        let forced = Forced::only(Some(Algorithm::Tree), protocol);
        Scene { forced, ..Scene::new(&[1, 1, 2, 3]) }.play(|player| {
            for (tag, count) in [(1, 1), (2, 3000), (3, 60_001)] {
                let call = call(Func::AllReduce, count);
                assert_eq!(plan(&call, &player.facts).algorithm, Algorithm::Tree);
                assert!(player.collective(&call, tag).is_ok(), "{:?}", player.health.fault());
            }
            player.finish();
        });
    }
}

#[test]
fn two_levels_lead_through_memory_and_the_network() {
    for hosts in [&[1, 1, 2, 2][..], &[1, 1, 2, 2, 3, 3], &[1, 1, 1, 2, 2, 2]] {
        let forced = Forced::only(Some(Algorithm::TwoLevel), None);
        Scene { forced, ..Scene::new(hosts) }.play(|player| {
            for (tag, count) in [(1, 1), (2, 3000), (3, 60_001)] {
                let call = call(Func::AllReduce, count);
                assert_eq!(plan(&call, &player.facts).algorithm, Algorithm::TwoLevel);
                assert!(player.collective(&call, tag).is_ok(), "{:?}", player.health.fault());
            }
            player.finish();
        });
    }
}

/// A rank whose connections are gone ends the others' kernels, which are told which link it was.
#[test]
fn a_lost_connection_stops_kernels_and_is_named() {
    let told = Mutex::new(None);
    Scene { memory: false, ..Scene::new(&[1, 2]) }.play(|player| {
        assert!(player.collective(&call(Func::AllReduce, 10), 1).is_ok());
        player.finish();
        if player.rank == Rank(1) {
            return drop(player.net.take());
        }
        let rung = Arc::new(Mutex::new(false));
        let bell = rung.clone();
        player.health.set_alarm(move || *bell.lock().unwrap() = true);
        // More than all slots and sockets take, so that the kernel waits, whenever the proxy sees the end.
        assert!(player.collective(&call(Func::Broadcast, 20 << 20), 2).is_err());
        assert!(*rung.lock().unwrap(), "kernels of a GPU are stopped by the alarm");
        *told.lock().unwrap() = player.health.fault();
    });
    let told = told.into_inner().unwrap().expect("rank 0 has a fault");
    assert!(matches!(told.fault, Fault::Link { .. }), "{told}");
    let said = told.to_string();
    for part in ["rank 1", "ring channel", "Socket lo"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

/// A rank that begins an operation and does not go on.
#[test]
fn a_connection_without_a_step_is_a_timeout_of_the_rank_at_its_end() {
    let step_timeout = Duration::from_secs(1);
    let told = Mutex::new(None);
    Scene { memory: false, step_timeout, threads: 2, ..Scene::new(&[1, 2]) }.play(|player| {
        if player.rank == Rank(0) {
            // More than all slots and sockets take.
            let ended = player.collective(&Call { root: Rank(0), ..call(Func::Broadcast, 20 << 20) }, 1);
            assert!(ended.is_err());
            return *told.lock().unwrap() = player.health.fault();
        }
        player.wait_until(|| told.lock().unwrap().is_some());
    });
    let told = told.into_inner().unwrap().expect("rank 0 has a fault");
    assert!(matches!(told.fault, Fault::Timeout { rank: Rank(1), .. }), "{told}");
}

/// An abort ends the kernel, and the proxy with orders that are not done.
#[test]
fn abort_ends_kernel_and_proxy_in_the_middle() {
    let is_over = Mutex::new(false);
    Scene { memory: false, ..Scene::new(&[1, 2]) }.play(|player| {
        if player.rank == Rank(1) {
            return player.wait_until(|| *is_over.lock().unwrap());
        }
        let health = player.health.clone();
        std::thread::scope(|scope| {
            // Rank 1 does nothing: whenever this comes, it comes in the middle.
            scope.spawn(move || health.fail(Fault::Aborted, None));
            assert!(player.collective(&call(Func::AllReduce, 1000), 1).is_err());
        });
        assert!(!player.is_finished());
        drop(player.net.take());
        *is_over.lock().unwrap() = true;
    });
}

/// All connections are made at init, and none later.
#[test]
fn everything_at_init_is_all_there_ever_is() {
    Scene { by_need: false, ..Scene::new(&[1, 1, 2]) }.play(|player| {
        let made = player.made.len();
        every_function(player);
        assert_eq!(player.made.len(), made);
    });
}

/// A message makes the connections of its pair, and they open while it waits, whichever end comes first.
#[test]
fn messages_connect_pair_by_pair() {
    for late in [0, 2] {
        Scene { memory: false, ..Scene::new(&[1, 2, 3]) }.play(|player| {
            if player.rank == Rank(1) {
                assert_eq!(player.made.len(), 1, "what init makes");
                return;
            }
            if player.rank == Rank(late) {
                std::thread::sleep(Duration::from_millis(200));
            }
            let peer = Rank(2 - player.rank.0);
            let want = player.want(player.rank == Rank(0), peer, 100_000);
            assert!(player.messages(&[want], 1).is_ok(), "{:?}", player.health.fault());
            player.finish();
            assert!(player.made.iter().all(|part| part.pair.is_none_or(|pair| pair == [Rank(0), Rank(2)])));
        });
    }
}

/// A rank's kernels may be queued behind hours of other work, and its calls come as late: a connection that is not open yet blames nobody.
#[test]
fn who_comes_late_to_a_new_connection_is_not_blamed() {
    let step_timeout = Duration::from_millis(700);
    Scene { memory: false, step_timeout, ..Scene::new(&[1, 2]) }.play(|player| {
        let call = Call { root: Rank(0), ..call(Func::Broadcast, 60_000) };
        if player.rank == Rank(0) {
            std::thread::sleep(Duration::from_secs(3));
        }
        let mut collective = player.launch_collective(&call, 1);
        player.come_to_turns();
        if player.rank == Rank(1) {
            std::thread::sleep(Duration::from_secs(4));
        }
        assert!(player.run_collective(&mut collective).is_ok(), "{:?}", player.health.fault());
        player.finish();
    });
}

/// A rank that has left answers nobody: who needs a connection with it hears so, soon.
#[test]
fn a_rank_that_has_left_is_named_by_who_needs_it() {
    Scene { memory: false, ..Scene::new(&[1, 2, 3]) }.play(|player| {
        if player.rank == Rank(2) {
            return;
        }
        // As the monitor does.
        player.health.note_left(Rank(2));
        let begun = std::time::Instant::now();
        let want = player.want(player.rank == Rank(0), Rank(2), 100_000);
        // What is sent has room in the slots.
        let ended = player.messages(&[want], 1);
        assert!(ended.is_err() || player.rank == Rank(0));
        player.wait_until(|| player.health.fault().is_some());
        let fault = player.health.fault().map(|was| was.fault);
        assert!(matches!(fault, Some(Fault::PeerLeft { rank: Rank(2) })), "{fault:?}");
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    });
}

//! Events that the other ranks get when a rank dies, aborts or leaves.

use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use super::super::cancel::Cancel;
use super::super::rendezvous_wire::ListenerAddr;
use super::super::{PeerEvent, Watch};
use super::*;
use crate::wire::Message;

/// How long a test waits to be sure that nothing happens.
const QUIET: Duration = Duration::from_millis(200);

/// Dies once every other rank has certainly joined.
fn die_soon(boot: Bootstrap) {
    std::thread::sleep(Duration::from_millis(500));
    boot.die();
}

fn watch(boot: Bootstrap) -> (Watch, Receiver<PeerEvent>) {
    let (sender, events) = channel();
    (boot.watch(Box::new(move |event| drop(sender.send(event)))), events)
}

/// The next event that is no goodbye, within a bound.
fn next(events: &Receiver<PeerEvent>) -> PeerEvent {
    loop {
        match events.recv_timeout(SOON).expect("an event in time") {
            PeerEvent::PeerLeft { .. } => {}
            event => return event,
        }
    }
}

#[test]
fn every_rank_learns_who_died() {
    with_ranks(6, |boot| {
        if boot.rank() == Rank(2) {
            return die_soon(boot);
        }
        let (watch, events) = watch(boot);
        assert_eq!(next(&events), PeerEvent::PeerDied { rank: Rank(2) });
        assert_eq!(watch.all_gather(&[]), Err(BootstrapError::PeerLost { rank: Rank(2) }));
        watch.close();
    });
}

/// All stay until all know: a rank that leaves too soon may be the only one that could have forwarded the event.
#[test]
fn several_deaths_at_once_are_all_named() {
    let all_know = Meeting::default();
    with_ranks(8, |boot| {
        if [1, 4, 5].contains(&boot.rank().0) {
            return die_soon(boot);
        }
        let (watch, events) = watch(boot);
        let mut dead = [(); 3].map(|()| next(&events));
        dead.sort_by_key(|event| format!("{event:?}"));
        assert_eq!(dead, [1, 4, 5].map(|rank| PeerEvent::PeerDied { rank: Rank(rank) }));
        all_know.wait(5);
        watch.close();
    });
}

/// A rank that gives up for another's death and ends at once was named by those that waited for a message of its.
/// The child's root waited for it until the timeout.
#[test]
fn a_rank_that_dies_in_a_split_is_named_at_once() {
    for dead in [0, 2].map(Rank) {
        let began = Instant::now();
        with_ranks(3, |boot| {
            let members = [0, 1, 2].map(Rank);
            if boot.rank() == dead {
                // It comes to the split, as first with an address at which nobody is, and no further.
                let addr = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
                let mine = if dead == Rank(0) { ListenerAddr { addr }.to_bytes() } else { Vec::new() };
                boot.all_gather(&mine).expect("all live");
                return die_soon(boot);
            }
            let error = boot.split(&members, 1, &Cancel::default()).err();
            assert_eq!(error, Some(BootstrapError::PeerLost { rank: dead }));
            boot.close();
        });
        assert!(began.elapsed() < config().timeout / 2, "{:?}", began.elapsed());
    }
}

#[test]
fn a_rank_that_ends_because_another_died_is_not_named_for_it() {
    with_ranks(4, |boot| {
        match boot.rank().0 {
            1 => return die_soon(boot),
            2 => {
                let (watch, events) = watch(boot);
                assert_eq!(next(&events), PeerEvent::PeerDied { rank: Rank(1) });
                return watch.die();
            }
            _ => {}
        }
        let (watch, events) = watch(boot);
        let mut dead = [(); 2].map(|()| next(&events));
        dead.sort_by_key(|event| format!("{event:?}"));
        assert_eq!(dead, [1, 2].map(|rank| PeerEvent::PeerDied { rank: Rank(rank) }));
        let boot = watch.bootstrap();
        let first = Some(BootstrapError::PeerLost { rank: Rank(1) });
        assert_eq!(boot.recv(Rank(2), 7).err(), first);
        assert_eq!(boot.send(Rank(2), 7, b"").err(), first);
        // The other may still need what this rank forwards.
        std::thread::sleep(2 * QUIET);
        watch.close();
    });
}

#[test]
fn a_death_is_named_although_others_have_left_between() {
    with_ranks(6, |boot| {
        let me = boot.rank().0;
        boot.barrier().expect("all are there");
        match me {
            // Ranks 1, 3 and 4 leave in order; then 5 dies. Rank 2 stands between two that left.
            1 | 3 | 4 => return boot.close(),
            5 => return die_soon(boot),
            _ => {}
        }
        let (watch, events) = watch(boot);
        assert_eq!(next(&events), PeerEvent::PeerDied { rank: Rank(5) });
        watch.close();
    });
}

#[test]
fn an_abort_is_told_with_its_reason_once() {
    with_ranks(4, |boot| {
        let me = boot.rank().0;
        let (watch, events) = watch(boot);
        watch.all_gather(&[]).expect("all are there");
        if me == 3 {
            std::thread::sleep(QUIET);
            watch.abort("the GPU fell off the bus");
            std::thread::sleep(QUIET);
            return watch.close();
        }
        let reason = "the GPU fell off the bus".to_owned();
        assert_eq!(next(&events), PeerEvent::PeerAborted { rank: Rank(3), reason, in_vain: None });
        std::thread::sleep(2 * QUIET);
        // Others may have closed meanwhile.
        let again = events.try_iter().find(|event| !matches!(event, PeerEvent::PeerLeft { .. }));
        assert_eq!(again, None, "one event for one abort");
        watch.close();
    });
}

#[test]
fn dropping_without_close_counts_as_abort() {
    with_ranks(3, |boot| {
        if boot.rank() == Rank(0) {
            std::thread::sleep(2 * QUIET);
            return drop(boot);
        }
        let (watch, events) = watch(boot);
        let PeerEvent::PeerAborted { rank: Rank(0), reason, in_vain: None } = next(&events) else {
            panic!("an abort of rank 0")
        };
        assert!(reason.contains("without being closed"), "{reason}");
        watch.close();
    });
}

#[test]
fn an_orderly_close_is_no_trouble_in_whatever_order() {
    for nranks in [1, 2, 5] {
        with_ranks(nranks, |boot| {
            let me = boot.rank().0;
            let (watch, events) = watch(boot);
            assert_eq!(watch.all_gather(&[me as u8]), Ok((0..nranks).map(|rank| vec![rank as u8]).collect()));
            std::thread::sleep(Duration::from_millis(u64::from((me * 7) % nranks) * 50));
            watch.close();
            let trouble = |event: &PeerEvent| !matches!(event, PeerEvent::PeerLeft { .. });
            assert_eq!(events.try_iter().filter(trouble).collect::<Vec<_>>(), []);
        });
    }
}

#[test]
fn closing_takes_no_time_when_the_others_stay() {
    with_ranks(3, |boot| {
        if boot.rank() == Rank(1) {
            let began = std::time::Instant::now();
            boot.close();
            return assert!(began.elapsed() < Duration::from_millis(400), "{:?}", began.elapsed());
        }
        std::thread::sleep(2 * QUIET);
        assert_eq!(boot.barrier(), Err(BootstrapError::PeerLeft { rank: Rank(1) }));
        boot.close();
    });
}

#[test]
fn a_watch_may_be_dropped_by_its_own_callback() {
    use std::sync::Arc;
    with_ranks(2, |boot| {
        if boot.rank() == Rank(1) {
            return die_soon(boot);
        }
        let place = Arc::new(Mutex::new(None::<Watch>));
        let (sender, told) = channel();
        let inside = place.clone();
        let watch = boot.watch(Box::new(move |_| {
            // The event may arrive before the watch is installed.
            while inside.lock().expect("no panic").take().is_none() {
                std::thread::yield_now();
            }
            sender.send(()).expect("the test waits");
        }));
        *place.lock().expect("no panic") = Some(watch);
        told.recv_timeout(SOON).expect("the callback returned");
    });
}

#[test]
fn a_callback_that_panics_does_not_stop_the_events() {
    let all_know = Meeting::default();
    with_ranks(4, |boot| {
        match boot.rank().0 {
            2 => return die_soon(boot),
            // Both neighbours of the dead rank and all others depend on threads whose callbacks panic.
            1 | 3 => {
                let watch = boot.watch(Box::new(|event| panic!("on purpose, at {event:?}")));
                all_know.wait(3);
                return watch.close();
            }
            _ => {}
        }
        let (watch, events) = watch(boot);
        assert_eq!(next(&events), PeerEvent::PeerDied { rank: Rank(2) });
        all_know.wait(3);
        watch.close();
        let again = events.try_iter().find(|event| !matches!(event, PeerEvent::PeerLeft { .. }));
        assert_eq!(again, None, "one event for one death");
    });
}

#[test]
fn nothing_is_left_behind() {
    let count = |what: &str| std::fs::read_dir(what).expect("proc").count();
    // Other tests run concurrently: it is enough that nothing is left over at one moment.
    let settled = (0..20).any(|_| {
        let before = (count("/proc/self/fd"), count("/proc/self/task"));
        with_ranks(4, |boot| watch(boot).0.close());
        std::thread::sleep(Duration::from_millis(50));
        let after = (count("/proc/self/fd"), count("/proc/self/task"));
        after.0 <= before.0 && after.1 <= before.1
    });
    assert!(settled, "threads or files of every round stay");
}

#[test]
fn an_idle_watch_uses_no_cpu() {
    with_ranks(2, |boot| {
        let (watch, _events) = watch(boot);
        watch.all_gather(&[]).expect("all are there");
        std::thread::sleep(QUIET);
        if watch.bootstrap().rank() == Rank(1) {
            // It stays idle until rank 0 has certainly measured.
            std::thread::sleep(6 * QUIET);
            return watch.close();
        }
        // Threads of other tests may be among these and may be busy; a thread with a periodic tick would always be.
        let tasks = std::fs::read_dir("/proc/self/task").expect("proc").flatten().map(|task| task.path());
        let ours = tasks.filter(|task| {
            std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.starts_with("oxccl-boot-"))
        });
        let before: Vec<_> = ours.map(|task| (switches(&task), task)).collect();
        std::thread::sleep(2 * QUIET);
        let quiet = before.iter().any(|(count, task)| count.is_some() && switches(task) == *count);
        assert!(quiet, "a thread of an idle bootstrap is woken");
        watch.close();
    });
}

/// Voluntary context switches of a thread.
fn switches(task: &std::path::Path) -> Option<u64> {
    let status = std::fs::read_to_string(task.join("status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")?.trim().parse().ok())
}

/// All ranks leave as soon as they have their result and repair the ring at once, while others still gather.
#[test]
fn who_leaves_while_others_gather_has_not_died() {
    for _ in 0..20 {
        with_ranks(8, |boot| {
            for number in 0..4 {
                let gathered = boot.all_gather(&[number]);
                assert_eq!(gathered, Ok(vec![vec![number]; 8]), "rank {}", boot.rank());
            }
            boot.close();
        });
    }
}

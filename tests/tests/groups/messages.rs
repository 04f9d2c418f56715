//! Sends and receives of one communicator.

use oxccl::net::loopback::Loopback;
use oxccl::net::{Net, NetConfig};
use oxccl::{Communicator, DataType, Error, Func, Group, ReduceOp, TransportKind, Untyped};
use oxccl_tests::deadline::Deadline;
use oxccl_tests::deck::Deck;
use oxccl_tests::harness::{Settings, World};
use oxccl_tests::model::mix;
use std::sync::Arc;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(100);

/// The k-th message from one rank to another.
fn message(from: u32, to: u32, k: usize, len: usize) -> Vec<u32> {
    let key = mix(u64::from(from) << 40 | u64::from(to) << 20 | k as u64);
    (0..len as u64).map(|i| mix(key ^ i) as u32).collect()
}

#[test]
fn everybody_sends_right_and_receives_from_the_left() {
    let _deadline = Deadline::start("everybody_sends_right_and_receives_from_the_left", LIMIT);
    for nranks in 1..=5 {
        // Many times what fits the slots, so that a send that came first would wait for ever outside a group.
        for len in [0, 1, 1000, 100_003] {
            World::new(nranks, Settings::default()).each(|rank| {
                let (me, n) = (rank.rank(), rank.size());
                let (right, left) = ((me + 1) % n, (me + n - 1) % n);
                let (out, mut back) = (message(me, right, 0, len), vec![0; len]);
                oxccl::group(|group| {
                    group.send(rank, &out, right)?;
                    group.recv(rank, &mut back, left)
                })
                .unwrap();
                assert_eq!(back, message(left, me, 0, len));
            });
        }
    }
}

/// One message each way is a group of its own kind, if both are brief: of any two lengths, on both sides of what is brief, in both orders.
#[test]
fn a_message_each_way_of_any_two_lengths_in_any_order() {
    let _deadline = Deadline::start("a_message_each_way_of_any_two_lengths_in_any_order", LIMIT);
    const LENS: [usize; 6] = [0, 1, 28, 2047, 2048, 40_000];
    for transport in [TransportKind::InProcess, TransportKind::Shm, TransportKind::Tcp] {
        let settings = Settings { transport: Some(transport), ..Settings::default() };
        World::new(2, settings).each(|rank| {
            let (me, peer) = (rank.rank(), 1 - rank.rank());
            for (k, (a, b)) in LENS.iter().flat_map(|a| LENS.map(|b| (*a, b))).enumerate() {
                let (mine, theirs) = if me == 0 { (a, b) } else { (b, a) };
                let (out, mut back) = (message(me, peer, k, mine), vec![0; theirs]);
                oxccl::group(|group| {
                    if k % 2 == me as usize {
                        group.send(rank, &out, peer)?;
                        return group.recv(rank, &mut back, peer);
                    }
                    group.recv(rank, &mut back, peer)?;
                    group.send(rank, &out, peer)
                })
                .unwrap();
                assert_eq!(back, message(peer, me, k, theirs), "{transport:?}: {mine} out, {theirs} back");
            }
        });
    }
}

/// Each message that waited went past all that were done, at every look: 20,000 had not ended after a minute.
#[test]
fn many_messages_to_one_rank_end_in_time() {
    let _deadline = Deadline::start("many_messages_to_one_rank_end_in_time", LIMIT);
    World::new(2, Settings::default()).each(|rank| {
        let (me, peer) = (rank.rank(), 1 - rank.rank());
        let (out, mut back) = (message(me, peer, 0, 20_000), vec![0; 20_000]);
        oxccl::group(|group| {
            out.chunks(1).zip(back.chunks_mut(1)).try_for_each(|(out, back)| {
                group.send(rank, out, peer)?;
                group.recv(rank, back, peer)
            })
        })
        .unwrap();
        assert_eq!(back, message(peer, me, 0, 20_000));
    });
}

/// Both have filled the other's slots, and neither gets one free before it receives: a group that sent first would wait for ever.
#[test]
fn a_message_each_way_where_no_slot_is_free() {
    let _deadline = Deadline::start("a_message_each_way_where_no_slot_is_free", LIMIT);
    const SLOTS: usize = 8;
    const LEN: usize = 100;
    World::new(2, Settings::default()).each(|rank| {
        let (me, peer) = (rank.rank(), 1 - rank.rank());
        (0..SLOTS).for_each(|k| rank.send(&message(me, peer, k, LEN), peer).unwrap());
        let (last, mut back) = (message(me, peer, SLOTS, LEN), vec![0; LEN]);
        oxccl::group(|group| {
            group.send(rank, &last, peer)?;
            group.recv(rank, &mut back, peer)
        })
        .unwrap();
        assert_eq!(back, message(peer, me, 0, LEN));
        for k in 1..=SLOTS {
            rank.recv(&mut back, peer).unwrap();
            assert_eq!(back, message(peer, me, k, LEN), "message {k}");
        }
    });
}

/// All ranks to all, several messages for each pair, added in an order of each rank's own: only messages of one pair and
/// direction keep theirs.
#[test]
fn messages_match_whatever_the_order_across_pairs() {
    let _deadline = Deadline::start("messages_match_whatever_the_order_across_pairs", LIMIT);
    const EACH: usize = 5;
    let len = |from: u32, to: u32, k: usize| [0, 3, 700, 5000, 1][(from as usize + to as usize + k) % EACH];
    for nranks in [2, 3, 4] {
        World::new(nranks, Settings::default()).each(|rank| {
            let me = rank.rank();
            let mut inbox: Vec<Vec<Vec<u32>>> =
                (0..nranks).map(|from| (0..EACH).map(|k| vec![0; len(from, me, k)]).collect()).collect();
            let outbox: Vec<Vec<Vec<u32>>> = (0..nranks)
                .map(|to| (0..EACH).map(|k| message(me, to, k, len(me, to, k))).collect())
                .collect();
            let mut sends: Vec<_> = outbox.iter().map(|to| to.iter()).collect();
            let mut recvs: Vec<_> = inbox.iter_mut().map(|from| from.iter_mut()).collect();
            let mut deck = Deck::new(2 * nranks as usize, u64::from(me) + 1);
            oxccl::group(|group| {
                for _ in 0..2 * nranks as usize * EACH {
                    let pick = deck.draw();
                    let peer = pick / 2;
                    match pick % 2 {
                        0 => group.send(rank, sends[peer].next().unwrap(), peer as u32)?,
                        _ => group.recv(rank, recvs[peer].next().unwrap(), peer as u32)?,
                    }
                }
                Ok(())
            })
            .unwrap();
            for (from, messages) in inbox.iter().enumerate() {
                for (k, got) in messages.iter().enumerate() {
                    assert_eq!(
                        *got,
                        message(from as u32, me, k, got.len()),
                        "message {k} from {from} to {me}"
                    );
                }
            }
        });
    }
}

#[test]
fn a_rank_sends_to_itself() {
    let _deadline = Deadline::start("a_rank_sends_to_itself", LIMIT);
    World::new(2, Settings::default()).each(|rank| {
        let me = rank.rank();
        let (first, second) = (message(me, me, 0, 10), message(me, me, 1, 7000));
        let (mut a, mut b) = (vec![0; 10], vec![0; 7000]);
        oxccl::group(|group| {
            group.recv(rank, &mut a, me)?;
            group.send(rank, &first, me)?;
            group.send(rank, &second, me)?;
            group.recv(rank, &mut b, me)
        })
        .unwrap();
        assert_eq!((a, b), (first, second));
    });
}

/// More messages than a communicator reserves room for.
#[test]
fn a_thousand_messages_in_one_group() {
    let _deadline = Deadline::start("a_thousand_messages_in_one_group", LIMIT);
    World::new(2, Settings::default()).each(|rank| {
        let (me, peer) = (rank.rank(), 1 - rank.rank());
        let out: Vec<_> = (0..1000).map(|k| message(me, peer, k, k % 40)).collect();
        let mut back: Vec<_> = (0..1000).map(|k| vec![0; k % 40]).collect();
        oxccl::group(|group| {
            out.iter().try_for_each(|out| group.send(rank, out, peer))?;
            back.iter_mut().try_for_each(|back| group.recv(rank, back, peer))
        })
        .unwrap();
        assert!(back.iter().enumerate().all(|(k, back)| *back == message(peer, me, k, k % 40)));
    });
}

/// Over a network, more messages than its proxy holds open, each rank in an order of its own: what one rank begins with is
/// what another has at the end. A proxy that took them as they came once waited for ever.
#[test]
fn messages_that_no_proxy_holds_at_once_match_whatever_the_order() {
    let _deadline = Deadline::start("messages_that_no_proxy_holds_at_once_match_whatever_the_order", LIMIT);
    const EACH: usize = 600;
    const LEN: usize = 300;
    let net: Arc<dyn Net> = Arc::new(Loopback::new(0));
    let settings = Settings {
        transport: Some(TransportKind::Net),
        timeout: Duration::from_secs(20),
        ..Settings::default()
    };
    let mut world = World::with(3, settings, |_, config| {
        config.net = NetConfig { own: Some(net.clone()), ..NetConfig::default() };
    });
    world.each(|rank| {
        let (me, n) = (rank.rank(), rank.size());
        let peers = [(me + 1) % n, (me + 2) % n];
        let messages = |from: u32, to: u32| (0..EACH).map(move |k| message(from, to, k, LEN));
        let out: Vec<_> = peers.iter().map(|&to| messages(me, to).collect::<Vec<_>>()).collect();
        let mut back = vec![vec![vec![0; LEN]; EACH]; peers.len()];
        oxccl::group(|group| {
            // Rank 0 sends to rank 1 first, which first receives from rank 2, and so on.
            for ((&peer, out), back) in peers.iter().zip(&out).zip(&mut back) {
                out.iter().try_for_each(|out| group.send(rank, out, peer))?;
                back.iter_mut().try_for_each(|back| group.recv(rank, back, peer))?;
            }
            Ok(())
        })
        .unwrap();
        for (&from, back) in peers.iter().zip(&back) {
            assert!(messages(from, me).eq(back.iter().cloned()), "rank {me} from rank {from}");
        }
    });
}

/// A library that adds its calls to its caller's group.
fn exchange<'env>(
    group: &mut Group<'env>,
    rank: &'env Communicator,
    out: &'env [u32],
    back: &'env mut [u32],
) -> Result<(), Error> {
    let peer = 1 - rank.rank();
    group.send(rank, out, peer)?;
    group.recv(rank, back, peer)
}

#[test]
fn a_nested_group_is_its_outer_group() {
    let _deadline = Deadline::start("a_nested_group_is_its_outer_group", LIMIT);
    World::new(2, Settings::default()).each(|rank| {
        let (me, peer) = (rank.rank(), 1 - rank.rank());
        let out = [message(me, peer, 0, 9000), message(me, peer, 1, 9000)];
        let (mut first, mut second) = (vec![0; 9000], vec![0; 9000]);
        oxccl::group(|group| {
            exchange(group, rank, &out[0], &mut first)?;
            exchange(group, rank, &out[1], &mut second)
        })
        .unwrap();
        assert_eq!(first, message(peer, me, 0, 9000));
        assert_eq!(second, message(peer, me, 1, 9000));
    });
}

/// A group opened while another is being filled runs at its own end, and leaves the outer one as it was.
#[test]
fn a_group_inside_the_filling_of_another_runs_first() {
    let _deadline = Deadline::start("a_group_inside_the_filling_of_another_runs_first", LIMIT);
    World::new(2, Settings::default()).each(|rank| {
        let (me, peer) = (rank.rank(), 1 - rank.rank());
        let (outer, inner) = (message(me, peer, 0, 50), message(me, peer, 1, 60));
        let (mut a, mut b) = (vec![0; 50], vec![0; 60]);
        oxccl::group(|group| {
            exchange(group, rank, &outer, &mut a)?;
            oxccl::group(|group| exchange(group, rank, &inner, &mut b))?;
            assert_eq!(b, message(peer, me, 1, 60));
            Ok(())
        })
        .unwrap();
        assert_eq!(a, message(peer, me, 0, 50));
    });
}

#[test]
fn collectives_and_messages_share_a_group() {
    let _deadline = Deadline::start("collectives_and_messages_share_a_group", LIMIT);
    World::new(3, Settings::default()).each(|rank| {
        let (me, n) = (rank.rank(), rank.size());
        let (right, left) = ((me + 1) % n, (me + n - 1) % n);
        let (out, mut back) = (message(me, right, 0, 4000), vec![0; 4000]);
        let (ones, mut sum) = (vec![1i64; 3000], vec![0i64; 3000]);
        let mut root = vec![me as u8; 77];
        let (spread, mut gathered) = (vec![me; 3 * 55], vec![9; 3 * 55]);
        oxccl::group(|group| {
            group.send(rank, &out, right)?;
            group.all_reduce(rank, &ones, &mut sum, ReduceOp::SUM)?;
            group.barrier(rank)?;
            group.recv(rank, &mut back, left)?;
            // Made of messages: added after the others of each pair on every rank.
            group.all_to_all(rank, &spread, &mut gathered)?;
            group.broadcast_in_place(rank, &mut root, 2)
        })
        .unwrap();
        assert_eq!(back, message(left, me, 0, 4000));
        assert!(sum.iter().all(|x| *x == 3) && root.iter().all(|x| *x == 2));
        assert!(gathered.iter().enumerate().all(|(i, from)| *from == i as u32 / 55));
    });
}

#[test]
fn a_group_whose_filling_fails_sends_nothing() {
    let _deadline = Deadline::start("a_group_whose_filling_fails_sends_nothing", LIMIT);
    World::new(2, Settings::default()).each(|rank| {
        let peer = 1 - rank.rank();
        let (out, mut back) = ([1u8; 4], [0u8; 4]);
        let refused = oxccl::group(|group| {
            group.send(rank, &out, peer)?;
            group.recv(rank, &mut back, 5)
        });
        assert!(matches!(refused, Err(Error::Argument(_))), "{refused:?}");
        assert_eq!(back, [0; 4]);
        rank.barrier().unwrap();
        assert_eq!(rank.async_error(), None);
    });
}

/// A barrier has no buffers. One whose count was not 0 once reduced into what its pointers happened to hold.
#[test]
fn a_barrier_ignores_its_count() {
    let _deadline = Deadline::start("a_barrier_ignores_its_count", LIMIT);
    World::new(2, Settings::default()).each(|rank| {
        let mut buffer = [7i32; 64];
        let recv = buffer.as_mut_ptr().cast();
        let barrier = Untyped { recv, send: recv, count: 64, ..Untyped::new(Func::Barrier, DataType::I32) };
        // SAFETY: a barrier touches no buffer, and this one would be long enough.
        unsafe { rank.run_untyped(&barrier) }.unwrap();
        assert_eq!(buffer, [7; 64]);
    });
}

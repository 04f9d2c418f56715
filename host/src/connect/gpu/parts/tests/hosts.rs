//! Ranks of several hosts: those of a host make their parts without the others, and each makes its halves of what leads over a network.

use super::*;

fn two_hosts() -> World {
    World { each: 2, ..World::new(4) }
}

/// Bytes of a rank's halves of connections to and from the others.
fn far_bytes(member: &Member) -> [[usize; 2]; 4] {
    let me = member.rank.0;
    let of = |peer: u32| if peer / 2 == me / 2 { [0; 2] } else { member.parts.bytes_with(Rank(peer)) };
    std::array::from_fn(|peer| of(peer as u32))
}

/// The peers, channels and directions of what was begun.
fn begun(made: &NetEnds) -> Vec<(u32, u32, bool)> {
    made.ends.iter().map(|end| end.place()).map(|end| (end.peer.0, end.channel.0, end.is_send)).collect()
}

/// One connection of each kind, with the slots of all protocols.
fn slots(member: &Member, kind: ConnKind) -> usize {
    member.parts.layout().slots(kind).total_bytes()
}

/// Init connects the first channel of the ring; the order of ranks is the ring's.
#[test]
fn init_connects_a_channel_of_the_ring() {
    let members = two_hosts().members();
    let ring = slots(&members[0], ConnKind::Ring);
    let found: Vec<_> = members.iter().map(far_bytes).collect();
    let leaves = |rank: usize| found[rank].iter().map(|[_, to]| to).sum::<usize>();
    let comes = |rank: usize| found[rank].iter().map(|[from, _]| from).sum::<usize>();
    for host in [[0, 1], [2, 3]] {
        assert_eq!(host.map(leaves).iter().sum::<usize>(), ring, "one rank of a host leaves it: {found:?}");
        assert_eq!(host.map(comes).iter().sum::<usize>(), ring, "and one is entered: {found:?}");
    }
    // In memory each has one connection from its neighbour, and the words of one to it.
    let layout = members[0].parts.layout().of_part(members[0].parts.layout().first());
    for member in &members {
        assert_eq!(member.bytes(), layout.len_bytes(member.rank).iter().sum::<usize>());
        assert!(member.bytes() <= ring + size_of::<ConnControl>());
    }
}

/// The ranks of a host make what they share, on threads of their own; nobody waits for a rank of another host.
#[test]
fn hosts_do_not_wait_for_each_other() {
    let members = two_hosts().members();
    let before: Vec<usize> = members.iter().map(Member::bytes).collect();
    let far_before = far_bytes(&members[0]);
    let mesh = need(ConnKind::Mesh, Protocol::LL, 1);
    let made = members[0].begin(&[mesh]).unwrap();
    let first = made.ends.iter().map(|end| end.place().channel.0).min().unwrap();
    let expected: Vec<_> =
        [2, 3].into_iter().flat_map(|peer| [(peer, first, false), (peer, first, true)]).collect();
    let mut found = begun(&made);
    found.sort_unstable();
    assert_eq!(found, expected, "a half each way with each rank of the other host");
    assert_eq!(made.memory.len(), 1);
    let each = slots(&members[0], ConnKind::Mesh);
    for (peer, [from, to]) in far_bytes(&members[0]).into_iter().enumerate().skip(2) {
        assert_eq!([from - far_before[peer][0], to - far_before[peer][1]], [each; 2]);
    }
    let grown = |rank: usize| members[rank].bytes() - before[rank];
    assert_eq!([2, 3].map(grown), [0, 0], "the other host has not been asked");
    assert_eq!(grown(0), each + size_of::<ConnControl>());
    // Its own halves rank 1 makes when it needs them; what lies in memory it has made with rank 0.
    assert_eq!(begun(&members[1].begin(&[mesh]).unwrap()).len(), 4);
    assert_eq!(grown(1), each + size_of::<ConnControl>());
    // Another protocol has the same connections.
    assert!(members[0].begin(&[need(ConnKind::Mesh, Protocol::Simple, 1)]).unwrap().ends.is_empty());
}

/// Kernels find each half where its proxy has it, whatever the protocol, and the sides of a connection in memory are one.
#[test]
fn tables_have_both_kinds_of_connections() {
    let members = two_hosts().members();
    let ring = need(ConnKind::Ring, Protocol::Simple, 3);
    each(&members, |member| member.begin(&[ring]).map(|made| assert!(made.ends.len() <= 8)).unwrap());
    let layout = members[0].parts.layout();
    for part in layout.parts_of(&ring, Rank(0)) {
        for member in &members {
            for name in layout.of_part(part).conns(member.rank) {
                let index = layout.index_of(member.rank, name);
                let end = |protocol| member.end(part.kind, protocol, index, name.is_send);
                let [one, other] = [end(Protocol::LL), end(Protocol::Simple)];
                assert_eq!((one.consumer_side, one.counted), (other.consumer_side, other.counted));
                assert_eq!((one.peer, one.consumer_side.is_null()), (name.peer, false), "{name:?}");
                let is_far = layout.routes.is_net(member.rank, name.peer);
                assert_eq!(
                    one.producer_side.addr() == one.consumer_side.addr(),
                    is_far,
                    "a half has all words"
                );
                if !is_far && name.is_send {
                    let theirs = crate::connect::gpu::ConnName { peer: member.rank, is_send: false, ..name };
                    let there = layout.index_of(name.peer, theirs);
                    let recv = members[name.peer.index()].end(part.kind, Protocol::LL, there, false);
                    assert_eq!(one.consumer_side, recv.consumer_side);
                }
            }
        }
    }
}

/// Messages connect their pair, and no other rank has any of it.
#[test]
fn a_pair_is_of_two_ranks() {
    let members = two_hosts().members();
    let before: Vec<_> = members.iter().map(far_bytes).collect();
    let made = [members[0].begin(&[pair(3, Protocol::LL, 1)]), members[3].begin(&[pair(0, Protocol::LL, 1)])];
    let each = slots(&members[0], ConnKind::Pair);
    for (made, (rank, peer)) in made.into_iter().zip([(0, 3), (3, 0)]) {
        assert_eq!(begun(&made.unwrap()).iter().filter(|end| end.0 == peer).count(), 2);
        let (was, is) = (before[rank][peer as usize], far_bytes(&members[rank])[peer as usize]);
        assert_eq!([is[0] - was[0], is[1] - was[1]], [each; 2]);
    }
    assert_eq!([1, 2].map(|rank| far_bytes(&members[rank])), [before[1], before[2]]);
    // Of one host: a part of both, which rank 1 makes without being called.
    assert!(members[0].begin(&[pair(1, Protocol::LL, 1)]).unwrap().ends.is_empty());
    assert!(members[1].bytes() > members[2].bytes());
}

#[test]
fn all_at_init_leaves_nothing_over_the_network() {
    // One rank says so, and all do.
    let members = World { by_need: |rank| rank != Rank(2), ..two_hosts() }.members();
    let before: Vec<_> = members.iter().map(far_bytes).collect();
    each(&members, |member| {
        let peer = (member.rank.0 + 2) % 4;
        let needs = [need(ConnKind::Mesh, Protocol::LL, 2), pair(peer, Protocol::Simple, 2)];
        assert!(member.begin(&needs).unwrap().ends.is_empty());
        assert!(member.begin(&[need(ConnKind::Ring, Protocol::Simple, 4)]).unwrap().ends.is_empty());
    });
    assert_eq!(members.iter().map(far_bytes).collect::<Vec<_>>(), before);
}

/// A rank without memory for its halves ends the communicator, and the others hear whose fault it is. Nothing is left in the tables' way:
/// closing frees what there is.
#[test]
fn a_rank_without_memory_for_its_halves_is_named_on_all() {
    let members = World { each: 1, ..World::new(3) }.members();
    members[2].gpu.is_full.store(true, Relaxed);
    let before = members[2].parts.bytes_with(Rank(0));
    let said = members[2].begin(&[need(ConnKind::Mesh, Protocol::LL, 1)]).map(|_| ()).unwrap_err();
    assert!(is_refused_by(said, 2), "{said:?}");
    assert_eq!(members[2].parts.bytes_with(Rank(0)), before);
    let begun = Instant::now();
    for member in &members[..2] {
        while member.health.fault().is_none() {
            assert!(begun.elapsed() < PATIENCE);
            std::thread::sleep(Duration::from_millis(1));
        }
        let fault = member.health.fault().unwrap().fault;
        assert_eq!(fault, Fault::PeerAborted { rank: Rank(2) });
    }
}

/// In memory of a host one fails for all of it, and the other hosts hear of an abort.
#[test]
fn a_rank_without_memory_for_its_hosts_part_is_named_by_both() {
    let members = two_hosts().members();
    members[1].gpu.is_full.store(true, Relaxed);
    let said = members[0].begin(&[need(ConnKind::Mesh, Protocol::LL, 1)]).map(|_| ()).unwrap_err();
    assert!(is_refused_by(said, 1), "{said:?}");
    let begun = Instant::now();
    while members[3].health.fault().is_none() {
        assert!(begun.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(1));
    }
    // Of the one that has no memory, not of the one that heard so.
    assert_eq!(members[3].health.fault().unwrap().fault, Fault::PeerAborted { rank: Rank(1) });
}

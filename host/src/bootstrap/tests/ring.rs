//! Many rings connected by pipes in memory: what arrives, in any order and after any deaths.

use super::*;
use crate::bootstrap::gather_tree;
use crate::bootstrap::side::far_parent;
use proptest::prelude::*;

/// Ranks whose links are byte queues. `pipes[rank][side]` holds the bytes in flight to that rank on that side.
struct World {
    rings: Vec<Option<Ring>>,
    pipes: Vec<[Pipe; Side::COUNT]>,
    /// A rank that neither reads nor writes.
    frozen: Option<usize>,
}

#[derive(Default)]
struct Pipe {
    bytes: VecDeque<u8>,
    /// The writer, and its side; `None` before the first connection.
    from: Option<(usize, Side)>,
    ended: bool,
}

impl World {
    fn new(nranks: usize) -> World {
        let mut world = World {
            rings: (0..nranks).map(|rank| Some(Ring::new(Rank(rank as u32), nranks as u32))).collect(),
            pipes: (0..nranks).map(|_| Side::ALL.map(|_| Pipe::default())).collect(),
            frozen: None,
        };
        if nranks > 1 {
            (0..nranks).for_each(|rank| world.join(rank, (rank + 1) % nranks));
        }
        for child in 0..nranks {
            let Some(parent) = far_parent(Rank(child as u32), nranks as u32) else { continue };
            let side = world.ring(parent.index()).side_of_child(Rank(child as u32)).expect("a child");
            world.connect((child, Side::Up), (parent.index(), side));
        }
        (0..nranks).for_each(|rank| assert!(world.ring(rank).awaited().is_empty()));
        world
    }

    fn ring(&mut self, rank: usize) -> &mut Ring {
        self.rings[rank].as_mut().expect("the test only asks the living")
    }

    /// Connects `rank` to `next`.
    fn join(&mut self, rank: usize, next: usize) {
        self.connect((rank, Side::Next), (next, Side::Prev));
    }

    fn connect(&mut self, (near, near_side): (usize, Side), (far, far_side): (usize, Side)) {
        for (me, side, peer, back) in [(near, near_side, far, far_side), (far, far_side, near, near_side)] {
            self.ring(me).attach(side, Rank(peer as u32));
            self.pipes[me][side as usize] = Pipe { from: Some((peer, back)), ..Pipe::default() };
        }
    }

    /// Ends the process of `rank`: its written bytes are still in flight, then the stream ends.
    fn end(&mut self, rank: usize) {
        self.collect(rank);
        self.rings[rank] = None;
        for pipes in &mut self.pipes {
            let ends = |pipe: &&mut Pipe| pipe.from.is_some_and(|(from, _)| from == rank);
            pipes.iter_mut().filter(ends).for_each(|pipe| pipe.ended = true);
        }
    }

    /// Moves what `rank` wants to write into its neighbours' pipes.
    fn collect(&mut self, rank: usize) {
        if self.frozen == Some(rank) {
            return;
        }
        for side in Side::ALL {
            let Some(ring) = &mut self.rings[rank] else { return };
            let Some(peer) = ring.peer(side) else { continue };
            let out = ring.take_output(side);
            let reads = |pipe: &&mut Pipe| pipe.from == Some((rank, side)) && !pipe.ended;
            if let Some(pipe) = self.pipes[peer.index()].iter_mut().find(reads) {
                pipe.bytes.extend(out);
            }
        }
    }

    /// Delivers at most `cut` bytes to `rank` from `side`, or the end of the stream.
    fn deliver(&mut self, rank: usize, side: Side, cut: usize) {
        self.collect(rank);
        let Some(ring) = self.rings[rank].as_mut().filter(|_| self.frozen != Some(rank)) else { return };
        let pipe = &mut self.pipes[rank][side as usize];
        if ring.peer(side).is_none() {
            return;
        }
        let take = pipe.bytes.len().min(cut);
        let bytes: Vec<u8> = pipe.bytes.drain(..take).collect();
        match take {
            0 if pipe.ended => ring.ended(side),
            _ => ring.receive(side, &bytes),
        }
        if ring.peer(side).is_none() {
            // Like the driver: this side of the connection is closed, and the other sees it.
            if let Some((from, back)) = pipe.from {
                self.pipes[from][back as usize].ended |=
                    self.pipes[from][back as usize].from == Some((rank, side));
            }
        }
        self.collect(rank);
    }

    /// Delivers everything, in an order that `seed` chooses, and repairs the ring where a successor is gone.
    fn settle(&mut self, mut seed: u64) {
        let nranks = self.rings.len();
        let mut quiet = 0;
        while quiet < 20 * nranks + 20 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (rank, side) =
                ((seed >> 33) as usize % nranks, Side::ALL[(seed >> 13) as usize % Side::COUNT]);
            let before = self.pending();
            self.deliver(rank, side, 1 + (seed >> 50) as usize % 60);
            self.repair(rank);
            quiet = if self.pending() == 0 && before == 0 { quiet + 1 } else { 0 };
        }
    }

    /// Delivers so many pieces, of which some are empty.
    fn deliver_some(&mut self, mut seed: u64, pieces: u64) {
        let nranks = self.rings.len();
        for _ in 0..pieces {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (rank, side) =
                ((seed >> 33) as usize % nranks, Side::ALL[(seed >> 13) as usize % Side::COUNT]);
            self.deliver(rank, side, 1 + (seed >> 50) as usize % 60);
        }
    }

    /// Delivers everything in large pieces, ranks in turns from one that `seed` chooses.
    fn deliver_all(&mut self, seed: u64) {
        let nranks = self.rings.len();
        while self.pending() > 0 {
            for step in 0..nranks {
                let rank = (seed as usize % nranks + step) % nranks;
                Side::ALL.into_iter().for_each(|side| self.deliver(rank, side, 50_000));
            }
        }
    }

    fn pending(&mut self) -> usize {
        (0..self.rings.len()).for_each(|rank| self.collect(rank));
        let live = |rank: usize| self.rings[rank].is_some() && self.frozen != Some(rank);
        let pipes =
            self.pipes.iter().enumerate().filter(|(rank, _)| live(*rank)).flat_map(|(rank, pipes)| {
                let ring = self.rings[rank].as_ref();
                Side::ALL.map(|side| (ring.and_then(|ring| ring.peer(side)), &pipes[side as usize]))
            });
        pipes.filter(|(peer, pipe)| peer.is_some() && (pipe.ended || !pipe.bytes.is_empty())).count()
    }

    /// The effect of ring repair after its connection is made.
    fn repair(&mut self, rank: usize) {
        let Some(ring) = &self.rings[rank] else { return };
        if ring.nranks == 1 || ring.peer(Side::Next).is_some() || ring.leaving {
            return;
        }
        let (mut after, mut refused) = (Rank(rank as u32), Vec::new());
        while let Some(candidate) = self.ring(rank).successor_after(after) {
            let accepts = |ring: &Ring| ring.peer(Side::Prev).is_none() && !ring.leaving;
            if self.rings[candidate.index()].as_ref().is_some_and(accepts) {
                self.ring(rank).suspect(refused);
                return self.join(rank, candidate.index());
            }
            if self.rings[candidate.index()].is_some() {
                return; // It has not yet seen its predecessor's end: the connection waits there.
            }
            refused.push(candidate);
            after = candidate;
        }
        self.ring(rank).remain_alone(refused);
    }

    fn events(&mut self, rank: usize) -> Vec<PeerEvent> {
        let ring = self.ring(rank);
        let events = std::iter::from_fn(|| ring.next_event());
        // Goodbyes have a test of their own.
        events.filter(|event| !matches!(event, PeerEvent::PeerLeft { .. })).collect()
    }

    fn leave(&mut self, rank: usize) {
        self.ring(rank).leave();
        self.end(rank);
    }
}

proptest! {
    #[test]
    fn all_gathers_complete_in_any_order_of_delivery(nranks in 1usize..9, seed in any::<u64>()) {
        let mut world = World::new(nranks);
        for round in 0..3u8 {
            let block = |rank: usize| vec![rank as u8 ^ round; rank * usize::from(round)];
            for rank in 0..nranks {
                world.ring(rank).submit(&block(rank)).expect("a healthy ring");
            }
            world.settle(seed);
            let want: Vec<_> = (0..nranks).map(block).collect();
            for rank in 0..nranks {
                prop_assert_eq!(world.ring(rank).take_gathered(), Some(Ok(want.clone())));
            }
        }
    }

    /// Some ranks come late; others lose patience before, meanwhile or when all is done but not taken everywhere.
    #[test]
    fn all_gathers_complete_whoever_hurries(
        nranks in 1usize..12, late in any::<u16>(), hurried in any::<u16>(), long in any::<bool>(), seed in any::<u64>(),
    ) {
        let is = |mask: u16, rank: usize| mask >> rank & 1 == 1;
        let mut world = World::new(nranks);
        for round in 0..3u8 {
            let len = if long { gather_tree::PIECE_BYTES / 3 } else { 3 };
            let block = |rank: usize| vec![rank as u8 ^ round; len * usize::from(round)];
            for turn in [false, true] {
                for rank in (0..nranks).filter(|rank| is(late, *rank) == turn) {
                    world.ring(rank).submit(&block(rank)).expect("a healthy ring");
                }
                (0..nranks).filter(|rank| is(hurried, *rank)).for_each(|rank| world.ring(rank).hurry());
                world.deliver_all(seed);
            }
            let want: Vec<_> = (0..nranks).map(block).collect();
            for rank in 0..nranks {
                prop_assert_eq!(world.ring(rank).take_gathered(), Some(Ok(want.clone())));
                if is(hurried, nranks - rank) {
                    world.ring((rank + 1) % nranks).hurry();
                    world.deliver_all(seed);
                }
            }
        }
    }

    /// For any number of deaths, after some ranks have left in order: each remaining rank gets one event for every
    /// death and for no other, and no all-gather waits.
    #[test]
    fn every_survivor_learns_of_every_death(
        nranks in 2usize..9, dead in any::<u16>(), left in any::<u16>(), together in any::<bool>(), seed in any::<u64>(),
    ) {
        let is = |mask: u16, rank: usize| mask >> rank & 1 == 1;
        let mut world = World::new(nranks);
        (0..nranks).filter(|&rank| is(left, rank)).for_each(|rank| {
            world.leave(rank);
            if !together {
                world.settle(seed);
            }
        });
        world.settle(seed);
        let dying: Vec<usize> = (0..nranks).filter(|&rank| !is(left, rank) && is(dead, rank)).collect();
        let living: Vec<usize> = (0..nranks).filter(|&rank| !is(left, rank) && !is(dead, rank)).collect();
        for &rank in &dying {
            world.end(rank);
            if !together {
                world.settle(seed);
            }
        }
        world.settle(seed);
        for &rank in &living {
            let mut events = world.events(rank);
            events.sort_by_key(|event| match event {
                PeerEvent::PeerDied { rank }
                | PeerEvent::PeerAborted { rank, .. }
                | PeerEvent::PeerLeft { rank }
                | PeerEvent::PeerNote { rank, .. } => *rank,
                PeerEvent::GaveUp { .. } => Rank(u32::MAX),
            });
            let want: Vec<PeerEvent> = dying
                .iter()
                .map(|&rank| PeerEvent::PeerDied { rank: Rank(rank as u32) }).collect();
            prop_assert_eq!(events, want, "rank {}", rank);
            prop_assert_eq!(world.ring(rank).submit(&[]).is_err(), living.len() < nranks);
        }
    }

    #[test]
    fn any_bytes_from_a_neighbour_are_survived(
        pieces in proptest::collection::vec((any::<bool>(), proptest::collection::vec(any::<u8>(), 0..40)), 0..8),
        frames in any::<bool>(),
    ) {
        let mut ring = Ring::new(Rank(1), 3);
        ring.attach(Side::Prev, Rank(0));
        ring.attach(Side::Next, Rank(2));
        for (next, piece) in &pieces {
            let mut bytes = Vec::new();
            match (frames, piece.split_first()) {
                (true, Some((kind, payload))) => frame::push(&mut bytes, kind % 5, &[payload]),
                _ => bytes = piece.clone(),
            }
            ring.receive(if *next { Side::Next } else { Side::Prev }, &bytes);
        }
        let _ = ring.submit(b"x");
        let _ = ring.take_gathered();
        ring.leave();
    }
}

#[test]
fn a_goodbye_reaches_everyone_once() {
    let mut world = World::new(5);
    world.leave(3);
    world.settle(1);
    for rank in [0, 1, 2, 4] {
        assert_eq!(world.ring(rank).next_event(), Some(PeerEvent::PeerLeft { rank: Rank(3) }));
        assert_eq!(world.ring(rank).next_event(), None);
    }
}

#[test]
fn a_note_reaches_everyone_else_once_and_in_order() {
    for nranks in [2, 3, 6] {
        let mut world = World::new(nranks);
        for serial in 0..3u8 {
            world.ring(1).note(&[serial]);
        }
        world.settle(1);
        for rank in (0..nranks).filter(|rank| *rank != 1) {
            let want = |serial| PeerEvent::PeerNote { rank: Rank(1), note: vec![serial] };
            assert_eq!(world.events(rank), [want(0), want(1), want(2)], "rank {rank} of {nranks}");
        }
        assert_eq!(world.events(1), []);
    }
}

#[test]
fn an_abort_reaches_everyone_with_its_reason_and_its_end_is_no_second_event() {
    let mut world = World::new(5);
    world.ring(2).abort("out of memory");
    world.settle(1);
    world.end(2);
    world.settle(2);
    for rank in [0, 1, 3, 4] {
        let want = PeerEvent::PeerAborted { rank: Rank(2), reason: "out of memory".into(), in_vain: None };
        assert_eq!(world.events(rank), [want]);
        let error = BootstrapError::PeerAborted { rank: Rank(2), reason: "out of memory".into() };
        assert_eq!(world.ring(rank).submit(&[]), Err(error));
    }
}

/// Ranks that had joined heard only that rank 2 had aborted.
#[test]
fn for_whom_a_rank_waited_in_vain_reaches_everyone() {
    let mut world = World::new(5);
    let (ranks, limit) = (RankList::from_iter([Rank(4)]), Duration::from_secs(2));
    let timeout = |by, what| BootstrapError::Timeout { calls: None, by, what, ranks, limit };
    world.ring(2).give_up(timeout(None, "it"));
    world.settle(1);
    for rank in [0, 1, 3, 4] {
        let reason = timeout(None, "it").to_string();
        let want = PeerEvent::PeerAborted { rank: Rank(2), reason, in_vain: Some((ranks, limit)) };
        assert_eq!(world.events(rank), [want]);
        assert_eq!(world.ring(rank).submit(&[]), Err(timeout(Some(Rank(2)), "a wait")));
    }
    assert_eq!(world.events(2), [PeerEvent::GaveUp { ranks, limit }], "once, to its own communicator");
}

#[test]
fn a_wait_for_a_rank_that_does_not_exist_is_refused() {
    for (awaited, is_told) in [(2, true), (3, false)] {
        let mut ring = Ring::new(Rank(1), 3);
        ring.attach(Side::Prev, Rank(0));
        let in_vain = Some((RankList::from_iter([Rank(awaited)]), Duration::ZERO));
        let event = MembershipEvent::Aborted { rank: Rank(0), reason: String::new(), in_vain };
        let mut bytes = Vec::new();
        frame::push(&mut bytes, KIND_EVENT, &[&event.to_bytes()]);
        ring.receive(Side::Prev, &bytes);
        assert_eq!(ring.next_event().is_some(), is_told, "rank {awaited} of 3");
    }
}

#[test]
fn a_long_reason_is_cut_between_characters() {
    let mut world = World::new(2);
    world.ring(0).abort(&"ä".repeat(200));
    world.settle(1);
    let want = PeerEvent::PeerAborted { rank: Rank(0), reason: "ä".repeat(128), in_vain: None };
    assert_eq!(world.events(1), [want]);
}

#[test]
fn a_gather_completes_although_a_rank_that_completed_it_has_left() {
    let mut world = World::new(4);
    (0..4).for_each(|rank| world.ring(rank).submit(&[rank as u8]).expect("a healthy ring"));
    world.settle(3);
    assert!(world.ring(3).take_gathered().is_some());
    world.leave(3);
    world.settle(4);
    for rank in 0..3 {
        assert_eq!(world.ring(rank).take_gathered(), Some(Ok((0..4).map(|rank| vec![rank]).collect())));
        assert_eq!(world.ring(rank).submit(&[]), Err(BootstrapError::PeerLeft { rank: Rank(3) }));
        assert_eq!(world.events(rank), []);
    }
}

/// Behind a rank that is stopped there are healthy ones, whose blocks cannot come: they were named with it.
#[test]
fn a_gather_does_not_name_those_behind_the_missing_one() {
    let (nranks, stopped) = (16, 8);
    let mut world = World::new(nranks);
    let healthy = || (0..nranks).filter(|rank| *rank != stopped);
    healthy().for_each(|rank| world.ring(rank).submit(&[]).expect("a healthy ring"));
    world.frozen = Some(stopped);
    world.settle(5);
    healthy().for_each(|rank| world.ring(rank).hurry());
    world.settle(6);
    assert!(world.ring(0).missing().total() > 1, "{}", world.ring(0).missing());
    healthy().for_each(|rank| world.ring(rank).say_waiting(Some(RankList::default())));
    world.settle(7);
    for rank in healthy() {
        let only: RankList = [Rank(stopped as u32)].into_iter().collect();
        assert_eq!(world.ring(rank).missing(), only, "as rank {rank} sees it");
    }
}

proptest! {
    /// A rank stops at any moment of an all-gather. Healthy ones that were done already were named with it, by those whose blocks it had not
    /// passed on: they wait for nobody.
    #[test]
    fn a_gather_does_not_name_those_that_are_done(
        nranks in 2usize..20,
        stopped: prop::sample::Index,
        seed: u64,
        deliveries in 0u64..400,
    ) {
        let (mut world, stopped) = (World::new(nranks), stopped.index(nranks));
        (0..nranks).for_each(|rank| world.ring(rank).submit(&[]).expect("a healthy ring"));
        world.deliver_some(seed, deliveries);
        world.frozen = Some(stopped);
        world.settle(seed);
        let waits = |world: &mut World, rank: &usize| *rank != stopped && world.ring(*rank).take_gathered().is_none();
        let waiting: Vec<usize> = (0..nranks).filter(|rank| waits(&mut world, rank)).collect();
        waiting.iter().for_each(|rank| world.ring(*rank).hurry());
        world.settle(seed ^ 1);
        waiting.iter().for_each(|rank| world.ring(*rank).say_waiting(Some(RankList::default())));
        world.settle(seed ^ 2);
        for rank in waiting {
            let only: RankList = [Rank(stopped as u32)].into_iter().collect();
            prop_assert_eq!(world.ring(rank).missing(), only, "as rank {} sees it", rank);
        }
    }
}

#[test]
fn a_gather_names_who_is_missing() {
    let mut world = World::new(4);
    [0, 1, 3].iter().for_each(|&rank| world.ring(rank).submit(&[]).expect("a healthy ring"));
    world.settle(5);
    assert_eq!(world.ring(0).take_gathered(), None);
    assert_ne!(
        world.ring(0).missing(),
        [Rank(2)].into_iter().collect(),
        "parts are held back, or this test shows nothing"
    );
    // One of them has waited for long.
    world.ring(3).hurry();
    world.settle(6);
    for rank in [0, 1, 3] {
        assert_eq!(world.ring(rank).missing(), [Rank(2)].into_iter().collect(), "as rank {rank} sees it");
    }
    world.ring(2).submit(&[]).expect("a healthy ring");
    world.settle(7);
    (0..4).for_each(|rank| assert_eq!(world.ring(rank).take_gathered(), Some(Ok(vec![vec![]; 4]))));
}

#[test]
fn a_neighbour_that_breaks_the_protocol_is_named() {
    let mut ring = Ring::new(Rank(0), 3);
    ring.attach(Side::Prev, Rank(2));
    ring.attach(Side::Next, Rank(1));
    ring.receive(Side::Next, b"GET / HTTP/1.1");
    assert_eq!(ring.peer(Side::Next), None);
    let error = ring.submit(&[]).expect_err("the ring is broken");
    assert_eq!(
        error.to_string(),
        "rank 1 broke the bootstrap protocol: bytes that are no message of this version"
    );
}

/// Of two neighbours that die, the second was the only witness of the first's death on one side. A rank that got the
/// event and leaves at once must wait for the next predecessor across the gap, or the other side never gets it.
#[test]
fn a_rank_that_leaves_waits_for_the_successor_of_a_dead_predecessor() {
    let mut world = World::new(5);
    let deliver_all = |world: &mut World, rank: usize, side| {
        while world.ring(rank).peer(side).is_some() {
            world.pending();
            world.deliver(rank, side, 100);
        }
    };
    // 2 sees the end of 1, forwards it to 3, and dies itself; 0 sees no end but that of 1.
    world.end(1);
    deliver_all(&mut world, 2, Side::Prev);
    world.end(2);
    deliver_all(&mut world, 3, Side::Prev);
    assert_eq!(world.events(3), [1, 2].map(|rank| PeerEvent::PeerDied { rank: Rank(rank) }));
    world.ring(3).leave();
    assert!(world.ring(3).owes_an_event());
    deliver_all(&mut world, 0, Side::Next);
    assert_eq!(world.events(0), [PeerEvent::PeerDied { rank: Rank(1) }]);
    world.join(0, 3);
    assert!(!world.ring(3).owes_an_event());
    deliver_all(&mut world, 0, Side::Next);
    assert_eq!(world.events(0), [PeerEvent::PeerDied { rank: Rank(2) }]);
    // Its neighbour's answer to the goodbye is no death.
    deliver_all(&mut world, 3, Side::Prev);
    assert!(!world.ring(3).owes_an_event());
}

/// Rank 1 died before rank 0 had a connection to it: no stream ends.
#[test]
fn a_rank_that_cannot_be_reached_is_named_to_those_who_never_tried() {
    let mut world = World::new(4);
    world.ring(0).give_up(BootstrapError::PeerLost { rank: Rank(1) });
    world.settle(7);
    for rank in [2, 3] {
        assert_eq!(world.ring(rank).next_event(), Some(PeerEvent::PeerDied { rank: Rank(1) }));
    }
}

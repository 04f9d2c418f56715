//! The root's decisions without sockets or clocks.

use super::*;
use proptest::prelude::*;

const UNUSED: Duration = Duration::from_secs(600);
const TIMEOUT: Duration = Duration::from_secs(30);

fn addr(port: u32) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], port as u16))
}

struct Root {
    now: Instant,
    rendezvous: Rendezvous,
}

impl Root {
    fn new() -> Root {
        let now = Instant::now();
        Root { now, rendezvous: Rendezvous::new(now, UNUSED, TIMEOUT, Jobs::One) }
    }

    fn of_any_job() -> Root {
        let now = Instant::now();
        Root { now, rendezvous: Rendezvous::new(now, UNUSED, TIMEOUT, Jobs::Any) }
    }

    /// `rank` registers on connection `conn`: process 1000 + conn, which listens at port 2000 + rank.
    fn register(&mut self, conn: u64, rank: u32, nranks: u32) {
        self.register_child(conn, rank, nranks, 1);
    }

    /// The same, started by process `parent`.
    fn register_child(&mut self, conn: u64, rank: u32, nranks: u32, parent: u32) {
        self.register_for((conn, rank, nranks), parent, Duration::MAX);
    }

    /// The same of a rank that waits for so long.
    fn register_for(&mut self, (conn, rank, nranks): (u64, u32, u32), parent: u32, patience: Duration) {
        let listener = addr(rank.wrapping_add(2000));
        let (process, wants_root, withdraws) = (1000 + conn as u32, false, None);
        let register = Register { nranks, listener, process, parent, patience, wants_root, withdraws };
        self.rendezvous.register(self.now, ConnId(conn), Rank(rank), addr(1), register);
    }

    /// Another rank 0 found the address in use.
    fn claim(&mut self, conn: u64, nranks: u32) {
        let (process, wants_root, withdraws) = (1000 + conn as u32, true, None);
        let (listener, patience) = (addr(1), Duration::MAX);
        let register = Register { nranks, listener, process, parent: 2, patience, wants_root, withdraws };
        self.rendezvous.register(self.now, ConnId(conn), Rank(0), addr(1), register);
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.rendezvous.tick(self.now);
    }

    fn replies(&mut self) -> Vec<(u64, Reply)> {
        std::iter::from_fn(|| self.rendezvous.next_reply()).map(|(conn, reply)| (conn.0, reply)).collect()
    }
}

fn claimant(process: u32) -> Claimant {
    Claimant { ip: addr(1).ip(), process }
}

fn twice(rank: u32, first: u32, second: u32) -> Failure {
    Failure::Duplicate { rank: Rank(rank), first: claimant(first), second: claimant(second) }
}

#[test]
fn everyone_learns_its_successor_whatever_the_order() {
    let mut root = Root::new();
    for (conn, rank) in [(0, 2), (1, 0), (2, 3)] {
        root.register(conn, rank, 4);
        assert_eq!(root.replies(), []);
    }
    root.register(3, 1, 4);
    let mut replies = root.replies();
    replies.sort_by_key(|(conn, _)| *conn);
    let next = |rank: u32, parent: Option<u32>| Reply::Assigned {
        successor: Rank(rank),
        listener: addr(2000 + rank),
        parent: parent.map(|rank| addr(2000 + rank)),
    };
    // Rank 2 alone has a parent that is none of its neighbours.
    let expected = [(0, next(3, Some(0))), (1, next(1, None)), (2, next(0, None)), (3, next(2, None))];
    assert_eq!(replies, expected);
    assert!(root.rendezvous.is_finished());
}

#[test]
fn missing_ranks_are_named_to_those_who_came_and_to_late_comers() {
    let mut root = Root::new();
    root.pass(Duration::from_secs(100));
    root.register(0, 0, 4);
    root.register(1, 2, 4);
    root.pass(TIMEOUT - Duration::from_millis(1));
    assert_eq!(root.replies(), []);
    root.pass(Duration::from_millis(1));
    let ranks = [1, 3].map(Rank).into_iter().collect();
    let failed = Reply::Failed(Failure::Missing { ranks, nranks: 4, limit: TIMEOUT, strangers: None });
    assert_eq!(root.replies(), [(0, failed), (1, failed)]);
    root.pass(Duration::from_secs(1));
    root.register(2, 3, 4);
    assert_eq!(root.replies(), [(2, failed)]);
    assert!(!root.rendezvous.is_finished());
    root.pass(LINGER);
    assert!(root.rendezvous.is_finished());
}

/// The root had another timeout than the ranks: they gave up first, and no error named anybody.
#[test]
fn the_missing_are_named_when_the_least_patient_rank_gives_up() {
    let mut root = Root::new();
    root.register_for((0, 0, 4), 1, TIMEOUT / 2);
    root.pass(Duration::from_secs(1));
    root.register_for((1, 2, 4), 1, TIMEOUT / 10);
    root.pass(TIMEOUT / 10 - Duration::from_millis(1));
    assert_eq!(root.replies(), []);
    root.pass(Duration::from_millis(1));
    let ranks = [1, 3].map(Rank).into_iter().collect();
    let limit = TIMEOUT / 10 + Duration::from_secs(1);
    let failed = Reply::Failed(Failure::Missing { ranks, nranks: 4, limit, strangers: None });
    assert_eq!(root.replies(), [(0, failed), (1, failed)]);
}

#[test]
fn a_rank_that_comes_twice_fails_everyone_at_once() {
    let mut root = Root::new();
    root.register(0, 1, 3);
    root.register(1, 0, 3);
    root.register(2, 1, 3);
    let failed = Reply::Failed(twice(1, 1000, 1002));
    let mut replies = root.replies();
    replies.sort_by_key(|(conn, _)| *conn);
    assert_eq!(replies, [(0, failed), (1, failed), (2, failed)]);
    assert!(!root.rendezvous.is_finished(), "rank 2 is still to be told");
    root.register(3, 2, 3);
    assert_eq!(root.replies(), [(3, failed)]);
    assert!(root.rendezvous.is_finished());
}

#[test]
fn disagreement_on_the_number_of_ranks_is_named() {
    let mut root = Root::new();
    root.register(0, 1, 3);
    root.register(1, 0, 4);
    let (first, second) = (claimant(1000), claimant(1001));
    let failed =
        Failure::WorldSize { rank: Rank(0), nranks: 4, second, expected: 3, expected_by: Rank(1), first };
    assert_eq!(root.replies(), [(0, Reply::Failed(failed)), (1, Reply::Failed(failed))]);
}

/// The root had an answer for as many of the other job as this one has, and none for its last ones.
#[test]
fn all_ranks_of_two_jobs_of_different_sizes_are_answered() {
    let mut root = Root::of_any_job();
    root.register(0, 0, 2);
    root.claim(1, 4);
    let failed = Reply::Failed(twice(0, 1000, 1001));
    assert_eq!(root.replies(), [(0, failed), (1, failed)]);
    for (conn, rank, nranks) in [(2, 1, 4), (3, 2, 4), (4, 1, 2), (5, 3, 4)] {
        assert!(!root.rendezvous.is_finished(), "rank {rank} of {nranks} is to be told");
        root.register(conn, rank, nranks);
        assert_eq!(root.replies(), [(conn, failed)]);
    }
    assert!(root.rendezvous.is_finished());
}

#[test]
fn absurd_numbers_are_refused() {
    for (rank, nranks) in [(4, 4), (0, 0), (u32::MAX, 8), (0, u32::MAX)] {
        let mut root = Root::new();
        root.register(0, rank, nranks);
        let failed = Failure::OutOfRange { rank: Rank(rank), nranks };
        assert_eq!(root.replies(), [(0, Reply::Failed(failed))]);
    }
}

#[test]
fn a_rank_that_dies_waiting_fails_the_others_at_once() {
    let mut root = Root::new();
    root.register(0, 0, 3);
    root.register(1, 1, 3);
    root.rendezvous.lost(root.now, ConnId(9));
    assert_eq!(root.replies(), [], "a connection that never registered is nobody's death");
    root.rendezvous.lost(root.now, ConnId(0));
    assert_eq!(root.replies(), [(1, Reply::Failed(Failure::Lost { rank: Rank(0) }))]);
}

#[test]
fn an_id_that_nobody_uses_ends() {
    let mut root = Root::new();
    root.pass(UNUSED);
    assert!(root.rendezvous.is_finished());
}

#[derive(Clone, Debug)]
enum Happening {
    Register { rank: u32, nranks: u32 },
    Lost { conn: u64 },
    Withdraw { conn: u64 },
    Pass { millis: u64 },
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        8 => (0u32..5, prop_oneof![9 => Just(4u32), 1 => any::<u32>()])
            .prop_map(|(rank, nranks)| Happening::Register { rank, nranks }),
        1 => (0u64..8).prop_map(|conn| Happening::Lost { conn }),
        1 => (0u64..8).prop_map(|conn| Happening::Withdraw { conn }),
        1 => (0u64..40_000).prop_map(|millis| Happening::Pass { millis }),
    ]
}

proptest! {
    /// In every case each rank that registered and is still connected is answered exactly once, all with the same
    /// failure or all with a successor, and the root ends.
    #[test]
    fn everyone_gets_one_answer_and_all_agree(happenings in proptest::collection::vec(happening(), 1..16)) {
        let mut root = Root::new();
        let mut came = Vec::new();
        let mut answers = Vec::new();
        for (conn, happening) in happenings.iter().enumerate() {
            let finished = root.rendezvous.is_finished();
            match *happening {
                Happening::Register { rank, nranks } => {
                    root.register(conn as u64, rank, nranks);
                    if finished {
                        let surplus = root.replies();
                        prop_assert!(surplus.iter().all(|(_, reply)| matches!(reply, Reply::Failed(_))));
                    } else {
                        came.push(conn as u64);
                    }
                }
                Happening::Lost { conn } => {
                    root.rendezvous.lost(root.now, ConnId(conn));
                    if !answers.iter().any(|(answered, _)| *answered == conn) {
                        came.retain(|other| *other != conn);
                    }
                }
                Happening::Withdraw { conn } => {
                    root.rendezvous.withdraw(root.now, ConnId(conn), Withdrawal::Aborted);
                }
                Happening::Pass { millis } => root.pass(Duration::from_millis(millis)),
            }
            answers.extend(root.replies());
        }
        root.pass(UNUSED);
        answers.extend(root.replies());
        root.pass(LINGER);
        prop_assert!(root.rendezvous.is_finished());
        prop_assert_eq!(root.rendezvous.deadline(), None);
        let mut answered: Vec<u64> = answers.iter().map(|(conn, _)| *conn).collect();
        answered.sort_unstable();
        came.sort_unstable();
        prop_assert_eq!(answered, came);
        let failures: Vec<_> = answers.iter().filter(|(_, reply)| matches!(reply, Reply::Failed(_))).collect();
        prop_assert!(failures.is_empty() || failures.len() == answers.len());
        prop_assert!(failures.windows(2).all(|pair| pair[0].1 == pair[1].1));
    }
}

/// It once cost the whole timeout, and all that was said was that the rank had never come.
#[test]
fn a_rank_that_dies_between_its_proof_and_its_registration_is_named_at_once() {
    let mut root = Root::new();
    root.register(0, 0, 3);
    root.rendezvous.came(Rank(1));
    root.rendezvous.vanished(root.now, Rank(1));
    assert_eq!(root.rendezvous.deadline(), Some(root.now + COMES_AGAIN));
    root.pass(COMES_AGAIN);
    let lost = Reply::Failed(Failure::Lost { rank: Rank(1) });
    assert_eq!(root.replies(), [(0, lost)]);
    root.register(1, 2, 3);
    assert_eq!(root.replies(), [(1, lost)]);
}

/// The others were told that it had died.
#[test]
fn a_rank_that_withdraws_is_no_dead_one() {
    let withdrew = Failure::Withdrew { rank: Rank(1), why: Withdrawal::Aborted };
    let mut root = Root::new();
    (0..2).for_each(|rank| root.register(rank, rank as u32, 3));
    root.rendezvous.withdraw(root.now, ConnId(1), Withdrawal::Aborted);
    assert_eq!(root.replies(), [(0, Reply::Failed(withdrew)), (1, Reply::Failed(withdrew))]);
    root.register(2, 2, 3);
    assert_eq!(root.replies(), [(2, Reply::Failed(withdrew))]);
}

#[test]
fn a_rank_that_comes_again_is_not_dead() {
    let mut root = Root::new();
    root.rendezvous.vanished(root.now, Rank(1));
    root.pass(COMES_AGAIN / 2);
    root.rendezvous.came(Rank(1));
    root.pass(COMES_AGAIN);
    root.register(0, 0, 2);
    // One that has registered is not dead because another connection of it broke.
    root.rendezvous.vanished(root.now, Rank(0));
    root.pass(COMES_AGAIN);
    root.register(1, 1, 2);
    assert!(root.replies().iter().all(|(_, reply)| matches!(reply, Reply::Assigned { .. })));
}

#[test]
fn who_comes_when_all_have_come_is_told_so() {
    let mut root = Root::new();
    root.register(0, 0, 2);
    root.register(1, 1, 2);
    root.replies();
    root.register(2, 1, 2);
    root.register(3, 2, 3);
    root.register(4, 2, 2);
    let duplicate = twice(1, 1001, 1002);
    let (first, second) = (claimant(1000), claimant(1003));
    let world =
        Failure::WorldSize { rank: Rank(2), nranks: 3, second, expected: 2, expected_by: Rank(0), first };
    let range = Failure::OutOfRange { rank: Rank(2), nranks: 2 };
    assert_eq!(
        root.replies(),
        [(2, duplicate), (3, world), (4, range)].map(|(conn, failure)| (conn, Reply::Failed(failure)))
    );
    assert!(root.rendezvous.is_finished());
}

/// Two jobs that were started at one address once exchanged ranks, and neither noticed.
#[test]
fn ranks_of_another_job_fail_both_jobs() {
    let mut root = Root::of_any_job();
    // Job 1 is 0, 2 and 4, job 2 is 1, 3 and 5.
    root.register_child(0, 0, 3, 1);
    root.register_child(1, 1, 3, 2);
    root.register_child(2, 2, 3, 1);
    assert_eq!(root.replies(), [], "process 1001 may be of another job");
    root.pass(SEVERAL_PARENTS_SETTLE_WITHIN / 2);
    root.register_child(4, 1, 3, 1);
    let failed = Reply::Failed(twice(1, 1001, 1004));
    let mut replies = root.replies();
    replies.sort_by_key(|(conn, _)| *conn);
    assert_eq!(replies, [0, 1, 2, 4].map(|conn| (conn, failed)));
    root.claim(3, 3);
    root.register_child(5, 2, 3, 2);
    assert_eq!(root.replies(), [(3, failed), (5, failed)]);
    assert!(root.rendezvous.is_finished());
}

#[test]
fn ranks_that_may_be_of_two_jobs_wait_for_a_moment() {
    for (parent, time) in [(1, SETTLES_WITHIN), (2, SEVERAL_PARENTS_SETTLE_WITHIN)] {
        let mut root = Root::of_any_job();
        root.register_child(0, 0, 2, 1);
        root.register_child(1, 1, 2, parent);
        root.pass(time - Duration::from_millis(1));
        assert_eq!(root.replies(), []);
        root.pass(Duration::from_millis(1));
        assert_eq!(root.replies().len(), 2);
        assert!(root.rendezvous.is_finished());
    }
    let mut named = Root::new();
    named.register_child(0, 0, 2, 1);
    named.register_child(1, 1, 2, 2);
    assert_eq!(named.replies().len(), 2, "at once: no other job has its secret");
}

#[test]
fn a_second_rank_zero_that_would_be_the_root_fails_both_jobs() {
    let mut before = Root::new();
    before.claim(0, 4);
    assert_eq!(before.replies(), [], "the number of ranks of another job says nothing");
    before.register(1, 0, 2);
    let failed = Reply::Failed(twice(0, 1000, 1001));
    assert_eq!(before.replies(), [(0, failed), (1, failed)]);
    let mut after = Root::new();
    after.register(0, 0, 2);
    after.claim(1, 4);
    let failed = Reply::Failed(twice(0, 1000, 1001));
    assert_eq!(after.replies(), [(0, failed), (1, failed)]);
}

#[test]
fn a_rank_zero_waits_for_the_root_of_an_earlier_communicator() {
    let mut done = Root::new();
    done.register(0, 0, 1);
    done.replies();
    done.claim(1, 2);
    let mut failed = Root::new();
    failed.register(0, 0, 2);
    failed.rendezvous.lost(failed.now, ConnId(0));
    failed.claim(1, 2);
    let mut unused = Root::new();
    unused.claim(1, 2);
    unused.pass(UNUSED);
    for mut root in [done, failed, unused] {
        assert_eq!(root.replies(), [(1, Reply::Leaving)]);
    }
}

//! Communicators made of communicators.

use oxccl::{Communicator, ReduceOp};
use oxccl_tests::deadline::Deadline;
use oxccl_tests::harness::{Settings, World};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(100);

/// The parent's ranks in the child's order, which every member learns from every other.
fn members(child: &Communicator, parent_rank: u32) -> Vec<u32> {
    let mut all = vec![0; child.size() as usize];
    child.all_gather(&[parent_rank], &mut all).unwrap();
    all
}

#[test]
fn colors_part_and_keys_order() {
    let _deadline = Deadline::start("colors_part_and_keys_order", LIMIT);
    let seen = World::new(6, Settings::default()).each(|rank| {
        let me = rank.rank();
        // Even ranks backwards, odd ones by rank since their keys are equal.
        let key = if me.is_multiple_of(2) { -(me as i32) } else { i32::MAX };
        let child = rank.split(Some(me % 2), key).unwrap().expect("a color was given");
        let members = members(&child, me);
        assert_eq!(members[child.rank() as usize], me);
        rank.barrier().unwrap();
        members
    });
    assert_eq!(seen, [[4, 2, 0], [1, 3, 5], [4, 2, 0], [1, 3, 5], [4, 2, 0], [1, 3, 5]]);
}

#[test]
fn no_color_joins_nothing() {
    let _deadline = Deadline::start("no_color_joins_nothing", LIMIT);
    let seen = World::new(4, Settings::default()).each(|rank| {
        let child = rank.split((rank.rank() != 1).then_some(u32::MAX), 0).unwrap();
        // The parent stays usable, also for the rank that stayed out.
        let mut one = [1u8];
        rank.all_reduce_in_place(&mut one, ReduceOp::SUM).unwrap();
        assert_eq!(one, [4]);
        child.map(|child| members(&child, rank.rank()))
    });
    let members = || Some(vec![0, 2, 3]);
    assert_eq!(seen, [members(), None, members(), members()]);
    let nobody = World::new(2, Settings::default()).each(|rank| rank.split(None, 0).unwrap().is_none());
    assert_eq!(nobody, [true, true]);
}

#[test]
fn a_color_of_ones_own_makes_a_communicator_of_one() {
    let _deadline = Deadline::start("a_color_of_ones_own_makes_a_communicator_of_one", LIMIT);
    World::new(3, Settings::default()).each(|rank| {
        let alone = rank.split(Some(rank.rank()), 0).unwrap().expect("a color was given");
        let mut data = [5i32, 6];
        alone.all_reduce_in_place(&mut data, ReduceOp::AVG).unwrap();
        assert_eq!((alone.size(), data), (1, [5, 6]));
    });
}

/// Halves of halves, all used together with their ancestors in one group.
#[test]
fn splits_of_splits_work_beside_their_parents() {
    let _deadline = Deadline::start("splits_of_splits_work_beside_their_parents", LIMIT);
    World::new(8, Settings::default()).each(|rank| {
        let me = rank.rank();
        let half = rank.split(Some(me / 4), 0).unwrap().expect("a color was given");
        let quarter = half.split(Some(half.rank() / 2), -(me as i32)).unwrap().expect("a color was given");
        assert_eq!(members(&quarter, me), [me | 1, me & !1]);
        for _ in 0..3 {
            let mut sums = [[u64::from(me); 3]; 3];
            let [whole, halves, quarters] = &mut sums;
            oxccl::group(|group| {
                group.all_reduce_in_place(&quarter, quarters, ReduceOp::SUM)?;
                group.all_reduce_in_place(rank, whole, ReduceOp::SUM)?;
                group.all_reduce_in_place(&half, halves, ReduceOp::SUM)
            })
            .unwrap();
            let half_sum = if me < 4 { 6 } else { 22 };
            assert_eq!(sums, [[28; 3], [half_sum; 3], [u64::from(me & !1) * 2 + 1; 3]]);
        }
    });
}

/// Children that outlive their parent, and many generations one after another.
#[test]
fn a_child_outlives_its_parent() {
    let _deadline = Deadline::start("a_child_outlives_its_parent", LIMIT);
    let World { ranks, .. } = World::new(3, Settings::default());
    oxccl_tests::harness::on_threads(ranks.into_iter(), |mut rank| {
        for generation in 0..8 {
            rank = rank.split(Some(generation), -(rank.rank() as i32)).unwrap().expect("a color was given");
            let mut all = [0; 3];
            rank.all_gather(&[rank.rank()], &mut all).unwrap();
            assert_eq!(all, [0, 1, 2]);
        }
    });
}

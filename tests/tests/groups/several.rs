//! Several communicators in one group, and several ranks on one thread.

use oxccl::{ArgumentError, Error, ReduceOp};
use oxccl_tests::deadline::Deadline;
use oxccl_tests::harness::{Settings, World, on_threads};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(100);

/// Threads that hold two ranks each, and calls that need all four.
#[test]
fn two_threads_hold_two_ranks_each() {
    let _deadline = Deadline::start("two_threads_hold_two_ranks_each", LIMIT);
    let mut world = World::new(4, Settings::default());
    for count in [1usize, 1000, 30_011] {
        on_threads(world.ranks.chunks_mut(2), |mine| {
            let mut sums = [vec![0i32; count], vec![0i32; count]];
            let mut all = [vec![0u8; 4 * count], vec![0u8; 4 * count]];
            let inputs: Vec<_> = mine.iter().map(|rank| vec![rank.rank() as i32; count]).collect();
            let bytes: Vec<_> = mine.iter().map(|rank| vec![rank.rank() as u8; count]).collect();
            oxccl::group(|group| {
                let outputs = sums.iter_mut().zip(&mut all);
                for ((rank, (sum, all)), (input, bytes)) in
                    mine.iter().zip(outputs).zip(inputs.iter().zip(&bytes))
                {
                    group.all_reduce(rank, input, sum, ReduceOp::SUM)?;
                    group.all_gather(rank, bytes, all)?;
                }
                Ok(())
            })
            .unwrap();
            assert!(sums.iter().flatten().all(|x| *x == 6));
            assert!(all.iter().all(|all| all.iter().enumerate().all(|(i, x)| *x as usize == i / count)));
        });
    }
}

/// Two communicators over the same ranks, used in opposite orders by the two threads: one group each, so neither waits for
/// the other's order.
#[test]
fn communicators_of_a_group_do_not_wait_for_each_other() {
    let _deadline = Deadline::start("communicators_of_a_group_do_not_wait_for_each_other", LIMIT);
    let (mut a, mut b) = (World::new(2, Settings::default()), World::new(2, Settings::default()));
    on_threads(a.ranks.iter_mut().zip(b.ranks.iter_mut()), |(a, b)| {
        let (mut x, mut y) = (vec![1u64; 50_000], vec![2u64; 50_000]);
        let pair =
            if a.rank() == 0 { [(&*a, &mut x), (&*b, &mut y)] } else { [(&*b, &mut y), (&*a, &mut x)] };
        oxccl::group(|group| {
            pair.into_iter().try_for_each(|(comm, data)| group.all_reduce_in_place(comm, data, ReduceOp::SUM))
        })
        .unwrap();
        assert!(x.iter().all(|x| *x == 2) && y.iter().all(|y| *y == 4));
    });
}

/// One thread is every rank of two communicators of different sizes.
#[test]
fn one_thread_is_nine_ranks_and_four_more() {
    let _deadline = Deadline::start("one_thread_is_nine_ranks_and_four_more", LIMIT);
    let (nine, four) = (World::new(9, Settings::default()), World::new(4, Settings::default()));
    let mut data = vec![vec![1f32; 777]; 13];
    for round in 1..=3i32 {
        oxccl::group(|group| {
            let mut ranks = four.ranks.iter().chain(&nine.ranks).zip(&mut data);
            ranks.try_for_each(|(rank, data)| group.all_reduce_in_place(rank, data, ReduceOp::SUM))
        })
        .unwrap();
        let (four, nine) = (4f32.powi(round), 9f32.powi(round));
        assert!(data[..4].iter().flatten().all(|x| *x == four));
        assert!(data[4..].iter().flatten().all(|x| *x == nine));
    }
}

#[test]
fn a_group_of_too_many_communicators_is_refused() {
    let _deadline = Deadline::start("a_group_of_too_many_communicators_is_refused", LIMIT);
    let max = oxccl::api::GROUP_COMMUNICATORS_MAX;
    let alone: Vec<World> = (0..=max).map(|_| World::new(1, Settings::default())).collect();
    let refused = oxccl::group(|group| alone.iter().try_for_each(|world| group.barrier(&world.ranks[0])));
    assert_eq!(refused, Err(Error::Argument(ArgumentError::GroupSize { max })));
    oxccl::group(|group| alone[1..].iter().try_for_each(|world| group.barrier(&world.ranks[0]))).unwrap();
}

#[test]
fn an_empty_group_is_nothing() {
    assert_eq!(oxccl::group(|_| Ok(())), Ok(()));
}

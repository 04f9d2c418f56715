//! Communicators of GPUs made of communicators: the same as on CPUs, see `groups/splits.rs`.

use super::operations::{make_room, run};
use oxccl::DeviceCommunicator;
use oxccl_tests::deadline::Deadline;
use oxccl_tests::devices::{DeviceWorld, gpus, ranks_max};
use oxccl_tests::harness::{Settings, on_threads};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(200);

/// What every rank of `world` gets, by color and key.
fn split(
    world: &mut DeviceWorld,
    wish: impl Fn(u32) -> (Option<u32>, i32) + Sync,
) -> Vec<Option<DeviceCommunicator>> {
    on_threads(world.ranks.iter_mut(), |rank| {
        let (color, key) = wish(rank.comm.rank());
        rank.comm.split(color, key).unwrap_or_else(|error| panic!("{error}"))
    })
}

/// The children of one color, as a world.
fn world(mut children: Vec<DeviceCommunicator>) -> DeviceWorld {
    children.sort_by_key(DeviceCommunicator::rank);
    DeviceWorld::of(Settings::default(), children)
}

#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_children_and_their_parent_work_at_once() {
    let _deadline = Deadline::start("needs_gpu_children_and_their_parent_work_at_once", LIMIT);
    let nranks = gpus().min(8);
    // Kernels of several communicators that wait for each other would have to share a GPU.
    if nranks < 2 {
        return println!("skipped: this machine has one GPU");
    }
    let mut parent = DeviceWorld::new(nranks, Settings::default(), None);
    // By halves, each backwards.
    let children = split(&mut parent, |rank| (Some(u32::from(rank >= nranks / 2)), -(rank as i32)));
    let children: Vec<DeviceCommunicator> =
        children.into_iter().map(|child| child.expect("a color")).collect();
    let (mut low, mut high) = (Vec::new(), Vec::new());
    for (rank, child) in children.into_iter().enumerate() {
        assert_eq!(child.device().ordinal(), parent.ranks[rank].comm.device().ordinal());
        let (size, first) =
            if (rank as u32) < nranks / 2 { (nranks / 2, 0) } else { (nranks - nranks / 2, nranks / 2) };
        assert_eq!((child.size(), child.rank()), (size, size - 1 - (rank as u32 - first)));
        assert_eq!(child.memory().peers.len(), size as usize - 1);
        if first == 0 { low.push(child) } else { high.push(child) }
    }
    let mut worlds = vec![parent, world(low), world(high)];
    worlds.iter_mut().for_each(make_room);
    on_threads(worlds.iter_mut().enumerate(), |(seed, world)| run(world, 200 + seed as u64, 100));
    // Children outlive their parent.
    let children = worlds.split_off(1);
    drop(worlds);
    for mut child in children {
        run(&mut child, 300, 20);
    }
}

#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_who_gives_no_color_goes_on_without() {
    let _deadline = Deadline::start("needs_gpu_who_gives_no_color_goes_on_without", LIMIT);
    let nranks = ranks_max().min(4);
    let mut parent = DeviceWorld::new(nranks, Settings::default(), None);
    let children = split(&mut parent, |rank| ((rank != 0).then_some(u32::MAX), 0));
    assert_eq!(
        children.iter().map(Option::is_some).collect::<Vec<_>>(),
        (0..nranks).map(|rank| rank != 0).collect::<Vec<_>>()
    );
    let mut child = world(children.into_iter().flatten().collect());
    run(&mut child, 5, 20);
    run(&mut parent, 6, 20);
    // An abort of the child is no business of the parent's.
    child.ranks[0].comm.abort();
    assert!(child.ranks[0].comm.split(Some(0), 0).is_err());
    run(&mut parent, 7, 20);
    // Alone, each.
    for child in split(&mut parent, |rank| (Some(rank), 0)) {
        let child = child.expect("a color");
        assert_eq!((child.rank(), child.size(), child.memory().peers.len()), (0, 1, 0));
    }
}

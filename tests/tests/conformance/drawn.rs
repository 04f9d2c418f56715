//! All-reduces whose lengths, placements and seeds are drawn, and whether ranks are threads or fibers.

use oxccl::{DataType, Func, RedOp};
use oxccl_tests::borders::{Borders, CLASSES};
use oxccl_tests::case::{By, Case, Placement};
use oxccl_tests::deadline::doing;
use oxccl_tests::deck::Deck;
use oxccl_tests::harness::World;

/// Draws one of this type and operator, and checks it.
pub fn all_reduce(world: &mut World, random: &mut Deck, dtype: DataType, op: RedOp) {
    let borders = Borders::new(&world.settings.config(), Func::AllReduce, dtype, world.size() as u32);
    let case = Case {
        func: Func::AllReduce,
        dtype,
        op,
        root: 0,
        count: CLASSES[random.draw() % CLASSES.len()].1(&borders),
        placement: Placement::ALL[random.draw() % Placement::ALL.len()],
        seed: random.draw() as u64,
    };
    let by = if random.draw().is_multiple_of(3) { By::Fibers } else { By::Threads };
    doing(|| format!("{case:?} by {by:?}"));
    case.check(world, by).unwrap();
}

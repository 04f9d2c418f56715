//! Collectives whose lengths, placements and seeds are drawn, and whether ranks are threads or fibers.

use oxccl::{DataType, Func, RedOp};
use oxccl_tests::borders::{Borders, CLASSES};
use oxccl_tests::case::{By, Case, Placement};
use oxccl_tests::deadline::doing;
use oxccl_tests::deck::Deck;
use oxccl_tests::harness::World;

/// Draws an all-reduce of this type and operator, and checks it.
pub fn all_reduce(world: &mut World, random: &mut Deck, dtype: DataType, op: RedOp) {
    call(world, random, Func::AllReduce, dtype, op);
}

/// Draws one of this function, type and operator, and checks it.
pub fn call(world: &mut World, random: &mut Deck, func: Func, dtype: DataType, op: RedOp) {
    let borders = Borders::new(&world.settings.config(), func, dtype, world.size() as u32);
    let case = Case {
        func,
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

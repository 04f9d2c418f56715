//! Fibers of one thread, so that time goes into moving data and not into the operating system's scheduler.

use super::dims::{FUNCS, applies, ops, reduces, settings};
use oxccl::{DataType, Func, RedOp};
use oxccl_tests::borders::{Borders, CLASSES};
use oxccl_tests::case::{By, Case, Placement};
use oxccl_tests::deadline::{Deadline, doing};
use oxccl_tests::deck::{Deck, Pairs};
use oxccl_tests::harness::World;
use std::time::Duration;

/// How much of the product to run.
#[derive(Clone, Copy)]
enum Extent {
    /// Each function, algorithm, protocol, type and operator with so many of the counts and placements.
    Draws(usize),
    Everything,
}

/// Dimensions of [`Pairs`]: settings, function, type, operator, count, placement, root.
const SETTINGS: usize = 0;
const FUNC: usize = 1;
const OP: usize = 3;
const ROOT: usize = 6;

struct Matrix {
    nranks: u32,
    extent: Extent,
    pairs: Pairs,
    failures: Vec<String>,
    cases: usize,
}

impl Matrix {
    fn run(name: &'static str, nranks: u32, extent: Extent, limit: Duration) {
        let _deadline = Deadline::start(name, limit);
        let mut matrix = Matrix { nranks, extent, pairs: Pairs::default(), failures: Vec::new(), cases: 0 };
        let mut decks = FUNCS.map(|func| Deck::new(CLASSES.len() * Placement::ALL.len(), func as u64 + 1));
        for (index, settings) in settings().into_iter().enumerate() {
            doing(|| format!("setting up {nranks} ranks with {settings:?}"));
            let mut world = World::new(nranks, settings);
            for (f, func) in FUNCS.into_iter().enumerate().filter(|(_, func)| applies(&settings, *func)) {
                matrix.function(&mut world, [index, f], func, &mut decks[f]);
            }
        }
        assert!(matrix.failures.is_empty(), "{}", matrix.failures.join("\n"));
        matrix.assert_all_pairs_met();
        println!("{} cases", matrix.cases);
    }

    fn function(&mut self, world: &mut World, at: [usize; 2], func: Func, deck: &mut Deck) {
        for (d, &dtype) in DataType::ALL.iter().enumerate() {
            let borders = Borders::new(&world.settings.config(), func, dtype, self.nranks);
            for (o, &op) in ops(func).iter().enumerate() {
                let draws = match self.extent {
                    Extent::Draws(draws) => draws,
                    Extent::Everything => CLASSES.len() * Placement::ALL.len(),
                };
                for _ in 0..draws {
                    let card = deck.draw();
                    let (class, placement) = (card % CLASSES.len(), card / CLASSES.len());
                    let root = self.cases as u32 % self.nranks;
                    self.pairs.note(&[at[0], at[1], d, o, class, placement, root as usize]);
                    let case = Case {
                        func,
                        dtype,
                        op,
                        root,
                        count: CLASSES[class].1(&borders),
                        placement: Placement::ALL[placement],
                        seed: self.cases as u64,
                    };
                    self.check(world, &case);
                }
            }
        }
    }

    fn check(&mut self, world: &mut World, case: &Case) {
        doing(|| format!("{case:?} of {} ranks, {:?}", world.size(), world.settings));
        self.cases += 1;
        if let Err(failure) = case.check(world, By::Fibers) {
            self.failures.push(failure);
            assert!(self.failures.len() < 20, "{}", self.failures.join("\n"));
        }
    }

    /// Whatever can be combined has been.
    fn assert_all_pairs_met(&self) {
        let settings = settings();
        let sizes = [
            settings.len(),
            FUNCS.len(),
            DataType::ALL.len(),
            RedOp::ALL.len(),
            CLASSES.len(),
            Placement::ALL.len(),
            self.nranks as usize,
        ];
        let mut missing = self.pairs.missing(&sizes);
        missing.retain(|[(a, x), (b, y)]| match (*b, *a) {
            (SETTINGS, FUNC) => applies(&settings[*y], FUNCS[*x]),
            (FUNC, OP) => reduces(FUNCS[*y]) || *x == RedOp::Sum as usize,
            // A root matters to three functions and is drawn for all; fewer draws than ranks meet not every root.
            (_, ROOT) => false,
            _ => true,
        });
        assert!(missing.is_empty(), "never met, as (dimension, value) of {sizes:?}: {missing:?}");
    }
}

macro_rules! matrices {
    ($($name:ident, $full:ident: $nranks:literal x $draws:literal;)+) => { $(
        #[test]
        fn $name() {
            Matrix::run(stringify!($name), $nranks, Extent::Draws($draws), Duration::from_secs(280));
        }

        #[test]
        #[ignore = "the full product takes minutes"]
        fn $full() {
            Matrix::run(stringify!($full), $nranks, Extent::Everything, Duration::from_secs(7200));
        }
    )+ };
}

matrices! {
    ranks_1, all_of_ranks_1: 1 x 3;
    ranks_2, all_of_ranks_2: 2 x 3;
    ranks_3, all_of_ranks_3: 3 x 3;
    ranks_4, all_of_ranks_4: 4 x 3;
    ranks_5, all_of_ranks_5: 5 x 2;
    ranks_6, all_of_ranks_6: 6 x 2;
    ranks_7, all_of_ranks_7: 7 x 2;
    ranks_8, all_of_ranks_8: 8 x 2;
    ranks_9, all_of_ranks_9: 9 x 2;
    ranks_16, all_of_ranks_16: 16 x 1;
}

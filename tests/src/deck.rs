//! Choice of cases: values drawn in random order, and a ledger that proves which pairs of values met.

use crate::model::mix;
use std::collections::HashSet;

/// Numbers below `size` in random order, each once before any comes again.
pub struct Deck {
    size: usize,
    cards: Vec<usize>,
    random: u64,
}

impl Deck {
    /// A deck whose order `seed` decides.
    pub fn new(size: usize, seed: u64) -> Deck {
        Deck { size, cards: Vec::new(), random: seed }
    }

    /// Draws the next value.
    pub fn draw(&mut self) -> usize {
        if self.cards.is_empty() {
            self.cards.extend(0..self.size);
        }
        self.random = mix(self.random);
        let at = self.random as usize % self.cards.len();
        self.cards.swap_remove(at)
    }
}

/// Which values of any two dimensions have been tested together.
#[derive(Default)]
pub struct Pairs {
    met: HashSet<(usize, usize, usize, usize)>,
}

impl Pairs {
    /// Notes a case: its value in each dimension.
    pub fn note(&mut self, case: &[usize]) {
        for a in 0..case.len() {
            for b in 0..a {
                self.met.insert((a, case[a], b, case[b]));
            }
        }
    }

    /// The pairs that never met, of dimensions with so many values each.
    pub fn missing(&self, sizes: &[usize]) -> Vec<[(usize, usize); 2]> {
        let mut missing = Vec::new();
        for a in 0..sizes.len() {
            for b in 0..a {
                for (x, y) in (0..sizes[a]).flat_map(|x| (0..sizes[b]).map(move |y| (x, y))) {
                    if !self.met.contains(&(a, x, b, y)) {
                        missing.push([(a, x), (b, y)]);
                    }
                }
            }
        }
        missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deck_gives_each_card_once() {
        let mut deck = Deck::new(10, 3);
        for _ in 0..3 {
            let drawn: HashSet<usize> = (0..10).map(|_| deck.draw()).collect();
            assert_eq!(drawn.len(), 10);
        }
    }

    #[test]
    fn a_missing_pair_is_named() {
        let mut pairs = Pairs::default();
        for case in [[0, 0, 0], [0, 1, 1], [1, 0, 1]] {
            pairs.note(&case);
        }
        let missing = pairs.missing(&[2, 2, 2]);
        assert!(missing.contains(&[(1, 1), (0, 1)]));
        assert!(missing.contains(&[(2, 0), (1, 1)]));
        assert!(!missing.contains(&[(2, 1), (0, 1)]));
    }
}

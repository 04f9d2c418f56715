//! Layer: tests.
//! Takes: a seed.
//! Gives: [`Random`]: numbers that look random and are the same on every machine.
//! Never: asks the system for any.

/// A linear congruence with Knuth's multiplier for 64 bits; the upper half of its state is random enough.
#[derive(Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next number, less than `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    /// One of these.
    pub fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

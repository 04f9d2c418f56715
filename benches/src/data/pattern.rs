//! The formula of the parent module.

use super::scalar::{ForScalar, Scalar, Wide, dispatch};
use oxccl_shared::abi::{DataType, RedOp};

/// One repetition's data.
#[derive(Clone, Copy, Debug)]
pub struct Pattern {
    /// Number of the repetition.
    pub repetition: u64,
    /// Ranks that take part.
    pub ranks: u32,
    /// The operator; nothing for collectives that copy.
    pub op: Option<RedOp>,
    /// The element type.
    pub dtype: DataType,
}

/// The greatest integer that a sum of floats with `bits` significant bits may reach. More than 2^40 would only make sums of
/// many ranks leave `i64` on the way.
fn exact_limit(bits: u32) -> u64 {
    1 << bits.min(40)
}

/// Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
fn splitmix64(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The scalar of `rank`'s pre-multiplied sum.
fn scalar_of(rank: u32) -> i64 {
    1 + i64::from(rank % 2)
}

/// That scalar as bytes of `dtype`.
pub fn scalar_bits(dtype: DataType, rank: u32) -> u64 {
    struct Encode(i64);
    impl ForScalar for Encode {
        type Output = u64;
        fn with<S: Scalar>(self) -> u64 {
            S::encode(S::Wide::from_int(self.0))
        }
    }
    dispatch(dtype, Encode(scalar_of(rank)))
}

impl Pattern {
    fn word(&self, rank: u32, i: u64) -> u64 {
        let seed = splitmix64(self.repetition ^ 0x6f78_6363_6c00_0000);
        splitmix64(seed.wrapping_add(u64::from(rank) << 40).wrapping_add(i))
    }

    /// Ranks that contribute to each element of a float sum, and the greatest contribution.
    fn sum_limits<S: Scalar>(&self) -> (u32, u64) {
        let scalar_max = if self.op == Some(RedOp::PreMulSum) { 2 } else { 1 };
        let limit = exact_limit(S::SIGNIFICANT_BITS) / scalar_max;
        let ranks = u64::from(self.ranks).min(limit);
        (ranks as u32, limit / ranks)
    }

    fn takes_part(&self, rank: u32, i: u64, ranks: u32) -> bool {
        (u64::from(rank) + i) % u64::from(self.ranks) < u64::from(ranks)
    }

    /// Element `i` of `rank`'s input to a reduction.
    fn contribution<S: Scalar>(&self, op: RedOp, rank: u32, i: u64) -> S::Wide {
        let word = self.word(rank, i);
        let signed = |limit: u64| S::Wide::from_int((word % (2 * limit + 1)) as i64 - limit as i64);
        let float = S::SIGNIFICANT_BITS > 0;
        match op {
            RedOp::Avg => {
                let limit = if float { exact_limit(S::SIGNIFICANT_BITS) } else { 127 };
                let ranks = u64::from(self.ranks).min(limit);
                let magnitude = word % (limit / ranks + 1);
                let part = self.takes_part(rank, i, ranks as u32);
                S::Wide::from_int(if part { magnitude as i64 } else { 0 })
            }
            _ if !float => S::in_range(word),
            RedOp::Max | RedOp::Min => signed(exact_limit(S::SIGNIFICANT_BITS)),
            RedOp::Prod => {
                let sign = S::Wide::from_int(1 - 2 * (word >> 63) as i64);
                let exponent = if self.takes_part(rank, i, 6) { (word % 3) as i32 - 1 } else { 0 };
                sign.mul(S::Wide::power_of_two(exponent))
            }
            RedOp::Sum | RedOp::PreMulSum => {
                let (ranks, magnitude) = self.sum_limits::<S>();
                if self.takes_part(rank, i, ranks) { signed(magnitude) } else { S::Wide::from_int(0) }
            }
        }
    }

    /// Element `i` of `rank`'s input, as bytes.
    pub(super) fn input<S: Scalar>(&self, rank: u32, i: u64) -> u64 {
        match self.op {
            None => self.word(rank, i),
            Some(op) => S::encode(self.contribution::<S>(op, rank, i)),
        }
    }

    /// Element `i` of the reduction over all ranks, before a division.
    fn combined<S: Scalar>(&self, op: RedOp, i: u64) -> S::Wide {
        let value = |rank: u32| {
            let value = self.contribution::<S>(op, rank, i);
            if op == RedOp::PreMulSum { value.mul(S::Wide::from_int(scalar_of(rank))) } else { value }
        };
        let combine = |a: S::Wide, b: S::Wide| match op {
            RedOp::Sum | RedOp::Avg | RedOp::PreMulSum => a.add(b),
            RedOp::Prod => a.mul(b),
            RedOp::Max => {
                if a > b {
                    a
                } else {
                    b
                }
            }
            RedOp::Min => {
                if a < b {
                    a
                } else {
                    b
                }
            }
        };
        (1..self.ranks).fold(value(0), |acc, rank| combine(acc, value(rank)))
    }

    /// Whether the reduction's element `i` may be `bits`.
    pub(super) fn reduced_is<S: Scalar>(&self, op: RedOp, i: u64, bits: u64) -> bool {
        if op != RedOp::Avg {
            return same_bytes::<S>(S::encode(self.combined::<S>(op, i)), bits);
        }
        if S::SIGNIFICANT_BITS == 0 || (self.ranks.is_power_of_two() && self.ranks <= 32) {
            return same_bytes::<S>(S::encode(self.combined::<S>(op, i).over(self.ranks)), bits);
        }
        // Every input may have been rounded when it was divided, and every partial sum: 2n roundings of positive numbers.
        let sum: f64 = (0..self.ranks).map(|rank| S::decode(self.input::<S>(rank, i))).sum();
        let expected = sum / f64::from(self.ranks);
        let unit = f64::exp2(-f64::from(S::SIGNIFICANT_BITS));
        (S::decode(bits) - expected).abs() <= 2.0 * f64::from(self.ranks) * unit * expected
    }
}

fn same_bytes<S: Scalar>(a: u64, b: u64) -> bool {
    let unused = 64 - 8 * S::SIZE as u32;
    a << unused == b << unused
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rounds after every step as a library would, in both directions around a ring: if the formula is exact, so are these.
    #[test]
    fn sums_of_f32_are_exact_in_any_order() {
        for ranks in [1, 2, 3, 7, 64, 1000] {
            for op in [RedOp::Sum, RedOp::Prod, RedOp::Max, RedOp::Min] {
                let pattern = Pattern { repetition: 3, ranks, op: Some(op), dtype: DataType::F32 };
                type F = super::super::scalar::Float<4, 24, false>;
                for i in 0..50 {
                    let inputs: Vec<f32> =
                        (0..ranks).map(|r| f32::from_bits(pattern.input::<F>(r, i) as u32)).collect();
                    let combine = |a: f32, b: f32| match op {
                        RedOp::Sum => a + b,
                        RedOp::Prod => a * b,
                        RedOp::Max => a.max(b),
                        _ => a.min(b),
                    };
                    let up = inputs.iter().copied().reduce(combine).unwrap();
                    let down = inputs.iter().rev().copied().reduce(combine).unwrap();
                    assert!(pattern.reduced_is::<F>(op, i, up.to_bits().into()), "{op} {ranks} {i}");
                    assert!(pattern.reduced_is::<F>(op, i, down.to_bits().into()), "{op} {ranks} {i}");
                    let wrong = f32::from_bits(up.to_bits() ^ 1);
                    assert!(!pattern.reduced_is::<F>(op, i, wrong.to_bits().into()));
                }
            }
        }
    }

    #[test]
    fn every_type_and_operator_encodes_exactly() {
        struct Sweep(Pattern);
        impl ForScalar for Sweep {
            type Output = ();
            // `encode` asserts that nothing is rounded.
            fn with<S: Scalar>(self) {
                let op = self.0.op.unwrap();
                for i in 0..200 {
                    if op == RedOp::Avg {
                        self.0.input::<S>(self.0.ranks - 1, i);
                    } else {
                        let bits = S::encode(self.0.combined::<S>(op, i));
                        assert!(self.0.reduced_is::<S>(op, i, bits));
                        assert!(!self.0.reduced_is::<S>(op, i, bits ^ 1));
                    }
                }
            }
        }
        for &dtype in DataType::ALL {
            for &op in RedOp::ALL {
                for ranks in [1, 2, 5, 9, 16, 33] {
                    dispatch(dtype, Sweep(Pattern { repetition: 1, ranks, op: Some(op), dtype }));
                }
            }
        }
    }

    #[test]
    fn every_rank_contributes_somewhere() {
        type F = super::super::scalar::Float<1, 3, false>;
        let pattern = Pattern { repetition: 0, ranks: 20, op: Some(RedOp::Sum), dtype: DataType::F8E5M2 };
        for rank in 0..20 {
            assert!((0..40).any(|i| pattern.input::<F>(rank, i) != 0), "rank {rank}");
        }
    }
}

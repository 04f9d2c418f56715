//! Narrow floats by their definition, so that the oracle does not convert with the code that it judges.

/// A binary float of at most 16 bits.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// Bits of the exponent.
    pub exponent_bits: u32,
    /// Bits of the mantissa, without the implicit one.
    pub mantissa_bits: u32,
}

/// IEEE 754 binary16.
pub const F16: Format = Format { exponent_bits: 5, mantissa_bits: 10 };
/// The upper half of a binary32.
pub const BF16: Format = Format { exponent_bits: 8, mantissa_bits: 7 };
/// OFP8 E4M3.
pub const F8E4M3: Format = Format { exponent_bits: 4, mantissa_bits: 3 };
/// OFP8 E5M2.
pub const F8E5M2: Format = Format { exponent_bits: 5, mantissa_bits: 2 };

impl Format {
    const fn bias(self) -> i32 {
        (1 << (self.exponent_bits - 1)) - 1
    }

    /// The value of finite bits.
    pub fn decode(self, bits: u32) -> f64 {
        let mantissa = bits & ((1 << self.mantissa_bits) - 1);
        let exponent = bits >> self.mantissa_bits & ((1 << self.exponent_bits) - 1);
        let sign = if bits >> (self.mantissa_bits + self.exponent_bits) == 0 { 1.0 } else { -1.0 };
        let implicit = if exponent == 0 { 0 } else { 1 << self.mantissa_bits };
        let unit = exponent.max(1) as i32 - self.bias() - self.mantissa_bits as i32;
        sign * f64::from(mantissa + implicit) * 2f64.powi(unit)
    }

    /// The bits of the value nearest to a finite one within the format's range, ties to even.
    pub fn encode(self, value: f64) -> u32 {
        let sign = u32::from(value.is_sign_negative()) << (self.mantissa_bits + self.exponent_bits);
        let exponent = ((value.abs().to_bits() >> 52) as i32 - 1023).max(1 - self.bias());
        let units = (value.abs() / 2f64.powi(exponent - self.mantissa_bits as i32)).round_ties_even() as u32;
        // A mantissa that rounds up to the next power of two carries into the exponent by itself.
        sign | (units + (((exponent + self.bias() - 1) as u32) << self.mantissa_bits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finite_bits_survive_a_round_trip() {
        for (format, infinity) in [(F16, 0x7c00), (BF16, 0x7f80), (F8E4M3, 0x7f), (F8E5M2, 0x7c)] {
            for magnitude in 0..infinity {
                assert_eq!(format.encode(format.decode(magnitude)), magnitude, "{format:?}");
            }
        }
    }

    #[test]
    fn known_values() {
        assert_eq!(F8E4M3.decode(0x7e), 448.0);
        assert_eq!(F8E5M2.decode(0x7b), 57344.0);
        assert_eq!(F16.decode(0xc000), -2.0);
        assert_eq!(F16.encode(1.0 / 3.0), 0x3555);
        assert_eq!(BF16.encode(-1.0 / 3.0), 0xbeab);
        assert_eq!(F8E4M3.encode(1.0 / 3.0), 0x2b, "0.34375 is nearer than 0.3125");
    }
}

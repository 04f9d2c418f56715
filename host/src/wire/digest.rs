//! Layer: host / wire.
//! Takes: plain serde types.
//! Gives: [`digest`], by which ranks compare whether they have the same value.
//! Never: `std::hash`, whose default function may differ between releases of Rust.

use oxccl_shared::abi::fnv1a;
use postcard::ser_flavors::Flavor;
use serde::Serialize;

/// FNV-1a of 64 bits over the value's bytes in a message: the same in every build and on every machine. It detects
/// accidental differences, not malicious ones.
pub fn digest<T: Serialize + ?Sized>(value: &T) -> u64 {
    postcard::serialize_with_flavor(value, Fnv1a(fnv1a::BASIS))
        .expect("digests are of plain data, of known length")
}

struct Fnv1a(u64);

impl Flavor for Fnv1a {
    type Output = u64;

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.try_extend(&[byte])
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0 = fnv1a::extend(self.0, bytes);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<u64> {
        Ok(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other builds of OxCCL compute the same.
    #[test]
    fn the_function_is_the_one_that_is_stated() {
        assert_eq!(digest(&()), 0xcbf2_9ce4_8422_2325);
        // The published values for "a" and "foobar".
        assert_eq!(digest(&b'a'), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(digest(b"foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn parts_are_told_apart_by_their_lengths() {
        assert_ne!(digest(&("ab", "c")), digest(&("a", "bc")));
        assert_ne!(digest(&(None::<u8>, Some(1u8))), digest(&(Some(1u8), None::<u8>)));
    }
}

//! Layer: host / wire.
//! Takes: arrays of bytes that are longer than serde's own (32).
//! Gives: their form in a message, for `#[serde(with = "bytes")]`: length and bytes.
//! Never: another length than the array's.

use serde::de::{Error, Visitor};
use serde::{Deserializer, Serializer};
use std::fmt;

pub fn serialize<const N: usize, S: Serializer>(bytes: &[u8; N], to: S) -> Result<S::Ok, S::Error> {
    to.serialize_bytes(bytes)
}

pub fn deserialize<'de, const N: usize, D: Deserializer<'de>>(from: D) -> Result<[u8; N], D::Error> {
    struct Array<const N: usize>;
    impl<const N: usize> Visitor<'_> for Array<N> {
        type Value = [u8; N];
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "{N} bytes")
        }
        fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<[u8; N], E> {
            bytes.try_into().map_err(|_| E::invalid_length(bytes.len(), &self))
        }
    }
    from.deserialize_bytes(Array)
}

//! The table of all algorithms. A new one is a row of [`SPECS`]; its number and name are in `abi`.

use super::spec::{Processor, Spec};
use super::{collnet, doubling, oneshot, ring, tree, twolevel, twoshot};
use crate::abi::{Algorithm, Func, Protocol};

/// Every algorithm: NCCL's two first. Their order is that of tables and lists.
pub const SPECS: [&Spec; 8] = [
    &tree::SPEC,
    &ring::SPEC,
    &oneshot::SPEC,
    &twoshot::SPEC,
    &collnet::CHAIN,
    &collnet::DIRECT,
    &twolevel::SPEC,
    &doubling::SPEC,
];

/// An algorithm, a function that it has and a protocol.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Variant {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The function.
    pub func: Func,
    /// The protocol.
    pub protocol: Protocol,
}

/// The place of an algorithm in [`SPECS`].
#[inline]
pub const fn index_of(algorithm: Algorithm) -> usize {
    let mut at = 0;
    while SPECS[at].algorithm as u8 != algorithm as u8 {
        at += 1;
    }
    at
}

/// An algorithm's row.
#[inline]
pub const fn spec_of(algorithm: Algorithm) -> &'static Spec {
    SPECS[index_of(algorithm)]
}

/// The algorithms that `name` means, letter case ignored: several for an alias that they share, none for an unknown name.
pub fn named(name: &str) -> impl Iterator<Item = &'static Spec> {
    SPECS.into_iter().filter(move |spec| spec.is_named(name))
}

/// Everything there is.
pub fn variants(on: Processor) -> impl Iterator<Item = Variant> {
    SPECS.into_iter().flat_map(move |spec| {
        spec.offered(on).iter().flat_map(move |offered| {
            let of = |protocol| Variant { algorithm: spec.algorithm, func: offered.func, protocol };
            offered.protocols.iter().map(of)
        })
    })
}

const _: () = {
    // Every algorithm has one row.
    assert!(SPECS.len() == Algorithm::ALL.len());
    let mut at = 0;
    while at < Algorithm::ALL.len() {
        assert!(spec_of(Algorithm::ALL[at]).algorithm as u8 == Algorithm::ALL[at] as u8);
        at += 1;
    }
};

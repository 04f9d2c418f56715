//! The operation of a kernel on two elements: four operators, as a number for tables and as types for generic code.

use super::element::Element;

/// The operation on two elements that a kernel is built for. A user's `RedOp` becomes one of these by `resolve`.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CombineKind {
    /// x + y
    Sum = 0,
    /// x * y
    Prod = 1,
    /// The greater of both.
    Max = 2,
    /// The lesser of both.
    Min = 3,
}

impl CombineKind {
    /// Every kind, in numeric order.
    pub const ALL: [CombineKind; 4] =
        [CombineKind::Sum, CombineKind::Prod, CombineKind::Max, CombineKind::Min];
}

/// An operator as a type, for loops that are compiled once for each. Commutative; associative for integers and for
/// minimum and maximum.
pub trait Combine: Copy + Send + Sync + sealed::Sealed + 'static {
    /// The same operator as a value.
    const KIND: CombineKind;
    /// `a` and `b` combined.
    fn apply<T: Element>(a: T, b: T) -> T;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! operator {
    ($(#[$meta:meta])* $name:ident, $method:ident) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name;
        impl sealed::Sealed for $name {}
        impl Combine for $name {
            const KIND: CombineKind = CombineKind::$name;
            #[inline(always)]
            fn apply<T: Element>(a: T, b: T) -> T {
                a.$method(b)
            }
        }
    };
}

operator!(/** [`Element::sum`] as a type. */ Sum, sum);
operator!(/** [`Element::prod`] as a type. */ Prod, prod);
operator!(/** [`Element::greater`] as a type. */ Max, greater);
operator!(/** [`Element::lesser`] as a type. */ Min, lesser);

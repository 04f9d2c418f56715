//! Detects this CPU's instructions and selects the loops compiled for them.

use super::block::{self, Lanes};
#[cfg(target_arch = "x86_64")]
use super::f16c;
#[cfg(target_arch = "x86_64")]
use super::float8::{self, E4M3, E5M2};
use super::ops::{Flags, ReduceTable};
#[cfg(target_arch = "x86_64")]
use core::arch::x86_64::{__m256, __m512};
use core::fmt;
#[cfg(target_arch = "x86_64")]
use core::marker::PhantomData;
use oxccl_shared::abi::DataType;
use oxccl_shared::reduce::{
    Combine, CombineKind, Element, F8E4M3, F8E5M2, Max, Min, OpArg, Prod, Sum, bf16, f16,
};
use std::sync::OnceLock;

/// A set of instructions for which the loops are compiled. A value proves that this CPU has them.
#[derive(Clone, Copy)]
pub struct Machine {
    name: &'static str,
    tables: &'static [[ReduceTable; 4]; 12],
}

impl Machine {
    /// The best that this CPU is. Asks the CPU once.
    pub fn best() -> Machine {
        static BEST: OnceLock<Machine> = OnceLock::new();
        *BEST.get_or_init(|| Machine::available().last().unwrap_or(BASELINE))
    }

    /// Every set that this CPU has, from the least to the best; the first is what the build's target demands.
    pub fn available() -> impl Iterator<Item = Machine> {
        #[cfg(target_arch = "x86_64")]
        let more = [avx2::detect(), avx512::detect()];
        #[cfg(not(target_arch = "x86_64"))]
        let more: [Option<Machine>; 0] = [];
        std::iter::once(BASELINE).chain(more.into_iter().flatten())
    }

    /// Its name, for logs and benchmarks.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// The loops for `dtype` under `kind`.
    pub fn table(self, dtype: DataType, kind: CombineKind) -> &'static ReduceTable {
        &self.tables[dtype as usize][kind as usize]
    }
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Machine").field(&self.name).finish()
    }
}

const BASELINE: Machine = Machine { name: "baseline", tables: &baseline::TABLES };

/// A row per type in the order of `DataType`'s numbers, a column per operator in the order of `CombineKind`'s.
macro_rules! tables {
    () => {
        tables!(@rows i8, u8, i32, u32, i64, u64, f16, f32, f64, bf16, F8E4M3, F8E5M2)
    };
    (@rows $($t:ty),+) => { [$(tables!(@row $t)),+] };
    (@row $t:ty) => {
        [
            ReduceTable { combine: combine::<$t, Sum>, map: map::<$t> },
            ReduceTable { combine: combine::<$t, Prod>, map: map::<$t> },
            ReduceTable { combine: combine::<$t, Max>, map: map::<$t> },
            ReduceTable { combine: combine::<$t, Min>, map: map::<$t> },
        ]
    };
}

/// One compilation of all loops, with `$features` enabled, and its table.
macro_rules! machine {
    ($lanes:ty $(, #[$features:meta])?) => {
        /// # Safety
        /// See [`super::super::CombineFn`]; and the CPU has this module's features.
        $(#[$features])?
        unsafe fn combine<T: Element, O: Combine>(
            dst: *mut u8,
            dst2: *mut u8,
            a: *const u8,
            b: *const u8,
            count: usize,
            arg: &OpArg,
            flags: Flags,
        ) {
            // SAFETY: the caller's.
            unsafe { block::combine::<$lanes, T, O>(dst, dst2, a, b, count, arg, flags) }
        }

        /// # Safety
        /// See [`super::super::MapFn`]; and the CPU has this module's features.
        $(#[$features])?
        unsafe fn map<T: Element>(
            dst: *mut u8,
            dst2: *mut u8,
            src: *const u8,
            count: usize,
            arg: &OpArg,
            flags: Flags,
        ) {
            // SAFETY: the caller's.
            unsafe { block::map::<$lanes, T>(dst, dst2, src, count, arg, flags) }
        }

        pub(super) static TABLES: [[ReduceTable; 4]; 12] = tables!();
    };
}

mod baseline {
    use super::*;

    struct Baseline;
    impl Lanes for Baseline {}
    machine!(Baseline);
}

/// Vector arithmetic of a machine that converts `W` lanes of `f16` at a time.
#[cfg(target_arch = "x86_64")]
struct ConvertsF16<W>(PhantomData<W>);

#[cfg(target_arch = "x86_64")]
impl<W: f16c::Wide> Lanes for ConvertsF16<W> {
    #[inline(always)]
    unsafe fn arith<T: Element, O: Combine>(
        out: *mut u8,
        a: *const u8,
        b: *const u8,
        count: usize,
        scalar: Option<T>,
    ) -> usize {
        let as_f32 = |s: T| oxccl_shared::reduce::f16_to_f32(s.to_low_bits() as u16);
        // SAFETY: the caller's; the machine's features are those of `W`.
        unsafe {
            match T::DTYPE {
                DataType::F16 => f16c::arith::<W, O>(out, a, b, count, scalar.map(as_f32), 1.0),
                DataType::F8E4M3 => float8::arith::<W, E4M3, T, O>(out, a, b, count, scalar),
                DataType::F8E5M2 => float8::arith::<W, E5M2, T, O>(out, a, b, count, scalar),
                _ => 0,
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::*;

    machine!(ConvertsF16<__m256>, #[target_feature(enable = "avx2,f16c")]);

    pub(super) fn detect() -> Option<Machine> {
        let has_all = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c");
        has_all.then_some(Machine { name: "avx2", tables: &TABLES })
    }
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use super::*;

    machine!(ConvertsF16<__m512>, #[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512vl,avx512dq")]);

    pub(super) fn detect() -> Option<Machine> {
        let has_all = avx2::detect().is_some()
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq");
        has_all.then_some(Machine { name: "avx512", tables: &TABLES })
    }
}

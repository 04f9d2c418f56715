//! Layer: shared / reduce.
//! Takes: the numbers of element types and operators (`abi`).
//! Gives: the arithmetic of a reduction, one element or one word at a time: [`Element`] types with every operator on
//! them, the float formats that Rust lacks, and [`resolve`], which turns a user's operator into a kernel's
//! operations.
//! Never: whole buffers. The device chooses the loops over memory and their instructions.
//!
//! # What a result is
//! The same operands give the same bits on every machine. The rules:
//! - Integers wrap.
//! - `f32` and `f64` round to nearest even. 16- and 8-bit floats compute in `f32` and round once per operation, to
//!   nearest even; `f16` and `bf16` overflow to infinity, the 8-bit floats saturate at their greatest finite value as
//!   CUDA's `__NV_SATFINITE` does.
//! - Arithmetic whose result is NaN gives the type's canonical NaN, positive with every magnitude bit set
//!   (`0x7fff_ffff`, `0x7fff`, `0x7f`): NVIDIA's choice, because x86 and Arm keep one operand's payload and the
//!   compiler may swap operands, so a payload would depend on the code path.
//! - Minimum and maximum prefer a number to a NaN, order -0 below +0, and return one operand's bits unchanged
//!   (infinities of [`F8E5M2`] included); of two NaNs they return the canonical one.
//! - An average of floats is a sum of inputs each multiplied by 1/n, rounded to the type (as in NCCL, so that a sum
//!   of many ranks does not overflow); an average of integers is a sum then divided by n, truncating.
//!
//! Subnormals are kept: a thread whose FPU flushes them breaks the first sentence.

mod convert;
mod float8;
mod operator;
mod element;
mod resolve;
mod words;

pub use convert::{bf16_from_f32, bf16_to_f32, f16_from_f32, f16_to_f32};
pub use element::{Element, Float};
pub use float8::{F8E4M3, F8E5M2};
pub use half::{bf16, f16};
pub use operator::{Combine, CombineKind, Max, Min, Prod, Sum};
pub use resolve::{OpArg, Resolved, is_associative, resolve};
pub use words::{combine_word, combine_words, divide_word, premul_word};

#[cfg(test)]
mod tests;

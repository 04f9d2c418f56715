//! Layer: perf / gpu.
//! Takes: a team of threads, each with one GPU or several.
//! Gives: a bench whose buffers lie in device memory and whose engines put their work on streams.
//! Never: needs CUDA to be built, and without a driver ends in an error that says so.

mod driver;
mod memory;
mod load;
pub mod engine;
pub mod nccl;
mod oxccl;
mod bench;
mod setup;

pub use bench::GpuBench;
pub use bench::overlap::sweep as overlap_sweep;
pub use driver::GpuError;
pub use load::Kind as LoadKind;
pub use oxccl::OxcclGpuEngine;
pub use setup::{device_count, facts, prepare_environment, seats, start_engines};

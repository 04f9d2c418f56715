//! See `src/frames.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| oxccl_fuzz::frames(data));

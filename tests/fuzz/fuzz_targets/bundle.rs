//! See `src/bundle.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| oxccl_fuzz::bundle(data));

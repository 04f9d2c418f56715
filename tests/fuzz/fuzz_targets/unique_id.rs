//! See `src/unique_id.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| oxccl_fuzz::unique_id(data));

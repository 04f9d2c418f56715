//! See `src/environment.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| oxccl_fuzz::environment(data));

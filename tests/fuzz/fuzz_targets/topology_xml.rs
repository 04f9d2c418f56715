//! See `src/topology_xml.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| oxccl_fuzz::topology_xml(data));

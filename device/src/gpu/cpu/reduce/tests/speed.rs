//! Speed of the loops: `cargo test --release -p oxccl-device speed -- --ignored --nocapture`. The figure is bytes of
//! result per second (one of three streams: two are read, one is written).
//!
//! GB/s of a sum's result on one core of an AMD EPYC (Zen 5, 1 MiB of L2), rustc 1.95, November 2026; `memcpy` moves
//! 136 there in L2 and 20 in DRAM, with two streams where a sum has three:
//!
//! | type     | L2 avx512 | L2 avx2 | L2 baseline | DRAM avx512, streamed |
//! |----------|-----------|---------|-------------|-----------------------|
//! | float    | 72        | 70      | 36          | 15                    |
//! | bfloat16 | 43        | 18      | 8           | 14                    |
//! | half     | 43        | 27      | 1.4         | 14                    |
//! | fp8_e4m3 | 6.8       | 4.2     | 0.8         | 5.8                   |
//! | fp8_e5m2 | 7.1       | 5.0     | 0.8         | 5.8                   |
//! | int8     | 75        | 70      | 51          | 16                    |
//!
//! Through the staging block (in place, two destinations) the first row is 45, 46 and 29.

use super::super::{Flags, Machine};
use oxccl_shared::abi::DataType;
use oxccl_shared::reduce::{CombineKind, OpArg};
use std::time::Instant;

const TYPES: [DataType; 8] = [
    DataType::F32,
    DataType::BF16,
    DataType::F16,
    DataType::F8E4M3,
    DataType::F8E5M2,
    DataType::I8,
    DataType::F64,
    DataType::I64,
];

/// The best of several runs, in GB/s of result.
fn gbps(len_bytes: usize, mut run: impl FnMut()) -> f64 {
    let repeats = ((32 << 20) / len_bytes).max(1);
    let best = (0..7).map(|_| {
        let start = Instant::now();
        (0..repeats).for_each(|_| run());
        start.elapsed().as_secs_f64() / repeats as f64
    });
    len_bytes as f64 / best.fold(f64::INFINITY, f64::min) / 1e9
}

#[test]
#[ignore = "measures, does not test"]
fn sums() {
    for (place, len_bytes) in [("L2", 192 << 10), ("DRAM", 128 << 20)] {
        let a = vec![0x31u8; len_bytes];
        let b = vec![0x32u8; len_bytes];
        let mut dst = vec![1u8; len_bytes];
        let to = dst.as_mut_ptr();
        // SAFETY: both vectors hold len_bytes.
        let copied = gbps(len_bytes, || unsafe { std::ptr::copy_nonoverlapping(a.as_ptr(), to, len_bytes) });
        println!("{place} memcpy {copied:.1}");
        for machine in Machine::available() {
            for dtype in TYPES {
                let count = len_bytes / dtype.size_bytes();
                let table = machine.table(dtype, CombineKind::Sum);
                let time = |own: *const u8, flags| {
                    gbps(len_bytes, || {
                        // SAFETY: three vectors of count elements; `own` is `b` or the destination.
                        unsafe {
                            (table.combine)(
                                to,
                                std::ptr::null_mut(),
                                a.as_ptr(),
                                own,
                                count,
                                &OpArg::NONE,
                                flags,
                            )
                        }
                    })
                };
                let (plain, stream) = (time(b.as_ptr(), Flags::empty()), time(b.as_ptr(), Flags::STREAM));
                let in_place = time(to, Flags::empty());
                println!(
                    "{place} {:9} {dtype:9} {plain:6.1} in place {in_place:6.1} stream {stream:6.1}",
                    machine.name()
                );
            }
        }
    }
}

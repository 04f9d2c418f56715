//! How fast slices are reduced: every type, a sum, in the second-level cache.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use oxccl_device::gpu::cpu::reduce::{Flags, table};
use oxccl_shared::abi::DataType;
use oxccl_shared::reduce::{CombineKind, OpArg};

/// Three of them fit into 1 MiB.
const LEN_BYTES: usize = 192 << 10;

fn sums(c: &mut Criterion) {
    let mut group = c.benchmark_group("sum");
    group.throughput(Throughput::Bytes(LEN_BYTES as u64));
    let (a, b) = (vec![0x31u8; LEN_BYTES], vec![0x32u8; LEN_BYTES]);
    let mut result = vec![1u8; LEN_BYTES];
    for &dtype in DataType::ALL {
        let combine = table(dtype, CombineKind::Sum).combine;
        let count = LEN_BYTES / dtype.size_bytes();
        group.bench_function(BenchmarkId::from_parameter(dtype), |bench| {
            bench.iter(|| {
                let (to, none) = (result.as_mut_ptr(), std::ptr::null_mut());
                // SAFETY: three separate vectors of `count` elements.
                unsafe { combine(to, none, a.as_ptr(), b.as_ptr(), count, &OpArg::NONE, Flags::empty()) };
            });
        });
    }
    group.finish();
}

criterion_group!(benches, sums);
criterion_main!(benches);

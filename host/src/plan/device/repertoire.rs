//! The kernel set of a communicator: all kernels that it may launch.

use super::facts::DeviceFacts;
use super::kernel::KernelId;
use super::messages::message_kernels;
use crate::plan::Call;
use oxccl_shared::abi::{DataType, Func, RedOp};

impl DeviceFacts {
    /// Every kernel that a call may need, and the threads of its blocks.
    pub fn repertoire(&self) -> Vec<(KernelId, u32)> {
        let mut kernels: Vec<(KernelId, u32)> = message_kernels(self).collect();
        for (func, dtype) in
            Func::ALL.iter().flat_map(|func| DataType::ALL.iter().map(move |dtype| (*func, *dtype)))
        {
            // Lengths for kernels of short calls, and of all calls.
            let calls = [0, 1, 1 << 40].map(|count| Call { func, dtype, op: RedOp::Sum, root: 0, count });
            for candidate in KernelId::offered(func).iter() {
                if calls.iter().any(|call| self.offered(call).has(candidate)) {
                    let kernel =
                        KernelId::of(func, (candidate.algorithm, candidate.protocol), dtype, self.nranks);
                    kernels.push((kernel, self.threads_of(kernel)));
                }
            }
        }
        // Kernels that only move data are the same for all types.
        let mut seen = std::collections::HashSet::new();
        kernels.retain(|(kernel, _)| seen.insert(*kernel));
        kernels
    }

    /// Threads of a kernel's blocks.
    pub(super) fn threads_of(&self, kernel: KernelId) -> u32 {
        if kernel.has_poster() { self.tuning.simple_threads } else { self.tuning.ll_threads }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::device::ChannelLimits;
    use crate::plan::tuning::{Forced, NetSpeed};

    fn facts(nranks: u32, sm: u32, over_network: bool) -> DeviceFacts {
        let facts = DeviceFacts::new(nranks, (sm, 132), Forced::default(), ChannelLimits::default(), None);
        let slow = NetSpeed { gbytes: 1.25, latency_us: 20.0 };
        if over_network { facts.with_few_channels().over_network(nranks.min(2), slow, 4) } else { facts }
    }

    #[test]
    fn a_repertoire_has_what_its_ranks_can_use() {
        let names = |facts: DeviceFacts| -> Vec<String> {
            facts.repertoire().iter().map(|(kernel, _)| kernel.entry()).collect()
        };
        let (four, wide) = (names(facts(4, 90, false)), names(facts(4, 90, true)));
        for name in ["oxccl_send_recv_ll", "oxccl_barrier_oneshot4_ll", "oxccl_all_reduce_oneshot4_ll_bf16"] {
            assert!(four.contains(&name.to_owned()) && wide.contains(&name.to_owned()), "{name}");
        }
        let lines = "oxccl_all_gather_ring_ll128".to_owned();
        assert!(four.contains(&lines) && !wide.contains(&lines));
        assert!(!four.iter().any(|name| name.contains("shot2") || name.contains("tree")));
        assert_eq!(four.len(), four.iter().collect::<std::collections::HashSet<_>>().len());
    }
}

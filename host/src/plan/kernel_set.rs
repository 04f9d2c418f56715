//! The kernel set of a communicator: all kernels that it may launch.

use super::call::Call;
use super::facts::Facts;
use super::messages::message_kernels;
use super::tuning::Candidate;
use oxccl_shared::abi::{DataType, Func, Protocol, Rank, RedOp};
use oxccl_shared::algo::kernels::Kernel;
use oxccl_shared::algo::registry::spec_of;
use oxccl_shared::algo::spec::Connections;

impl Facts {
    /// Every kind of connections that collectives may need, with the protocol.
    pub fn connection_set(&self) -> Vec<(Connections, Protocol)> {
        let call = |func, count| Call { func, dtype: DataType::U8, op: RedOp::Sum, root: Rank(0), count };
        let offered = |func| [0, 1, 1 << 40].map(|count| self.connected(&call(func, count)));
        let mut kinds = Vec::new();
        for candidate in Func::ALL.iter().flat_map(|func| offered(*func)).flat_map(|offered| {
            let all: Vec<Candidate> = offered.iter().collect();
            all
        }) {
            let kind = (spec_of(candidate.algorithm).connections, candidate.protocol);
            // Where kernels that go to all peers at once have no room for them, something else stands for a barrier too.
            let is_used = self.has_room() || !matches!(kind.0, Connections::Mesh | Connections::Levels);
            if is_used && !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        kinds
    }

    /// Every kernel that a call may need, and the threads of its blocks.
    pub fn kernel_set(&self) -> Vec<(Kernel, u32)> {
        self.kernels_of(self.nranks)
    }

    /// The same of these ranks without one: some numbers of ranks have kernels of their own.
    pub fn kernel_set_of_survivors(&self) -> Vec<(Kernel, u32)> {
        self.kernels_of(self.nranks - 1)
    }

    fn kernels_of(&self, nranks: u32) -> Vec<(Kernel, u32)> {
        let mut kernels: Vec<(Kernel, u32)> = message_kernels(self).chain(self.own_kernel()).collect();
        for (func, dtype) in
            Func::ALL.iter().flat_map(|func| DataType::ALL.iter().map(move |dtype| (*func, *dtype)))
        {
            // Lengths for kernels of short calls, and of all calls. A network may reduce by some operators only.
            let call = |op, count| Call { func, dtype, op, root: Rank(0), count };
            let ops = [RedOp::Sum, RedOp::Prod, RedOp::Max, RedOp::Min];
            let calls = || ops.into_iter().flat_map(|op| [0, 1, 1 << 40].map(|count| call(op, count)));
            for candidate in self.known(func).iter() {
                if calls().any(|call| self.connected(&call).has(candidate)) {
                    let Candidate { algorithm, protocol } = candidate;
                    let kernel = Kernel::of(func, algorithm, protocol, dtype, nranks);
                    kernels.push((kernel, self.threads_of(&kernel)));
                }
            }
        }
        // Kernels that only move data are the same for all types.
        let mut seen = std::collections::HashSet::new();
        kernels.retain(|(kernel, _)| seen.insert(*kernel));
        kernels
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::ChannelLimits;
    use crate::plan::tuning::{Forced, NetSpeed};

    fn facts(nranks: u32, sm: u32, over_network: bool) -> Facts {
        let facts = Facts::of_gpus(nranks, (sm, 132), Forced::default(), ChannelLimits::default(), None);
        let slow = NetSpeed { gbytes: 1.25, latency_us: 20.0 };
        if over_network { facts.over_network(nranks.min(2), slow, 4) } else { facts }
    }

    #[test]
    fn a_kernel_set_has_what_its_ranks_can_use() {
        let names = |facts: Facts| -> Vec<String> {
            facts.kernel_set().iter().map(|(kernel, _)| kernel.to_string()).collect()
        };
        let (four, wide) = (names(facts(4, 90, false)), names(facts(4, 90, true)));
        for name in ["oxccl_send_recv_ll", "oxccl_barrier_oneshot4_ll", "oxccl_all_reduce_oneshot4_ll_bf16"] {
            assert!(four.contains(&name.to_owned()) && wide.contains(&name.to_owned()), "{name}");
        }
        let own = "oxccl_all_gather_symmetric".to_owned();
        assert!(four.contains(&own) && wide.contains(&own) && !names(facts(4, 80, false)).contains(&own));
        let lines = "oxccl_all_gather_ring_ll128".to_owned();
        assert!(four.contains(&lines) && !wide.contains(&lines));
        assert!(!four.iter().any(|name| name.contains("shot2") || name.contains("tree")));
        let survivors = |nranks| -> Vec<Kernel> {
            facts(nranks, 90, false).kernel_set_of_survivors().into_iter().map(|(kernel, _)| kernel).collect()
        };
        let loads = |nranks| -> Vec<Kernel> {
            facts(nranks, 90, false).kernel_set().into_iter().map(|(kernel, _)| kernel).collect()
        };
        for nranks in 3..=8 {
            assert_eq!(
                survivors(nranks),
                loads(nranks - 1),
                "a shrunk communicator of {nranks} ranks loads nothing"
            );
        }
        assert_ne!(survivors(4), loads(4));
        assert_eq!(four.len(), four.iter().collect::<std::collections::HashSet<_>>().len());
    }
}

//! Which kernels there are, and what they are called.

use crate::plan::tuning::Candidates;
use oxccl_shared::abi::{Algorithm, DataType, Func, Protocol};
use oxccl_shared::algo::kernels::{Kernel, MESSAGE_PROTOCOLS};
use oxccl_shared::algo::oneshot;
use oxccl_shared::algo::registry::spec_of;
use oxccl_shared::algo::spec::Processor;

/// The most peers that kernels have room for that go to all of them at once.
pub const MESH_PEERS_MAX: u32 = oneshot::SPEC.peers_max.unwrap();

/// A kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum KernelId {
    /// One collective.
    Collective {
        /// The function.
        func: Func,
        /// Its schedule.
        algorithm: Algorithm,
        /// Its line format.
        protocol: Protocol,
        /// The type of elements; nothing for kernels that only move bytes.
        dtype: Option<DataType>,
        /// Ranks, for a kernel that was compiled for so many alone.
        ranks: Option<u32>,
    },
    /// Sends and receives.
    Messages {
        /// Their line format.
        protocol: Protocol,
    },
}

impl KernelId {
    /// What there are kernels of.
    pub fn offered(func: Func) -> Candidates {
        Candidates::offered(func, Processor::Gpu)
    }

    /// The line format of messages where `wanted` would be best: the nearest one that takes no less of a slot's bytes.
    pub fn nearest_for_messages(wanted: Protocol) -> Protocol {
        wanted.nearest(|protocol| MESSAGE_PROTOCOLS.contains(&protocol)).unwrap_or(wanted)
    }

    /// The kernel of a collective of `nranks` ranks.
    pub fn of(
        func: Func,
        (algorithm, protocol): (Algorithm, Protocol),
        dtype: DataType,
        nranks: u32,
    ) -> KernelId {
        let dtype = func.is_reduction().then_some(dtype);
        let ranks = spec_of(algorithm).own_ranks(protocol, nranks);
        KernelId::Collective { func, algorithm, protocol, dtype, ranks }
    }

    /// Its line format.
    pub fn protocol(&self) -> Protocol {
        let (KernelId::Messages { protocol } | KernelId::Collective { protocol, .. }) = self;
        *protocol
    }

    /// Its name in the bundle.
    pub fn entry(&self) -> String {
        let kernel = match *self {
            KernelId::Messages { protocol } => Kernel::Messages { protocol },
            KernelId::Collective { func, algorithm, protocol, dtype, ranks } => {
                Kernel::Collective { func, algorithm, protocol, dtype, ranks }
            }
        };
        kernel.to_string()
    }

    /// Whether it takes elements as bytes.
    pub fn only_moves(&self) -> bool {
        !matches!(self, KernelId::Collective { dtype: Some(_), .. })
    }

    /// Whether a block's last warp posts steps instead of working on data.
    pub fn has_poster(&self) -> bool {
        self.protocol().is_counted()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxccl_shared::algo::kernels::kernels;
    use oxccl_shared::algo::registry::variants;
    use std::collections::BTreeSet;

    #[test]
    fn every_kernel_that_can_be_chosen_is_built() {
        let built: BTreeSet<String> = kernels().map(|kernel| kernel.to_string()).collect();
        assert!(built.len() > 300, "{built:?}");
        for (variant, nranks) in variants(Processor::Gpu).flat_map(|v| (1..=8).map(move |nranks| (v, nranks)))
        {
            for dtype in DataType::ALL {
                let pair = (variant.algorithm, variant.protocol);
                let entry = KernelId::of(variant.func, pair, *dtype, nranks).entry();
                assert!(built.contains(&entry), "{entry}");
            }
        }
        for &protocol in MESSAGE_PROTOCOLS {
            let entry = KernelId::Messages { protocol }.entry();
            assert!(built.contains(&entry), "{entry}");
        }
    }

    #[test]
    fn a_line_format_that_is_not_there_is_replaced_by_one_that_is() {
        assert_eq!(KernelId::nearest_for_messages(Protocol::LL), Protocol::LL);
        assert_eq!(KernelId::nearest_for_messages(Protocol::LL128), Protocol::Simple);
    }
}

//! Which kernels there are, and what they are called.

use crate::plan::tuning::Candidates;
use oxccl_shared::abi::{Algorithm, DataType, Func, Protocol};
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

/// Line formats of messages. LL128 would need slots between all pairs for a gain between LL and Simple only.
const MESSAGE_PROTOCOLS: &[Protocol] = &[Protocol::LL, Protocol::Simple];

impl KernelId {
    /// What there are kernels of.
    pub fn offered(func: Func) -> Candidates {
        Candidates::offered(func, Processor::Gpu)
    }

    /// The line format of messages where `wanted` would be best: the nearest one that takes no less of a slot's bytes.
    pub fn nearest_for_messages(wanted: Protocol) -> Protocol {
        nearest_of(MESSAGE_PROTOCOLS, wanted)
    }

    /// The kernel of a collective of `nranks` ranks.
    pub fn of(
        func: Func,
        (algorithm, protocol): (Algorithm, Protocol),
        dtype: DataType,
        nranks: u32,
    ) -> KernelId {
        let reduces = matches!(func, Func::AllReduce | Func::ReduceScatter | Func::Reduce);
        let dtype = reduces.then_some(dtype);
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
        match *self {
            KernelId::Messages { protocol } => format!("oxccl_send_recv_{}", protocol.name()),
            KernelId::Collective { func, algorithm, protocol, dtype, ranks } => {
                let dtype = dtype.map_or(String::new(), |dtype| format!("_{}", type_name(dtype)));
                let ranks = ranks.map_or(String::new(), |ranks| ranks.to_string());
                format!("oxccl_{}_{}{ranks}_{}{dtype}", func.name(), algorithm.name(), protocol.name())
            }
        }
    }

    /// Whether it takes elements as bytes.
    pub fn only_moves(&self) -> bool {
        !matches!(self, KernelId::Collective { dtype: Some(_), .. })
    }

    /// Whether a block's last warp posts steps instead of working on data.
    pub fn has_poster(&self) -> bool {
        self.protocol() == Protocol::Simple
    }
}

fn nearest_of(known: &[Protocol], wanted: Protocol) -> Protocol {
    let mut from_wanted = known.iter().filter(|protocol| **protocol as u8 >= wanted as u8);
    *from_wanted.next().unwrap_or(&known[known.len() - 1])
}

/// As kernels are named; nccl-tests' names are longer.
fn type_name(dtype: DataType) -> &'static str {
    match dtype {
        DataType::I8 => "i8",
        DataType::U8 => "u8",
        DataType::I32 => "i32",
        DataType::U32 => "u32",
        DataType::I64 => "i64",
        DataType::U64 => "u64",
        DataType::F16 => "f16",
        DataType::F32 => "f32",
        DataType::F64 => "f64",
        DataType::BF16 => "bf16",
        DataType::F8E4M3 => "f8e4m3",
        DataType::F8E5M2 => "f8e5m2",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// The entries that the kernels' source declares: `name = function::<..>(..);`, with `$type` once for each type.
    fn declared() -> BTreeSet<String> {
        let source = include_str!("../../../../device/src/kernel/entry.rs");
        let suffixes =
            || source.lines().filter_map(|line| line.trim().strip_prefix("of_")?.split('"').nth(1));
        let mut names = BTreeSet::new();
        for (name, rest) in source.lines().filter_map(|line| line.split_once(" = ")) {
            let name = name.trim();
            match rest {
                _ if !rest.ends_with(");") && !rest.ends_with("; true;") && !rest.ends_with("; false;") => {}
                _ if rest.contains("$type") => {
                    names.extend(suffixes().map(|suffix| format!("oxccl_{name}{suffix}")));
                }
                _ if name.starts_with("oxccl_") => drop(names.insert(name.to_owned())),
                _ => drop(names.insert(format!("oxccl_{name}"))),
            }
        }
        names
    }

    #[test]
    fn every_kernel_that_can_be_chosen_is_declared() {
        let declared = declared();
        assert!(declared.len() > 300, "{declared:?}");
        for (func, nranks) in Func::ALL.iter().flat_map(|func| (1..=8).map(move |nranks| (*func, nranks))) {
            for candidate in KernelId::offered(func).iter() {
                for dtype in DataType::ALL {
                    let variant = (candidate.algorithm, candidate.protocol);
                    let entry = KernelId::of(func, variant, *dtype, nranks).entry();
                    assert!(declared.contains(&entry), "{entry}");
                }
            }
        }
        for &protocol in MESSAGE_PROTOCOLS {
            let entry = KernelId::Messages { protocol }.entry();
            assert!(declared.contains(&entry), "{entry}");
        }
    }

    #[test]
    fn a_line_format_that_is_not_there_is_replaced_by_one_that_is() {
        assert_eq!(KernelId::nearest_for_messages(Protocol::LL), Protocol::LL);
        assert_eq!(KernelId::nearest_for_messages(Protocol::LL128), Protocol::Simple);
    }
}

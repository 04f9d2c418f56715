//! Which GPU kernels there are, from the registry, and what they are called.

use super::registry::{Variant, spec_of, variants};
use super::spec::Processor;
use super::symmetric;
use crate::abi::{Algorithm, DataType, Func, Protocol};
use core::fmt;

/// Protocols of messages. LL128 would need slots between all pairs for a gain between LL and Simple only.
pub const MESSAGE_PROTOCOLS: &[Protocol] = &[Protocol::LL, Protocol::Simple];

/// The most threads that any kernel's blocks have.
pub const THREADS_MAX: u32 = 512;

/// The most of kernels that are not rings by Simple, and do not only move.
pub const COMMON_THREADS_MAX: u32 = 384;

/// A kernel. Its name is what it is displayed as: `oxccl_<function>_<algorithm><ranks>_<protocol>_<type>`, without what does not
/// apply, `oxccl_send_recv_<protocol>`, and `oxccl_<function>_symmetric_<type>`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kernel {
    /// One collective.
    Collective {
        /// The function.
        func: Func,
        /// The algorithm.
        algorithm: Algorithm,
        /// The protocol.
        protocol: Protocol,
        /// The type of elements; none for kernels that only move bytes.
        dtype: Option<DataType>,
        /// Ranks, for a kernel that was compiled for so many alone.
        ranks: Option<u32>,
    },
    /// Sends and receives.
    Messages {
        /// The protocol.
        protocol: Protocol,
    },
    /// A collective on buffers that the ranks reach.
    Symmetric {
        /// The function.
        func: Func,
        /// The type of elements; none for kernels that only move bytes.
        dtype: Option<DataType>,
    },
}

impl Kernel {
    /// The kernel of a collective of `nranks` ranks.
    pub fn of(func: Func, algorithm: Algorithm, protocol: Protocol, dtype: DataType, nranks: u32) -> Kernel {
        let dtype = func.is_reduction().then_some(dtype);
        Kernel::collective((func, algorithm, protocol), dtype, spec_of(algorithm).own_ranks(protocol, nranks))
    }

    /// The kernel of a collective by this algorithm, which may run those of another.
    pub const fn collective(
        (func, algorithm, protocol): (Func, Algorithm, Protocol),
        dtype: Option<DataType>,
        ranks: Option<u32>,
    ) -> Kernel {
        Kernel::Collective { func, algorithm: spec_of(algorithm).kernels, protocol, dtype, ranks }
    }

    /// The symmetric kernel of a collective.
    pub fn symmetric(func: Func, dtype: DataType) -> Kernel {
        Kernel::Symmetric { func, dtype: func.is_reduction().then_some(dtype) }
    }

    /// The protocol of messages where `wanted` would be best: the nearest one that takes no less of a slot's bytes.
    pub fn nearest_for_messages(wanted: Protocol) -> Protocol {
        wanted.nearest(|protocol| MESSAGE_PROTOCOLS.contains(&protocol)).unwrap_or(wanted)
    }

    /// Its protocol.
    pub const fn protocol(&self) -> Protocol {
        match self {
            Kernel::Messages { protocol } | Kernel::Collective { protocol, .. } => *protocol,
            // Of its meetings.
            Kernel::Symmetric { .. } => Protocol::LL,
        }
    }

    /// Whether it moves data by bulk copies, where the machine has an engine for them and the launch has tiles. Symmetric kernels that reduce
    /// need both, but for few ranks.
    pub const fn has_tiles(&self) -> bool {
        match self {
            Kernel::Symmetric { .. } => true,
            Kernel::Messages { protocol } => protocol.is_counted(),
            Kernel::Collective { algorithm, protocol, .. } => {
                matches!(algorithm, Algorithm::Ring | Algorithm::Tree) && protocol.is_counted()
            }
        }
    }

    /// Whether the host may start it before the kernel in front of it has ended: it waits for that itself, where its generation has
    /// programmatic dependent launch (sm_90). Those that meet all peers, whose time is latency. Not symmetric kernels: what the kernels before
    /// them did is before their first meeting only because those have ended (`fence_release_kernels`).
    pub const fn starts_early(&self) -> bool {
        match self {
            Kernel::Messages { .. } | Kernel::Symmetric { .. } => false,
            Kernel::Collective { algorithm, .. } => {
                matches!(algorithm, Algorithm::OneShot | Algorithm::TwoShot | Algorithm::TwoLevel)
            }
        }
    }

    /// The most threads of a block, by which the assembler divides a multiprocessor's registers. Rings by Simple have more packs in flight
    /// with more threads, and what they save between slices costs less than that brings (docs/measurements/2026-11-25-24-blocks.md). So have
    /// symmetric kernels.
    pub const fn threads_max(&self) -> u32 {
        match self {
            Kernel::Collective { algorithm: Algorithm::Ring, protocol: Protocol::Simple, .. }
            | Kernel::Symmetric { .. } => THREADS_MAX,
            _ => COMMON_THREADS_MAX,
        }
    }

    /// The most peers that it has room for, where that matters.
    pub fn peers(&self) -> Option<u32> {
        match self {
            Kernel::Messages { .. } | Kernel::Symmetric { .. } => None,
            Kernel::Collective { ranks: Some(ranks), .. } => Some(ranks - 1),
            Kernel::Collective { algorithm, .. } => spec_of(*algorithm).peers_max,
        }
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kernel::Messages { protocol } => write!(f, "oxccl_send_recv_{}", protocol.name()),
            Kernel::Collective { func, algorithm, protocol, dtype, ranks } => {
                write!(f, "oxccl_{}_{}", func.name(), algorithm.name())?;
                if let Some(ranks) = ranks {
                    write!(f, "{ranks}")?;
                }
                write!(f, "_{}", protocol.name())?;
                dtype.map_or(Ok(()), |dtype| write!(f, "_{}", type_name(dtype)))
            }
            Kernel::Symmetric { func, dtype } => {
                write!(f, "oxccl_{}_symmetric", func.name())?;
                dtype.map_or(Ok(()), |dtype| write!(f, "_{}", type_name(dtype)))
            }
        }
    }
}

/// Every kernel, each once.
pub fn kernels() -> impl Iterator<Item = Kernel> {
    let has_own = |variant: &Variant| spec_of(variant.algorithm).kernels == variant.algorithm;
    let collectives = variants(Processor::Gpu).filter(has_own).flat_map(|variant| {
        let spec = spec_of(variant.algorithm);
        let own = spec.at_once.filter(|at_once| at_once.protocols.has(variant.protocol));
        let own = own.map_or(&[][..], |at_once| at_once.own_ranks);
        let ranks = own.iter().map(|ranks| Some(*ranks)).chain([None]);
        ranks.flat_map(move |ranks| {
            types(variant.func).map(move |dtype| Kernel::Collective {
                func: variant.func,
                algorithm: variant.algorithm,
                protocol: variant.protocol,
                dtype,
                ranks,
            })
        })
    });
    let symmetric = symmetric::FUNCS
        .iter()
        .flat_map(|func| types(*func).map(|dtype| Kernel::Symmetric { func: *func, dtype }));
    let messages = MESSAGE_PROTOCOLS.iter().map(|protocol| Kernel::Messages { protocol: *protocol });
    collectives.chain(messages).chain(symmetric)
}

/// The types that a function's kernels are compiled for: none in particular, if it only moves data.
fn types(func: Func) -> impl Iterator<Item = Option<DataType>> {
    let all = if func.is_reduction() { DataType::ALL } else { &[] };
    all.iter().map(|dtype| Some(*dtype)).chain((!func.is_reduction()).then_some(None))
}

/// As Rust calls the type, in lower case; nccl-tests' names are longer.
pub const fn type_name(dtype: DataType) -> &'static str {
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
    extern crate std;
    use super::*;
    use std::collections::BTreeSet;
    use std::string::ToString;

    #[test]
    fn names_are_unique_and_tell_what_a_kernel_is() {
        let names: BTreeSet<_> = kernels().map(|kernel| kernel.to_string()).collect();
        assert_eq!(names.len(), kernels().count());
        for name in [
            "oxccl_all_reduce_ring_simple_f32",
            "oxccl_all_reduce_tree_ll128_f8e4m3",
            "oxccl_all_gather_ring_ll",
            "oxccl_send_recv_simple",
        ] {
            assert!(names.contains(name), "{name} is not among {names:?}");
        }
    }

    #[test]
    fn every_kernel_that_can_be_chosen_is_built() {
        let built: BTreeSet<_> = kernels().map(|kernel| kernel.to_string()).collect();
        assert!(built.len() > 300, "{built:?}");
        for (variant, nranks) in variants(Processor::Gpu).flat_map(|v| (1..=8).map(move |nranks| (v, nranks)))
        {
            for dtype in DataType::ALL {
                let Variant { func, algorithm, protocol } = variant;
                let entry = Kernel::of(func, algorithm, protocol, *dtype, nranks).to_string();
                assert!(built.contains(&entry), "{entry}");
            }
        }
        for (func, dtype) in
            symmetric::FUNCS.iter().flat_map(|func| DataType::ALL.iter().map(|of| (*func, *of)))
        {
            let entry = Kernel::symmetric(func, dtype).to_string();
            assert!(built.contains(&entry), "{entry}");
        }
        for &protocol in MESSAGE_PROTOCOLS {
            let entry = Kernel::Messages { protocol }.to_string();
            assert!(built.contains(&entry), "{entry}");
        }
    }

    #[test]
    fn a_line_format_that_is_not_there_is_replaced_by_one_that_is() {
        assert_eq!(Kernel::nearest_for_messages(Protocol::LL), Protocol::LL);
        assert_eq!(Kernel::nearest_for_messages(Protocol::LL128), Protocol::Simple);
    }
}

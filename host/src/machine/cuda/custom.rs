//! Kernels of algorithms from outside the library.

use super::driver::{Device, Function, Module};
use super::kernels::{Forms, load_module};
use crate::gpu::KernelError;
use crate::gpu::bundle::Bundle;
use crate::launch::{CustomAlgorithm, CustomCut, RawCall};
use crate::plan::Forced;
use oxccl_shared::abi::{ConnLayout, DataType, Func, KERNEL_POST, KERNEL_PRE, KernelColl, Protocol};
use oxccl_shared::algo::chunk::ChannelCut;
use oxccl_shared::algo::custom::GPU_RANKS_MAX;
use oxccl_shared::reduce::Resolved;
use std::collections::HashMap;

/// Threads of a block: whole warps, the last of which posts over Simple.
const THREADS: u32 = 256;
/// Bytes for which a block pays.
const BLOCK_BYTES: u64 = 32 << 10;

/// An algorithm whose kernels are on the GPU.
pub struct CustomKernels {
    algorithm: CustomAlgorithm,
    /// What the bundle has. A function that only moves data has one kernel, under a type of one byte.
    functions: Vec<(Key, Function)>,
}

type Key = (Func, Protocol, DataType);

/// A launch.
pub(super) struct CustomLaunch<'a> {
    pub function: &'a Function,
    pub channels: u32,
    pub threads: u32,
    pub protocol: Protocol,
    pub coll: KernelColl,
}

/// What a plan depends on.
pub(super) struct CustomFacts<'a> {
    pub nranks: u32,
    pub host_ranks: u32,
    pub layout: &'a ConnLayout,
    pub channels: u32,
    pub forced: &'a Forced,
    /// Whether lines of 128 bytes arrive whole.
    pub lines: bool,
}

fn key(func: Func, protocol: Protocol, dtype: DataType) -> Key {
    (func, protocol, if func.is_reduction() { dtype } else { DataType::U8 })
}

impl CustomKernels {
    /// Loads the kernels of those algorithms that have some.
    ///
    /// # Errors
    /// [`KernelError`].
    pub fn load_all(
        device: &Device,
        algorithms: &[CustomAlgorithm],
    ) -> Result<Vec<CustomKernels>, KernelError> {
        let with_kernels = algorithms.iter().filter_map(|algorithm| Some((algorithm, algorithm.kernels()?)));
        with_kernels.map(|(algorithm, bundle)| CustomKernels::load(device, algorithm, bundle)).collect()
    }

    fn load(
        device: &Device,
        algorithm: &CustomAlgorithm,
        bundle: &Bundle,
    ) -> Result<CustomKernels, KernelError> {
        let (mut modules, mut functions) = (HashMap::<String, Module>::new(), Vec::new());
        let spec = algorithm.spec();
        let offered =
            spec.offered.iter().flat_map(|offered| offered.protocols.iter().map(|p| (offered.func, p)));
        for (func, protocol) in offered {
            for &dtype in if func.is_reduction() { DataType::ALL } else { &[DataType::U8] } {
                let entry = spec.kernel(func, protocol, dtype).to_string();
                if bundle.entries().any(|(name, _)| name == entry) {
                    let function = load_module(device, bundle, &mut modules, &entry, Forms::All)?;
                    // Makes the driver load it now.
                    function.threads_max()?;
                    functions.push((key(func, protocol, dtype), function));
                }
            }
        }
        Ok(CustomKernels { algorithm: algorithm.clone(), functions })
    }

    /// The launch of a call; none if this algorithm does not carry it out.
    pub(super) fn launch(
        &self,
        raw: &RawCall,
        facts: &CustomFacts<'_>,
        operator: &Resolved,
        tag: u32,
    ) -> Option<CustomLaunch<'_>> {
        let call = &raw.call;
        if facts.nranks > GPU_RANKS_MAX || call.count == 0 {
            return None;
        }
        let protocol = self.algorithm.plan(call, facts.nranks, facts.forced, facts.lines)?;
        let wanted = key(call.func, protocol, call.dtype);
        let (_, function) = self.functions.iter().find(|(known, _)| *known == wanted)?;
        let cut = CustomCut::new(call, protocol, facts.layout, true);
        let useful = (cut.count * cut.elem_bytes as u64).div_ceil(BLOCK_BYTES);
        let channels = useful.clamp(1, u64::from(facts.channels.max(1))) as u32;
        let flag = |set: bool, flag: u32| if set { flag } else { 0 };
        let coll = KernelColl {
            src: raw.send,
            dst: raw.recv,
            cut: ChannelCut::new(cut.count as usize, channels, cut.grain_elems),
            chunk_elems: cut.slice_elems as u64,
            slice_elems: cut.slice_elems as u64,
            arg: operator.arg,
            kind: operator.kind as u32,
            flags: flag(operator.pre, KERNEL_PRE) | flag(operator.post, KERNEL_POST),
            func: call.func as u32,
            root: call.root,
            tag,
            host_ranks: facts.host_ranks,
        };
        Some(CustomLaunch { function, channels, threads: THREADS, protocol, coll })
    }
}

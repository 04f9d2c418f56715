//! Algorithms from outside the library, as a program registers them.

use super::lend::LendingBlock;
use crate::gpu::bundle::{Bundle, BundleError};
use crate::plan::{Call, Forced};
use oxccl_device::coll::CollWork;
use oxccl_device::conn::Conns;
use oxccl_device::custom::{Mesh, Walk, run_on};
use oxccl_device::gpu::Stop;
use oxccl_shared::abi::{ConnLayout, Protocol};
use oxccl_shared::algo::chunk;
use oxccl_shared::algo::custom::CustomSpec;
use oxccl_shared::proto;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// A walk on the caller's thread.
type CpuWalk = unsafe fn(&LendingBlock<'_>, Conns<'_>, &Mesh<'_>, &CollWork) -> Result<(), Stop>;

/// An algorithm that is not the library's. A communicator that has it uses it for every call that it offers; see
/// `docs/write-your-own.md`.
#[derive(Clone)]
pub struct CustomAlgorithm {
    spec: &'static CustomSpec,
    walk: CpuWalk,
    kernels: Option<Arc<Bundle>>,
}

impl CustomAlgorithm {
    /// The algorithm with this spec and this walk, for ranks on CPUs.
    pub fn new<W: Walk>(spec: &'static CustomSpec) -> CustomAlgorithm {
        CustomAlgorithm { spec, walk: walk_on_cpu::<W>, kernels: None }
    }

    /// The same for ranks on GPUs too, whose kernels are in the bundle at `path`, which `cargo xtask build-ptx --crate` made.
    ///
    /// # Errors
    /// What is wrong with the bundle, or that it was built for another version of this library.
    pub fn with_kernels(self, path: &Path) -> Result<CustomAlgorithm, BundleError> {
        let bundle = Bundle::open(path)?.for_this_library()?;
        Ok(CustomAlgorithm { kernels: Some(Arc::new(bundle)), ..self })
    }

    /// What it says of itself.
    pub fn spec(&self) -> &'static CustomSpec {
        self.spec
    }

    /// Its GPU kernels.
    pub(crate) fn kernels(&self) -> Option<&Bundle> {
        self.kernels.as_deref()
    }

    /// How it would carry out a call of `nranks` ranks, between which `lines` of 128 bytes arrive whole or not; none if it does not.
    #[inline]
    pub(crate) fn plan(&self, call: &Call, nranks: u32, forced: &Forced, lines: bool) -> Option<Protocol> {
        let offered = self.spec.protocols(call.func);
        let possible = || offered.iter().filter(|protocol| lines || !protocol.needs_whole_lines());
        let first = possible().next()?;
        if nranks < 2 || !(self.spec.serves)(nranks) {
            return None;
        }
        let wanted = match call.bytes() {
            bytes if bytes < SHORT_BYTES => first,
            _ => possible().last().unwrap_or(first),
        };
        let insisted = forced.protocol(call.func, wanted);
        Some(possible().find(|protocol| *protocol == insisted).unwrap_or(wanted))
    }

    /// # Safety
    /// 1. As [`Walk::run`].
    #[inline]
    pub(crate) unsafe fn run(
        &self,
        block: &LendingBlock<'_>,
        conns: Conns<'_>,
        mesh: &Mesh<'_>,
        work: &CollWork,
    ) -> Result<(), Stop> {
        // SAFETY: obligation 1.
        unsafe { (self.walk)(block, conns, mesh, work) }
    }
}

/// Up to here the first of the protocols offered is taken, from here on the last: LL before Simple.
const SHORT_BYTES: u64 = 8 << 10;

/// How a call is cut, in elements, or in bytes on a GPU whose kernel only moves them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CustomCut {
    /// Bytes of an element.
    pub elem_bytes: usize,
    /// Elements in all.
    pub count: u64,
    /// Elements in one slot.
    pub slice_elems: usize,
    /// Borders are rounded to multiples of this.
    pub grain_elems: usize,
}

impl CustomCut {
    /// Cuts `call` for slots of `layout`; kernels of GPUs only tell apart types that they reduce.
    pub(crate) fn new(call: &Call, protocol: Protocol, layout: &ConnLayout, by_bytes: bool) -> CustomCut {
        let (elem_bytes, count) = match by_bytes && !call.func.is_reduction() {
            true => (1, call.bytes()),
            false => (call.dtype.size_bytes(), call.count),
        };
        let slice_elems = (proto::payload_bytes(protocol, layout) / elem_bytes).max(1);
        // A grain of every protocol's: no border falls into a word, a line or a pack.
        let grain_elems = chunk::grain_elems(GRAIN_BYTES, elem_bytes);
        CustomCut { elem_bytes, count, slice_elems, grain_elems }
    }
}

/// A multiple of what each protocol moves at once.
const GRAIN_BYTES: usize = 7680;

const _: () = {
    assert!(GRAIN_BYTES.is_multiple_of(proto::ll::DATA_BYTES));
    assert!(GRAIN_BYTES.is_multiple_of(proto::ll128::DATA_BYTES));
    assert!(GRAIN_BYTES.is_multiple_of(proto::simple::GRAIN_BYTES));
};

/// # Safety
/// 1. As [`Walk::run`].
unsafe fn walk_on_cpu<W: Walk>(
    block: &LendingBlock<'_>,
    conns: Conns<'_>,
    mesh: &Mesh<'_>,
    work: &CollWork,
) -> Result<(), Stop> {
    // SAFETY: obligation 1.
    unsafe { run_on::<W, _>(block, conns, mesh, work) }
}

impl fmt::Debug for CustomAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kernels = self.kernels.as_ref().map(|bundle| bundle.path());
        f.debug_struct("CustomAlgorithm").field("spec", self.spec).field("kernels", &kernels).finish()
    }
}

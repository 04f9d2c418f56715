//! Layer: device / custom, above `coll`.
//! Takes: an algorithm from outside the library, as a [`Walk`].
//! Gives: the walk on a machine: [`run_on`] for a CPU's block, [`run_kernel`] and [`ptx_kernels`](crate::ptx_kernels) for a GPU.
//! Never: names an algorithm.
//!
//! `docs/write-your-own.md` tells how to write one; `tests/stranger/` is one.

use crate::coll::CollWork;
use crate::conn::Conns;
use crate::gpu::threads::GpuBlock;
use crate::gpu::{Block, KernelMachine, Lines, Stop};
use crate::kernel::run;
use crate::prims::{Ll, Ll128, Proto, Simple};
use oxccl_shared::abi::{CollArgs, Func, Protocol, Rank};
use oxccl_shared::reduce::Element;

/// An algorithm's walk over its schedule, written once for every machine.
pub trait Walk: 'static {
    /// Runs one channel's part, `work.part`, to its end. Of `work`, `algorithm` says nothing.
    ///
    /// # Errors
    /// Whatever a primitive returned: the walk ends with it at once.
    ///
    /// # Safety
    /// 1. As [`crate::coll::run`]: the buffers of `work` are valid for what its function reads and writes.
    /// 2. `mesh` names connections of `conns`.
    unsafe fn run<B: Block, P: Proto<B>>(
        block: &B,
        conns: Conns<'_>,
        mesh: &Mesh<'_>,
        work: &CollWork,
    ) -> Result<(), Stop>;
}

/// Which connections lead to and from whom.
#[derive(Clone, Copy, Debug)]
pub struct Mesh<'a> {
    rank: Rank,
    /// By rank: indices of `Conns::send` and `Conns::recv`. None where the connections stand in rank order, our own left out.
    tables: Option<[&'a [u16]; 2]>,
}

impl<'a> Mesh<'a> {
    /// Connections in rank order, without one to `rank` itself.
    pub const fn in_order(rank: Rank) -> Mesh<'a> {
        Mesh { rank, tables: None }
    }

    /// Connections by rank.
    pub const fn by_rank(rank: Rank, send_to: &'a [u16], recv_from: &'a [u16]) -> Mesh<'a> {
        Mesh { rank, tables: Some([send_to, recv_from]) }
    }

    /// The connection to a peer: an index into [`Conns::send`].
    #[inline(always)]
    pub fn to(&self, peer: Rank) -> u16 {
        self.tables.map_or(self.place_of(peer), |[to, _]| to[peer.index()])
    }

    /// The connection from a peer: an index into [`Conns::recv`].
    #[inline(always)]
    pub fn from(&self, peer: Rank) -> u16 {
        self.tables.map_or(self.place_of(peer), |[_, from]| from[peer.index()])
    }

    #[inline(always)]
    fn place_of(&self, peer: Rank) -> u16 {
        (peer.0 - u32::from(peer > self.rank)) as u16
    }
}

/// Runs a walk on a block that has every protocol: a CPU's.
///
/// # Errors
/// [`Stop`].
///
/// # Safety
/// 1. As [`Walk::run`].
pub unsafe fn run_on<W: Walk, B: Lines>(
    block: &B,
    conns: Conns<'_>,
    mesh: &Mesh<'_>,
    work: &CollWork,
) -> Result<(), Stop> {
    match work.protocol {
        // SAFETY: obligation 1 in every arm.
        Protocol::LL => unsafe { W::run::<B, Ll<1>>(block, conns, mesh, work) },
        // SAFETY: as above.
        Protocol::LL128 => unsafe { W::run::<B, Ll128>(block, conns, mesh, work) },
        // SAFETY: as above.
        Protocol::Simple => unsafe { W::run::<B, Simple>(block, conns, mesh, work) },
    }
}

/// Runs a walk as a GPU's kernel.
///
/// # Safety
/// 1. As [`run::ring`]; the connections are a mesh's, of at most [`run::MESH_MAX`] peers.
#[inline(always)]
pub unsafe fn run_kernel<W, M, T, P, const POSTER: bool>(machine: M, args: &CollArgs, func: Func)
where
    W: Walk,
    M: KernelMachine,
    T: Element,
    P: Proto<GpuBlock<M, T, POSTER>>,
{
    let mesh = Mesh::in_order(args.launch.rank);
    // SAFETY: obligation 1.
    let walk = |block: &GpuBlock<M, T, POSTER>, conns: Conns<'_>, work: &CollWork| unsafe {
        W::run::<_, P>(block, conns, &mesh, work)
    };
    // SAFETY: obligation 1.
    unsafe { run::with_mesh::<M, T, P, POSTER>(machine, args, func, walk) };
}

/// Makes kernels for NVIDIA GPUs of walks, and what ends a kernel that panics; once in a crate, which
/// `cargo xtask build-ptx --crate` builds:
///
/// ```text
/// oxccl_device::ptx_kernels! {
///     oxccl_all_reduce_mine_simple_f32 = Mine[f32, Simple](AllReduce),
///     oxccl_all_reduce_mine_ll_f32 = Mine[f32, LL](AllReduce),
/// }
/// ```
/// Names are those of `CustomSpec::kernel`: `oxccl_<function>_<algorithm>_<protocol>_<type>`, without a type if the function does not
/// reduce, and then with `u8` as the type of elements. The crate needs `#![feature(abi_ptx, asm_experimental_arch)]`.
#[macro_export]
macro_rules! ptx_kernels {
    ($($name:ident = $walk:ident[$element:ty, $protocol:ident]($func:ident)),+ $(,)?) => {
        $(
            /// # Safety
            /// 1. Launched by the host library, with arguments that it made for this entry.
            #[unsafe(no_mangle)]
            pub unsafe extern "ptx-kernel" fn $name(args: $crate::CollArgs) {
                // SAFETY: a comment, by which the build bounds the threads of a block.
                unsafe { ::core::arch::asm!("// oxccl: .maxntid 384, 1, 1", "// oxccl: .minnctapersm 1", options(nomem, nostack)) };
                // SAFETY: obligation 1.
                unsafe { $crate::ptx_kernels!(@run $protocol, $walk, $element, &args, $crate::Func::$func) }
            }
        )+

        #[panic_handler]
        fn panic(_: &::core::panic::PanicInfo<'_>) -> ! {
            // SAFETY: ends the kernel with an error that the host sees.
            unsafe { ::core::arch::asm!("trap;", options(noreturn)) }
        }
    };
    (@run Simple, $walk:ident, $element:ty, $args:expr, $func:expr) => {
        $crate::custom::run_kernel::<$walk, _, $element, $crate::prims::Simple, true>($crate::gpu::ptx::Ptx, $args, $func)
    };
    (@run LL, $walk:ident, $element:ty, $args:expr, $func:expr) => {
        $crate::custom::run_kernel::<$walk, _, $element, $crate::prims::Ll<1>, false>($crate::gpu::ptx::Ptx, $args, $func)
    };
    (@run LL128, $walk:ident, $element:ty, $args:expr, $func:expr) => {
        $crate::custom::run_kernel::<$walk, _, $element, $crate::prims::Ll128, false>($crate::gpu::ptx::Ptx, $args, $func)
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mesh_names_everyone_but_ourselves() {
        let mesh = Mesh::in_order(Rank(2));
        assert_eq!([0, 1, 3, 4].map(|peer| mesh.to(Rank(peer))), [0, 1, 2, 3]);
        let mesh = Mesh::by_rank(Rank(1), &[7, 0, 3], &[2, 0, 9]);
        assert_eq!(
            (mesh.to(Rank(0)), mesh.to(Rank(2)), mesh.from(Rank(0)), mesh.from(Rank(2))),
            (7, 3, 2, 9)
        );
    }
}

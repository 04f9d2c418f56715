//! What becomes of a row of the list of kernels: its bound of threads is NVIDIA's; a pointer to the arguments, because a `gpu-kernel` takes only primitives and pointers.

/// A workgroup has one barrier, so its first worker tells the peers.
pub const POSTER: bool = false;

macro_rules! collective {
    ($name:ident of $threads:literal = $walk:ident[$($arg:tt)*]($func:ident)) => {
        /// # Safety
        /// 1. Launched with [`crate::gpu::amdgcn::LDS_BYTES`] of LDS and arguments for this entry, which live as long as the kernel.
        #[unsafe(no_mangle)]
        pub unsafe extern "gpu-kernel" fn $name(args: *const oxccl_shared::abi::CollArgs) {
            // SAFETY: obligation 1.
            let (machine, args) = unsafe { ($crate::gpu::amdgcn::Amdgcn::new(), &*args) };
            // SAFETY: obligation 1.
            unsafe { run::$walk::<_, $($arg)*>(machine, args, oxccl_shared::abi::Func::$func) }
        }
    };
}
pub(crate) use collective;

macro_rules! messages {
    ($name:ident of $threads:literal = [$($arg:tt)*]) => {
        /// # Safety
        /// 1. Launched with [`crate::gpu::amdgcn::LDS_BYTES`] of LDS and arguments for this entry, which live as long as the kernel.
        #[unsafe(no_mangle)]
        pub unsafe extern "gpu-kernel" fn $name(args: *const oxccl_shared::abi::MessageArgs) {
            // SAFETY: obligation 1.
            let (machine, args) = unsafe { ($crate::gpu::amdgcn::Amdgcn::new(), &*args) };
            // SAFETY: obligation 1.
            unsafe { run::messages::<_, $($arg)*>(machine, &args.launch, args.messages.as_ptr()) }
        }
    };
}
pub(crate) use messages;

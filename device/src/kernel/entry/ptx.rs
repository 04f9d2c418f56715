//! Entries for NVIDIA GPUs: arguments by value, 4 KiB at most.

/// The last warp of a block over Simple tells the peers.
pub const POSTER: bool = true;

/// The most threads of a block, so that the assembler knows how many registers it may use: 65,536 divided by them. A comment that
/// `cargo xtask build-ptx` moves to the entry's head, where Rust cannot put it.
macro_rules! launch_bound {
    ($threads:literal) => {
        // SAFETY: a comment.
        unsafe {
            core::arch::asm!(
                concat!("// oxccl: .maxntid ", $threads, ", 1, 1"),
                "// oxccl: .minnctapersm 1",
                options(nomem, nostack)
            )
        }
    };
}

macro_rules! collective {
    ($name:ident of $threads:literal = $walk:ident[$($arg:tt)*]($func:ident)) => {
        /// # Safety
        /// 1. Launched by the host library, with arguments that it made for this entry.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $name(args: oxccl_shared::abi::CollArgs) {
            launch_bound!($threads);
            // SAFETY: obligation 1.
            unsafe { run::$walk::<_, $($arg)*>($crate::gpu::ptx::Ptx, &args, oxccl_shared::abi::Func::$func) }
        }
    };
}

/// The address of an entry's own parameter, which stays where it is. By value the compiler would copy a list in it to every thread's stack
/// before it could be indexed.
macro_rules! parameter {
    ($name:ident as $type:ty) => {{
        let at: *const $type;
        // SAFETY: an address.
        unsafe {
            core::arch::asm!(
                concat!("{{ .reg .b64 at; mov.b64 at, ", stringify!($name), "_param_0; cvta.param.u64 {0}, at; }}"),
                out(reg64) at, options(pure, nomem, nostack)
            )
        };
        at
    }};
}

macro_rules! symmetric {
    ($name:ident of $threads:literal = [$element:ty]($func:ident)) => {
        /// # Safety
        /// 1. Launched by the host library, with arguments that it made for this entry.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $name(args: oxccl_shared::abi::SymmetricArgs) {
            let own = parameter!($name as oxccl_shared::abi::SymmetricArgs);
            let ranks =
                own.wrapping_byte_add(core::mem::offset_of!(oxccl_shared::abi::SymmetricArgs, ranks)).cast();
            launch_bound!($threads);
            // SAFETY: obligation 1.
            unsafe {
                crate::kernel::symmetric::symmetric::<_, $element>(
                    $crate::gpu::ptx::Ptx,
                    &args,
                    ranks,
                    oxccl_shared::abi::Func::$func,
                )
            }
        }
    };
}

macro_rules! messages {
    ($name:ident of $threads:literal = [$($arg:tt)*]) => {
        /// # Safety
        /// 1. Launched by the host library, with arguments that it made for this entry.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $name(args: oxccl_shared::abi::MessageArgs) {
            let own = parameter!($name as oxccl_shared::abi::MessageArgs);
            let messages = own.wrapping_byte_add(core::mem::offset_of!(oxccl_shared::abi::MessageArgs, messages)).cast();
            launch_bound!($threads);
            // SAFETY: obligation 1.
            unsafe { run::messages::<_, $($arg)*>($crate::gpu::ptx::Ptx, &args.launch, messages) }
        }
    };
}

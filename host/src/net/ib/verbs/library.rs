//! libibverbs, loaded at first use.

use super::abi::{
    AsyncEvent, Context, Cq, Device, DeviceAttr, Gid, Mr, Pd, PortAttr, Qp, QpAttr, QpInitAttr,
};
use libloading::Library;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

const FILE: &str = "libibverbs.so.1";

/// Declares the table: a field per function, filled by name. Those of `lately` exist in later versions only.
macro_rules! functions {
    (
        always { $($name:ident($($argument:ty),*) $(-> $result:ty)?;)* }
        lately { $($late:ident($($late_argument:ty),*) -> $late_result:ty;)* }
    ) => {
        /// Pointers to the library's functions.
        pub struct Verbs {
            $(pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            $(pub $late: Option<unsafe extern "C" fn($($late_argument),*) -> $late_result>,)*
            /// Keeps the functions loaded.
            _library: Library,
        }

        impl Verbs {
            /// # Safety
            /// 1. `library` is libibverbs.
            unsafe fn find(library: Library) -> Result<Verbs, &'static str> {
                $(
                    // SAFETY: (1) libibverbs exports this name with the type of its header, which is the field's.
                    let $name = *unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) }
                        .map_err(|_| stringify!($name))?;
                )*
                $(
                    // SAFETY: as above.
                    let $late = unsafe { library.get(concat!(stringify!($late), "\0").as_bytes()) }
                        .ok().map(|symbol| *symbol);
                )*
                Ok(Verbs { $($name,)* $($late,)* _library: library })
            }
        }
    };
}

functions! {
    always {
    ibv_get_device_list(*mut c_int) -> *mut *mut Device;
    ibv_free_device_list(*mut *mut Device);
    ibv_get_device_name(*mut Device) -> *const c_char;
    ibv_open_device(*mut Device) -> *mut Context;
    ibv_close_device(*mut Context) -> c_int;
    ibv_query_device(*mut Context, *mut DeviceAttr) -> c_int;
    ibv_query_port(*mut Context, u8, *mut PortAttr) -> c_int;
    ibv_query_gid(*mut Context, u8, c_int, *mut Gid) -> c_int;
    ibv_get_async_event(*mut Context, *mut AsyncEvent) -> c_int;
    ibv_ack_async_event(*mut AsyncEvent);
    ibv_alloc_pd(*mut Context) -> *mut Pd;
    ibv_dealloc_pd(*mut Pd) -> c_int;
    ibv_reg_mr(*mut Pd, *mut c_void, usize, c_int) -> *mut Mr;
    ibv_dereg_mr(*mut Mr) -> c_int;
    ibv_create_cq(*mut Context, c_int, *mut c_void, *mut c_void, c_int) -> *mut Cq;
    ibv_destroy_cq(*mut Cq) -> c_int;
    ibv_create_qp(*mut Pd, *mut QpInitAttr) -> *mut Qp;
    ibv_destroy_qp(*mut Qp) -> c_int;
    ibv_modify_qp(*mut Qp, *mut QpAttr, c_int) -> c_int;
    }
    lately {
    // Takes the flag for relaxed ordering, which `ibv_reg_mr` refuses.
    ibv_reg_mr_iova2(*mut Pd, *mut c_void, usize, u64, c_uint) -> *mut Mr;
    ibv_reg_dmabuf_mr(*mut Pd, u64, usize, u64, c_int, c_int) -> *mut Mr;
    }
}

impl Verbs {
    /// The library. The first call loads it; the result, a failure too, holds for the life of the process.
    ///
    /// # Errors
    /// The missing file or symbol.
    pub fn get() -> Result<&'static Verbs, &'static str> {
        static VERBS: OnceLock<Result<Verbs, String>> = OnceLock::new();
        VERBS.get_or_init(|| Verbs::load(FILE)).as_ref().map_err(String::as_str)
    }

    fn load(file: &str) -> Result<Verbs, String> {
        // SAFETY: loading runs the initialisers of libibverbs, which only set up its own state.
        let library = unsafe { Library::new(file) }
            .map_err(|error| format!("{file} cannot be loaded ({error}); Debian's package is libibverbs1"))?;
        // SAFETY: (1) it has libibverbs's file name.
        unsafe { Verbs::find(library) }
            .map_err(|name| format!("{file} has no {name}: it is older than rdma-core, or something else"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_without_the_library_says_so() {
        let error = Verbs::load("libibverbs-of-nowhere.so.1").err().expect("there is no such file");
        assert!(error.contains("libibverbs-of-nowhere.so.1") && error.contains("libibverbs1"), "{error}");
    }

    #[test]
    fn another_library_of_that_name_is_refused() {
        let error = Verbs::load("libc.so.6").err().expect("libc has no verbs");
        assert!(error.contains("ibv_get_device_list"), "{error}");
    }
}

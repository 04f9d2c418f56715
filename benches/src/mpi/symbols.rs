//! The functions of MPI, each looked up once, and the handles of its two binary interfaces: Open MPI's, and that of MPICH and of all who
//! keep to its interface (Intel MPI, MVAPICH, Cray MPI; <https://www.mpich.org/abi/>).

use libloading::os::unix::Library;
use std::ffi::{c_char, c_int, c_void};

/// MPI_Comm, MPI_Datatype and MPI_Op. Of Open MPI: the address of an object inside its library. Of MPICH: an `int`, here the low half of
/// a pointer. Calling conventions of 64-bit little-endian machines pass both in a register or 8 bytes of stack, and a callee that takes
/// an `int` reads the low half.
pub type Handle = *mut c_void;

/// A buffer that MPI reads, and one that it writes.
type In = *const c_void;
type Out = *mut c_void;

/// The binary interface of an MPI.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interface {
    OpenMpi,
    Mpich,
}

impl Interface {
    /// What the library has, if it is an MPI at all: Open MPI's handles are objects that it exports.
    fn of(library: &Library) -> Interface {
        // SAFETY: only whether there is such a symbol is asked.
        let has_objects = unsafe { library.get::<*mut c_void>(b"ompi_mpi_comm_world") }.is_ok();
        if has_objects { Interface::OpenMpi } else { Interface::Mpich }
    }

    /// MPI_IN_PLACE.
    pub fn in_place(self) -> *const c_void {
        std::ptr::without_provenance(if self == Interface::OpenMpi { 1 } else { usize::MAX })
    }

    /// MPI_STATUS_IGNORE.
    pub fn status_ignore(self) -> *mut c_void {
        std::ptr::without_provenance_mut(if self == Interface::OpenMpi { 0 } else { 1 })
    }
}

macro_rules! symbols {
    (
        functions { $($function:ident = $fname:literal: fn($($arg:ty),*);)+ }
        objects { $($object:ident = $oname:literal, $mpich:literal;)+ }
    ) => {
        /// Addresses inside the library; good for as long as it is open.
        pub struct Symbols {
            $(pub $function: unsafe extern "C" fn($($arg),*) -> c_int,)+
            $(pub $object: Handle,)+
            /// Whose handles these are.
            pub interface: Interface,
        }

        impl Symbols {
            /// Looks all of them up.
            ///
            /// # Errors
            /// The name of the first that is missing.
            pub fn find(library: &Library) -> Result<Symbols, &'static str> {
                let interface = Interface::of(library);
                Ok(Symbols {
                    interface,
                    $($function: {
                        // SAFETY: the type is that of the function of this name in mpi.h, with handles as above.
                        let symbol = unsafe { library.get::<unsafe extern "C" fn($($arg),*) -> c_int>($fname.as_bytes()) };
                        *symbol.map_err(|_| $fname)?
                    },)+
                    $($object: match interface {
                        Interface::OpenMpi => {
                            // SAFETY: an object of this name whose address is the handle; it is not read through here.
                            let symbol = unsafe { library.get::<*mut c_void>($oname.as_bytes()) };
                            symbol.map_err(|_| $oname)?.into_raw()
                        }
                        Interface::Mpich => std::ptr::without_provenance_mut($mpich),
                    },)+
                })
            }
        }
    };
}

symbols! {
    functions {
        init_thread = "MPI_Init_thread": fn(*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int);
        finalize = "MPI_Finalize": fn();
        abort = "MPI_Abort": fn(Handle, c_int);
        comm_rank = "MPI_Comm_rank": fn(Handle, *mut c_int);
        comm_size = "MPI_Comm_size": fn(Handle, *mut c_int);
        comm_set_errhandler = "MPI_Comm_set_errhandler": fn(Handle, Handle);
        error_string = "MPI_Error_string": fn(c_int, *mut c_char, *mut c_int);
        get_library_version = "MPI_Get_library_version": fn(*mut c_char, *mut c_int);
        barrier = "MPI_Barrier": fn(Handle);
        bcast = "MPI_Bcast": fn(Out, c_int, Handle, c_int, Handle);
        allreduce = "MPI_Allreduce": fn(In, Out, c_int, Handle, Handle, Handle);
        reduce = "MPI_Reduce": fn(In, Out, c_int, Handle, Handle, c_int, Handle);
        reduce_scatter_block = "MPI_Reduce_scatter_block": fn(In, Out, c_int, Handle, Handle, Handle);
        allgather = "MPI_Allgather": fn(In, c_int, Handle, Out, c_int, Handle, Handle);
        gather = "MPI_Gather": fn(In, c_int, Handle, Out, c_int, Handle, c_int, Handle);
        scatter = "MPI_Scatter": fn(In, c_int, Handle, Out, c_int, Handle, c_int, Handle);
        alltoall = "MPI_Alltoall": fn(In, c_int, Handle, Out, c_int, Handle, Handle);
        alltoallv = "MPI_Alltoallv": fn(In, *const c_int, *const c_int, Handle, Out, *const c_int, *const c_int, Handle, Handle);
        allgatherv = "MPI_Allgatherv": fn(In, c_int, Handle, Out, *const c_int, *const c_int, Handle, Handle);
        reduce_scatter = "MPI_Reduce_scatter": fn(In, Out, *const c_int, Handle, Handle, Handle);
        sendrecv = "MPI_Sendrecv": fn(In, c_int, Handle, c_int, c_int, Out, c_int, Handle, c_int, c_int, Handle, *mut c_void);
        iallreduce = "MPI_Iallreduce": fn(In, Out, c_int, Handle, Handle, Handle, *mut Handle);
        ireduce_scatter_block = "MPI_Ireduce_scatter_block": fn(In, Out, c_int, Handle, Handle, Handle, *mut Handle);
        iallgather = "MPI_Iallgather": fn(In, c_int, Handle, Out, c_int, Handle, Handle, *mut Handle);
        ialltoall = "MPI_Ialltoall": fn(In, c_int, Handle, Out, c_int, Handle, Handle, *mut Handle);
        ibcast = "MPI_Ibcast": fn(Out, c_int, Handle, c_int, Handle, *mut Handle);
        isend = "MPI_Isend": fn(In, c_int, Handle, c_int, c_int, Handle, *mut Handle);
        irecv = "MPI_Irecv": fn(Out, c_int, Handle, c_int, c_int, Handle, *mut Handle);
        test = "MPI_Test": fn(*mut Handle, *mut c_int, *mut c_void);
        wait = "MPI_Wait": fn(*mut Handle, *mut c_void);
    }
    objects {
        comm_world = "ompi_mpi_comm_world", 0x4400_0000;
        errors_return = "ompi_mpi_errors_return", 0x5400_0001;
        int8 = "ompi_mpi_int8_t", 0x4c00_0137;
        uint8 = "ompi_mpi_uint8_t", 0x4c00_013b;
        int32 = "ompi_mpi_int32_t", 0x4c00_0439;
        uint32 = "ompi_mpi_uint32_t", 0x4c00_043d;
        int64 = "ompi_mpi_int64_t", 0x4c00_083a;
        uint64 = "ompi_mpi_uint64_t", 0x4c00_083e;
        float = "ompi_mpi_float", 0x4c00_040a;
        double = "ompi_mpi_double", 0x4c00_080b;
        sum = "ompi_mpi_op_sum", 0x5800_0003;
        prod = "ompi_mpi_op_prod", 0x5800_0004;
        max = "ompi_mpi_op_max", 0x5800_0001;
        min = "ompi_mpi_op_min", 0x5800_0002;
    }
}

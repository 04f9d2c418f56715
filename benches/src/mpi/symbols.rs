//! The symbols of Open MPI, each looked up once, and the types its mpi.h gives them.

use libloading::os::unix::Library;
use std::ffi::{c_char, c_int, c_void};

/// MPI_Comm, MPI_Datatype and MPI_Op of Open MPI: the address of an object inside its library.
pub type Handle = *mut c_void;

/// A buffer that MPI reads, and one that it writes.
type In = *const c_void;
type Out = *mut c_void;

macro_rules! symbols {
    (
        functions { $($function:ident = $fname:literal: fn($($arg:ty),*);)+ }
        objects { $($object:ident = $oname:literal;)+ }
    ) => {
        /// Addresses inside the library; good for as long as it is open.
        pub struct Symbols {
            $(pub $function: unsafe extern "C" fn($($arg),*) -> c_int,)+
            $(pub $object: Handle,)+
        }

        impl Symbols {
            /// Looks all of them up.
            ///
            /// # Errors
            /// The name of the first that is missing.
            pub fn find(library: &Library) -> Result<Symbols, &'static str> {
                Ok(Symbols {
                    $($function: {
                        // SAFETY: the type is that of the function of this name in Open MPI's mpi.h.
                        let symbol = unsafe { library.get::<unsafe extern "C" fn($($arg),*) -> c_int>($fname.as_bytes()) };
                        *symbol.map_err(|_| $fname)?
                    },)+
                    $($object: {
                        // SAFETY: an object of this name whose address is the handle; it is not read through here.
                        let symbol = unsafe { library.get::<*mut c_void>($oname.as_bytes()) };
                        symbol.map_err(|_| $oname)?.into_raw()
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
        sendrecv = "MPI_Sendrecv": fn(In, c_int, Handle, c_int, c_int, Out, c_int, Handle, c_int, c_int, Handle, *mut c_void);
    }
    objects {
        comm_world = "ompi_mpi_comm_world";
        errors_return = "ompi_mpi_errors_return";
        int8 = "ompi_mpi_int8_t";
        uint8 = "ompi_mpi_uint8_t";
        int32 = "ompi_mpi_int32_t";
        uint32 = "ompi_mpi_uint32_t";
        int64 = "ompi_mpi_int64_t";
        uint64 = "ompi_mpi_uint64_t";
        float = "ompi_mpi_float";
        double = "ompi_mpi_double";
        sum = "ompi_mpi_op_sum";
        prod = "ompi_mpi_op_prod";
        max = "ompi_mpi_op_max";
        min = "ompi_mpi_op_min";
    }
}

//! MPI's non-blocking calls.

use super::{Call, EngineError, InFlight, MpiEngine};
use crate::collective::Collective;
use crate::mpi::{Handle, MpiError};
use std::ffi::{c_int, c_void};

/// MPI_Request: Open MPI's is a pointer, MPICH's an `int`, which has room in it. Null where there is no second.
type Requests = [Handle; 2];

impl MpiEngine {
    /// # Safety
    /// 1. As [`super::Engine::run`], until the requests are done.
    unsafe fn start(&self, call: &Call, requests: &mut Requests) -> Result<usize, MpiError> {
        let mpi = &self.mpi;
        let s = mpi.symbols();
        let count = c_int::try_from(call.count).map_err(|_| MpiError::Count { count: call.count })?;
        let ty = mpi.datatype(call.dtype).unwrap_or(std::ptr::null_mut());
        let op = mpi.op(call.op).unwrap_or(std::ptr::null_mut());
        let (comm, root) = (mpi.world(), call.root as c_int);
        let recv: *mut c_void = call.recv.cast();
        let send = if call.in_place { s.interface.in_place() } else { call.send.cast_const().cast() };
        let [first, second] = requests;
        let (name, code) = match call.collective {
            Collective::AllReduce => {
                // SAFETY: obligation 1, in the argument order of mpi.h.
                ("MPI_Iallreduce", unsafe { (s.iallreduce)(send, recv, count, ty, op, comm, first) })
            }
            Collective::ReduceScatter => {
                // SAFETY: as above.
                ("MPI_Ireduce_scatter_block", unsafe {
                    (s.ireduce_scatter_block)(send, recv, count, ty, op, comm, first)
                })
            }
            Collective::AllGather => {
                // SAFETY: as above.
                ("MPI_Iallgather", unsafe { (s.iallgather)(send, count, ty, recv, count, ty, comm, first) })
            }
            Collective::AllToAll => {
                // SAFETY: as above.
                ("MPI_Ialltoall", unsafe { (s.ialltoall)(send, count, ty, recv, count, ty, comm, first) })
            }
            Collective::Broadcast => {
                if call.root == mpi.rank() && !call.in_place {
                    let bytes = call.count * call.dtype.size_bytes();
                    // SAFETY: obligation 1. MPI knows one buffer only, and the call promises a copy at the root too.
                    unsafe { std::ptr::copy_nonoverlapping(call.send, call.recv, bytes) };
                }
                // SAFETY: as above.
                ("MPI_Ibcast", unsafe { (s.ibcast)(recv, count, ty, root, comm, first) })
            }
            Collective::SendRecv => {
                let (rank, size) = (mpi.rank(), mpi.size());
                let (to, from) = ((rank + 1) % size, (rank + size - 1) % size);
                // SAFETY: as above.
                let code = unsafe { (s.irecv)(recv, count, ty, from as c_int, 0, comm, first) };
                mpi.check("MPI_Irecv", code)?;
                // SAFETY: as above.
                let code = unsafe { (s.isend)(send, count, ty, to as c_int, 0, comm, second) };
                return mpi.check("MPI_Isend", code).map(|()| 2);
            }
            _ => return Ok(0),
        };
        mpi.check(name, code).map(|()| 1)
    }
}

impl InFlight for MpiEngine {
    fn refuses(&self, call: &Call) -> Option<&'static str> {
        use Collective::{AllGather, AllReduce, AllToAll, Broadcast, ReduceScatter, SendRecv};
        let has = matches!(
            call.collective,
            AllReduce | AllGather | AllToAll | Broadcast | ReduceScatter | SendRecv
        );
        (!has).then_some("measured with blocking calls only")
    }

    unsafe fn run_beside(&mut self, call: &Call, work: &mut dyn FnMut() -> bool) -> Result<(), EngineError> {
        let mut requests: Requests = [std::ptr::null_mut(); 2];
        // SAFETY: obligation 1; the requests are waited for below.
        let started = unsafe { self.start(call, &mut requests)? };
        let s = self.mpi.symbols();
        let ignore = s.interface.status_ignore();
        let requests = &mut requests[..started];
        let mut left = started;
        while work() {
            for request in requests[started - left..].iter_mut() {
                let mut is_over: c_int = 0;
                // SAFETY: the request has been started, and is done at most once: MPI sets it to its null request then.
                let code = unsafe { (s.test)(request, &mut is_over, ignore) };
                self.mpi.check("MPI_Test", code)?;
                if is_over == 0 {
                    break;
                }
                left -= 1;
            }
        }
        for request in &mut requests[started - left..] {
            // SAFETY: as above.
            let code = unsafe { (s.wait)(request, ignore) };
            self.mpi.check("MPI_Wait", code)?;
        }
        Ok(())
    }
}

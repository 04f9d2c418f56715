//! Open MPI, or an MPI with MPICH's binary interface.

use super::{Call, Engine, EngineError, InFlight};
use crate::collective::Collective;
use crate::mpi::{Handle, Interface, Mpi, MpiError};
use std::ffi::{c_int, c_void};

/// Collectives on MPI's world.
pub struct MpiEngine {
    pub(super) mpi: Mpi,
}

impl MpiEngine {
    pub fn new(mpi: Mpi) -> MpiEngine {
        MpiEngine { mpi }
    }

    /// # Safety
    /// 1. As [`Engine::run`].
    unsafe fn run_one(&self, call: &Call) -> Result<(), MpiError> {
        let mpi = &self.mpi;
        let s = mpi.symbols();
        let count = c_int::try_from(call.count).map_err(|_| MpiError::Count { count: call.count })?;
        // Calls without a handle have been refused; a null handle would be an error of MPI, not a wild read.
        let ty: Handle = mpi.datatype(call.dtype).unwrap_or(std::ptr::null_mut());
        let op: Handle = mpi.op(call.op).unwrap_or(std::ptr::null_mut());
        let (comm, root) = (mpi.world(), call.root as c_int);
        let is_root = call.root == mpi.rank();
        let (send, recv): (*const c_void, *mut c_void) = (call.send.cast_const().cast(), call.recv.cast());
        let in_place = s.interface.in_place();
        let send_in_place = if call.in_place { in_place } else { send };
        // SAFETY (all calls of this match): obligation 1, in the argument order of mpi.h.
        let (name, code) = match call.collective {
            Collective::AllReduce => {
                // SAFETY: as above.
                ("MPI_Allreduce", unsafe { (s.allreduce)(send_in_place, recv, count, ty, op, comm) })
            }
            Collective::ReduceScatter => {
                // SAFETY: as above; never in place.
                ("MPI_Reduce_scatter_block", unsafe {
                    (s.reduce_scatter_block)(send, recv, count, ty, op, comm)
                })
            }
            Collective::Reduce => {
                let send = if is_root { send_in_place } else { send };
                // SAFETY: as above.
                ("MPI_Reduce", unsafe { (s.reduce)(send, recv, count, ty, op, root, comm) })
            }
            Collective::Broadcast => {
                if is_root && !call.in_place {
                    let bytes = call.count * call.dtype.size_bytes();
                    // SAFETY: obligation 1. MPI knows one buffer only, and the call promises a copy at the root too.
                    unsafe { std::ptr::copy_nonoverlapping(call.send, call.recv, bytes) };
                }
                // SAFETY: as above.
                ("MPI_Bcast", unsafe { (s.bcast)(recv, count, ty, root, comm) })
            }
            Collective::AllGather => {
                // SAFETY: as above.
                ("MPI_Allgather", unsafe { (s.allgather)(send_in_place, count, ty, recv, count, ty, comm) })
            }
            Collective::Gather => {
                let send = if is_root { send_in_place } else { send };
                // SAFETY: as above.
                ("MPI_Gather", unsafe { (s.gather)(send, count, ty, recv, count, ty, root, comm) })
            }
            Collective::Scatter => {
                let recv = if is_root && call.in_place { in_place.cast_mut() } else { recv };
                // SAFETY: as above.
                ("MPI_Scatter", unsafe { (s.scatter)(send, count, ty, recv, count, ty, root, comm) })
            }
            Collective::AllToAll => {
                // SAFETY: as above; never in place.
                ("MPI_Alltoall", unsafe { (s.alltoall)(send, count, ty, recv, count, ty, comm) })
            }
            Collective::AllToAllV | Collective::AllGatherV | Collective::ReduceScatterV => {
                // SAFETY: as above.
                unsafe { self.run_uneven(call, ty, op)? }
            }
            Collective::SendRecv => {
                let (rank, size) = (mpi.rank(), mpi.size());
                let to = ((rank + 1) % size) as c_int;
                let from = ((rank + size - 1) % size) as c_int;
                let ignore = s.interface.status_ignore();
                // SAFETY: as above; never in place.
                ("MPI_Sendrecv", unsafe {
                    (s.sendrecv)(send, count, ty, to, 0, recv, count, ty, from, 0, comm, ignore)
                })
            }
            // SAFETY: no memory is involved.
            Collective::Barrier => ("MPI_Barrier", unsafe { (s.barrier)(comm) }),
        };
        mpi.check(name, code)
    }

    /// The functions whose blocks have lengths of their own; never in place.
    ///
    /// # Safety
    /// 1. As [`Engine::run`].
    unsafe fn run_uneven(
        &self,
        call: &Call,
        ty: Handle,
        op: Handle,
    ) -> Result<(&'static str, c_int), MpiError> {
        let mpi = &self.mpi;
        let (s, comm) = (mpi.symbols(), mpi.world());
        let (send, recv): (*const c_void, *mut c_void) = (call.send.cast_const().cast(), call.recv.cast());
        if call.collective == Collective::AllToAllV {
            let blocks = |is_send| {
                let (counts, displs) = call.collective.blocks(call.count, mpi.rank(), mpi.size(), is_send);
                let whole = counts.iter().sum();
                let ints = |numbers: Vec<usize>| numbers.into_iter().map(|number| number as c_int).collect();
                c_int::try_from(whole).map_err(|_| MpiError::Count { count: whole })?;
                Ok::<[Vec<c_int>; 2], MpiError>([ints(counts), ints(displs)])
            };
            let ([sc, sd], [rc, rd]) = (blocks(true)?, blocks(false)?);
            let (sc, sd, rc, rd) = (sc.as_ptr(), sd.as_ptr(), rc.as_ptr(), rd.as_ptr());
            // SAFETY: obligation 1, in the argument order of mpi.h.
            let code = unsafe { (s.alltoallv)(send, sc, sd, ty, recv, rc, rd, ty, comm) };
            return Ok(("MPI_Alltoallv", code));
        }
        let blocks = (0..mpi.size()).map(|rank| Collective::uneven_block(call.count, rank));
        let ends = blocks.clone().map(|block| block.end).max().unwrap_or(0);
        c_int::try_from(ends).map_err(|_| MpiError::Count { count: ends })?;
        let counts: Vec<c_int> = blocks.clone().map(|block| block.len() as c_int).collect();
        let displs: Vec<c_int> = blocks.map(|block| block.start as c_int).collect();
        let (of, at, own) = (counts.as_ptr(), displs.as_ptr(), counts[mpi.rank() as usize]);
        Ok(if call.collective.reduces() {
            // SAFETY: as above.
            ("MPI_Reduce_scatter", unsafe { (s.reduce_scatter)(send, recv, of, ty, op, comm) })
        } else {
            // SAFETY: as above.
            ("MPI_Allgatherv", unsafe { (s.allgatherv)(send, own, ty, recv, of, at, ty, comm) })
        })
    }
}

impl Engine for MpiEngine {
    fn name(&self) -> &'static str {
        match self.mpi.interface() {
            Interface::OpenMpi => "mpi",
            Interface::Mpich => "mpich",
        }
    }

    fn describe(&self) -> String {
        self.mpi.version()
    }

    fn refuses(&self, call: &Call) -> Option<&'static str> {
        if self.mpi.datatype(call.dtype).is_none() {
            return Some("MPI has no such type");
        }
        if call.collective.reduces() && self.mpi.op(call.op).is_none() {
            return Some("MPI has no such operator");
        }
        // MPI puts the result at the buffer's beginning, NCCL at the rank's own block.
        let elsewhere = call.in_place && call.collective == Collective::ReduceScatter;
        elsewhere.then_some("MPI's in-place result lies elsewhere")
    }

    unsafe fn run(&mut self, calls: &[Call]) -> Result<(), EngineError> {
        for call in calls {
            // SAFETY: obligation 1.
            unsafe { self.run_one(call)? };
        }
        Ok(())
    }

    fn in_flight(&mut self) -> Option<&mut dyn InFlight> {
        Some(self)
    }
}

//! Ranks that mpirun started, where MPI is one of the engines.

use super::{Record, Team, TeamError};
use crate::mpi::{Mpi, MpiError};
use oxccl_shared::abi::DataType;
use std::ffi::c_int;

/// MPI's world.
pub struct MpiTeam {
    mpi: Mpi,
}

impl MpiTeam {
    pub fn new(mpi: Mpi) -> MpiTeam {
        MpiTeam { mpi }
    }
}

impl From<MpiError> for TeamError {
    fn from(error: MpiError) -> TeamError {
        TeamError::Library { library: "mpi", message: error.to_string() }
    }
}

impl Team for MpiTeam {
    fn rank(&self) -> u32 {
        self.mpi.rank()
    }

    fn size(&self) -> u32 {
        self.mpi.size()
    }

    fn exchange(&mut self, mine: &Record) -> Result<Vec<Record>, TeamError> {
        let mut all = vec![Record::default(); self.mpi.size() as usize];
        let words = self.mpi.datatype(DataType::U64).unwrap_or(std::ptr::null_mut());
        let (count, world) = (mine.len() as c_int, self.mpi.world());
        let (send, recv) = (mine.as_ptr().cast(), all.as_mut_ptr().cast());
        // SAFETY: `recv` has room for one record of 16 words per rank.
        let code = unsafe { (self.mpi.symbols().allgather)(send, count, words, recv, count, words, world) };
        self.mpi.check("MPI_Allgather", code)?;
        Ok(all)
    }

    fn barrier(&mut self) -> Result<(), TeamError> {
        // SAFETY: no memory is involved.
        let code = unsafe { (self.mpi.symbols().barrier)(self.mpi.world()) };
        Ok(self.mpi.check("MPI_Barrier", code)?)
    }

    fn give_up(&mut self) {
        self.mpi.abort();
    }
}

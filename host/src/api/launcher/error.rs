//! Launchers, and why their variables are unusable.

use std::fmt;
use std::path::PathBuf;
use thiserror::Error;

/// The launcher of this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Launcher {
    /// `OXCCL_RANK` and `OXCCL_NRANKS`, set by hand or by a script.
    Oxccl,
    /// torchrun, or anything that sets torch's variables.
    Torchrun,
    /// Open MPI's mpirun.
    OpenMpi,
    /// Slurm's srun.
    Slurm,
    /// MPICH's or Intel MPI's mpiexec.
    Mpich,
}

impl Launcher {
    /// Whether its variables tell jobs apart.
    pub(in crate::api) fn names_jobs(self) -> bool {
        self != Launcher::Oxccl
    }
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Launcher::Oxccl => "OxCCL's convention",
            Launcher::Torchrun => "torchrun",
            Launcher::OpenMpi => "Open MPI",
            Launcher::Slurm => "Slurm",
            Launcher::Mpich => "MPICH or Intel MPI",
        })
    }
}

/// Why the launcher's variables are unusable.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum LaunchError {
    /// No launcher is recognised.
    #[error(
        "no launcher is recognised; start with mpirun, srun or torchrun, or set OXCCL_RANK, OXCCL_NRANKS and NCCL_COMM_ID=host:port"
    )]
    NoLauncher,
    /// A variable that belongs with another is missing.
    #[error("{variable} is not set, but {because} is; {launcher} sets both")]
    Missing {
        /// The launcher that should have set it.
        launcher: Launcher,
        /// The missing variable.
        variable: &'static str,
        /// The variable that requires it.
        because: &'static str,
    },
    /// A value cannot be read.
    #[error("{variable} is {value:?}, expected {expected}")]
    Bad {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// The expected form.
        expected: &'static str,
    },
    /// A rank is not below its number of ranks.
    #[error("{variable} is {value}, expected less than {limit_variable}, which is {limit}")]
    OutOfRange {
        /// The rank's variable.
        variable: &'static str,
        /// The rank.
        value: u32,
        /// The number of ranks' variable.
        limit_variable: &'static str,
        /// The number of ranks.
        limit: u32,
    },
    /// The ranks are on several hosts and no rendezvous address is known.
    #[error(
        "{launcher} does not say where the ranks meet; set NCCL_COMM_ID=host:port with an address of rank 0's host on every rank"
    )]
    NoMeetingPoint {
        /// The launcher.
        launcher: Launcher,
    },
    /// The launcher's key-value space, by which ranks learn where they meet, cannot be used.
    #[error(
        "the launcher's key-value space (PMI) failed: {why}; NCCL_COMM_ID=host:port on every rank does without it"
    )]
    Pmi {
        /// Why.
        why: String,
    },
    /// A secret is required, and there is none.
    #[error(
        "OXCCL_REQUIRE_SECRET is set, and this job has no secret ({why}); set OXCCL_COMM_SECRET to a random text on all ranks (openssl \
         rand -hex 32), or OXCCL_COMM_SECRET_FILE to a file with one"
    )]
    NoSecret {
        /// Why.
        why: String,
    },
    /// What has the name of this user's key on this host is not such a key: another user may have put it there, to join the job.
    #[error(
        "the secret of this user's jobs on this host cannot be used: {why}; remove it (its owner or root can), or set OXCCL_COMM_SECRET to a \
         random text on all ranks (openssl rand -hex 32)"
    )]
    KeyTaken {
        /// What is wrong with it.
        why: String,
    },
    /// The file with the secret cannot be used.
    #[error("OXCCL_COMM_SECRET_FILE is {}: {why}", path.display())]
    SecretFile {
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// The rendezvous host has no address.
    #[error("the ranks shall meet at {host}, which cannot be resolved: {why}")]
    Unresolved {
        /// The host.
        host: String,
        /// The resolver's error.
        why: String,
    },
    /// A single rank cannot listen on the loopback.
    #[error("a single rank cannot set up its communicator: {why}")]
    Alone {
        /// Why.
        why: String,
    },
}

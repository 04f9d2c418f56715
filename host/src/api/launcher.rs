//! Layer: host / api.
//! Takes: a way to look up environment variables.
//! Gives: [`LaunchEnv`]: rank, number of ranks and rendezvous address from the launcher that started this process.
//! Never: guesses. An invalid value is an error that names the variable, the value and the expected form.
//!
//! The first that applies wins:
//!
//! | launcher | recognised by | rendezvous, unless `OXCCL_COMM_ID` or `NCCL_COMM_ID` gives `host:port` |
//! |---|---|---|
//! | by hand | `OXCCL_RANK`, `OXCCL_NRANKS` | `MASTER_ADDR` |
//! | torchrun | `RANK` with `WORLD_SIZE` or `MASTER_ADDR` | `MASTER_ADDR` |
//! | Open MPI | `OMPI_COMM_WORLD_RANK` | `MASTER_ADDR`, else the loopback when all ranks are on one host |
//! | Slurm (srun) | `SLURM_PROCID` in a step | `MASTER_ADDR`, else the first node of the step |
//! | Open MPI, Slurm with several hosts and PMIx | `PMIX_NAMESPACE`, `PMIX_RANK` beside theirs | `MASTER_ADDR`, else the same by PMIx, if `libpmix.so.2` can be loaded |
//! | Slurm (`srun --mpi=pmi2`) | `PMI_FD` beside Slurm's | `MASTER_ADDR`, else what rank 0 puts into the launcher's key-value space, with a random secret (PMI-2) |
//! | MPICH, Intel MPI | `PMI_RANK` | `MASTER_ADDR`, else what rank 0 puts into the launcher's key-value space, with a random secret (PMI-1: `PMI_FD`, `PMI_PORT`) |
//!
//! The port of a derived rendezvous address is in 20000..30000 and derived from the job's name and `MASTER_PORT`. It
//! is not `MASTER_PORT` itself, because torch's own store listens there. That range is below Linux's ephemeral ports,
//! so that no outgoing connection holds it. If another program does, set `NCCL_COMM_ID`.
//!
//! Ranks authenticate each other by a secret; `secret` says where it comes from.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use oxccl_shared::abi::Rank;
use sha2::{Digest, Sha256};

mod error;
mod vars;
mod nodelist;
mod pmix;
mod pmi;
mod secret;

pub use error::{LaunchError, Launcher};
pub(super) use pmi::Pmi;
use secret::SecretSettings;
pub(super) use secret::aggregator_secret;
use vars::Vars;

/// The first derived port.
const PORT_FIRST: u16 = 20_000;
/// Number of derived ports.
const PORTS: u32 = 10_000;
/// Step numbers from here on are Slurm's own steps (batch script, interactive shell), not a parallel launch.
const SLURM_STEP_RESERVED: u32 = 0xffff_fff0;

/// The rendezvous address: rank 0 listens there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MeetingPoint {
    /// A host name or an address.
    pub host: String,
    /// The port.
    pub port: u16,
}

/// A process's rank among those launched with it.
#[derive(Clone, PartialEq, Eq)]
pub struct LaunchEnv {
    /// Its launcher.
    pub launcher: Launcher,
    /// Its rank, below `nranks`.
    pub rank: u32,
    /// Number of ranks.
    pub nranks: u32,
    /// Its rank on its host, if the launcher provides it.
    pub local_rank: Option<u32>,
    /// Number of ranks of its host, if the launcher provides it.
    pub local_nranks: Option<u32>,
    /// The rendezvous address; `None` for a single rank, and where the launcher's key-value space will say it.
    pub rendezvous: Option<MeetingPoint>,
    /// The launcher's key-value space, if that is how ranks learn where they meet.
    pub(super) pmi: Option<Pmi>,
    /// A text that all ranks know, and that differs between jobs; no secret.
    pub(super) seed: Vec<u8>,
    /// Where the secret comes from.
    pub(super) secret: SecretSettings,
}

/// The variables of one launcher.
struct Names {
    launcher: Launcher,
    rank: &'static str,
    nranks: &'static [&'static str],
    local_rank: &'static [&'static str],
    local_nranks: &'static [&'static str],
    /// Variables that distinguish jobs, and attempts of one job.
    job: &'static [&'static str],
}

const OXCCL: Names = Names {
    launcher: Launcher::Oxccl,
    rank: "OXCCL_RANK",
    nranks: &["OXCCL_NRANKS"],
    local_rank: &["OXCCL_LOCAL_RANK"],
    local_nranks: &["OXCCL_LOCAL_NRANKS"],
    job: &[],
};
const TORCHRUN: Names = Names {
    launcher: Launcher::Torchrun,
    rank: "RANK",
    nranks: &["WORLD_SIZE"],
    local_rank: &["LOCAL_RANK"],
    local_nranks: &["LOCAL_WORLD_SIZE"],
    job: &["TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"],
};
const OPEN_MPI: Names = Names {
    launcher: Launcher::OpenMpi,
    rank: "OMPI_COMM_WORLD_RANK",
    nranks: &["OMPI_COMM_WORLD_SIZE"],
    local_rank: &["OMPI_COMM_WORLD_LOCAL_RANK"],
    local_nranks: &["OMPI_COMM_WORLD_LOCAL_SIZE"],
    job: &["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"],
};
const SLURM: Names = Names {
    launcher: Launcher::Slurm,
    rank: "SLURM_PROCID",
    nranks: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
    local_rank: &["SLURM_LOCALID"],
    local_nranks: &[],
    job: &["SLURM_JOB_ID", "SLURM_STEP_ID"],
};
const MPICH: Names = Names {
    launcher: Launcher::Mpich,
    rank: "PMI_RANK",
    nranks: &["PMI_SIZE"],
    local_rank: &["MPI_LOCALRANKID", "PMI_LOCAL_RANK"],
    local_nranks: &["MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"],
    job: &["PMI_JOBID", "PMI_PORT", "PMI_KVSNAME"],
};

impl LaunchEnv {
    /// Reads this process's environment.
    ///
    /// # Errors
    /// As [`detect`](Self::detect), and [`LaunchError::NoLauncher`] if no launcher is recognised.
    pub fn from_process() -> Result<LaunchEnv, LaunchError> {
        LaunchEnv::detect(&super::config::Config::variable)?.ok_or(LaunchError::NoLauncher)
    }

    /// What the secret is derived from where ranks meet at that address: the same on all ranks.
    pub(super) fn secret_seed(&self, meeting: IpAddr) -> Result<Vec<u8>, LaunchError> {
        self.secret.seed(&self.seed, self.is_on_one_host(meeting), self.rank == 0)
    }

    /// Whether all ranks share a host, as each of them sees it alike.
    fn is_on_one_host(&self, meeting: IpAddr) -> bool {
        // Not every loopback address: hosts resolve their own name to 127.0.1.1, which others resolve to another address.
        let is_loopback = meeting == Ipv4Addr::LOCALHOST || meeting == Ipv6Addr::LOCALHOST;
        is_loopback || self.local_nranks == Some(self.nranks)
    }

    /// Reads the variables of `lookup`; `None` if they are of no launcher. Empty values count as not set.
    ///
    /// # Errors
    /// The first variable of the recognised launcher that is missing or invalid.
    pub fn detect(lookup: &dyn Fn(&str) -> Option<String>) -> Result<Option<LaunchEnv>, LaunchError> {
        let vars = Vars(lookup);
        let Some(names) = vars.launcher() else { return Ok(None) };
        let nranks_name = vars.first(names.nranks).map(|(name, _)| name);
        let because = if vars.get(names.rank).is_some() { names.rank } else { names.nranks[0] };
        let missing = |variable| LaunchError::Missing { launcher: names.launcher, variable, because };
        let rank = vars.number(names.rank)?.ok_or_else(|| missing(names.rank))?;
        let nranks_name = nranks_name.ok_or_else(|| missing(names.nranks[0]))?;
        let nranks = vars.number(nranks_name)?.ok_or_else(|| missing(nranks_name))?;
        check_below(names.rank, rank, nranks_name, nranks)?;
        let (local_rank, local_nranks) = vars.local(&names, nranks)?;
        let mut env = LaunchEnv {
            launcher: names.launcher,
            rank,
            nranks,
            local_rank,
            local_nranks,
            rendezvous: None,
            pmi: None,
            seed: vars.seed(&names),
            secret: SecretSettings::read(&vars)?,
        };
        if nranks > 1 {
            env.pmi = vars.pmi(&names, env.local_nranks == Some(nranks))?;
            env.rendezvous = match &env.pmi {
                None => Some(vars.meeting_point(&names, &env)?),
                // For a host without PMIx's library.
                Some(Pmi::Library { .. }) => vars.meeting_point(&names, &env).ok(),
                Some(_) => None,
            };
        } else {
            // One rank meets nobody, but a typing error is to be found before the job gets a second one.
            vars.named_meeting_point()?;
        }
        Ok(Some(env))
    }

    /// Of an environment that [`detect`](Self::detect) refuses: what is left of it, if that says where the job meets, and the rank and the
    /// number of ranks if both can be used.
    pub(super) fn of_unusable(
        lookup: &dyn Fn(&str) -> Option<String>,
    ) -> Option<(LaunchEnv, Option<(Rank, u32)>)> {
        let vars = Vars(lookup);
        let names = vars.launcher()?;
        let number = |name: Option<&'static str>| name.and_then(|name| vars.number(name).ok().flatten());
        let nranks = number(vars.first(names.nranks).map(|(name, _)| name));
        let rank = number(Some(names.rank));
        let place = rank.zip(nranks).filter(|(rank, nranks)| rank < nranks);
        // A number of ranks to which the rank does not belong says nothing of the job.
        let nranks = place.map(|(_, nranks)| nranks).or(nranks.filter(|nranks| *nranks > 1));
        // Not rank 0, which would warn of a job without a secret.
        let (rank, nranks) = (rank.filter(|rank| *rank > 0).unwrap_or(u32::MAX), nranks.unwrap_or(u32::MAX));
        let (local_rank, local_nranks) = vars.local(&names, nranks).unwrap_or_default();
        let (rendezvous, pmi) = (None, None);
        let (seed, secret) = (vars.seed(&names), SecretSettings::at_hand(&vars));
        let launcher = names.launcher;
        let mut env =
            LaunchEnv { launcher, rank, nranks, local_rank, local_nranks, rendezvous, pmi, seed, secret };
        // The launcher, by whose space ranks learn where they meet, ends the job where one of its processes fails.
        let is_by_launcher = vars.pmi(&names, local_nranks == Some(nranks)).is_ok_and(|pmi| pmi.is_some());
        env.rendezvous = if is_by_launcher { None } else { vars.meeting_point(&names, &env).ok() };
        let is_known = env.nranks > 1 && env.rendezvous.is_some();
        is_known.then_some((env, place.map(|(rank, nranks)| (Rank(rank), nranks))))
    }
}

fn check_below(
    variable: &'static str,
    value: u32,
    limit_variable: &'static str,
    limit: u32,
) -> Result<(), LaunchError> {
    if value < limit {
        return Ok(());
    }
    Err(LaunchError::OutOfRange { variable, value, limit_variable, limit })
}

impl Vars<'_> {
    /// The launcher that applies.
    fn launcher(&self) -> Option<Names> {
        let has = |name: &str| self.get(name).is_some();
        if has("OXCCL_RANK") || has("OXCCL_NRANKS") {
            Some(OXCCL)
        } else if has("RANK") && (has("WORLD_SIZE") || has("MASTER_ADDR")) {
            // RANK alone is a common name; the others alone are often exported for ranks that another launcher counts.
            Some(TORCHRUN)
        } else if has(OPEN_MPI.rank) || has(OPEN_MPI.nranks[0]) {
            Some(OPEN_MPI)
        } else if self.in_slurm_step() && (!has(MPICH.rank) || self.get(MPICH.rank) == self.get(SLURM.rank)) {
            // srun --mpi=pmi2 sets both, and Slurm's have more information. mpiexec inside an allocation is handled
            // as itself.
            Some(SLURM)
        } else if has(MPICH.rank) || has(MPICH.nranks[0]) {
            Some(MPICH)
        } else {
            None
        }
    }

    /// Whether srun started this process. Batch scripts and interactive shells have a SLURM_PROCID as well.
    fn in_slurm_step(&self) -> bool {
        let step = self.get("SLURM_STEP_ID").and_then(|step| step.trim().parse().ok());
        self.get(SLURM.rank).is_some() && step.is_some_and(|step: u32| step < SLURM_STEP_RESERVED)
    }

    fn local(&self, names: &Names, nranks: u32) -> Result<(Option<u32>, Option<u32>), LaunchError> {
        let read = |names| match self.first(names) {
            Some((name, _)) => Ok::<_, LaunchError>(self.number(name)?.map(|number| (name, number))),
            None => Ok(None),
        };
        let rank = read(names.local_rank)?;
        let mut limit = read(names.local_nranks)?;
        if names.launcher == Launcher::Slurm && self.slurm_nodes()? == Some(1) {
            limit = Some(("the number of tasks", nranks));
        }
        if let (Some((variable, value)), Some((limit_variable, limit))) = (rank, limit) {
            check_below(variable, value, limit_variable, limit)?;
        }
        Ok((rank.map(|(_, rank)| rank), limit.map(|(_, limit)| limit)))
    }

    fn slurm_nodes(&self) -> Result<Option<u32>, LaunchError> {
        match self.first(&["SLURM_STEP_NUM_NODES", "SLURM_NNODES"]) {
            Some((name, _)) => self.number(name),
            None => Ok(None),
        }
    }

    fn comm_id(&self) -> Option<(&'static str, String)> {
        self.first(&["OXCCL_COMM_ID", "NCCL_COMM_ID"])
    }

    /// Where the user says that ranks meet.
    fn named_meeting_point(&self) -> Result<Option<MeetingPoint>, LaunchError> {
        let Some((variable, value)) = self.comm_id() else { return Ok(None) };
        let meeting = host_and_port(&value);
        meeting.map(Some).ok_or(LaunchError::Bad { variable, value, expected: "host:port" })
    }

    /// The values that are equal on all ranks of this job and differ in others.
    fn seed(&self, names: &Names) -> Vec<u8> {
        let own = ["MASTER_ADDR", "MASTER_PORT"];
        let mut seed = Vec::new();
        for name in names.job.iter().chain(&own) {
            // The name separates values, and shows which are not set.
            seed.extend_from_slice(format!("{name}={:?};", self.get(name)).as_bytes());
        }
        seed.extend_from_slice(format!("{:?}", self.comm_id().map(|(_, value)| value)).as_bytes());
        seed
    }

    /// The key-value space, unless the user says where ranks meet.
    fn pmi(&self, names: &Names, is_local: bool) -> Result<Option<Pmi>, LaunchError> {
        if self.comm_id().is_some() || self.get("MASTER_ADDR").is_some() {
            return Ok(None);
        }
        let fd = self.number("PMI_FD")?.map(|fd| fd as i32);
        match (names.launcher, fd) {
            (Launcher::Mpich, Some(fd)) => return Ok(Some(Pmi::Inherited(fd))),
            (Launcher::Mpich, None) => {}
            (Launcher::Slurm, Some(fd)) => {
                let job = self.get("PMI_JOBID").unwrap_or_default();
                return Ok(Some(Pmi::Second { fd, job }));
            }
            (Launcher::Slurm | Launcher::OpenMpi, _) if !is_local && self.has_pmix() => {
                return Ok(Some(Pmi::Library { prefix: self.get("PMIX_PREFIX") }));
            }
            _ => return Ok(None),
        }
        let (Some(port), Some(id)) = (self.get("PMI_PORT"), self.number("PMI_ID")?) else { return Ok(None) };
        Ok(Some(Pmi::Address { port, id }))
    }

    /// Whether the launcher speaks PMIx with this process.
    fn has_pmix(&self) -> bool {
        self.get("PMIX_NAMESPACE").is_some() && self.get("PMIX_RANK").is_some()
    }

    fn meeting_point(&self, names: &Names, env: &LaunchEnv) -> Result<MeetingPoint, LaunchError> {
        if let Some(meeting) = self.named_meeting_point()? {
            return Ok(meeting);
        }
        let port = derived_port(&env.seed, self.get("MASTER_PORT").as_deref());
        if let Some(host) = self.get("MASTER_ADDR") {
            return Ok(MeetingPoint { host, port });
        }
        if names.launcher == Launcher::Torchrun {
            let (variable, because) = ("MASTER_ADDR", names.rank);
            return Err(LaunchError::Missing { launcher: names.launcher, variable, because });
        }
        // Without a job's name two jobs on one host would use the same address.
        let has_name = self.first(names.job).is_some();
        if env.local_nranks == Some(env.nranks) && has_name {
            return Ok(MeetingPoint { host: "127.0.0.1".to_owned(), port });
        }
        match names.launcher {
            Launcher::Slurm => self.slurm_first_node().map(|host| MeetingPoint { host, port }),
            launcher => Err(LaunchError::NoMeetingPoint { launcher }),
        }
    }

    /// The host of rank 0: the first node of the step, unless tasks are distributed in an arbitrary order.
    fn slurm_first_node(&self) -> Result<String, LaunchError> {
        let lists: &[&str] = &["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"];
        if let Some((variable, value)) = self.first(lists) {
            let expected = "a list of nodes like gpu[01-04,7],login1";
            return nodelist::first_host(&value).ok_or(LaunchError::Bad { variable, value, expected });
        }
        // srun runs on the first node when a batch script calls it.
        let launch_node = self.get("SLURM_LAUNCH_NODE_IPADDR");
        launch_node.ok_or(LaunchError::NoMeetingPoint { launcher: Launcher::Slurm })
    }
}

/// `host:port`, `1.2.3.4:port` or `[v6]:port`.
fn host_and_port(text: &str) -> Option<MeetingPoint> {
    let (host, port) = text.trim().rsplit_once(':')?;
    let port = port.parse().ok().filter(|&port| port != 0)?;
    let host = match host.strip_prefix('[') {
        Some(v6) => v6.strip_suffix(']')?,
        None if host.contains(':') => return None,
        None => host,
    };
    (!host.is_empty()).then(|| MeetingPoint { host: host.to_owned(), port })
}

/// A port that all ranks of the job derive, other than that of `taken`.
fn derived_port(seed: &[u8], taken: Option<&str>) -> u16 {
    let [a, b, c, d, ..] = <[u8; 32]>::from(Sha256::digest(seed));
    let offset = u32::from_le_bytes([a, b, c, d]) % PORTS;
    let port = PORT_FIRST + offset as u16;
    let is_taken = taken.and_then(|taken| taken.trim().parse().ok()) == Some(port);
    if is_taken { PORT_FIRST + ((offset + 1) % PORTS) as u16 } else { port }
}

/// Omits the seed and the secret.
impl fmt::Debug for LaunchEnv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaunchEnv")
            .field("launcher", &self.launcher)
            .field("rank", &self.rank)
            .field("nranks", &self.nranks)
            .field("local_rank", &self.local_rank)
            .field("local_nranks", &self.local_nranks)
            .field("rendezvous", &self.rendezvous)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;

//! Tables of environments and what they mean.

use super::*;

/// Reads `A=1 B=2`.
fn detect(vars: &str) -> Result<Option<LaunchEnv>, LaunchError> {
    let vars: Vec<(&str, &str)> = vars.split_whitespace().filter_map(|var| var.split_once('=')).collect();
    let lookup = |name: &str| vars.iter().find(|(var, _)| *var == name).map(|(_, value)| (*value).to_owned());
    LaunchEnv::detect(&lookup)
}

fn good(vars: &str) -> LaunchEnv {
    detect(vars)
        .unwrap_or_else(|error| panic!("{vars}: {error}"))
        .unwrap_or_else(|| panic!("{vars}: no launcher"))
}

const TORCH: &str = "RANK=3 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=head MASTER_PORT=29500";
const OMPI: &str = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 \
                    OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=job-7@1";
const SRUN: &str = "SLURM_PROCID=5 SLURM_NTASKS=8 SLURM_LOCALID=1 SLURM_JOB_ID=77 SLURM_STEP_ID=0 SLURM_NNODES=2 \
                    SLURM_STEP_NODELIST=gpu[07-08]";

#[test]
fn every_launcher_is_understood() {
    for (vars, launcher, place, local, host) in [
        ("OXCCL_RANK=0 OXCCL_NRANKS=2 NCCL_COMM_ID=h:9", Launcher::Oxccl, (0, 2), (None, None), "h"),
        (TORCH, Launcher::Torchrun, (3, 8), (Some(1), Some(2)), "head"),
        (OMPI, Launcher::OpenMpi, (1, 2), (Some(1), Some(2)), "127.0.0.1"),
        (SRUN, Launcher::Slurm, (5, 8), (Some(1), None), "gpu07"),
        (
            "PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 PMI_PORT=host:33445",
            Launcher::Mpich,
            (1, 2),
            (Some(1), Some(2)),
            "127.0.0.1",
        ),
    ] {
        let env = good(vars);
        assert_eq!(env.launcher, launcher, "{vars}");
        assert_eq!((env.rank, env.nranks), place, "{vars}");
        assert_eq!((env.local_rank, env.local_nranks), local, "{vars}");
        assert_eq!(env.rendezvous.map(|meeting| meeting.host).as_deref(), Some(host), "{vars}");
    }
}

#[test]
fn the_first_launcher_of_the_order_wins() {
    let all = format!("{SRUN} PMI_RANK=5 PMI_SIZE=8 {OMPI} {TORCH} OXCCL_RANK=0 OXCCL_NRANKS=1");
    assert_eq!(good(&all).launcher, Launcher::Oxccl);
    assert_eq!(good(&format!("{SRUN} {OMPI} {TORCH}")).launcher, Launcher::Torchrun);
    assert_eq!(good(&format!("{SRUN} {OMPI} WORLD_SIZE=2 MASTER_ADDR=head")).launcher, Launcher::OpenMpi);
    assert_eq!(good(&format!("{SRUN} PMI_RANK=5 PMI_SIZE=8")).launcher, Launcher::Slurm);
    let mpiexec_in_slurm = format!("{SRUN} PMI_RANK=0 PMI_SIZE=4 NCCL_COMM_ID=h:9");
    assert_eq!(good(&mpiexec_in_slurm).launcher, Launcher::Mpich);
}

#[test]
fn what_is_no_parallel_launch_is_none() {
    for vars in [
        "",
        "RANK=3",
        "WORLD_SIZE=8 MASTER_ADDR=h",
        "SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_JOB_ID=7",
        "SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_STEP_ID=4294967291",
        "OXCCL_RANK=",
    ] {
        assert_eq!(detect(vars), Ok(None), "{vars}");
    }
}

#[test]
fn bad_values_name_the_variable_the_value_and_what_was_expected() {
    for (vars, message) in [
        ("OXCCL_RANK=x OXCCL_NRANKS=2", "OXCCL_RANK is \"x\", expected a whole number from 0"),
        ("OXCCL_RANK=-1 OXCCL_NRANKS=2", "OXCCL_RANK is \"-1\", expected a whole number from 0"),
        ("OXCCL_RANK=1", "OXCCL_NRANKS is not set, but OXCCL_RANK is; OxCCL's convention sets both"),
        ("OXCCL_NRANKS=1", "OXCCL_RANK is not set, but OXCCL_NRANKS is; OxCCL's convention sets both"),
        ("RANK=8 WORLD_SIZE=8 MASTER_ADDR=h", "RANK is 8, expected less than WORLD_SIZE, which is 8"),
        ("RANK=0 MASTER_ADDR=h", "WORLD_SIZE is not set, but RANK is; torchrun sets both"),
        ("RANK=0 WORLD_SIZE=2", "MASTER_ADDR is not set, but RANK is; torchrun sets both"),
        (
            "RANK=0 WORLD_SIZE=2 LOCAL_RANK=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=h",
            "LOCAL_RANK is 2, expected less than LOCAL_WORLD_SIZE, which is 2",
        ),
        (
            "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=9999999999",
            "OMPI_COMM_WORLD_SIZE is \"9999999999\", expected a whole number from 0",
        ),
        ("OXCCL_RANK=0 OXCCL_NRANKS=2 NCCL_COMM_ID=h", "NCCL_COMM_ID is \"h\", expected host:port"),
        // Passed without a word.
        ("OXCCL_RANK=0 OXCCL_NRANKS=1 NCCL_COMM_ID=h", "NCCL_COMM_ID is \"h\", expected host:port"),
        ("OXCCL_RANK=0 OXCCL_NRANKS=1 OXCCL_COMM_ID=h:x", "OXCCL_COMM_ID is \"h:x\", expected host:port"),
        ("OXCCL_RANK=0 OXCCL_NRANKS=2 OXCCL_COMM_ID=:9", "OXCCL_COMM_ID is \":9\", expected host:port"),
        ("OXCCL_RANK=0 OXCCL_NRANKS=2 NCCL_COMM_ID=h:0", "NCCL_COMM_ID is \"h:0\", expected host:port"),
        ("OXCCL_RANK=0 OXCCL_NRANKS=2 NCCL_COMM_ID=::1:9", "NCCL_COMM_ID is \"::1:9\", expected host:port"),
        (
            "SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=gpu[",
            "SLURM_STEP_NODELIST is \"gpu[\", expected a list of nodes like gpu[01-04,7],login1",
        ),
    ] {
        assert_eq!(detect(vars).map_err(|error| error.to_string()), Err(message.to_owned()), "{vars}");
    }
}

#[test]
fn ranks_on_several_hosts_need_a_meeting_point() {
    let several =
        "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=j";
    let launcher = Launcher::OpenMpi;
    assert_eq!(detect(several), Err(LaunchError::NoMeetingPoint { launcher }));
    let meeting = |vars: &str| good(vars).rendezvous.map(|meeting| (meeting.host, meeting.port));
    assert_eq!(meeting(&format!("{several} NCCL_COMM_ID=[fe80::1]:9")), Some(("fe80::1".into(), 9)));
    assert_eq!(meeting(&format!("{several} MASTER_ADDR=head")).map(|(host, _)| host), Some("head".into()));
    // Two jobs without names on one host would use the same address.
    let nameless = "PMI_RANK=0 PMI_SIZE=2 MPI_LOCALNRANKS=2";
    assert_eq!(detect(nameless), Err(LaunchError::NoMeetingPoint { launcher: Launcher::Mpich }));
}

#[test]
fn the_launchers_key_value_space_is_used_unless_the_user_says_where_ranks_meet() {
    let pmi2 = format!("{SRUN} PMI_FD=7 PMI_RANK=5 PMI_SIZE=8 PMI_JOBID=77.0");
    assert_eq!(good(&pmi2).pmi, Some(Pmi::Second { fd: 7, job: "77.0".into() }));
    let several = OMPI.replace("LOCAL_SIZE=2", "LOCAL_SIZE=1").replace("LOCAL_RANK=1", "LOCAL_RANK=0");
    let pmix = format!("{several} PMIX_RANK=1 PMIX_PREFIX=/opt/prrte");
    let by_library = good(&pmix);
    assert_eq!(by_library.pmi, Some(Pmi::Library { prefix: Some("/opt/prrte".into()) }));
    // Without the library, ranks of Open MPI on several hosts do not know where they meet; Slurm's do.
    assert_eq!(by_library.rendezvous, None);
    assert!(good(&format!("{SRUN} PMIX_NAMESPACE=slurm.77.0 PMIX_RANK=5")).rendezvous.is_some());
    // One host has this user's key.
    assert_eq!(good(&format!("{OMPI} PMIX_RANK=1")).pmi, None);
    for vars in [pmi2, pmix] {
        for own in ["MASTER_ADDR=head", "NCCL_COMM_ID=head:9"] {
            assert_eq!(good(&format!("{vars} {own}")).pmi, None, "{vars} {own}");
        }
    }
}

#[test]
fn slurm_on_one_node_meets_on_the_loopback() {
    let env = good(&SRUN.replace("SLURM_NNODES=2", "SLURM_NNODES=1"));
    assert_eq!(
        (env.local_nranks, env.rendezvous.map(|meeting| meeting.host)),
        (Some(8), Some("127.0.0.1".into()))
    );
}

#[test]
fn a_single_rank_meets_nobody() {
    assert_eq!(good("OXCCL_RANK=0 OXCCL_NRANKS=1").rendezvous, None);
}

#[test]
fn ranks_of_a_job_agree_and_jobs_differ() {
    let of = |vars: &str| {
        let env = good(vars);
        (env.rendezvous, env.seed, env.secret)
    };
    assert_eq!(of(TORCH), of(&TORCH.replace("RANK=3", "RANK=4").replace("LOCAL_RANK=1", "LOCAL_RANK=0")));
    assert_eq!(of(SRUN), of(&SRUN.replace("PROCID=5", "PROCID=0")));
    for other in ["TORCHELASTIC_RUN_ID=b", "TORCHELASTIC_RESTART_COUNT=1", "OXCCL_COMM_SECRET=x"] {
        assert_ne!(of(TORCH), of(&format!("{TORCH} {other}")), "{other}");
    }
    assert_ne!(of(SRUN), of(&SRUN.replace("STEP_ID=0", "STEP_ID=1")));
}

#[test]
fn derived_ports_are_in_their_range_and_not_torchs_own() {
    for job in 0..500u32 {
        let seed = job.to_le_bytes();
        let port = derived_port(&seed, None);
        assert!((20_000..30_000).contains(&port));
        let other = derived_port(&seed, Some(&port.to_string()));
        assert!(other != port && (20_000..30_000).contains(&other));
    }
}

#[test]
fn debug_hides_the_seed() {
    let shown = format!("{:?}", good(&format!("{TORCH} OXCCL_COMM_SECRET=hunter2")));
    assert!(shown.contains("head") && !shown.contains("hunter2") && !shown.contains("104, 117"), "{shown}");
}

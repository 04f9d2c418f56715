//! The environments of launchers, set by hand: the processes find each other and work.

use oxccl_tests::process::{Job, Launch, SOON};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const RANK: &str = env!("CARGO_BIN_EXE_oxccl-rank");

/// Starts `nranks` processes that know each other only through `variables`, and expects them to form a communicator
/// in which each has the rank of its environment.
fn form(nranks: u32, variables: impl Fn(u32) -> Vec<(&'static str, String)>) {
    let mut job = Job::new();
    for rank in 0..nranks {
        let mut launch = Launch::without_id(RANK, 99).id("env");
        for (name, value) in variables(rank) {
            launch = launch.env(name, &value);
        }
        // The numbers of the command line are wrong on purpose.
        job.ranks.push(launch.spawn(77, "join check drop tidy"));
    }
    for (rank, process) in job.ranks.iter_mut().enumerate() {
        let joined = process.line("joined", SOON);
        assert!(joined.text.starts_with(&format!("joined {rank} {nranks} ")), "{}", joined.text);
        let status = process.end(SOON);
        assert!(status.success(), "{}", process.transcript());
    }
    job.assert_no_files_left();
}

/// A job's name that no other run of any test has.
fn job_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let started = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{}{:09}{number}", std::process::id(), started.subsec_nanos())
}

/// An unused port of the loopback. It is none of those that Linux gives to who names none, 32768 to 60999 as a rule: before a job listens there, a
/// process of another test might have been given it. Tests run in processes of their own, so that each begins elsewhere.
pub(super) fn free_port() -> u16 {
    const PORTS: std::ops::Range<u16> = 20_000..29_000;
    let first = (std::process::id() % PORTS.len() as u32) as u16;
    let mut all = PORTS.clone().skip(first.into()).chain(PORTS);
    let is_free = |port: &u16| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok();
    all.find(is_free).expect("the loopback has free ports")
}

#[test]
fn by_hand() {
    for variable in ["OXCCL_COMM_ID", "NCCL_COMM_ID"] {
        let meeting = format!("127.0.0.1:{}", free_port());
        form(3, |rank| {
            vec![
                ("OXCCL_RANK", rank.to_string()),
                ("OXCCL_NRANKS", "3".to_owned()),
                (variable, meeting.clone()),
            ]
        });
    }
}

/// Rank 0's process runs the root: what the others know is that this rank is gone, or does not answer. They named nobody.
#[test]
fn rank_0_is_named_where_it_dies_or_stands_still_while_ranks_come() {
    use rustix::process::Signal;
    for (signal, kind) in [(Signal::KILL, "PeerDied"), (Signal::STOP, "Timeout")] {
        let port = free_port();
        let launch = |rank: u32| {
            Launch::without_id(RANK, 99)
                .id("env")
                .env("OXCCL_RANK", &rank.to_string())
                .env("OXCCL_NRANKS", "4")
                .env("OXCCL_COMM_ID", &format!("127.0.0.1:{port}"))
                .env("OXCCL_BOOTSTRAP_TIMEOUT", "1.5")
        };
        let mut job = Job::new();
        (0..3).for_each(|rank| job.ranks.push(launch(rank).spawn(rank, "join drop tidy")));
        // Rank 3 does not come.
        std::thread::sleep(Duration::from_millis(700));
        job.ranks[0].signal(signal);
        for rank in &mut job.ranks[1..] {
            let failure = rank.failure(SOON);
            assert_eq!((failure.kind.as_str(), &failure.guilty[..]), (kind, &[0][..]), "{failure:?}");
        }
        job.ranks[0].kill();
    }
}

/// The others waited until the time of the bootstrap was over, and heard only that a rank never came.
#[test]
fn a_process_whose_environment_cannot_be_used_ends_the_wait_of_all() {
    for (wrong, variable, value, said) in [
        (1, "OXCCL_RANK", "3", "OXCCL_RANK is 3, expected less than OXCCL_NRANKS, which is 3"),
        (2, "OXCCL_RANK", "two", "OXCCL_RANK is \"two\", expected a whole number from 0"),
        (1, "OXCCL_NRANKS", "many", "OXCCL_NRANKS is \"many\", expected a whole number from 0"),
        (2, "OXCCL_NRANKS", "1", "OXCCL_RANK is 2, expected less than OXCCL_NRANKS, which is 1"),
        // What a terminal would obey is said, not sent there.
        (1, "OXCCL_REQUIRE_SECRET", "\u{1b}c", "OXCCL_REQUIRE_SECRET is \"\\u{1b}c\", expected 0 or 1"),
        // Without it nobody runs the root.
        (0, "OXCCL_RANK", "first", "OXCCL_RANK is \"first\", expected a whole number from 0"),
    ] {
        let meeting = format!("127.0.0.1:{}", free_port());
        let mut job = Job::new();
        for rank in 0..3 {
            let launch = Launch::without_id(RANK, 99).id("env").env("OXCCL_COMM_ID", &meeting);
            let launch = launch.env("OXCCL_BOOTSTRAP_TIMEOUT", "60").env("OXCCL_COMM_SECRET", "of this test");
            let launch = launch.env("OXCCL_RANK", &rank.to_string()).env("OXCCL_NRANKS", "3");
            let launch = if rank == wrong { launch.env(variable, value) } else { launch };
            job.ranks.push(launch.spawn(rank, "join"));
        }
        for (rank, process) in (0..).zip(&mut job.ranks) {
            let failure = process.failure(SOON);
            assert!(failure.text.contains(said), "{failure:?}");
            assert_eq!(failure.kind == "Launch", rank == wrong, "{failure:?}");
            process.end(SOON);
        }
    }
}

#[test]
fn torchrun() {
    let (name, port) = (job_name(), free_port());
    form(3, |rank| {
        vec![
            ("RANK", rank.to_string()),
            ("WORLD_SIZE", "3".to_owned()),
            ("LOCAL_RANK", rank.to_string()),
            ("LOCAL_WORLD_SIZE", "3".to_owned()),
            ("MASTER_ADDR", "127.0.0.1".to_owned()),
            ("MASTER_PORT", port.to_string()),
            ("TORCHELASTIC_RUN_ID", name.clone()),
            ("TORCHELASTIC_RESTART_COUNT", "0".to_owned()),
        ]
    });
}

#[test]
fn open_mpi() {
    let name = job_name();
    form(2, |rank| {
        vec![
            ("OMPI_COMM_WORLD_RANK", rank.to_string()),
            ("OMPI_COMM_WORLD_SIZE", "2".to_owned()),
            ("OMPI_COMM_WORLD_LOCAL_RANK", rank.to_string()),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2".to_owned()),
            ("PMIX_NAMESPACE", name.clone()),
        ]
    });
}

#[test]
fn slurm() {
    let name = job_name();
    form(3, |rank| {
        vec![
            ("SLURM_JOB_ID", name.clone()),
            ("SLURM_STEP_ID", "0".to_owned()),
            ("SLURM_PROCID", rank.to_string()),
            ("SLURM_LOCALID", rank.to_string()),
            ("SLURM_STEP_NUM_TASKS", "3".to_owned()),
            ("SLURM_STEP_NUM_NODES", "1".to_owned()),
            ("SLURM_STEP_NODELIST", "localhost".to_owned()),
        ]
    });
}

#[test]
fn mpich() {
    let name = job_name();
    form(2, |rank| {
        vec![
            ("PMI_RANK", rank.to_string()),
            ("PMI_SIZE", "2".to_owned()),
            ("MPI_LOCALRANKID", rank.to_string()),
            ("MPI_LOCALNRANKS", "2".to_owned()),
            ("PMI_JOBID", name.clone()),
        ]
    });
}

/// A second communicator of the same job meets at the same place right after the first.
#[test]
fn the_same_meeting_point_again_at_once() {
    let meeting = format!("127.0.0.1:{}", free_port());
    for _ in 0..3 {
        form(2, |rank| {
            vec![
                ("OXCCL_RANK", rank.to_string()),
                ("OXCCL_NRANKS", "2".to_owned()),
                ("NCCL_COMM_ID", meeting.clone()),
            ]
        });
    }
}

/// Every variable of a launcher that is missing or senseless is named.
#[test]
fn environments_that_cannot_be_used() {
    let cases: [(&[(&str, &str)], &str); 12] = [
        (&[], "no launcher"),
        (&[("OXCCL_RANK", "0")], "OXCCL_NRANKS"),
        (&[("OXCCL_NRANKS", "2")], "OXCCL_RANK"),
        (&[("OXCCL_RANK", "x"), ("OXCCL_NRANKS", "2")], "OXCCL_RANK"),
        (&[("OXCCL_RANK", "2"), ("OXCCL_NRANKS", "2")], "OXCCL_RANK"),
        (&[("OXCCL_RANK", "0"), ("OXCCL_NRANKS", "2"), ("NCCL_COMM_ID", "here")], "NCCL_COMM_ID"),
        (&[("OXCCL_RANK", "0"), ("OXCCL_NRANKS", "2")], "NCCL_COMM_ID"),
        (&[("RANK", "0"), ("WORLD_SIZE", "2")], "MASTER_ADDR"),
        (&[("RANK", "0"), ("WORLD_SIZE", "-2"), ("MASTER_ADDR", "127.0.0.1")], "WORLD_SIZE"),
        (&[("OMPI_COMM_WORLD_RANK", "0")], "OMPI_COMM_WORLD_SIZE"),
        (&[("SLURM_PROCID", "7"), ("SLURM_STEP_ID", "0"), ("SLURM_NTASKS", "4")], "SLURM_PROCID"),
        (&[("PMI_RANK", "1"), ("PMI_SIZE", "many")], "PMI_SIZE"),
    ];
    for (variables, named) in cases {
        let mut launch = Launch::without_id(RANK, 1).id("env");
        for (name, value) in variables {
            launch = launch.env(name, value);
        }
        let mut process = launch.spawn(0, "join");
        let failure = process.failure(SOON);
        assert_eq!(failure.kind, "Launch", "{failure:?}");
        assert!(failure.text.contains(named), "{variables:?}: {failure:?}");
        assert_eq!(process.end(SOON).code(), Some(1));
    }
}

/// Under MPICH's own launcher, if this machine has it: ranks learn the id from its key-value space.
#[test]
fn mpichs_own_launcher() {
    let Some(launcher) = ["mpiexec.hydra", "mpiexec.mpich"].into_iter().find(|name| is_there(name)) else {
        return eprintln!("skipped: MPICH is not installed (apt-get install mpich)");
    };
    three_ranks_join(Command::new(launcher).args(["-n", "3", RANK]));
}

/// Under Open MPI's own launcher, which does not say here that all ranks are on one host: they learn the id by PMIx.
#[test]
fn open_mpis_own_launcher_by_pmix() {
    let cache = Command::new("/sbin/ldconfig").arg("-p").output().map(|output| output.stdout);
    let has_library = String::from_utf8_lossy(&cache.unwrap_or_default()).contains("libpmix.so.2");
    if !is_there("mpirun") || !has_library {
        return eprintln!("skipped: Open MPI is not installed (apt-get install openmpi-bin libpmix2)");
    }
    let mut command = Command::new("mpirun");
    command.args(["--allow-run-as-root", "--oversubscribe", "-n", "3"]);
    three_ranks_join(command.args(["env", "-u", "OMPI_COMM_WORLD_LOCAL_SIZE", RANK]));
}

fn three_ranks_join(launcher: &mut Command) {
    launcher.args(["77", "99", "env", "join", "check", "drop"]).stdin(Stdio::null());
    let output = launcher.output().expect("it is there");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    for rank in 0..3 {
        assert!(said.contains(&format!("joined {rank} 3 ")), "{said}");
    }
}

fn is_there(program: &str) -> bool {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|folder| folder.join(program).is_file())
}

//! Jobs over several hosts, started as users start them: by mpirun, and with the environment of torchrun.
//!
//! The hosts are network namespaces with names of their own; mpirun reaches them by an agent that enters them in
//! place of ssh. Without root's privileges or without Open MPI the tests print that they were skipped.

use oxccl_tests::hosts::{Hosts, INTERFACE};
use oxccl_tests::process::{Job, Launch};
use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const RANK: &str = env!("CARGO_BIN_EXE_oxccl-rank");
const RANKS_PER_HOST: u32 = 2;
/// Where rank 0 waits for the others. Namespaces are new, so it is free.
const PORT: u16 = 29_400;
const STEPS: &str = "join check drop tidy";
/// For four ranks and a launcher on a machine with two processors that does other things.
const PATIENCE: Duration = Duration::from_secs(120);

/// The hosts; without privileges, prints a line and returns none.
fn hosts(tag: &str, count: u32) -> Option<Hosts> {
    Hosts::new(tag, count).inspect_err(|why| println!("skipped: no network namespaces here: {why}")).ok()
}

fn has_open_mpi() -> bool {
    let version = Command::new("mpirun").arg("--version").output();
    let is_there = version.is_ok_and(|said| String::from_utf8_lossy(&said.stdout).contains("Open MPI"));
    if !is_there {
        println!("skipped: there is no mpirun of Open MPI here");
    }
    is_there
}

/// Writes what mpirun calls in the place of ssh: `agent ADDRESS COMMAND...`.
fn write_agent(hosts: &Hosts, folder: &Path) -> PathBuf {
    let mut script = "#!/bin/sh\nhost=$1; shift\ncase $host in\n".to_owned();
    for host in 0..hosts.count() {
        // As ssh does it: the words are a line of the shell there.
        let words: Vec<String> = hosts.on_machine(host).iter().map(|word| format!("'{word}'")).collect();
        let _ = writeln!(script, "{}) exec {} sh -c \"$*\" ;;", hosts.address(host), words.join(" "));
    }
    script.push_str("*) echo \"no host $host\" >&2; exit 1 ;;\nesac\n");
    let agent = folder.join("agent");
    std::fs::write(&agent, script).expect("the folder is ours");
    std::fs::set_permissions(&agent, PermissionsExt::from_mode(0o755)).expect("the file is ours");
    agent
}

/// Starts two ranks on every host by mpirun, on the first host, and expects of all that they find each other and do everything.
fn by_mpirun(tag: &str, count: u32, env: &[(&str, &str)]) {
    let Some(hosts) = hosts(tag, count).filter(|_| has_open_mpi()) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let agent = write_agent(&hosts, folder.path());
    let places: Vec<String> =
        (0..count).map(|host| format!("{}:{RANKS_PER_HOST}", hosts.address(host))).collect();
    let meeting = format!("{}:{PORT}", hosts.address(0));
    let mut mpirun = format!("mpirun --allow-run-as-root --oversubscribe --host {} ", places.join(","));
    let _ = write!(mpirun, "--mca plm_rsh_agent {} ", agent.display());
    let _ = write!(mpirun, "--mca oob_tcp_if_include {INTERFACE} -x NCCL_COMM_ID={meeting} ");
    let variables = [("NCCL_SOCKET_IFNAME", INTERFACE), ("OXCCL_BOOTSTRAP_TIMEOUT", "60")];
    for (name, value) in variables.iter().chain(env) {
        let _ = write!(mpirun, "-x {name}={value} ");
    }
    let mut under = hosts.on_machine(0);
    under.extend(mpirun.split_whitespace().map(str::to_owned));
    // The numbers of the command line are wrong on purpose: the launcher's count.
    let launch = Launch::without_id(RANK, 99).id("env").under(under);
    let launch = launch.env("TMPDIR", &folder.path().to_string_lossy());
    let mut job = launch.spawn(77, STEPS);
    let nranks = count * RANKS_PER_HOST;
    (0..nranks).for_each(|_| drop(job.line("checked", PATIENCE)));
    let status = job.end(PATIENCE);
    assert!(status.success(), "{status}: {}", job.transcript());
    let said = job.transcript();
    for rank in 0..nranks {
        assert!(said.contains(&format!("joined {rank} {nranks} ")), "rank {rank} of {nranks}: {said}");
    }
}

#[test]
fn mpirun_over_two_hosts() {
    by_mpirun("mpi2", 2, &[]);
}

#[test]
fn mpirun_over_three_hosts_and_a_network() {
    by_mpirun("mpi3", 3, &[("NCCL_NET", "Socket")]);
}

/// The environment of torchrun on every host of a job; the ranks share no other information.
#[test]
fn the_environment_of_torchrun_over_two_hosts() {
    let Some(hosts) = hosts("torch", 2) else { return };
    let nranks = hosts.count() * RANKS_PER_HOST;
    let mut job = Job::new();
    for rank in 0..nranks {
        let (host, local_rank) = (rank / RANKS_PER_HOST, rank % RANKS_PER_HOST);
        let variables = [
            ("RANK", rank.to_string()),
            ("WORLD_SIZE", nranks.to_string()),
            ("LOCAL_RANK", local_rank.to_string()),
            ("LOCAL_WORLD_SIZE", RANKS_PER_HOST.to_string()),
            ("GROUP_RANK", host.to_string()),
            ("MASTER_ADDR", hosts.address(0)),
            ("MASTER_PORT", PORT.to_string()),
            ("TORCHELASTIC_RUN_ID", "several-hosts".to_owned()),
            ("TORCHELASTIC_RESTART_COUNT", "0".to_owned()),
            ("NCCL_SOCKET_IFNAME", INTERFACE.to_owned()),
        ];
        let launch = Launch::without_id(RANK, 99).id("env").under(hosts.on_machine(host));
        let launch = variables.iter().fold(launch, |launch, (name, value)| launch.env(name, value));
        job.ranks.push(launch.spawn(77, STEPS));
    }
    for (rank, process) in job.ranks.iter_mut().enumerate() {
        let joined = process.line("joined", PATIENCE);
        assert!(joined.text.starts_with(&format!("joined {rank} {nranks} ")), "{}", joined.text);
        let status = process.end(PATIENCE);
        assert!(status.success(), "{status}: {}", process.transcript());
    }
}

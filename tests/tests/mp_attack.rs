//! Strangers: at the ports of the bootstrap they are refused, in the log, and the ranks notice nothing; a user of the same machine
//! cannot take the names of a job's files.

use oxccl_tests::process::{Job, Launch, Process, SOON};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

const RANK: &str = env!("CARGO_BIN_EXE_oxccl-rank");

/// The TCP ports at which a process listens, by its descriptors and the kernel's table of sockets.
fn listening_ports(pid: u32) -> BTreeSet<u16> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let sockets: BTreeSet<String> = entries
        .filter_map(|entry| std::fs::read_link(entry.path()).ok()?.to_str().map(str::to_owned))
        .filter_map(|target| Some(target.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    let table = std::fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap_or_default();
    let listening = |line: &str| {
        // Columns: number, local address, remote address, state (0A: listening), ..., inode in the tenth.
        let columns: Vec<&str> = line.split_whitespace().collect();
        let [_, local, _, "0A", ..] = columns.as_slice() else { return None };
        sockets.contains(*columns.get(9)?).then_some(())?;
        u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok()
    };
    table.lines().filter_map(listening).collect()
}

/// Waits until the process listens at so many ports.
fn await_ports(process: &Process, count: usize) -> BTreeSet<u16> {
    let deadline = Instant::now() + SOON;
    loop {
        let ports = listening_ports(process.pid());
        if ports.len() >= count {
            return ports;
        }
        assert!(Instant::now() < deadline, "it listens at {ports:?} only");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Every way to knock that a scanner, another program or an enemy may have. Connections that are kept open are returned.
fn knock(port: u16) -> Vec<TcpStream> {
    let connect = || {
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let stream = TcpStream::connect_timeout(&addr, Duration::from_secs(1)).ok()?;
        stream.set_read_timeout(Some(Duration::from_millis(100))).ok()?;
        stream.set_write_timeout(Some(Duration::from_millis(100))).ok()?;
        Some(stream)
    };
    // A scanner connects and goes.
    for _ in 0..20 {
        drop(connect());
    }
    let noise: Vec<u8> = (0..1 << 16).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let words: [&[u8]; 6] = [
        b"GET / HTTP/1.1\r\nHost: root\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        &[0; 4096],
        &[0xff; 4096],
        &noise,
        b"O",
    ];
    let mut kept = Vec::new();
    for word in words {
        let Some(mut stream) = connect() else { continue };
        // A refusal may come in the middle of what we write.
        let _ = stream.write_all(word);
        let _ = stream.read(&mut [0; 64]);
        kept.push(stream);
    }
    // Silent connections occupy an entry and send nothing.
    kept.extend((0..40).filter_map(|_| connect()));
    kept
}

/// Every port of the job is knocked at while one rank is yet to come; it then comes, and all is well.
#[test]
fn strangers_at_every_port_while_ranks_join() {
    let launch = Launch::without_id(RANK, 3);
    let mut job = Job::new();
    job.ranks.push(launch.spawn(0, "join check ask drop tidy"));
    let id = job.ranks[0].line("id ", SOON).text["id ".len()..].to_owned();
    let launch = launch.id(&id);
    job.ranks.push(launch.spawn(1, "join check ask drop tidy"));
    // Rank 0 has the root's port and its own.
    let mut ports = await_ports(&job.ranks[0], 2);
    ports.extend(await_ports(&job.ranks[1], 1));
    let kept: Vec<TcpStream> = ports.iter().flat_map(|port| knock(*port)).collect();
    assert!(kept.len() > 100, "{} connections at {ports:?}", kept.len());
    let came = Instant::now();
    job.ranks.push(launch.spawn(2, "join check ask drop tidy"));
    job.all_print("joined");
    println!(
        "joined {:.1} ms after the last rank came, among {} strangers",
        came.elapsed().as_secs_f64() * 1e3,
        kept.len()
    );
    assert!(came.elapsed() < Duration::from_secs(3), "{:?}", came.elapsed());
    job.all_print("checked");
    drop(kept);
    job.ranks.iter_mut().for_each(|rank| rank.say(""));
    job.all_succeed();
    for rank in &job.ranks[..2] {
        assert!(rank.errors().contains("refused a connection"), "{}", rank.transcript());
    }
}

/// The ranks listen as long as the communicator lives.
#[test]
fn strangers_while_ranks_work() {
    let mut job = Launch::new(RANK, 2).start("join check ask check ask drop tidy");
    job.all_print("checked");
    let ports: BTreeSet<u16> = job.ranks.iter().flat_map(|rank| listening_ports(rank.pid())).collect();
    assert_eq!(ports.len(), 2, "{ports:?}");
    let kept: Vec<TcpStream> = ports.iter().flat_map(|port| knock(*port)).collect();
    job.ranks.iter_mut().for_each(|rank| rank.say(""));
    job.all_print("checked");
    // Each said six things that no rank says; those that are silent are refused later.
    for rank in &job.ranks {
        let found =
            oxccl::status::ask::processes().unwrap().into_iter().find(|found| found.pid == rank.pid());
        let report = found.unwrap().status(0, Duration::ZERO, SOON).unwrap();
        let refusals = report.communicators[0].refusals;
        assert!((6..=66).contains(&refusals), "{refusals}");
    }
    drop(kept);
    job.ranks.iter_mut().for_each(|rank| rank.say(""));
    job.all_succeed();
    assert!(job.ranks[0].errors().contains("refused a connection"), "{}", job.ranks[0].transcript());
}

/// A rank dies while strangers hold connections: that does not keep the others from hearing of it.
#[test]
fn a_death_among_strangers_is_heard_of() {
    let mut job = Launch::new(RANK, 3).start("join idle after drop");
    job.all_print("step idle");
    let ports: BTreeSet<u16> = job.ranks.iter().flat_map(|rank| listening_ports(rank.pid())).collect();
    let _kept: Vec<TcpStream> = ports.iter().flat_map(|port| knock(*port)).collect();
    let killed_at = job.ranks[1].kill();
    for rank in job.without(&[1]) {
        let failure = rank.failure(SOON);
        assert_eq!((failure.kind.as_str(), failure.guilty.as_slice()), ("PeerDied", &[1][..]), "{failure:?}");
        assert!(failure.at.saturating_duration_since(killed_at) < Duration::from_secs(1));
        assert!(rank.end(SOON).success());
    }
}

/// Another user of this machine.
const STRANGER: u32 = 65_534;

/// Watches for files of jobs, and takes all names that differ from theirs in the rank. It removes what it made when told to end.
const TAKE_NAMES: &str = r#"
    trap 'rm -f $made; exit 0' TERM
    set -C
    echo ready
    while :; do
        for file in /dev/shm/oxccl-0-*-*; do
            for rank in 0 1 2 3 4 5 6 7; do
                name=${file%-*}-$rank
                [ -e "$name" ] || { { : > "$name"; } 2> /dev/null && made="$made $name"; }
            done
        done
    done
"#;

/// A user who runs while jobs start.
struct Stranger(std::process::Child);

impl Stranger {
    fn start() -> Stranger {
        use std::os::unix::process::CommandExt;
        let mut command = std::process::Command::new("/bin/sh");
        command.args(["-c", TAKE_NAMES]).uid(STRANGER).gid(STRANGER).current_dir("/");
        let mut child = command.stdout(std::process::Stdio::piped()).spawn().expect("a shell");
        let mut ready = [0; 6];
        child.stdout.take().expect("a pipe").read_exact(&mut ready).expect("its first line");
        Stranger(child)
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        // SAFETY: the child has not been waited for, so its id is still its own.
        unsafe { libc::kill(self.0.id() as i32, libc::SIGTERM) };
        let _ = self.0.wait();
    }
}

/// The names of a job's files do not follow from each other: whoever sees one cannot take the next before its rank comes. Needs a
/// second user, so only root can try it.
#[test]
fn another_user_who_takes_the_names_of_files() {
    if !rustix::process::geteuid().is_root() {
        return println!("not tried: only root can act for a second user");
    }
    let _stranger = Stranger::start();
    for _ in 0..6 {
        let mut job = Launch::new(RANK, 8).env("OXCCL_TRANSPORT", "shm").start("join check drop tidy");
        job.all_succeed();
        job.assert_no_files_left();
    }
}

/// Silent connections, far more than a process may have descriptors.
fn silence(port: u16, count: usize) -> Vec<TcpStream> {
    let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    (0..count).filter_map(|_| TcpStream::connect_timeout(&addr, Duration::from_secs(1)).ok()).collect()
}

/// Strangers hold connections, and the process goes on opening what it needs.
#[test]
fn strangers_leave_a_process_its_descriptors() {
    let few = ["sh", "-c", "ulimit -n 128; exec \"$0\" \"$@\""].map(str::to_owned);
    let mut job = Launch::new(RANK, 2).under(few).start("join ask rejoin check drop tidy");
    job.all_print("joined");
    let ports: BTreeSet<u16> = job.ranks.iter().flat_map(|rank| listening_ports(rank.pid())).collect();
    let kept: Vec<TcpStream> = ports.iter().flat_map(|port| silence(*port, 200)).collect();
    assert!(kept.len() > 300, "{} connections at {ports:?}", kept.len());
    // They are in the processes by now, as many as these take.
    std::thread::sleep(Duration::from_millis(300));
    for rank in &job.ranks {
        let open = std::fs::read_dir(format!("/proc/{}/fd", rank.pid())).expect("a live process").count();
        assert!(open < 64, "{open} of 128 descriptors are in use");
    }
    let id = oxccl_tests::process::fresh_id(Duration::from_secs(30));
    for rank in &mut job.ranks {
        let line = format!("{} 2 {id}", rank.rank);
        rank.say("");
        rank.say(&line);
    }
    job.all_print("joined");
    job.all_succeed();
    drop(kept);
}

/// A copy of the rank's program that every user can start; gone with the directory.
fn program_for_all() -> (tempfile::TempDir, &'static str) {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().expect("a directory");
    let program = dir.path().join("oxccl-rank");
    std::fs::copy(RANK, &program).expect("a copy");
    for path in [dir.path(), &program] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("a mode");
    }
    let program = program.to_str().expect("a name").to_owned().leak();
    (dir, program)
}

/// The command that makes what follows it run as [`STRANGER`].
fn as_stranger() -> [String; 4] {
    ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"].map(str::to_owned)
}

/// A second user knows all that the first one's ranks know from their environment, and has the same program.
#[test]
fn another_user_is_no_rank_of_a_job_of_this_host() {
    if !rustix::process::geteuid().is_root() {
        return println!("not tried: only root can act for a second user");
    }
    let (_dir, program) = program_for_all();
    let port = {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        listener.local_addr().expect("an address").port()
    };
    let launch = |program: &'static str, rank: &str| {
        let launch =
            Launch::without_id(program, 2).id("env").env("NCCL_COMM_ID", &format!("127.0.0.1:{port}"));
        launch.env("OXCCL_RANK", rank).env("OXCCL_NRANKS", "2")
    };
    let mut job = Job::new();
    job.ranks.push(launch(RANK, "0").spawn(0, "join check drop"));
    await_ports(&job.ranks[0], 1);
    let mut stranger = launch(program, "1").under(as_stranger()).spawn(1, "join");
    let failure = stranger.failure(SOON);
    assert!(failure.text.contains("secret"), "{failure:?}");
    stranger.end(SOON);
    job.ranks.push(launch(RANK, "1").spawn(1, "join check drop"));
    job.all_succeed();
}

/// Neither of two users can open the other's files in /dev/shm, so their ranks go by the network, and each user's own by memory.
#[test]
fn ranks_of_two_users_of_one_host_meet_by_the_network() {
    if !rustix::process::geteuid().is_root() {
        return println!("not tried: only root can act for a second user");
    }
    let (_dir, program) = program_for_all();
    for network in ["", "Socket"] {
        let root = Launch::new(RANK, 4).env("NCCL_NET", network);
        let other = |rank: u32| {
            Launch::without_id(program, 4)
                .id(root.id_text())
                .env("NCCL_NET", network)
                .under(as_stranger())
                .spawn(rank, "join check drop")
        };
        let mut job = Job::new();
        for rank in 0..4 {
            job.ranks.push(if rank < 2 { root.spawn(rank, "join check drop tidy") } else { other(rank) });
        }
        job.all_succeed();
        job.assert_no_files_left();
        let far = if network.is_empty() { "tcp" } else { "net" };
        for (rank, beside, across) in [(0, 1, [2, 3]), (3, 2, [0, 1])] {
            let said = |peer: u32, kind: &str| {
                job.ranks[rank].errors().contains(&format!("rank {rank} - rank {peer} via {kind}"))
            };
            assert!(said(beside, "shm"), "{}", job.ranks[rank].transcript());
            assert!(across.iter().all(|peer| said(*peer, far)), "{}", job.ranks[rank].transcript());
        }
    }
}

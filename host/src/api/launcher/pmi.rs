//! The key-value space of MPICH's and Intel MPI's launchers, by their wire protocol PMI-1: lines of `cmd=... key=value ...`; and of Slurm's
//! `srun --mpi=pmi2`, by PMI-2: a length of six digits, then `cmd=...;key=value;...`, after a first line as of PMI-1.
//!
//! Rank 0 puts a value there, and the others get it after a barrier. The space is the job's own: what is put there reaches its
//! processes only. The protocol has one conversation for each process. It is ended here, so a program that uses MPI as well initialises
//! MPI first, or names where ranks meet (`MASTER_ADDR`, `NCCL_COMM_ID`).

use super::error::LaunchError;
use super::pmix::Pmix;
use crate::os::{connect_any, look_up_at};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

/// The longest line: a value may have 1,024 bytes.
const LINE_BYTES_MAX: usize = 4096;

/// Where a launcher listens for a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Pmi {
    /// A socket that the process has inherited (`PMI_FD`).
    Inherited(i32),
    /// An address, where the process says its number among the launcher's (`PMI_PORT`, `PMI_ID`).
    Address {
        /// `host:port`.
        port: String,
        /// The number.
        id: u32,
    },
    /// A socket that the process has inherited (`PMI_FD`), and PMI-2.
    Second {
        /// The socket.
        fd: i32,
        /// The job's name (`PMI_JOBID`).
        job: String,
    },
    /// PMIx, by its library.
    Library {
        /// Where the launcher lies (`PMIX_PREFIX`).
        prefix: Option<String>,
    },
}

/// A conversation with a launcher.
struct Client {
    stream: OwnedFd,
    deadline: Instant,
    /// What has been read of the next line.
    pending: Vec<u8>,
}

/// The words of an answer.
struct Answer(String);

impl Answer {
    fn get(&self, key: &str) -> Option<&str> {
        // By PMI-2 a word may have spaces, and each ends with a semicolon; PMI-1 has none of these.
        let separator = if self.0.ends_with(';') { ';' } else { ' ' };
        self.0.split(separator).find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
    }
}

impl Pmi {
    /// Every rank gets the value that rank 0 makes. Every rank calls it once.
    ///
    /// # Errors
    /// [`LaunchError::Pmi`] within `timeout`; that of `make`, on rank 0.
    pub fn broadcast(
        &self,
        rank: u32,
        timeout: Duration,
        make: impl FnOnce() -> Result<String, LaunchError>,
    ) -> Result<String, LaunchError> {
        if let Pmi::Library { prefix } = self {
            let library = Pmix::load(prefix.as_deref())?;
            let value = (rank == 0).then(make).transpose()?;
            return library.broadcast(value, timeout);
        }
        let mut client = self.connect(timeout)?;
        if let Pmi::Second { job, .. } = self {
            return client.broadcast_by_2(rank, job, make);
        }
        if let Pmi::Address { id, .. } = self {
            client.ask(&format!("cmd=initack pmiid={id}"), "initack")?;
        }
        client.ask("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init")?;
        let space = client.ask("cmd=get_my_kvsname", "my_kvsname")?;
        let space = space.get("kvsname").ok_or_else(|| odd("it did not name the key-value space"))?;
        if rank == 0 {
            let value = make()?;
            client.ask(&format!("cmd=put kvsname={space} key={KEY} value={value}"), "put_result")?;
        }
        client.ask("cmd=barrier_in", "barrier_out")?;
        let got = client.ask(&format!("cmd=get kvsname={space} key={KEY}"), "get_result")?;
        let value = got.get("value").ok_or_else(|| odd("it lost rank 0's value"))?.to_owned();
        client.ask("cmd=finalize", "finalize_ack")?;
        Ok(value)
    }

    /// Whether there is what it needs of the system.
    pub fn can_be_used(&self) -> bool {
        match self {
            Pmi::Inherited(_) | Pmi::Address { .. } | Pmi::Second { .. } => true,
            Pmi::Library { prefix } => Pmix::load(prefix.as_deref()).is_ok(),
        }
    }

    fn connect(&self, timeout: Duration) -> Result<Client, LaunchError> {
        let deadline = Instant::now() + timeout;
        let stream: OwnedFd = match self {
            Pmi::Inherited(fd) | Pmi::Second { fd, .. } => {
                let path = format!("/proc/self/fd/{fd}");
                if !std::path::Path::new(&path).exists() {
                    return Err(odd("PMI_FD is not an open file; did a program between close it?"));
                }
                // SAFETY: it is open, by the launcher's word for this process, and is borrowed until it has been duplicated.
                let inherited = unsafe { BorrowedFd::borrow_raw(*fd) };
                rustix::io::fcntl_dupfd_cloexec(inherited, 3).map_err(|error| lost(&error.into()))?
            }
            Pmi::Address { port, .. } => {
                let found = look_up_at(port, timeout);
                let left = || deadline.saturating_duration_since(Instant::now());
                let stream = found.and_then(|addrs| connect_any(&addrs, left()));
                stream.map_err(|error| lost(&error))?.into()
            }
            Pmi::Library { .. } => return Err(odd("PMIx has no socket of ours")),
        };
        Ok(Client { stream, deadline, pending: Vec::new() })
    }
}

const KEY: &str = "oxccl-unique-id";

fn odd(why: &str) -> LaunchError {
    LaunchError::Pmi { why: why.to_owned() }
}

fn lost(error: &io::Error) -> LaunchError {
    LaunchError::Pmi { why: error.to_string() }
}

impl Client {
    /// Sends a line and gives the answer, which is `cmd=answer` without an error's `rc`.
    fn ask(&mut self, line: &str, answer: &str) -> Result<Answer, LaunchError> {
        self.write(&format!("{line}\n")).map_err(|error| lost(&error))?;
        loop {
            let said = Answer(self.read_line().map_err(|error| lost(&error))?);
            match said.get("cmd") {
                // After `initack` the launcher says unasked how many ranks there are, and which this is.
                Some("set") => {}
                Some(cmd) if cmd == answer => match said.get("rc").filter(|rc| *rc != "0") {
                    None => return Ok(said),
                    Some(_) => {
                        let asked = line.split_ascii_whitespace().next().unwrap_or(line);
                        return Err(odd(&format!(
                            "it refused {asked}: {}",
                            said.get("msg").unwrap_or("no reason")
                        )));
                    }
                },
                _ => return Err(odd(&format!("cmd={answer} was expected, it said {:?}", said.0))),
            }
        }
    }

    /// The same by PMI-2.
    fn broadcast_by_2(
        &mut self,
        rank: u32,
        job: &str,
        make: impl FnOnce() -> Result<String, LaunchError>,
    ) -> Result<String, LaunchError> {
        self.ask("cmd=init pmi_version=2 pmi_subversion=0", "response_to_init")?;
        let init = format!("cmd=fullinit;pmijobid={job};pmirank={rank};threaded=FALSE;");
        self.ask_2(&init, "fullinit-response")?;
        if rank == 0 {
            // An id has no semicolon, which would have to be doubled.
            let value = make()?;
            self.ask_2(&format!("cmd=kvs-put;key={KEY};value={value};"), "kvs-put-response")?;
        }
        self.ask_2("cmd=kvs-fence;", "kvs-fence-response")?;
        let get = format!("cmd=kvs-get;jobid={job};srcid=-1;key={KEY};");
        let got = self.ask_2(&get, "kvs-get-response")?;
        let value = got.get("value").ok_or_else(|| odd("it lost rank 0's value"))?.to_owned();
        self.ask_2("cmd=finalize;", "finalize-response")?;
        Ok(value)
    }

    /// Sends a request of PMI-2 and gives the answer.
    fn ask_2(&mut self, request: &str, answer: &str) -> Result<Answer, LaunchError> {
        self.write(&format!("{:6}{request}", request.len())).map_err(|error| lost(&error))?;
        let said = Answer(self.read_counted().map_err(|error| lost(&error))?);
        if said.get("cmd") != Some(answer) {
            return Err(odd(&format!("cmd={answer} was expected, it said {:?}", said.0)));
        }
        if said.get("rc").is_some_and(|rc| rc != "0") {
            let asked = request.split(';').next().unwrap_or(request);
            return Err(odd(&format!("it refused {asked}: {}", said.get("errmsg").unwrap_or("no reason"))));
        }
        Ok(said)
    }

    /// Six digits or blanks, and so many bytes.
    fn read_counted(&mut self) -> io::Result<String> {
        const COUNT_BYTES: usize = 6;
        self.read_until(COUNT_BYTES)?;
        let head: Vec<u8> = self.pending.drain(..COUNT_BYTES).collect();
        let count =
            String::from_utf8_lossy(&head).trim().parse().ok().filter(|count| *count <= LINE_BYTES_MAX);
        let count = count
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "an answer without its length"))?;
        self.read_until(count)?;
        let body: Vec<u8> = self.pending.drain(..count).collect();
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    /// Reads until so many bytes are pending.
    fn read_until(&mut self, count: usize) -> io::Result<()> {
        while self.pending.len() < count {
            self.read_more()?;
        }
        Ok(())
    }

    fn write(&self, line: &str) -> io::Result<()> {
        File::from(self.stream.try_clone()?).write_all(line.as_bytes())
    }

    fn read_line(&mut self) -> io::Result<String> {
        loop {
            if let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.pending.drain(..=end).collect();
                return Ok(String::from_utf8_lossy(&line).trim_end().to_owned());
            }
            if self.pending.len() > LINE_BYTES_MAX {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a line without an end"));
            }
            self.read_more()?;
        }
    }

    fn read_more(&mut self) -> io::Result<()> {
        self.wait()?;
        let mut buffer = [0; 512];
        match File::from(self.stream.try_clone()?).read(&mut buffer)? {
            0 => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it ended the conversation")),
            got => self.pending.extend_from_slice(&buffer[..got]),
        }
        Ok(())
    }

    fn wait(&self) -> io::Result<()> {
        loop {
            let left = self.deadline.checked_duration_since(Instant::now());
            let left =
                left.ok_or_else(|| io::Error::new(io::ErrorKind::TimedOut, "it did not answer in time"))?;
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let mut fds = [PollFd::from_borrowed_fd(self.stream.as_fd(), PollFlags::IN)];
            match rustix::event::poll(&mut fds, Some(&timeout)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use std::io::{BufRead, BufReader};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;
    use std::sync::{Arc, Barrier, Mutex};

    const SOON: Duration = Duration::from_secs(20);

    /// The launcher accepts no connection, and its queue is full: the kernel tried for two minutes.
    #[test]
    fn a_launcher_that_accepts_nobody_is_given_up_in_time() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let (addr, short) = (listener.local_addr().unwrap(), Duration::from_millis(100));
        let mut waiting = Vec::new();
        while let Ok(stream) = std::net::TcpStream::connect_timeout(&addr, short) {
            waiting.push(stream);
            assert!(waiting.len() < 100, "a queue that is never full shows nothing");
        }
        let (pmi, begun) = (Pmi::Address { port: addr.to_string(), id: 0 }, Instant::now());
        let error = pmi.broadcast(1, short, || unreachable!("this is rank 1")).unwrap_err();
        assert!(matches!(error, LaunchError::Pmi { .. }), "{error}");
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    }

    /// What hydra does for one process; `lines` replaces its answers by cmd.
    fn serve(
        stream: UnixStream,
        space: &Mutex<HashMap<String, String>>,
        all_in: &Barrier,
        lines: &HashMap<&str, &str>,
    ) {
        let mut to = stream.try_clone().unwrap();
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            let asked = Answer(line);
            let cmd = asked.get("cmd").unwrap().to_owned();
            let said = match cmd.as_str() {
                other if lines.contains_key(other) => lines[other].to_owned(),
                "initack" => "cmd=initack rc=0\ncmd=set size=3\ncmd=set rank=0\ncmd=set debug=0".to_owned(),
                "init" => "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0".to_owned(),
                "get_my_kvsname" => "cmd=my_kvsname kvsname=kvs_7_0".to_owned(),
                "put" => {
                    let [key, value] = ["key", "value"].map(|word| asked.get(word).unwrap().to_owned());
                    space.lock().unwrap().insert(key, value);
                    "cmd=put_result rc=0 msg=success".to_owned()
                }
                "barrier_in" => {
                    all_in.wait();
                    "cmd=barrier_out".to_owned()
                }
                "get" => format!(
                    "cmd=get_result rc=0 msg=success value={}",
                    space.lock().unwrap()[asked.get("key").unwrap()]
                ),
                "finalize" => "cmd=finalize_ack".to_owned(),
                _ => panic!("{cmd} is not known"),
            };
            if to.write_all(format!("{said}\n").as_bytes()).is_err() {
                return;
            }
        }
    }

    /// What each of so many ranks gets.
    fn run(nranks: u32, lines: &[(&'static str, &'static str)]) -> Vec<Result<String, LaunchError>> {
        let (space, all_in) = (Arc::new(Mutex::default()), Arc::new(Barrier::new(nranks as usize)));
        let ranks = (0..nranks).map(|rank| {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let (space, all_in) = (space.clone(), all_in.clone());
            let lines: HashMap<_, _> = lines.iter().copied().collect();
            std::thread::spawn(move || serve(theirs, &space, &all_in, &lines));
            std::thread::spawn(move || {
                Pmi::Inherited(ours.as_raw_fd()).broadcast(rank, SOON, || Ok(format!("from-{rank}")))
            })
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    }

    #[test]
    fn every_rank_gets_what_rank_0_makes() {
        for got in run(3, &[]) {
            assert_eq!(got.as_deref(), Ok("from-0"));
        }
    }

    /// What slurmstepd does for one process, in pieces as a socket may give them; `bodies` replaces its answers by cmd.
    fn serve_2(
        stream: UnixStream,
        space: &Mutex<HashMap<String, String>>,
        all_in: &Barrier,
        bodies: &HashMap<&str, &str>,
    ) {
        let (mut to, mut from) = (stream.try_clone().unwrap(), BufReader::new(stream));
        let mut first = String::new();
        from.read_line(&mut first).unwrap();
        assert_eq!(first, "cmd=init pmi_version=2 pmi_subversion=0\n");
        to.write_all(b"cmd=response_to_init rc=0 pmi_version=2 pmi_subversion=0\n").unwrap();
        loop {
            let mut head = [0; 6];
            if from.read_exact(&mut head).is_err() {
                return;
            }
            let mut body = vec![0; str::from_utf8(&head).unwrap().trim().parse().unwrap()];
            from.read_exact(&mut body).unwrap();
            let asked = Answer(String::from_utf8(body).unwrap());
            let cmd = asked.get("cmd").unwrap().to_owned();
            let said = match cmd.as_str() {
                other if bodies.contains_key(other) => bodies[other].to_owned(),
                "fullinit" => {
                    assert_eq!(asked.get("pmijobid"), Some("77.0"));
                    "cmd=fullinit-response;pmi-version=2;pmi-subversion=0;rank=0;size=3;appnum=-1;rc=0;"
                        .to_owned()
                }
                "kvs-put" => {
                    let [key, value] = ["key", "value"].map(|word| asked.get(word).unwrap().to_owned());
                    space.lock().unwrap().insert(key, value);
                    "cmd=kvs-put-response;rc=0;".to_owned()
                }
                "kvs-fence" => {
                    all_in.wait();
                    "cmd=kvs-fence-response;rc=0;errmsg=;".to_owned()
                }
                "kvs-get" => {
                    let value = space.lock().unwrap()[asked.get("key").unwrap()].clone();
                    format!("cmd=kvs-get-response;rc=0;found=TRUE;value={value};")
                }
                "finalize" => "cmd=finalize-response;rc=0;".to_owned(),
                _ => panic!("{cmd} is not known"),
            };
            let whole = format!("{:6}{said}", said.len());
            let (start, end) = whole.split_at(whole.len() / 3);
            if to.write_all(start.as_bytes()).and_then(|()| to.write_all(end.as_bytes())).is_err() {
                return;
            }
        }
    }

    fn run_2(nranks: u32, bodies: &[(&'static str, &'static str)]) -> Vec<Result<String, LaunchError>> {
        let (space, all_in) = (Mutex::default(), Barrier::new(nranks as usize));
        let bodies: HashMap<_, _> = bodies.iter().copied().collect();
        std::thread::scope(|scope| {
            let ranks = Vec::from_iter((0..nranks).map(|rank| {
                let (ours, theirs) = UnixStream::pair().unwrap();
                let (space, all_in, bodies) = (&space, &all_in, &bodies);
                scope.spawn(move || serve_2(theirs, space, all_in, bodies));
                scope.spawn(move || {
                    let pmi = Pmi::Second { fd: ours.as_raw_fd(), job: "77.0".into() };
                    pmi.broadcast(rank, SOON, || Ok(format!("from-{rank}")))
                })
            }));
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    #[test]
    fn every_rank_gets_what_rank_0_makes_by_pmi_2() {
        for got in run_2(3, &[]) {
            assert_eq!(got.as_deref(), Ok("from-0"));
        }
    }

    #[test]
    fn what_the_launcher_refuses_by_pmi_2_is_named() {
        for (cmd, said, expected) in [
            ("fullinit", "cmd=fullinit-response;rc=14;errmsg=wrong job;", "refused cmd=fullinit: wrong job"),
            ("kvs-put", "cmd=kvs-put-response;rc=1;", "refused cmd=kvs-put: no reason"),
            ("kvs-get", "cmd=kvs-get-response;rc=0;found=FALSE;", "lost rank 0's value"),
            ("kvs-fence", "cmd=abort;", "cmd=kvs-fence-response was expected"),
        ] {
            let error = run_2(1, &[(cmd, said)]).remove(0).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn what_the_launcher_refuses_is_named() {
        for (cmd, said, expected) in [
            ("init", "cmd=response_to_init rc=-1 msg=version", "refused cmd=init: version"),
            ("put", "cmd=put_result rc=-1 msg=key_too_long", "refused cmd=put: key_too_long"),
            ("get_my_kvsname", "cmd=my_kvsname", "did not name"),
            ("get", "cmd=get_result rc=0", "lost rank 0's value"),
            ("get", "cmd=barrier_out", "cmd=get_result was expected"),
        ] {
            let error = run(1, &[(cmd, said)]).remove(0).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_launcher_that_is_silent_or_gone_ends_in_an_error_in_time() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let pmi = Pmi::Inherited(ours.as_raw_fd());
        let ask =
            || pmi.broadcast(0, Duration::from_millis(50), || Ok(String::new())).unwrap_err().to_string();
        assert!(ask().contains("in time"), "{}", ask());
        drop(theirs);
        assert!(pmi.broadcast(0, SOON, || Ok(String::new())).is_err());
        let error = Pmi::Inherited(1_000_000).broadcast(0, SOON, || Ok(String::new())).unwrap_err();
        assert!(error.to_string().contains("PMI_FD"), "{error}");
    }

    #[test]
    fn a_process_may_dial_its_launcher() {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().to_string();
        let served = std::thread::spawn(move || {
            let stream: OwnedFd = listener.accept().unwrap().0.into();
            serve(UnixStream::from(stream), &Mutex::default(), &Barrier::new(1), &HashMap::new());
        });
        let got = Pmi::Address { port, id: 5 }.broadcast(0, SOON, || Ok("x".to_owned()));
        assert_eq!(got.as_deref(), Ok("x"));
        served.join().unwrap();
    }
}

//! The server: authenticates heads, gathers those of each job, and gives every job a thread.

use super::NAME;
use super::frame::{JOIN_BYTES, JobId, Join};
use super::job::{Job, Member, farewell};
use super::table::job_bytes;
use crate::bootstrap::acceptor::{Accepted, Acceptor};
use crate::bootstrap::handshake::ROOT;
use crate::bootstrap::secret::Secret;
use crate::bootstrap::{Cancel, sock};
use crate::net::NetError;
use crate::net::coll::Head;
use rustix::event::{PollFd, PollFlags};
use std::collections::HashMap;
use std::net::{SocketAddr, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often the server looks whether it is stopped and which jobs are over.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Settings of a server.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Where it listens.
    pub addr: SocketAddr,
    /// What it shares with the ranks that it serves.
    pub secret: Secret,
    /// Most bytes of buffers of all jobs together; a job takes at most 2 MiB for each of its heads.
    pub memory_max_bytes: u64,
    /// How long the first head of a job waits for the others.
    pub join_timeout: Duration,
    /// How long a connection has to prove the secret and name its job.
    pub handshake_timeout: Duration,
    /// When a silent host counts as gone.
    pub peer_dead_after: Duration,
}

impl ServerConfig {
    /// With the usual limits: 1 GiB, 120 s for the heads of a job to come.
    pub fn new(addr: SocketAddr, secret: Secret) -> ServerConfig {
        ServerConfig {
            addr,
            secret,
            memory_max_bytes: 1 << 30,
            join_timeout: Duration::from_secs(120),
            handshake_timeout: Duration::from_secs(5),
            peer_dead_after: crate::bootstrap::PEER_DEAD_AFTER,
        }
    }
}

/// An aggregator that listens.
#[derive(Debug)]
pub struct Server {
    config: ServerConfig,
    addr: SocketAddr,
    acceptor: Acceptor,
    /// Authenticated, and silent so far.
    joining: Vec<Joining>,
    gathering: HashMap<JobId, Gathering>,
    running: Vec<Running>,
}

#[derive(Debug)]
struct Joining {
    stream: TcpStream,
    remote: SocketAddr,
    bytes: [u8; JOIN_BYTES],
    got: usize,
    deadline: Instant,
}

#[derive(Debug)]
struct Gathering {
    count: u32,
    members: Vec<Member>,
    deadline: Instant,
}

#[derive(Debug)]
struct Running {
    thread: JoinHandle<()>,
    bytes: u64,
}

impl Server {
    /// Listens.
    ///
    /// # Errors
    /// [`NetError::Call`]: the address cannot be used.
    pub fn bind(config: ServerConfig) -> Result<Server, NetError> {
        let failed = |error| NetError::of_io(&format!("{NAME} {}", config.addr), None, "listen", &error);
        let listener = sock::listen(config.addr.ip(), config.addr.port()).map_err(failed)?;
        let addr = listener.local_addr().map_err(failed)?;
        let acceptor = Acceptor::new(listener, config.secret, ROOT, config.handshake_timeout);
        let (joining, gathering, running) = (Vec::new(), HashMap::new(), Vec::new());
        Ok(Server { config, addr, acceptor, joining, gathering, running })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    /// Serves jobs until `stop` is called; then tells every head and returns.
    ///
    /// # Errors
    /// [`NetError::Call`]: poll(2) fails.
    pub fn serve(mut self, stop: &Cancel) -> Result<(), NetError> {
        let served = loop {
            if stop.is_called() {
                break Ok(());
            }
            if let Err(error) = self.turn(stop) {
                stop.cancel();
                break Err(error);
            }
        };
        for (_, gathering) in self.gathering.drain() {
            gathering.give_up("the aggregator was stopped");
        }
        for Running { thread, .. } in self.running.drain(..) {
            // A panic has been printed, and was that job's alone.
            let _ = thread.join();
        }
        served
    }

    fn turn(&mut self, stop: &Cancel) -> Result<(), NetError> {
        let begin = Instant::now();
        let until = self.acceptor.deadline().map_or(begin + LOOK_EVERY, |at| at.min(begin + LOOK_EVERY));
        let mut fds = Vec::new();
        self.acceptor.poll_fds(&mut fds);
        let of_acceptor = fds.len();
        fds.extend(self.joining.iter().map(|it| PollFd::new(&it.stream, PollFlags::IN)));
        sock::poll(&mut fds, Some(until))
            .map_err(|error| NetError::of_io(&format!("{NAME} {}", self.addr), None, "poll", &error))?;
        let ready: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
        let now = Instant::now();
        let mut accepted = Vec::new();
        self.acceptor.drive(now, &ready[..of_acceptor], &mut accepted);
        self.read_joins(now, &ready[of_acceptor..], stop);
        accepted.into_iter().for_each(|accepted| self.take(accepted, now));
        self.look_at_gathering(now);
        self.forget_finished();
        Ok(())
    }

    fn forget_finished(&mut self) {
        self.running.retain(|job| !job.thread.is_finished());
    }

    fn take(&mut self, Accepted { channel, remote, .. }: Accepted, now: Instant) {
        let stream = channel.into_stream().socket;
        if let Err(error) = sock::keep_alive(&stream, self.config.peer_dead_after) {
            return self.acceptor.refuse(remote, &error);
        }
        let deadline = now + self.config.handshake_timeout;
        self.joining.push(Joining { stream, remote, bytes: [0; JOIN_BYTES], got: 0, deadline });
    }

    fn read_joins(&mut self, now: Instant, ready: &[PollFlags], stop: &Cancel) {
        for (index, mut joining) in std::mem::take(&mut self.joining).into_iter().enumerate() {
            if ready.get(index).is_some_and(|flags| !flags.is_empty()) {
                match sock::read_some(&joining.stream, &mut joining.bytes[joining.got..]) {
                    Ok(None) => {}
                    Ok(Some(0)) => {
                        self.acceptor.refuse(joining.remote, &"it left before it named its job");
                        continue;
                    }
                    Ok(Some(got)) => joining.got += got,
                    Err(error) => {
                        self.acceptor.refuse(joining.remote, &error);
                        continue;
                    }
                }
            }
            if joining.got == JOIN_BYTES {
                self.join(joining, now, stop);
            } else if now >= joining.deadline {
                self.acceptor.refuse(joining.remote, &"it did not name its job in time");
            } else {
                self.joining.push(joining);
            }
        }
    }

    fn join(&mut self, Joining { stream, remote, bytes, .. }: Joining, now: Instant, stop: &Cancel) {
        let join = match Join::from_bytes(&bytes) {
            Ok(join) => join,
            Err(bad) => return self.send_away(&stream, remote, &format!("{remote} sent {bad}")),
        };
        let Head { count, .. } = join.head;
        if !self.gathering.contains_key(&join.job) {
            self.forget_finished();
            if let Some(why) = self.has_no_room(count) {
                return self.send_away(&stream, remote, &why);
            }
            let deadline = now + self.config.join_timeout;
            self.gathering.insert(join.job, Gathering { count, members: Vec::new(), deadline });
        }
        let Some(gathering) = self.gathering.get_mut(&join.job) else { return };
        let has_come = gathering.members.iter().any(|member| member.head.index == join.head.index);
        if gathering.count != count || has_come {
            let why =
                format!("{} ({remote}) came where {} heads were due, each once", join.head, gathering.count);
            return self.send_away(&stream, remote, &why);
        }
        gathering.members.push(Member { stream, remote, head: join.head });
        if gathering.members.len() == count as usize
            && let Some(gathering) = self.gathering.remove(&join.job)
        {
            self.start(gathering.members, stop);
        }
    }

    /// Why a job of so many heads cannot be served now.
    fn has_no_room(&self, count: u32) -> Option<String> {
        let gathering = self.gathering.values().map(|gathering| job_bytes(gathering.count));
        let taken: u64 = gathering.chain(self.running.iter().map(|job| job.bytes)).sum();
        let max = self.config.memory_max_bytes;
        (taken.saturating_add(job_bytes(count)) > max).then(|| {
            format!(
                "a job of {count} heads may take {} MiB, and {} of {} MiB are taken: give the aggregator more (--memory), or start another",
                job_bytes(count) >> 20,
                taken >> 20,
                max >> 20
            )
        })
    }

    fn start(&mut self, mut members: Vec<Member>, stop: &Cancel) {
        members.sort_by_key(|member| member.head.index);
        let (bytes, stop) = (job_bytes(members.len() as u32), stop.clone());
        let count = members.len();
        let thread = std::thread::Builder::new().name("oxccl-job".to_owned());
        // Where no thread can be had, the connections close with the closure.
        match thread.spawn(move || Job::new(members).run(&stop)) {
            Ok(thread) => {
                tracing::info!("{NAME}: a job of {count} heads has begun");
                self.running.push(Running { thread, bytes });
            }
            Err(error) => tracing::error!("{NAME}: no thread for a job of {count} heads: {error}"),
        }
    }

    fn look_at_gathering(&mut self, now: Instant) {
        let timeout = self.config.join_timeout;
        let over: Vec<(JobId, String)> = self
            .gathering
            .iter()
            .filter_map(|(job, gathering)| Some((*job, gathering.hopeless(now, timeout)?)))
            .collect();
        for (job, why) in over {
            tracing::info!("{NAME}: a job will not begin: {why}");
            self.gathering.remove(&job).into_iter().for_each(|gathering| gathering.give_up(&why));
        }
    }

    fn send_away(&mut self, stream: &TcpStream, remote: SocketAddr, why: &str) {
        self.acceptor.refuse(remote, &why);
        // The send buffer of a new connection has room for the text. A client that does not read it sees the connection close.
        let _ = sock::write_some(stream, &farewell(why));
    }
}

impl Gathering {
    /// Why its job will not begin: a head has left, or some have not come in time.
    fn hopeless(&self, now: Instant, timeout: Duration) -> Option<String> {
        for member in &self.members {
            // Until it is welcome a head says nothing.
            match sock::read_some(&member.stream, &mut [0]) {
                Ok(None) => {}
                Ok(Some(0)) => return Some(format!("{member} left before all had come")),
                Ok(Some(_)) => return Some(format!("{member} sent data before all had come")),
                Err(error) => return Some(format!("{member}: {}", crate::os::describe(&error))),
            }
        }
        if now < self.deadline {
            return None;
        }
        let absent = (0..self.count).filter(|index| self.members.iter().all(|it| it.head.index != *index));
        let named: Vec<String> = absent.take(8).map(|index| index.to_string()).collect();
        Some(format!(
            "{} of {} heads came within {timeout:?}; head {} did not",
            self.members.len(),
            self.count,
            named.join(", ")
        ))
    }

    fn give_up(self, why: &str) {
        for member in self.members {
            let _ = sock::write_some(&member.stream, &farewell(why));
        }
    }
}

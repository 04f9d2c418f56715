//! The server: authenticates heads, gathers those of each job, and gives every job a thread.

use super::NAME;
use super::frame::{JobId, Join};
use super::gathering::Gathering;
use super::job::Job;
use super::joining::Joining;
use super::seat::{Member, farewell};
use super::table::job_bytes;
use super::wire::{Carrier, Wire};
use crate::bootstrap::acceptor::{Accepted, Acceptor};
use crate::bootstrap::handshake::ROOT;
use crate::bootstrap::secret::Secret;
use crate::bootstrap::{Cancel, sock};
use crate::net::coll::Head;
use crate::net::{Net, NetError};
use rustix::event::{PollFd, PollFlags};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often the server looks whether it is stopped and which jobs are over.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The same while a head's network connects.
const MEETING_LOOK_EVERY: Duration = Duration::from_millis(1);
/// What a head hears that does not encrypt.
const UNENCRYPTED: &str =
    "this aggregator takes encrypted data alone (its OXCCL_ENCRYPT is 1): set OXCCL_ENCRYPT=1 on all ranks";

/// Settings of a server.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Where it listens.
    pub addr: SocketAddr,
    /// What it shares with the ranks that it serves.
    pub secret: Secret,
    /// Most bytes of buffers of all jobs together; a job takes at most 2 MiB for each of its heads, 0.2 more for one that encrypts and 1 for one
    /// over a network.
    pub memory_max_bytes: u64,
    /// How long the first head of a job waits for the others.
    pub join_timeout: Duration,
    /// How long a connection has to prove the secret and name its job.
    pub handshake_timeout: Duration,
    /// When a silent host counts as gone.
    pub peer_dead_after: Duration,
    /// Whether heads that do not encrypt are refused. Those that do are always served.
    pub encrypt: bool,
    /// By which network the data of heads go that ask for one.
    pub net: Option<Arc<dyn Net>>,
}

impl ServerConfig {
    /// With the usual limits: 1 GiB, 120 s for the heads of a job to come. TCP, as each head has it.
    pub fn new(addr: SocketAddr, secret: Secret) -> ServerConfig {
        ServerConfig {
            addr,
            secret,
            memory_max_bytes: 1 << 30,
            join_timeout: Duration::from_secs(120),
            handshake_timeout: Duration::from_secs(5),
            peer_dead_after: crate::bootstrap::PEER_DEAD_AFTER,
            encrypt: false,
            net: None,
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
        let is_meeting = self.joining.iter().any(Joining::is_meeting);
        let latest = Instant::now() + if is_meeting { MEETING_LOOK_EVERY } else { LOOK_EVERY };
        let until = self.acceptor.deadline().map_or(latest, |at| at.min(latest));
        let mut fds = Vec::new();
        self.acceptor.poll_fds(&mut fds);
        let of_acceptor = fds.len();
        fds.extend(self.joining.iter().map(|it| PollFd::new(it.wire.socket(), PollFlags::IN)));
        sock::poll(&mut fds, Some(until))
            .map_err(|error| NetError::of_io(&format!("{NAME} {}", self.addr), None, "poll", &error))?;
        let ready: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
        let now = Instant::now();
        let mut accepted = Vec::new();
        self.acceptor.drive(now, &ready[..of_acceptor], &mut accepted);
        self.advance_joins(now, stop);
        accepted.into_iter().for_each(|accepted| self.take(accepted, now));
        self.look_at_gathering(now);
        self.forget_finished();
        Ok(())
    }

    fn forget_finished(&mut self) {
        self.running.retain(|job| !job.thread.is_finished());
    }

    fn take(&mut self, Accepted { channel, remote, hello }: Accepted, now: Instant) {
        let stream = channel.into_stream();
        let dead_after = self.config.peer_dead_after;
        if let Err(error) = sock::keep_alive(&stream.socket, dead_after) {
            return self.acceptor.refuse(remote, &error);
        }
        let carrier = Carrier::of(hello.purpose);
        let deadline = now + self.config.handshake_timeout;
        let mut joining =
            Joining::new(stream, remote, carrier.unwrap_or(Carrier::Clear), deadline, dead_after);
        match carrier {
            None => self.send_away(&mut joining.wire, remote, "it came for something else"),
            Some(carrier) if !self.is_sealed_enough(carrier) => {
                self.send_away(&mut joining.wire, remote, UNENCRYPTED);
            }
            Some(_) => self.joining.push(joining),
        }
    }

    /// Whether data may go so.
    fn is_sealed_enough(&self, carrier: Carrier) -> bool {
        match carrier {
            Carrier::Clear => !self.config.encrypt,
            Carrier::Sealed => true,
            // Without one the head hears that there is none.
            Carrier::Network => {
                !self.config.encrypt || self.config.net.as_ref().is_none_or(|net| net.encrypts())
            }
        }
    }

    fn advance_joins(&mut self, now: Instant, stop: &Cancel) {
        for mut joining in std::mem::take(&mut self.joining) {
            match joining.advance(self.config.net.as_ref(), now) {
                Ok(Some(join)) => self.join(joining, join, now, stop),
                Ok(None) => self.joining.push(joining),
                Err(why) => self.send_away(&mut joining.wire, joining.remote, &why),
            }
        }
    }

    fn join(&mut self, Joining { mut wire, remote, .. }: Joining, join: Join, now: Instant, stop: &Cancel) {
        let Head { count, .. } = join.head;
        if !self.gathering.contains_key(&join.job) {
            self.forget_finished();
            let bytes = job_bytes(count) + u64::from(count) * wire.buffers_bytes();
            if let Some(why) = self.has_no_room(count, bytes) {
                return self.send_away(&mut wire, remote, &why);
            }
            let deadline = now + self.config.join_timeout;
            self.gathering.insert(join.job, Gathering { count, members: Vec::new(), bytes, deadline });
        }
        let Some(gathering) = self.gathering.get_mut(&join.job) else { return };
        let has_come = gathering.members.iter().any(|member| member.head.index == join.head.index);
        if gathering.count != count || has_come {
            let why =
                format!("{} ({remote}) came where {} heads were due, each once", join.head, gathering.count);
            return self.send_away(&mut wire, remote, &why);
        }
        gathering.members.push(Member { wire, remote, head: join.head });
        if gathering.members.len() == count as usize
            && let Some(gathering) = self.gathering.remove(&join.job)
        {
            self.start(gathering, stop);
        }
    }

    /// Why a job of so many heads cannot be served now.
    fn has_no_room(&self, count: u32, bytes: u64) -> Option<String> {
        let gathering = self.gathering.values().map(|gathering| gathering.bytes);
        let taken: u64 = gathering.chain(self.running.iter().map(|job| job.bytes)).sum();
        let max = self.config.memory_max_bytes;
        (taken.saturating_add(bytes) > max).then(|| {
            format!(
                "a job of {count} heads may take {} MiB, and {} of {} MiB are taken: give the aggregator more (--memory), or start another",
                bytes >> 20,
                taken >> 20,
                max >> 20
            )
        })
    }

    fn start(&mut self, Gathering { mut members, count, bytes, .. }: Gathering, stop: &Cancel) {
        members.sort_by_key(|member| member.head.index);
        let stop = stop.clone();
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
        let hopeless =
            |(job, gathering): (&JobId, &mut Gathering)| Some((*job, gathering.hopeless(now, timeout)?));
        let over: Vec<(JobId, String)> = self.gathering.iter_mut().filter_map(hopeless).collect();
        for (job, why) in over {
            tracing::info!("{NAME}: a job will not begin: {why}");
            self.gathering.remove(&job).into_iter().for_each(|gathering| gathering.give_up(&why));
        }
    }

    fn send_away(&mut self, wire: &mut Wire, remote: SocketAddr, why: &str) {
        self.acceptor.refuse(remote, &why);
        // The send buffer of a new connection has room for the text. A client that does not read it sees the connection close.
        wire.say_last(&farewell(why));
    }
}

//! Layer: host / bootstrap.
//! Takes: a listener and the secret of an id.
//! Gives: the root's thread, which drives [`Rendezvous`] over sockets and ends by itself once every rank has an
//! answer or the timeout passes.
//! Never: outlives the rendezvous, or trusts a connection before its handshake.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use oxccl_shared::abi::Rank;
use rustix::event::{PollFd, PollFlags};

use super::acceptor::{Accepted, Acceptor, Foreign};
use super::channel::Channel;
use super::config::BootstrapConfig;
use super::credentials::{Credentials, Maker};
use super::error::{BootstrapError, NRANKS_MAX};
use super::frame::{self, Decoder};
use super::handshake::{Purpose, ROOT};
use super::id::{RootKind, UniqueId};
use super::iface;
use super::rendezvous::{ConnId, Jobs, Rendezvous};
use super::rendezvous_wire::{
    Failure, KIND_REGISTER, KIND_REPLY, ROOT_PAYLOAD_MAX, Register, Reply, Withdrawal,
};
use super::root_help::Helpers;
use super::secret::Secret;
use super::sock;
use crate::wire::Message;

impl UniqueId {
    /// Starts a root on this host by these settings and returns its id. The root's thread ends when every rank has been answered, or
    /// when the timeouts of `config` pass.
    pub fn create_by(config: &BootstrapConfig) -> Result<UniqueId, BootstrapError> {
        UniqueId::create_with((Secret::random()?, Credentials::Believed), config)
    }

    /// As [`create_by`](Self::create_by), for ranks that join by [`with_key`](Self::with_key) of the id: what is returned does not contain the key.
    pub fn create_with_key(config: &BootstrapConfig, key: &[u8]) -> Result<UniqueId, BootstrapError> {
        let secret = Secret::random()?;
        let root = UniqueId::create_with((secret.with_key(key), Credentials::Believed), config)?;
        Ok(UniqueId::new(root.root_addr(), secret, RootKind::Created))
    }

    /// As [`create_by`](Self::create_by), with an id for each of `nranks` ranks, by which only that rank can join.
    pub fn create_each_by(config: &BootstrapConfig, nranks: u32) -> Result<Vec<UniqueId>, BootstrapError> {
        if nranks > NRANKS_MAX {
            return Err(BootstrapError::RankOutOfRange { rank: Rank(0), nranks });
        }
        let maker = Maker::new(Secret::random()?);
        let shared = maker.shared();
        let addr = UniqueId::create_with((shared, Credentials::Maker(maker)), config)?.root_addr();
        Ok((0..nranks).map(|rank| UniqueId::of_rank(addr, shared, maker.key_of(Rank(rank)))).collect())
    }

    /// An id with a random secret, whose root rank 0 runs when it connects: on this host, at a port that is free now.
    pub(crate) fn by_rank_zero(config: &BootstrapConfig) -> Result<UniqueId, BootstrapError> {
        let listener = listen_as_root(config)?;
        let addr = listener.local_addr().map_err(|error| BootstrapError::io("listen as root", &error))?;
        Ok(UniqueId::new(addr, Secret::random()?, RootKind::ByRankZero))
    }

    /// An id of this secret, whose root asks ranks for these credentials.
    pub(crate) fn create_with(
        (secret, credentials): (Secret, Credentials),
        config: &BootstrapConfig,
    ) -> Result<UniqueId, BootstrapError> {
        let listener = listen_as_root(config)?;
        let addr = listener.local_addr().map_err(|error| BootstrapError::io("listen as root", &error))?;
        spawn(listener, secret, credentials, config, Jobs::One)?;
        Ok(UniqueId::new(addr, secret, RootKind::Created))
    }
}

fn listen_as_root(config: &BootstrapConfig) -> Result<TcpListener, BootstrapError> {
    let ip = match config.bind_addr {
        Some(ip) => ip,
        None => iface::choose(&iface::list()?, config.interfaces.as_ref(), config.prefer_ipv6)?,
    };
    sock::listen(ip, 0).map_err(|error| iface::listening(ip, "listen as root", &error))
}

/// Starts the thread of a root.
pub(super) fn spawn(
    listener: TcpListener,
    secret: Secret,
    credentials: Credentials,
    config: &BootstrapConfig,
    jobs: Jobs,
) -> Result<(), BootstrapError> {
    let rendezvous = Rendezvous::new(Instant::now(), config.unused_root_timeout, config.timeout, jobs);
    let acceptor = Acceptor::new(listener, secret, ROOT, config.handshake_timeout).by(credentials);
    let service = Service {
        acceptor,
        rendezvous,
        conns: BTreeMap::new(),
        next_conn: 0,
        // A rank has proved who it is: the network may be silent before it registers.
        register_timeout: config.handshake_timeout.max(config.peer_dead_after),
        helpers: None,
        has_sized_up: false,
        looked_at: Instant::now(),
        held: None,
    };
    std::thread::Builder::new()
        .name("oxccl-root".into())
        .spawn(move || service.run())
        .map(drop)
        .map_err(|error| BootstrapError::io("start the root's thread", &error))
}

/// After a rank that was wrong.
pub(super) const LATE_RANKS_COME_WITHIN: Duration = Duration::from_secs(1);

/// How often ranks that have registered are looked at: one may have died.
const ALL_EVERY: Duration = Duration::from_millis(20);

struct Conn {
    channel: Channel,
    remote: SocketAddr,
    rank: Rank,
    decoder: Decoder,
    /// Sealed.
    out: Vec<u8>,
    phase: ConnPhase,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ConnPhase {
    /// Authenticated, not yet registered: until then.
    Registering(Instant),
    Registered,
    /// Closed once `out` is written, or then.
    Closing(Instant),
}

struct Service {
    acceptor: Acceptor,
    rendezvous: Rendezvous,
    conns: BTreeMap<u64, Conn>,
    next_conn: u64,
    register_timeout: Duration,
    /// Once it is known that many ranks come.
    helpers: Option<Helpers>,
    /// Whether that was decided.
    has_sized_up: bool,
    /// When all connections were polled last.
    looked_at: Instant,
    /// Rank 0's answer, and until when it waits for ranks that come late.
    held: Option<(ConnId, Reply, Instant)>,
}

/// What poll(2) said.
struct Ready {
    /// Of the acceptor's sockets.
    accepting: Vec<PollFlags>,
    /// Of those connections that were polled.
    conns: Vec<(u64, PollFlags)>,
}

impl Service {
    fn run(mut self) {
        let mut accepted = Vec::new();
        loop {
            let now = Instant::now();
            self.rendezvous.tick(now);
            self.answer(now);
            if self.rendezvous.is_finished() && self.conns.is_empty() {
                return;
            }
            let ready = match self.wait() {
                Ok(ready) => ready,
                Err(error) => {
                    return tracing::warn!(%error, "the root cannot wait for its sockets and gives up");
                }
            };
            let now = Instant::now();
            self.serve(now, &ready.conns);
            self.acceptor.drive(now, &ready.accepting, &mut accepted);
            accepted.extend(self.helpers.as_ref().map(Helpers::take).unwrap_or_default());
            accepted.drain(..).for_each(|accepted| self.admit(now, accepted));
            let others = self.helpers.as_ref().and_then(Helpers::other_version);
            if let Some(Foreign { rank, addr, version }) = self.acceptor.take_other_version().or(others) {
                self.rendezvous.other_version(now, rank, addr, version);
            }
            let others = self.helpers.as_ref().and_then(Helpers::strangers);
            for strangers in self.acceptor.take_strangers().into_iter().chain(others) {
                self.rendezvous.refused(strangers);
            }
            if let (None, Some(nranks)) =
                (&self.helpers, self.rendezvous.nranks().filter(|_| !self.has_sized_up))
            {
                self.has_sized_up = true;
                self.helpers = Helpers::start(&self.acceptor, nranks);
            }
            if let Some(why) = self.acceptor.starved(now) {
                self.rendezvous.starved(now, why);
            }
        }
    }

    /// Sleeps until an event. Of ranks that have registered nothing is expected but their end: a poll of all of them for every event of another
    /// would take the root of many ranks longer than all else.
    fn wait(&mut self) -> std::io::Result<Ready> {
        let now = Instant::now();
        let looks_at_all = now >= self.looked_at + ALL_EVERY;
        if looks_at_all {
            self.looked_at = now;
        }
        let is_polled = |conn: &&Conn| looks_at_all || conn.phase != ConnPhase::Registered;
        let polled = || self.conns.iter().filter(|(_, conn)| is_polled(conn));
        let mut fds = Vec::with_capacity(self.acceptor.poll_len() + 1);
        fds.extend(
            self.helpers.iter().map(|helpers| PollFd::from_borrowed_fd(helpers.wake_fd(), PollFlags::IN)),
        );
        self.acceptor.poll_fds(&mut fds);
        for (_, conn) in polled() {
            let flags = if conn.out.is_empty() { PollFlags::IN } else { PollFlags::OUT };
            fds.push(PollFd::new(&conn.channel.stream, flags));
        }
        let conns_until = polled().filter_map(|(_, conn)| match conn.phase {
            ConnPhase::Registering(until) | ConnPhase::Closing(until) => Some(until),
            ConnPhase::Registered => None,
        });
        let next_look = (!self.conns.is_empty()).then_some(self.looked_at + ALL_EVERY);
        let held_until = self.held.map(|(_, _, until)| until);
        let bounds = [self.rendezvous.deadline(), self.acceptor.deadline(), next_look, held_until];
        let until = conns_until.chain(bounds.into_iter().flatten()).min();
        sock::poll(&mut fds, until)?;
        let mut answers = fds.iter().map(PollFd::revents).skip(usize::from(self.helpers.is_some()));
        let accepting = answers.by_ref().take(self.acceptor.poll_len()).collect();
        Ok(Ready { accepting, conns: polled().map(|(key, _)| *key).zip(answers).collect() })
    }

    fn admit(&mut self, now: Instant, accepted: Accepted) {
        if accepted.hello.purpose != Purpose::Register {
            return self.acceptor.refuse(accepted.remote, &"it wants something else than to register");
        }
        self.rendezvous.came(accepted.hello.from);
        let conn = Conn {
            channel: accepted.channel,
            remote: accepted.remote,
            rank: accepted.hello.from,
            decoder: Decoder::new(ROOT_PAYLOAD_MAX),
            out: Vec::new(),
            phase: ConnPhase::Registering(now + self.register_timeout),
        };
        self.conns.insert(self.next_conn, conn);
        self.next_conn += 1;
    }

    fn serve(&mut self, now: Instant, ready: &[(u64, PollFlags)]) {
        let mut gone = Vec::new();
        for &(key, flags) in ready {
            let Some(conn) = self.conns.get_mut(&key) else { continue };
            let alive = match conn.phase {
                ConnPhase::Registering(until) | ConnPhase::Closing(until) if now >= until => false,
                _ if flags.is_empty() => true,
                ConnPhase::Closing(_) => flush(conn),
                ConnPhase::Registering(_) | ConnPhase::Registered => {
                    read(conn, ConnId(key), now, &mut self.rendezvous)
                }
            };
            if !alive {
                gone.push(key);
            }
        }
        for key in gone {
            self.rendezvous.lost(now, ConnId(key));
            match self.conns.remove(&key) {
                Some(Conn { remote, rank, phase: ConnPhase::Registering(_), .. }) => {
                    self.rendezvous.vanished(now, rank);
                    self.acceptor
                        .refuse(remote, &"it belongs to the job but did not register properly in time");
                }
                Some(Conn { remote, rank, phase: ConnPhase::Registered, .. }) => {
                    tracing::warn!(%rank, %remote, "a rank went away before all had come");
                }
                _ => {}
            }
        }
    }

    /// Sends the answers that are ready, and drops connections that are finished.
    fn answer(&mut self, now: Instant) {
        while let Some((conn, reply)) = self.rendezvous.next_reply() {
            let is_rank_zero = self.conns.get(&conn.0).is_some_and(|conn| conn.rank.0 == 0);
            // While ranks come, more may be on their way.
            if let Some((.., until)) = &mut self.held {
                *until = (*until).max(now + held_for(&reply));
            }
            match is_rank_zero && self.held.is_none() {
                true => self.held = Some((conn, reply, now + held_for(&reply))),
                false => self.send(now, conn, &reply),
            }
        }
        // Rank 0 last: its process is usually the root's own, and may end as soon as it has its answer.
        if let Some((conn, reply, until)) = self.held
            && (now >= until || self.rendezvous.is_finished())
        {
            self.held = None;
            self.send(now, conn, &reply);
        }
        if self.rendezvous.is_finished() {
            // Who is about to register came too late, and is told so.
            self.conns.retain(|_, conn| conn.phase != ConnPhase::Registered);
        }
    }

    fn send(&mut self, now: Instant, ConnId(key): ConnId, reply: &Reply) {
        let Some(conn) = self.conns.get_mut(&key) else { return };
        let mut message = Vec::new();
        frame::push(&mut message, KIND_REPLY, &[&reply.to_bytes()]);
        conn.channel.seal(&message, &mut conn.out);
        conn.phase = ConnPhase::Closing(now + self.register_timeout);
        if !flush(conn) {
            self.conns.remove(&key);
        }
    }
}

/// How long rank 0 hears of a failure later than others. Ranks that are wrong are so from the start, when others are still on their way: they
/// would find no root, and wait for one in vain.
fn held_for(reply: &Reply) -> Duration {
    match reply {
        Reply::Failed(
            Failure::Duplicate { .. }
            | Failure::WorldSize { .. }
            | Failure::OutOfRange { .. }
            | Failure::Version { .. }
            | Failure::Withdrew { why: Withdrawal::Misconfigured(_), .. }
            | Failure::Unplaced { .. },
        ) => LATE_RANKS_COME_WITHIN,
        _ => Duration::ZERO,
    }
}

/// Writes as much as possible; returns whether the connection is still needed.
fn flush(conn: &mut Conn) -> bool {
    while !conn.out.is_empty() {
        match sock::write_some(&conn.channel.stream, &conn.out) {
            Ok(Some(sent)) if sent > 0 => drop(conn.out.drain(..sent)),
            Ok(None) => return true,
            _ => return false,
        }
    }
    false
}

/// Reads as much as possible; returns whether the connection is still good.
fn read(conn: &mut Conn, id: ConnId, now: Instant, rendezvous: &mut Rendezvous) -> bool {
    let mut buffer = [0; 256];
    let opened = match conn.channel.read(&mut buffer) {
        Ok(Some(opened)) => opened,
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return true,
        Ok(None) | Err(_) => return false,
    };
    let mut bytes = opened.as_slice();
    loop {
        match conn.decoder.feed(&mut bytes) {
            Ok(None) => return true,
            Ok(Some(frame)) if frame.kind == KIND_REGISTER => {
                let Ok(register) = Register::from_bytes(&frame.payload) else { return false };
                if conn.phase == ConnPhase::Registered {
                    let Some(why) = register.withdraws else { return false };
                    rendezvous.withdraw(now, id, why);
                    return true;
                }
                if register.wants_root && register.process == std::process::id() {
                    // This process has ended the communicator that this root is for, and makes another.
                    return false;
                }
                conn.phase = ConnPhase::Registered;
                rendezvous.register(now, id, conn.rank, conn.remote, register);
            }
            Ok(Some(_)) | Err(_) => return false,
        }
    }
}

//! Layer: host / bootstrap, its top.
//! Takes: a unique id, this process's rank, the number of ranks.
//! Gives: [`Bootstrap`]: small collectives, messages and authenticated streams between the ranks.
//! Never: waits longer than its configuration says, or returns an error that does not name the rank at fault.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use oxccl_shared::abi::Rank;

use super::acceptor::Acceptor;
use super::cancel::Cancel;
use super::channel::{Channel, DataStream};
use super::config::BootstrapConfig;
use super::credentials::Credentials;
use super::error::{ALL_GATHER, BootstrapError, NRANKS_MAX};
use super::handshake::{Hello, NO_RANK, Purpose};
use super::id::{RootKind, UniqueId};
use super::iface;
use super::incidents::Incidents;
use super::join::{self, Assigned};
use super::links::Links;
use super::reach::Reach;
use super::rendezvous;
use super::rendezvous_wire::{Introduction, Said, Withdrawal};
use super::ring::Side;
use super::root::LATE_RANKS_COME_WITHIN;
use super::root_address;
use super::service::Service;
use super::side::far_parent;
use super::sock::{self, Deadline};
use super::state::{Awaits, LONG_SHARE, Place, Shared, State, Stop};
use crate::log;
use crate::wire::{self, Message};

/// One rank's end of the bootstrap: its connections in ring and tree, its listener and the thread that serves them.
///
/// All ranks must call collectives (`all_gather`, `barrier`, `broadcast`, `split`) in the same order. Dropping it
/// without [`close`](Self::close) aborts this rank.
pub struct Bootstrap {
    pub(super) shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// The process of the thread: a forked child has only the memory.
    process: u32,
    /// Serialises collectives of several threads of one rank.
    collective: Mutex<()>,
}

/// What a rank whose join was cancelled says to the others.
fn why_cancelled(cancel: &Cancel) -> Withdrawal {
    if cancel.is_abort() { Withdrawal::Aborted } else { Withdrawal::Failed }
}

/// What a rank that has no listener says to the others. By a setting of its own it is wrong from its start, as those that decline.
fn why_not_started(error: &BootstrapError) -> Withdrawal {
    match error {
        BootstrapError::NoInterface { .. }
        | BootstrapError::NoAddress { .. }
        | BootstrapError::OnlyLoopback { .. } => Withdrawal::Misconfigured(Said::of(&error.to_string())),
        _ => Withdrawal::Failed,
    }
}

/// Starts the root of an id made from an address, for a rank that does not join. It does not wait for an address that is in use: another root
/// is there.
fn start_root_at_once(id: &UniqueId, nranks: u32, config: &BootstrapConfig) -> bool {
    let at_once = Cancel::default();
    at_once.cancel();
    root_address::start(id, nranks, config, &at_once).is_ok()
}

impl Bootstrap {
    /// Joins the communicator of `id` as `rank` of `nranks`. Returns once all ranks have joined and each knows the
    /// listeners of all others. If any rank fails to join, every rank that did join gets the same error.
    pub fn connect(
        id: &UniqueId,
        rank: Rank,
        nranks: u32,
        config: &BootstrapConfig,
    ) -> Result<Bootstrap, BootstrapError> {
        Bootstrap::connect_unless(id, (rank, nranks), config, &Cancel::default())
    }

    /// Says that `rank` of `nranks`, which has not joined, will not: the others' joins fail, and name it and what it `said`. Returns within
    /// moments, or seconds where the others have not started yet.
    pub fn decline(id: &UniqueId, (rank, nranks): (Rank, u32), said: &str) {
        let config = BootstrapConfig::default();
        if id.kind() != RootKind::Created && rank.0 == 0 && !start_root_at_once(id, nranks, &config) {
            return;
        }
        let why = Withdrawal::Misconfigured(Said::of(said));
        join::leave_unmet((id, &id.credentials()), (rank, nranks), &config, why);
    }

    /// The same of a process that does not know which rank it is. It may be the one for whose root the others wait: where none is found, and the
    /// address is this host's, it is the root for as long as it takes them to hear of it.
    pub fn decline_unplaced(id: &UniqueId, said: &str) {
        let config = BootstrapConfig::default();
        let why = Withdrawal::Misconfigured(Said::of(said));
        let leave = || join::leave_unmet((id, &id.credentials()), (NO_RANK, 0), &config, why);
        let may_be_root = id.kind() != RootKind::Created && join::is_own(id.root_addr().ip());
        if !leave() && may_be_root && start_root_at_once(id, 0, &config) {
            leave();
            std::thread::sleep(LATE_RANKS_COME_WITHIN);
        }
    }

    /// As [`Self::connect`], until `cancel` is called: then it fails with [`BootstrapError::Aborted`], within moments, or two seconds where
    /// others still come to connect to this rank.
    pub fn connect_unless(
        id: &UniqueId,
        (rank, nranks): (Rank, u32),
        config: &BootstrapConfig,
        cancel: &Cancel,
    ) -> Result<Bootstrap, BootstrapError> {
        Bootstrap::connect_by((id, &id.credentials()), (rank, nranks), config, cancel)
    }

    /// The same by these credentials.
    pub(super) fn connect_by(
        (id, credentials): (&UniqueId, &Credentials),
        (rank, nranks): (Rank, u32),
        config: &BootstrapConfig,
        cancel: &Cancel,
    ) -> Result<Bootstrap, BootstrapError> {
        let connected = Bootstrap::connect_to((id, credentials), (rank, nranks), config, cancel);
        connected.map_err(|error| match error {
            _ if cancel.is_called() => BootstrapError::Aborted,
            // The root reports its own lack of descriptors.
            BootstrapError::NoDescriptor { what: rendezvous::ACCEPT_RANKS, .. } => error,
            error => error.of_rank(rank),
        })
    }

    fn connect_to(
        (id, credentials): (&UniqueId, &Credentials),
        (rank, nranks): (Rank, u32),
        config: &BootstrapConfig,
        cancel: &Cancel,
    ) -> Result<Bootstrap, BootstrapError> {
        if id.kind() != RootKind::Created && rank.0 == 0 {
            root_address::start(id, nranks, config, cancel)?;
        }
        let reached = join::reach_root((id, credentials), rank, config, cancel);
        let (mut root, credentials) = reached.inspect_err(|_| {
            if cancel.is_called() {
                join::leave_unmet((id, credentials), (rank, nranks), config, why_cancelled(cancel));
            }
        })?;
        // The root refuses invalid numbers, so that the other ranks learn of it too.
        let plausible = rank.0 < nranks && nranks <= NRANKS_MAX;
        let (local_rank, local_nranks) = if plausible { (rank, nranks) } else { (Rank(0), 1) };
        let started =
            Shared::new((local_rank, local_nranks), (*id.secret(), credentials), config.clone(), cancel);
        let started = started.and_then(|shared| {
            let ip = join::listen_ip((rank, &root.stream, id.kind()), config)?;
            let listener = sock::listen(ip, 0);
            let listener =
                listener.map_err(|error| iface::listening(ip, "listen for other ranks", &error))?;
            let addr = listener.local_addr();
            let addr = addr.map_err(|error| BootstrapError::io("listen for other ranks", &error))?;
            let acceptor = Acceptor::new(listener, *id.secret(), rank, config.handshake_timeout);
            let acceptor = acceptor.of_neighbours().by(shared.credentials.clone());
            Ok((Bootstrap::start(shared, acceptor)?, addr))
        });
        let (this, addr) = started.inspect_err(|error| {
            join::withdraw(&mut root, nranks, why_not_started(error));
        })?;
        let assigned = join::register(&mut root, id, (rank, nranks), addr, config, cancel);
        let assigned = assigned.inspect_err(|error| this.withdraw(&mut root, nranks, error, cancel))?;
        let reach = join::check_reach((rank, nranks), &assigned, (&root.stream, id.kind()));
        drop(root);
        this.give_up_if_cancelled();
        match reach.and_then(|()| this.join_ring(assigned)).and_then(|()| this.introduce(addr)) {
            Ok(()) => Ok(this),
            // The others are past the rendezvous: report why this one does not join.
            Err(error) => Err(this.give_up(error)),
        }
    }

    /// This rank has waited for the root in vain, and does not join.
    fn withdraw(&self, root: &mut Channel, nranks: u32, error: &BootstrapError, cancel: &Cancel) {
        let why = match error {
            _ if cancel.is_called() => why_cancelled(cancel),
            BootstrapError::Timeout { .. } => Withdrawal::Failed,
            // The root has answered, or is gone.
            _ => return,
        };
        if join::withdraw(root, nranks, why) {
            // Those that are about to connect to this rank hear it here.
            self.give_up(error.clone());
        }
    }

    fn start(shared: Arc<Shared>, acceptor: Acceptor) -> Result<Bootstrap, BootstrapError> {
        let service = Service::new(shared.clone(), acceptor);
        let thread = std::thread::Builder::new()
            .name(format!("oxccl-boot-{}", shared.me))
            .spawn(move || service.run())
            .map_err(|error| BootstrapError::io("start the bootstrap's thread", &error))?;
        let process = std::process::id();
        Ok(Bootstrap { shared, thread: Some(thread), process, collective: Mutex::new(()) })
    }

    /// Tells the others why this rank goes no further, and returns it. A wait that was cancelled may have ended as if its time were over.
    fn give_up(&self, error: BootstrapError) -> BootstrapError {
        let why = if self.shared.cancel.is_called() { BootstrapError::Aborted } else { error };
        self.shared.lock().ring.give_up(why.clone());
        // Its program may end this process now, and the others are to hear why before they hear that it is gone.
        self.shared.flush();
        why
    }

    /// Makes a cancelled join break this bootstrap, whose waits end then.
    fn give_up_if_cancelled(&self) {
        let shared = Arc::downgrade(&self.shared);
        self.shared.cancel.on_call(move || {
            let Some(shared) = shared.upgrade() else { return };
            shared.lock().ring.give_up(BootstrapError::Aborted);
            shared.wake();
            shared.announce_change();
        });
    }

    /// Connects to the successor and the parent, and waits until the predecessor and the children have connected.
    fn join_ring(&self, assigned: Assigned) -> Result<(), BootstrapError> {
        let (me, nranks) = (self.rank(), self.nranks());
        if nranks == 1 {
            return Ok(());
        }
        let (deadline, _wait) = (self.deadline(), self.shared.begin_wait(Awaits::Neighbours));
        let successor = Rank((me.0 + 1) % nranks);
        self.dial(Side::Next, Purpose::Ring, successor, assigned.successor, &deadline)?;
        if let Some((parent, addr)) = far_parent(me, nranks).zip(assigned.parent) {
            // Who reported a loss may have ended already.
            self.dial(Side::Up, Purpose::Tree, parent, addr, &deadline)
                .map_err(|error| self.reach().known_better(error))?;
        }
        let all_up = |state: &mut State| state.ring.awaited().is_empty().then_some(Ok(()));
        // A neighbour may connect and die, or report a death, before the other neighbours connect.
        let failed = |state: &mut State| state.ring.broken().or_else(|| state.starved(me)).map(Err);
        let joined = self.shared.wait_for(&deadline, |state| all_up(state).or_else(|| failed(state)));
        joined.unwrap_or_else(|| {
            let state = self.shared.lock();
            Err(BootstrapError::Timeout {
                calls: None,
                by: None,
                what: "waiting for a neighbour in the ring or the tree",
                ranks: state.ring.guilty(state.ring.awaited()),
                limit: deadline.limit(),
            })
        })
    }

    /// Connects to a neighbour, and hands the connection to the thread.
    fn dial(
        &self,
        side: Side,
        purpose: Purpose,
        peer: Rank,
        addr: SocketAddr,
        deadline: &Deadline,
    ) -> Result<(), BootstrapError> {
        let hello = Hello { purpose, from: self.rank(), to: peer, tag: 0 };
        let channel = self.reach().dial_at(hello, addr, deadline)?;
        self.shared.lock().dialed.push((side, peer, channel));
        self.shared.wake();
        Ok(())
    }

    /// Gathers the listener, host and process of every rank.
    fn introduce(&self, addr: SocketAddr) -> Result<(), BootstrapError> {
        let host = wire::cut(&log::host_name(), Introduction::HOST_BYTES_MAX).to_owned();
        let number = getrandom::u64().unwrap_or_else(|_| u64::from(self.process));
        let table =
            self.all_gather(&Introduction { addr, process: self.process, host, number }.to_bytes())?;
        let read = |(rank, bytes): (usize, &Vec<u8>)| {
            Introduction::from_bytes(bytes).map_err(|_| BootstrapError::Protocol {
                rank: Rank(rank as u32),
                what: "its address cannot be read",
            })
        };
        let ranks = table.iter().enumerate().map(read).collect::<Result<Vec<_>, _>>()?;
        let mut state = self.shared.lock();
        state.number = ranks.first().map_or(0, |first| first.number);
        state.addrs = ranks.iter().map(|rank| rank.addr).collect();
        let place = |rank: Introduction| Place { host: rank.host, process: rank.process };
        state.places = ranks.into_iter().map(place).collect();
        Ok(())
    }

    /// Where each rank is, for messages.
    pub fn places(&self) -> Vec<Place> {
        self.shared.lock().places.clone()
    }

    /// A random number that names this communicator, the same on all ranks.
    pub fn number(&self) -> u64 {
        self.shared.lock().number
    }

    /// What has happened to the connections of those who watch each other; goes on to count while this lives.
    pub fn incidents(&self) -> Arc<Incidents> {
        self.shared.incidents.clone()
    }

    /// The data streams on which this rank sends.
    pub fn links(&self) -> Arc<Links> {
        self.shared.links.clone()
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.shared.me
    }

    /// Number of ranks.
    pub fn nranks(&self) -> u32 {
        self.shared.nranks
    }

    /// The address at which `peer` listens for other ranks of this communicator.
    pub fn listener_addr(&self, peer: Rank) -> Result<SocketAddr, BootstrapError> {
        self.reach().listener_addr(peer)
    }

    /// Messages and streams to single ranks, also while this is not at hand.
    pub fn reach(&self) -> Reach {
        Reach::new(&self.shared)
    }

    /// All-gathers the ranks' blocks, in rank order. Blocks may differ in size; together they may have up to 16 MiB.
    /// After an error no further collective works.
    pub fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, BootstrapError> {
        let _one_at_a_time = self.collective.lock().unwrap_or_else(PoisonError::into_inner);
        let (deadline, _wait) = (self.deadline(), self.shared.begin_wait(Awaits::Blocks));
        self.shared.lock().ring.submit(mine).inspect_err(|_| self.shared.wake())?;
        self.shared.wake();
        let take = |state: &mut State| state.ring.take_gathered();
        let gathered = self
            .shared
            .wait_for(&deadline.at_most(self.shared.config.timeout / LONG_SHARE), take)
            // Until then ranks hold blocks back, to send few messages. Now this one wants to know who is missing.
            .or_else(|| {
                self.shared.lock().ring.hurry();
                self.shared.wake();
                self.shared.wait_for(&deadline, take)
            });
        gathered.unwrap_or_else(|| {
            let ranks = self.shared.lock().ring.missing();
            let limit = deadline.limit();
            Err(self.give_up(BootstrapError::Timeout {
                calls: None,
                by: None,
                what: ALL_GATHER,
                ranks,
                limit,
            }))
        })
    }

    /// Returns once every rank has called it.
    pub fn barrier(&self) -> Result<(), BootstrapError> {
        self.all_gather(&[]).map(drop)
    }

    /// Broadcasts the bytes of `root`; other ranks' `mine` is ignored.
    pub fn broadcast(&self, root: Rank, mine: &[u8]) -> Result<Vec<u8>, BootstrapError> {
        self.check(root)?;
        let mut table = self.all_gather(if root == self.rank() { mine } else { &[] })?;
        Ok(table.swap_remove(root.index()))
    }

    /// Sends a message of at most 16 MiB to `peer` over a connection of its own. Messages with the same tag arrive in
    /// order. Up to about the size of the kernel's buffers it does not wait for the peer's receive.
    pub fn send(&self, peer: Rank, tag: u64, message: &[u8]) -> Result<(), BootstrapError> {
        self.reach().send(peer, tag, message)
    }

    /// Receives the next message that `peer` sent with `tag`.
    pub fn recv(&self, peer: Rank, tag: u64) -> Result<Vec<u8>, BootstrapError> {
        self.reach().recv(peer, tag)
    }

    /// As [`Self::send`], to one of `members`, which go on without the others: that a rank has aborted says nothing of it.
    pub(super) fn send_among(
        &self,
        peer: Rank,
        members: &[Rank],
        tag: u64,
        message: &[u8],
        deadline: &Deadline,
    ) -> Result<(), BootstrapError> {
        let addr = self.listener_addr(peer)?;
        if let Some(error) = self.shared.lock().why_gone(members) {
            return Err(error);
        }
        let hello = Hello { purpose: Purpose::Message, from: self.rank(), to: peer, tag };
        let mut channel = self.reach().dial_at(hello, addr, deadline)?;
        self.reach().write_message(peer, &mut channel, message, deadline)
    }

    /// As [`Self::recv`], from any of these `peers` among `members`, in the same way. Returns from whom. A timeout names the last.
    pub(super) fn recv_among(
        &self,
        peers: &[Rank],
        members: &[Rank],
        tag: u64,
        deadline: &Deadline,
    ) -> Result<(Rank, Vec<u8>), BootstrapError> {
        let hello = |from: &Rank| Hello { purpose: Purpose::Message, from: *from, to: self.rank(), tag };
        let wanted: Vec<Hello> = peers.iter().map(hello).collect();
        let why_not = |state: &State| state.why_gone(members);
        let reach = self.reach();
        loop {
            let (from, channel) = reach.accept_unless(&wanted, deadline, why_not)?;
            // A sender gives up a connection whose handshake takes too long: this process may have been stopped in it. So its end is no death,
            // which the ring would report, and another connection may have come or may still come.
            if let Some(message) = reach.read_unless_ended(from, channel, deadline)? {
                return Ok((from, message));
            }
        }
    }

    /// The ranks that are known to be gone: their process or host has ended, or they have left.
    pub fn gone(&self) -> Vec<Rank> {
        let state = self.shared.lock();
        (0..self.nranks()).map(Rank).filter(|rank| state.ring.is_gone(*rank)).collect()
    }

    /// Those of them whose process or host has ended.
    pub fn dead(&self) -> Vec<Rank> {
        let state = self.shared.lock();
        (0..self.nranks()).map(Rank).filter(|rank| state.who_died(&[*rank]).is_some()).collect()
    }

    /// Opens an authenticated, blocking stream with `TCP_NODELAY` to `peer`, which accepts it with the same purpose and tag. Its bytes are
    /// as clear as its user leaves them; it comes with keys to encrypt them by.
    pub fn connect_stream(&self, peer: Rank, purpose: u32, tag: u64) -> Result<DataStream, BootstrapError> {
        self.reach().connect_stream(peer, purpose, tag)
    }

    /// Accepts the authenticated stream that `peer` opens with the same purpose and tag.
    pub fn accept_stream(&self, peer: Rank, purpose: u32, tag: u64) -> Result<DataStream, BootstrapError> {
        self.reach().accept_stream(peer, purpose, tag)
    }

    /// An error if a rank is known to be lost. Cheap: no communication.
    pub fn check_whole(&self) -> Result<(), BootstrapError> {
        self.shared.lock().ring.broken().map_or(Ok(()), Err)
    }

    /// Leaves: says goodbye to the neighbours, waits at most half a second for their answer, and ends the thread. The
    /// others see no death. All-gathers that others have started without this rank fail with `PeerLeft`.
    pub fn close(mut self) {
        self.stop(Stop::Leave);
    }

    /// Ends like a killed process: without goodbye, connections cut. For tests of the reaction of the other ranks.
    #[doc(hidden)]
    pub fn die(mut self) {
        self.stop(Stop::Die);
    }

    /// Aborts: the other ranks get the reason (at most 256 bytes). This rank's waits end within 2 s.
    pub fn abort(&self, reason: &str) {
        let mut state = self.shared.lock();
        state.ring.abort(reason);
        state.aborted_at.get_or_insert_with(Instant::now);
        drop(state);
        self.shared.wake();
        self.shared.announce_change();
    }

    /// Sends a note of at most 256 bytes to the other ranks; those under watch get
    /// [`PeerEvent::PeerNote`](super::PeerEvent).
    pub fn note(&self, note: &[u8]) {
        self.shared.lock().ring.note(note);
        self.shared.wake();
    }

    pub(super) fn check(&self, peer: Rank) -> Result<(), BootstrapError> {
        let nranks = self.nranks();
        if peer.0 < nranks { Ok(()) } else { Err(BootstrapError::RankOutOfRange { rank: peer, nranks }) }
    }

    pub(super) fn deadline(&self) -> Deadline {
        self.reach().deadline()
    }

    /// Why the communicator is broken, if an event arrives soon. For a caller whose connection has failed.
    pub(crate) fn why_broken(&self) -> Option<BootstrapError> {
        self.reach().why_broken()
    }

    fn stop(&mut self, how: Stop) {
        let Some(thread) = self.thread.take() else { return };
        if self.process != std::process::id() {
            // The sockets are the parent's as well, whose rank continues. There is no thread here to join.
            return std::mem::forget(thread);
        }
        self.shared.lock().stop = how;
        self.shared.wake();
        // Its own callback may drop the owner, on this very thread, which then ends by itself.
        if thread.thread().id() != std::thread::current().id() {
            let _ = thread.join();
        }
    }
}

impl Drop for Bootstrap {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.abort("it was dropped without being closed");
            self.stop(Stop::Leave);
        }
    }
}

//! Watches one communicator for operations without progress: the detector with its clock, its log lines and its names.

mod elsewhere;

use super::config::Config;
use super::memory::MemoryReport;
use super::polling::{Asked, POLL_EVERY, Polled, poll};
use super::reach::{Outages, Reach, Since, Turn};
use super::roll::Roll;
use crate::bootstrap::{Bootstrap, Counts, Incidents, Links, Neighbour, Place};
use crate::launch::{
    Act, CommAct, CommCall, CommCallWatch, CommStall, Detector, Fault, LinkWindow, Probe, Recorded, Slept,
    Stall, StallClass, StallNotice, Standing,
};
use crate::net::coll::CollConfig;
use crate::transport::TransportKind;
use oxccl_shared::abi::Rank;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant, SystemTime};

/// How often neighbours are looked at while something waits.
const REACH_EVERY: Duration = Duration::from_secs(1);
/// The warn time of who wants no warning.
const NEVER: Duration = Duration::from_secs(u32::MAX as u64);

/// What one rank knows of its communicator's stalls. Used by the monitor thread, and asked by handles.
pub(super) struct Stalls {
    me: Rank,
    names: Names,
    /// Of the rank that the communicator's error names.
    place_in_error: OnceLock<(Rank, &'static str)>,
    /// The stall that the ranks know of, or knew of when the communicator failed.
    latest: Mutex<Option<Stall>>,
    /// Why the first rank that gave up did so, in its words.
    said: OnceLock<(Rank, String)>,
    warn: Duration,
    /// How long a host may be silent.
    outage: Duration,
    since: Instant,
    detector: Mutex<Detector>,
    /// Calls about the communicator.
    comm_calls: Mutex<CommCallWatch>,
    /// Neighbours whose hosts do not answer.
    reach: Mutex<Reach>,
    /// What happens rarely to the bootstrap's connections.
    incidents: Arc<Incidents>,
    /// The streams on which this rank sends.
    data_links: Arc<Links>,
    /// Known once operations can run.
    running: OnceLock<Running>,
    /// The thread that polls, if one does.
    poller: OnceLock<Thread>,
    /// What ranks have answered to who asked.
    roll: Roll,
}

struct Running {
    probe: Arc<dyn Probe>,
    /// By rank: the transport that reaches it.
    links: Vec<Option<TransportKind>>,
    /// Of a communicator that is polled.
    polled: Option<Mutex<Polled>>,
    /// The streams on which this rank sends, and what was counted of them when the present call was first looked at.
    data_links: Arc<Links>,
    /// How long a call lasts before these are looked at, and what its kernels do.
    looked_at_after: Duration,
    window: Mutex<LinkWindow>,
    /// Whether no other rank is in this process.
    is_alone: bool,
}

/// The servers that are named, or whatever else there is.
fn reduces_by(coll: &CollConfig) -> String {
    match &coll.aggregators {
        _ if !coll.enabled => String::new(),
        Some(aggregators) => format!("aggregators {} (OXCCL_AGGREGATOR)", aggregators.servers.join(", ")),
        None => "the network that reduces (NCCL_COLLNET_ENABLE)".to_owned(),
    }
}

impl Stalls {
    pub fn new(bootstrap: &Bootstrap, config: &Config) -> Stalls {
        let (me, nranks) = (bootstrap.rank(), bootstrap.nranks());
        let name = config.name.clone().unwrap_or_else(|| format!("{:016x}", bootstrap.number()));
        let warn = config.stall_warn.unwrap_or(NEVER).min(NEVER);
        Stalls {
            me,
            names: Names {
                name,
                number: bootstrap.number(),
                places: bootstrap.places(),
                reduces_by: reduces_by(&config.net.coll),
            },
            place_in_error: OnceLock::new(),
            said: OnceLock::new(),
            latest: Mutex::default(),
            warn,
            outage: config.bootstrap.peer_dead_after,
            since: Instant::now(),
            detector: Mutex::new(Detector::new(me, nranks, warn)),
            comm_calls: Mutex::new(CommCallWatch::new(me, nranks, warn)),
            reach: Mutex::default(),
            incidents: bootstrap.incidents(),
            data_links: bootstrap.links(),
            running: OnceLock::new(),
            poller: OnceLock::new(),
            roll: Roll::new(me, nranks),
        }
    }

    /// Operations can run.
    pub fn start(self: &Arc<Stalls>, probe: Arc<dyn Probe>, memory: &MemoryReport) {
        let mut links = vec![None; self.names.places.len()];
        memory.peers.iter().for_each(|peer| links[peer.rank.index()] = Some(peer.transport));
        let is_polled = probe.is_polled();
        let polled = is_polled.then(Mutex::default);
        let (data_links, window, looked_at_after) =
            (self.data_links.clone(), Mutex::default(), self.warn / 4);
        let is_alone = elsewhere::is_alone(self.places(), self.me);
        let running = Running { probe, links, polled, data_links, looked_at_after, window, is_alone };
        // Only the first call counts, and there is one.
        let _ = self.running.set(running);
        elsewhere::list(self);
        if is_polled && self.warn < NEVER {
            self.start_polling();
        }
    }

    fn start_polling(self: &Arc<Stalls>) {
        let (stalls, every) = (Arc::downgrade(self), self.poll_every());
        let thread = std::thread::Builder::new().name(format!("oxccl-poll-{}", self.me));
        match thread.spawn(move || poll(&stalls, every)) {
            // Only the first call counts, and there is one.
            Ok(thread) => drop(self.poller.set(thread.thread().clone())),
            Err(error) => tracing::info!(%error, "no thread asks the GPU: its stalls are not reported"),
        }
    }

    fn poll_every(&self) -> Duration {
        POLL_EVERY.min(self.warn / 4)
    }

    /// The communicator's name.
    pub fn name(&self) -> &str {
        &self.names.name
    }

    /// The random number that names it, the same on all ranks.
    pub fn number(&self) -> u64 {
        self.names.number
    }

    /// A rank has given up, and says why: its peers' errors say so too, as the guilty may be none of the ranks.
    pub fn note_said(&self, rank: Rank, reason: &str) {
        let printable = |c: char| if c.is_control() { ' ' } else { c };
        // Only the first counts, as of faults.
        let _ = self.said.set((rank, reason.chars().map(printable).collect()));
    }

    /// Where the rank is that the communicator's error names, and what it said, or who waited for it. Kept for the rest of the process: a
    /// communicator fails but once.
    pub fn place_in_error(&self, fault: &Fault) -> Option<&'static str> {
        let rank = fault.guilty()?;
        let place = self.names.places.get(rank.index())?;
        let keep = || -> (Rank, &'static str) {
            let mut text = format!("process {} of {}", place.process, place.host);
            let explains = |(by, said): &&(Rank, String)| fault.speaker() == Some(*by) && !said.is_empty();
            match self.said.get().filter(explains) {
                Some((by, said)) if *by == rank => text += &format!("; it said: {said}"),
                Some((by, said)) => text += &format!("; rank {by} said: {said}"),
                None => {}
            }
            if let Some(elsewhere) = self.elsewhere_in(fault) {
                text += &format!("; {elsewhere}");
            }
            (rank, Box::leak(text.into_boxed_str()))
        };
        let (of, text) = *self.place_in_error.get_or_init(keep);
        (of == rank).then_some(text)
    }

    /// Where the process of the rank waits that did not do its part in time, as it said when the stall was found.
    fn elsewhere_in(&self, fault: &Fault) -> Option<String> {
        let Fault::Timeout { rank, .. } = *fault else { return None };
        let latest = *self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        let stall = latest.filter(|stall| stall.rank == rank)?;
        Some(stall.elsewhere?.beside(stall.waiter))
    }

    /// What reduces between the ranks, in words; empty without.
    pub fn reduces_by(&self) -> &str {
        &self.names.reduces_by
    }

    /// Where each rank is.
    pub fn places(&self) -> &[Place] {
        &self.names.places
    }

    /// The transport that reaches a rank.
    pub fn link_to(&self, rank: Rank) -> Option<TransportKind> {
        self.running.get()?.links.get(rank.index()).copied().flatten()
    }

    /// What this rank does; of one whose calls go on when they have returned, what it did when it was last asked.
    pub fn standing(&self) -> Standing {
        let now = self.now(Instant::now());
        self.running.get().map_or_else(Standing::default, |running| self.own(running, now))
    }

    /// Whether no other rank is in this process, as far as that is known.
    fn is_alone(&self) -> bool {
        self.running.get().is_some_and(|running| running.is_alone)
    }

    fn own(&self, running: &Running, now: Duration) -> Standing {
        let comm_calls = self.comm_calls().standing(now);
        Standing { comm_calls, ..running.standing(now) }
    }

    fn comm_calls(&self) -> MutexGuard<'_, CommCallWatch> {
        self.comm_calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This rank enters a call about the communicator, of all ranks or of these. Returns what to leave it by.
    pub fn enter(&self, call: CommCall, members: Option<Vec<Rank>>) -> u64 {
        self.comm_calls().enter(self.now(Instant::now()), call, members)
    }

    /// The other call of this kind that a rank said last that it was in, while this one was in its call with this number.
    pub fn other_comm_call(&self, id: u64, rank: Rank) -> Option<CommCall> {
        self.comm_calls().other_call(id, rank)
    }

    /// It has returned.
    pub fn leave_comm_call(&self, id: u64) {
        let reported = self.comm_calls().leave(id);
        reported.iter().for_each(|stall| tracing::warn!("{}", self.names.comm_over(stall)));
    }

    /// Asks and reports about splits, shrinks and the like, as is due. Returns when to look again.
    fn look_at_comm_calls(
        &self,
        now: Duration,
        own: &Standing,
        tell: &dyn Fn(StallNotice),
    ) -> Option<Duration> {
        let mut acts = Vec::new();
        let next = self.comm_calls().look(now, own, &mut acts);
        for act in acts {
            match act {
                CommAct::Tell(notice) => tell(notice),
                CommAct::Report(stall) => tracing::warn!("{}", self.names.comm_line(self.me, &stall)),
            }
        }
        next
    }

    /// Adds to calls, which stand in their order, when the GPU ran them, where that is kept.
    pub fn add_times(&self, calls: &mut [Recorded]) {
        self.running.get().into_iter().for_each(|running| running.probe.add_times(calls));
    }

    /// Whether calls go on when they have returned.
    pub fn is_polled(&self) -> bool {
        self.running.get().is_some_and(|running| running.polled.is_some())
    }

    /// What ranks have answered to who asked.
    pub fn roll(&self) -> &Roll {
        &self.roll
    }

    /// A report of a stall, as the log has it.
    pub fn line(&self, stall: &Stall) -> String {
        let line = self.names.line(stall, self.running.get().and_then(|running| self.link(stall, running)));
        match self.reach().of(stall.rank).filter(|_| stall.class == StallClass::NoAnswer) {
            Some(found) => format!("{line}; its host is {}", Since(found, Instant::now())),
            None if self.is_owed_by_network(stall) => format!(
                "{line}. The ranks wait for each other in a circle: if it goes through {}, that owes all of them a result",
                self.names.reduces_by
            ),
            None => line,
        }
    }

    /// Whether nobody that a stall concerns can go on by itself, where a network may reduce for all of them.
    fn is_owed_by_network(&self, stall: &Stall) -> bool {
        // Of what is only slow somebody goes on. One may be an operation behind: it has no result of that yet.
        let may_be = !self.names.reduces_by.is_empty() && !stall.waited.is_zero();
        may_be && stall.class != StallClass::Network && self.lock().is_circle(stall.rank)
    }

    /// The stall that the ranks know of.
    pub fn stall(&self) -> Option<Stall> {
        self.lock().stall()
    }

    /// By rank: stalls found so far in which it was at fault.
    pub fn found(&self) -> Vec<u64> {
        self.lock().found().to_vec()
    }

    /// How long, and how often, a rank's host did not answer.
    pub fn outages(&self, rank: Rank) -> Outages {
        self.reach().outages(rank, Instant::now())
    }

    /// What has happened to the bootstrap's connections.
    pub fn incidents(&self) -> Counts {
        self.incidents.counts()
    }

    /// By peer, what the kernel has sent again of the streams on which this rank sends.
    pub fn retransmits(&self) -> Vec<(Rank, u64)> {
        self.data_links.counts().into_iter().map(|(peer, counts)| (peer, counts.retransmits)).collect()
    }

    /// Looks at this rank and its neighbours. Returns when to look again.
    pub fn tick(&self, at: Instant, neighbours: &[Neighbour], tell: &dyn Fn(StallNotice)) -> Option<Instant> {
        let running = self.running.get()?;
        self.look_at_neighbours(at, neighbours);
        let now = self.now(at);
        let own = self.own(running, now);
        let mut acts = Vec::new();
        let next = self.lock().look(now, &own, &mut acts);
        self.keep_latest();
        self.act(acts, tell);
        let comm_calls = self.look_at_comm_calls(now, &own, tell);
        let poll = self.poller.get().map(|_| now + self.poll_every());
        // Silence is looked for only while something waits: nothing else wakes this thread for it.
        let is_waiting = own.waits_for.is_some() || neighbours.iter().any(|one| one.silent_since.is_some());
        let reach = is_waiting.then(|| now + REACH_EVERY);
        let next = [next, poll, reach, comm_calls].into_iter().flatten().min()?;
        self.since.checked_add(next)
    }

    fn look_at_neighbours(&self, at: Instant, neighbours: &[Neighbour]) {
        let names = &self.names;
        let outage = self.outage.as_secs_f64();
        self.reach().look((at, SystemTime::now()), neighbours, |turn| match turn {
            Turn::Silent(found) => tracing::warn!(
                "{} is {}: its host answers nothing; it counts as dead when that lasts for {outage:.0} s (OXCCL_OUTAGE)",
                names.of(found.rank),
                Since(found, at),
            ),
            Turn::Back(found) => {
                tracing::warn!("{} answers again; it was {}", names.of(found.rank), Since(found, at));
            }
        });
    }

    fn has_failed(&self) -> bool {
        self.running.get().is_some_and(|running| running.probe.has_failed())
    }

    fn reach(&self) -> MutexGuard<'_, Reach> {
        self.reach.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another rank has said something.
    pub fn heard(&self, from: Rank, notice: StallNotice, tell: &dyn Fn(StallNotice)) {
        let Some(running) = self.running.get() else { return };
        let now = self.now(Instant::now());
        let own = self.own(running, now);
        self.comm_calls().heard(now, from, notice);
        let mut acts = Vec::new();
        self.lock().heard(now, from, notice, &own, &mut acts);
        self.keep_latest();
        for act in &mut acts {
            if let Act::Tell(StallNotice::Answer(standing)) = act {
                *standing = elsewhere::with(self, *standing, from);
            }
        }
        self.act(acts, tell);
    }

    /// A rank has left.
    pub fn left(&self, rank: Rank) {
        self.lock().left(rank);
        self.comm_calls().left(rank);
    }

    /// Keeps what the detector knows. Of a communicator that has failed the stall is over before the error is put into words, which names it.
    fn keep_latest(&self) {
        let known = self.stall();
        if known.is_some() || !self.has_failed() {
            *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = known;
        }
    }

    fn act(&self, acts: Vec<Act>, tell: &dyn Fn(StallNotice)) {
        for act in acts {
            match act {
                Act::Tell(notice) => tell(notice),
                Act::Report(stall) => tracing::warn!("{}", self.line(&stall)),
                Act::Clear(stall) => tracing::warn!("{}", self.names.over(&stall, self.has_failed())),
                Act::CountAnew => self.running.get().into_iter().for_each(Running::count_anew),
            }
        }
    }

    /// This rank leaves, without an error: says the end of a stall that came after the last look. Where calls go on when they have returned
    /// nobody knows.
    pub fn leave(&self) {
        let Some(running) = self.running.get().filter(|running| running.polled.is_none()) else { return };
        let (now, own) = (self.now(Instant::now()), running.probe.standing());
        if own.done == own.begun {
            let mut acts = Vec::new();
            self.lock().look(now, &own, &mut acts);
            self.act(acts, &|_| ());
        }
    }

    /// What connects this rank, if it is the one that waits, with the one that it waits for.
    fn link(&self, stall: &Stall, running: &Running) -> Option<TransportKind> {
        let peer = if stall.waiter == self.me { stall.rank } else { stall.waiter };
        running.links.get(peer.index()).copied().flatten().filter(|_| stall.waiter == self.me)
    }

    fn now(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.since)
    }

    fn lock(&self) -> MutexGuard<'_, Detector> {
        self.detector.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Asked for Stalls {
    fn sample(&self, at: Instant, slept: Slept) {
        self.running.get().into_iter().for_each(|running| running.sample(self.now(at), slept));
    }

    fn poll(&self, at: Instant) -> Option<Duration> {
        self.running.get()?.poll(self.now(at))
    }

    fn lasts(&self, at: Instant) -> bool {
        self.running.get().is_some_and(|running| running.lasts(self.now(at)))
    }

    fn now(&self) -> Instant {
        Instant::now()
    }
}

impl Running {
    fn standing(&self, now: Duration) -> Standing {
        let standing = self.polled().map(|polled| polled.standing(now));
        self.with_links(standing.unwrap_or_else(|| self.probe.standing()))
    }

    /// What was learnt, of a communicator that is polled.
    fn polled(&self) -> Option<MutexGuard<'_, Polled>> {
        let polled = self.polled.as_ref()?;
        Some(polled.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn count_anew(&self) {
        self.probe.count_anew();
        *self.window.lock().unwrap_or_else(PoisonError::into_inner) = LinkWindow::default();
    }

    /// How the links of a rank have been used whose call lasts. Each is a question to the kernel, and a rank may have thousands.
    fn with_links(&self, standing: Standing) -> Standing {
        if standing.lasted() <= self.looked_at_after {
            return standing;
        }
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        // More calls may begin while one is under way.
        let links = window.look(standing.done, Instant::now(), self.data_links.counts());
        Standing { links, ..standing }
    }

    /// Asks the machine. Returns when to ask it again, if that is soon.
    fn poll(&self, now: Duration) -> Option<Duration> {
        let standing = self.probe.standing();
        self.polled()?.learn(standing, now);
        self.probe.end_hopeless(&standing)
    }

    /// Whether the call under way has lasted so long that what its kernels do is looked at.
    fn lasts(&self, now: Duration) -> bool {
        self.polled().is_some_and(|polled| polled.standing(now).lasted() > self.looked_at_after)
    }

    fn sample(&self, now: Duration, slept: Slept) {
        if self.probe.sample(slept)
            && let Some(mut polled) = self.polled()
        {
            polled.goes_on(now);
        }
    }
}

impl Drop for Stalls {
    fn drop(&mut self) {
        self.poller.get().into_iter().for_each(Thread::unpark);
    }
}

/// What a reader of the log needs to find a rank.
struct Names {
    /// The communicator's.
    name: String,
    number: u64,
    places: Vec<Place>,
    /// What reduces between the ranks; empty without.
    reduces_by: String,
}

impl Names {
    fn line(&self, stall: &Stall, link: Option<TransportKind>) -> String {
        let Stall { class, rank, waiter, during, mark, waited, lasted, .. } = *stall;
        let over = link.map(|link| format!(" over {}", link.name())).unwrap_or_default();
        let at = stall.waits_at.map(|at| format!(": {at}")).unwrap_or_default();
        let (how, time) = match waited {
            Duration::ZERO => ("lasted", lasted),
            waited => ("made no progress", waited),
        };
        let fault = match class {
            StallClass::Network => format!("the ranks have no result of {}", self.network()),
            _ => format!("{} {}", self.of(rank), stall.finding()),
        };
        format!(
            "stall [{class}]: {during}{mark} of communicator {} ({} ranks) has {how} for {:.1} s: {fault}. {} waits for it{over}{at}",
            self.name,
            self.places.len(),
            time.as_secs_f64(),
            self.of(waiter),
        )
    }

    fn comm_line(&self, me: Rank, stall: &CommStall) -> String {
        let CommStall { call, class, rank, lasted, .. } = stall;
        format!(
            "stall [{class}]: {call} of communicator {} ({} ranks) has made no progress for {:.1} s: {} {stall}. {} waits for it",
            self.name,
            self.places.len(),
            lasted.as_secs_f64(),
            self.of(*rank),
            self.of(me),
        )
    }

    fn comm_over(&self, stall: &CommStall) -> String {
        let CommStall { call, class, rank, .. } = stall;
        format!(
            "stall [{class}] is over: {call} of communicator {}, which waited for {}, has ended",
            self.name,
            self.of(*rank),
        )
    }

    fn over(&self, stall: &Stall, has_failed: bool) -> String {
        let Stall { class, rank, during, mark, .. } = *stall;
        format!(
            "stall [{class}] is over: {during}{mark} of communicator {}, which waited for {}, {}",
            self.name,
            match class {
                StallClass::Network => self.network().to_owned(),
                _ => self.of(rank).to_string(),
            },
            match stall.waited.is_zero() {
                // Nobody waits any more: the timeout is over, or a rank is known to be dead.
                _ if has_failed => "has failed",
                true => "has ended",
                false => "goes on",
            },
        )
    }

    /// Of ranks that set it, it is known.
    fn network(&self) -> &str {
        if self.reduces_by.is_empty() { "a network that reduces" } else { &self.reduces_by }
    }

    fn of(&self, rank: Rank) -> impl fmt::Display + '_ {
        let place = self.places.get(rank.index());
        let place = place.map(|place| format!(" ({}, pid {})", place.host, place.process));
        format!("rank {rank}{}", place.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests;

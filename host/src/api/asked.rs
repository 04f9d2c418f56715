//! A communicator that this process answers for: `oxccl status`, flight records.

use super::config::Config;
use super::handle::{CommHandle, CommState};
use super::stalls::Stalls;
use crate::bootstrap::{Counts, Searches};
use crate::launch::{Health, Mark, Notice, PeerTraffic, PlannedTraffic, RECORDS, Standing};
use crate::status::{
    CommunicatorReport, NetworkReport, OperationReport, PeerReport, RankReport, RecordReport, Records,
    Settings, State, Subject, TotalReport, register, told,
};
use crate::wire::Message;
use oxccl_device::traffic::Traffic;
use oxccl_shared::abi::Rank;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

struct Asked {
    handle: CommHandle,
    name: String,
    timeout: Duration,
}

/// Has the process answer for a communicator until it ends, if it does not yet and the settings want it.
pub(super) fn list(handle: &CommHandle, config: &Config) {
    let mut ticket = handle.ticket();
    if ticket.is_none() {
        let name = config.name.clone().unwrap_or_default();
        let subject = Asked { handle: handle.clone(), name, timeout: config.timeout };
        let settings = Settings {
            enabled: config.status,
            ras: config.ras.clone(),
            flight_file: config.flight_file.clone(),
            on_signal: config.flight_signal,
        };
        *ticket = register(Arc::new(subject), &settings);
    }
}

/// From now on its failure is told to whom writes flight records.
pub(super) fn tell_of_failures(handle: &CommHandle, health: &Health) {
    let Some(fault) = handle.ticket().as_ref().map(crate::status::Ticket::teller) else { return };
    health.set_witness(move || told(fault));
}

impl CommHandle {
    /// What `oxccl status` tells of this rank: what it does, its counters by function and by peer, and so many of its latest operations.
    /// Of the other ranks what this one knows: nobody is asked. Takes some microseconds, and nothing from operations.
    pub fn report(&self, recent_max: usize) -> CommunicatorReport {
        self.report_of(recent_max, false)
    }

    fn report_of(&self, recent_max: usize, were_asked: bool) -> CommunicatorReport {
        let (state, error) = self.known_state();
        let mut report = CommunicatorReport::new(self.rank(), self.size());
        report.state = match state {
            CommState::InProgress => State::Joining,
            CommState::Ready => State::Ready,
            CommState::Failed => State::Failed,
            CommState::Ended => State::Ended,
        };
        report.error = error.map(|error| error.to_string());
        report.age_ms = self.since().elapsed().as_millis() as u64;
        report.began_ns = self.began().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        if let Some((health, stalls, watch)) = self.inside() {
            fill(&mut report, &health, &stalls, recent_max);
            let dead = watch.upgrade().map(|watch| watch.bootstrap().dead()).unwrap_or_default();
            report.ranks = ranks(&health, &stalls, &dead, were_asked, self.rank());
        }
        report
    }
}

impl Subject for Asked {
    fn report(&self, recent_max: usize, were_asked: bool) -> CommunicatorReport {
        let mut report = self.handle.report_of(recent_max, were_asked);
        if report.name.is_empty() {
            report.name.clone_from(&self.name);
        }
        report
    }

    fn records(&self) -> Records {
        match self.handle.inside() {
            Some((health, stalls, _)) => {
                let mut list = health.recorder().latest(RECORDS);
                stalls.add_times(&mut list);
                Records { list, done: stalls.standing().done, is_stream: stalls.is_polled() }
            }
            None => Records::default(),
        }
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn world_rank(&self) -> u32 {
        self.handle.world().0
    }

    fn inquire(&self, number: u64) {
        let Some((_, stalls, watch)) = self.handle.inside() else { return };
        stalls.roll().begin(number);
        if let Some(watch) = Weak::upgrade(&watch) {
            watch.note(&Notice::Inquiry(number).to_bytes());
        }
    }

    fn has_heard(&self, number: u64) -> bool {
        let Some((health, stalls, _)) = self.handle.inside() else { return true };
        health.is_stopped() || stalls.roll().is_complete(number, |rank| health.has_left(rank))
    }
}

fn fill(report: &mut CommunicatorReport, health: &Health, stalls: &Stalls, recent_max: usize) {
    let standing = stalls.standing();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_nanos() as u64;
    let mut recent = health.recorder().latest(recent_max.max(1));
    let under_way = recent.last().filter(|last| last.ended_ns.is_none());
    stalls.name().clone_into(&mut report.name);
    report.id = format!("{:016x}", stalls.number());
    (report.begun, report.done) = (standing.begun, standing.done);
    // The recorder knows of messages too.
    let under_way = under_way.filter(|_| standing.during.is_some() || standing.done < standing.begun);
    let during = under_way.map(|found| (found.record, found.mark));
    let during = during.or(standing.during.map(|during| (during, standing.mark)));
    report.during = during.map(OperationReport::from);
    report.in_comm_call = in_comm_call(&standing);
    report.during_ms = under_way.map(|found| now.saturating_sub(found.began_ns) / 1_000_000);
    (report.waits_for, report.waits_for_network) = waits_for(&standing, stalls);
    report.waited_ms = standing.waited_ms;
    report.moved = standing.moved;
    report.stall = stalls.stall().map(|stall| stalls.line(&stall));
    let totals = health.recorder().totals();
    report.totals = totals
        .map(|(func, operations, bytes)| TotalReport { function: func.to_string(), operations, bytes })
        .collect();
    let incidents = stalls.incidents();
    report.peers = peers(health, stalls, &incidents, report.rank);
    report.network = network(health, stalls);
    (report.stalls, report.refusals) = (stalls.found().iter().sum(), incidents.refusals);
    stalls.add_times(&mut recent);
    let recent = recent.iter().filter(|_| recent_max > 0);
    report.recent = recent
        .map(|found| RecordReport {
            operation: OperationReport::from((found.record, found.mark)),
            began_ns: found.began_ns,
            started_ns: found.started_ns,
            ended_ns: found.ended_ns,
        })
        .collect();
}

/// The call about the communicator that a rank is in.
fn in_comm_call(standing: &Standing) -> Option<String> {
    standing.comm_calls.first().map(|now| now.call.to_string())
}

/// For whom a rank waits: another one, or the network that reduces.
fn waits_for(standing: &Standing, stalls: &Stalls) -> (Option<u32>, Option<String>) {
    match standing.is_for_network {
        true => (None, Some(stalls.reduces_by().to_owned())),
        false => (standing.waits_for.map(|rank| rank.0), None),
    }
}

/// What has gone to a network that reduces, and come from it.
fn network(health: &Health, stalls: &Stalls) -> Option<NetworkReport> {
    let (_, counted) = health.reduction()?;
    let ([sent_bytes, received_bytes], [sent_slots, received_slots]) = (counted.bytes, counted.slots);
    Some(NetworkReport {
        name: stalls.reduces_by().to_owned(),
        operations: counted.operations,
        sent_bytes,
        received_bytes,
        sent_slots,
        received_slots,
        waited_ns: health.recorder().scale().lasts(counted.waited).as_nanos() as u64,
    })
}

/// What has gone to and from each other rank, and what has happened to the connections with it.
fn peers(health: &Health, stalls: &Stalls, incidents: &Counts, me: u32) -> Vec<PeerReport> {
    let (scale, found) = (health.recorder().scale(), stalls.found());
    let retransmits = stalls.retransmits();
    let planned = health.planned_traffic.get().map(PlannedTraffic::read);
    let all = (0..).map(Rank).zip(health.traffic()).filter(|(rank, _)| rank.0 != me);
    let one = |(rank, traffic): (Rank, &Arc<Traffic>)| {
        let (counted, outages) = (traffic.read(), stalls.outages(rank));
        // Waits for the network that it stands for are not for it.
        let of_network = health.reduction().filter(|(stand_in, _)| *stand_in == rank);
        let waited = counted.waited.saturating_sub(of_network.map_or(0, |(_, counted)| counted.waited));
        let of_plans = planned.as_ref().and_then(|planned| planned.get(rank.index()).copied());
        let of_slots = PeerTraffic { operations: counted.operations, bytes: counted.bytes };
        let PeerTraffic { operations, bytes: [sent_bytes, received_bytes] } = of_plans.unwrap_or(of_slots);
        let Searches { reconnects, retries } = incidents.searches.get(&rank).copied().unwrap_or_default();
        PeerReport {
            rank: rank.0,
            transport: stalls.link_to(rank).map(|link| link.name().to_owned()),
            operations,
            sent_bytes,
            received_bytes,
            sent_slots: counted.slots[0],
            received_slots: counted.slots[1],
            waited_ns: scale.lasts(waited).as_nanos() as u64,
            stalls: found.get(rank.index()).copied().unwrap_or(0),
            outages: outages.count,
            unreachable_ns: outages.lasted.as_nanos() as u64,
            reconnects,
            retries,
            retransmits: retransmits.iter().find(|(peer, _)| *peer == rank).map_or(0, |(_, count)| *count),
        }
    };
    // A GPU's peers are those that it has had to do with.
    let is_shown = |peer: &PeerReport| {
        let incidents = peer.outages + peer.reconnects + peer.retries;
        !stalls.is_polled() || peer.operations + peer.waited_ns + incidents > 0
    };
    all.map(one).filter(is_shown).collect()
}

/// All ranks, with what they answered.
fn ranks(health: &Health, stalls: &Stalls, dead: &[Rank], were_asked: bool, me: u32) -> Vec<RankReport> {
    let (own, me) = (stalls.standing(), Rank(me));
    let first = health.fault().and_then(|found| found.fault.dead());
    let answers = stalls.roll().answers().filter(|_| were_asked);
    let one = |(rank, place): (Rank, &crate::bootstrap::Place)| {
        let answer = match &answers {
            _ if rank == me => Some(own),
            Some(said) => said.get(rank.index()).copied().flatten(),
            None => None,
        };
        let (waits_for, waits_for_network) = answer.map_or((None, None), |said| waits_for(&said, stalls));
        RankReport {
            rank: rank.0,
            host: place.host.clone(),
            pid: place.process,
            link: stalls.link_to(rank).map(|link| link.name().to_owned()),
            has_left: health.has_left(rank),
            has_died: first == Some(rank) || dead.contains(&rank),
            answers: (rank == me || answers.is_some()).then_some(answer.is_some()),
            begun: answer.map(|said| said.begun),
            done: answer.map(|said| said.done),
            during: answer
                .and_then(|said| said.during.map(|during| (during, said.mark)))
                .map(OperationReport::from),
            in_comm_call: answer.and_then(|said| in_comm_call(&said)),
            latest: answer
                .and_then(|said| said.latest)
                .map(|latest| OperationReport::from((latest, Mark::default()))),
            waits_for,
            waits_for_network,
            waited_ms: answer.map(|said| said.waited_ms),
            moved: answer.and_then(|said| said.moved),
        }
    };
    (0..).map(Rank).zip(stalls.places()).map(one).collect()
}

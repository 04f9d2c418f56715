//! Layer: host / bootstrap.
//! Takes: bytes and ends of stream from the neighbours, the owner's blocks, its abort and its goodbye.
//! Gives: [`Ring`]: all-gathers, and the membership events (who died, aborted or left), for every rank. Sans-IO.
//! Never: waits, reads a clock, or forwards an event twice.
//!
//! Blocks go over the tree (`gather_tree`). Membership events are flooded over ring and tree: a rank forwards a new event to
//! every neighbour except the one it came from. The tree makes that fast, the ring makes it certain: one death reaches every rank, because
//! both neighbours of the dead rank see the end of a stream and the rest of the ring is a line between them. After several simultaneous deaths,
//! every remaining line still ends in two ranks that saw an end. A rank that leaves in order first sends a goodbye,
//! and its neighbours close their side.
//!
//! Ring repair: a rank that has lost its successor, by death or goodbye, connects to the next rank that still
//! answers, and both send each other all events so far. The ring is closed again, later deaths reach every rank, and
//! the separate lines learn each other's deaths. For this, a leaving rank whose predecessor died stays until the next
//! predecessor connects. Of a rank that dies at the same moment as both its neighbours no rank sees the end. Who repairs
//! the ring finds that nobody listens at its address; once the new successor has sent all events that it knows of, and
//! a goodbye of that rank is not among them, it has died.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use oxccl_shared::abi::Rank;

use super::error::BootstrapError;
use super::frame::{self, Decoder, Frame};
use super::gather::GATHER_BYTES_MAX;
use super::gather_tree::{PIECE_BYTES, TreeGather};
use super::long_waits::LongWaits;
use super::rank_list::RankList;
use super::ring_wire::{
    BlockHead, KIND_EVENT, KIND_GREETING, KIND_MEETING, KIND_NOTE, KIND_PART, KIND_WAIT, LongWait,
    MeetingEnd, MembershipEvent, NOTE_BYTES_MAX, Note, PartHead, REASON_BYTES_MAX,
};
pub use super::side::Side;
use super::side::{Branch, branches};
use crate::wire::{self, Message};

/// A piece is sent as soon as it is this long, and a block may be that long.
const PAYLOAD_MAX: usize = PartHead::BYTES_MAX + PIECE_BYTES + BlockHead::BYTES_MAX + GATHER_BYTES_MAX;

/// A membership event of another rank.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(clippy::enum_variant_names, reason = "they are named so in errors too")]
pub enum PeerEvent {
    /// Its process or host ended without goodbye.
    PeerDied {
        /// The rank.
        rank: Rank,
    },
    /// It aborted.
    PeerAborted {
        /// The rank.
        rank: Rank,
        /// Its reason, at most 256 bytes.
        reason: String,
        /// If it gave up waiting: for which ranks, and after how long.
        in_vain: Option<(RankList, Duration)>,
    },
    /// This rank gave up: it waited for these in vain, for so long. Nothing of the bootstrap works any more.
    GaveUp {
        /// The ranks.
        ranks: RankList,
        /// How long.
        limit: Duration,
    },
    /// It left.
    PeerLeft {
        /// The rank.
        rank: Rank,
    },
    /// It sent a note to all ranks; the owners define its meaning.
    PeerNote {
        /// The rank.
        rank: Rank,
        /// The note, at most 256 bytes.
        note: Vec<u8>,
    },
}

/// The bytes of a connection to a neighbour.
#[derive(Debug)]
struct Link {
    phase: LinkPhase,
    decoder: Decoder,
    out: Vec<u8>,
    /// Whether the neighbour has sent anything: see [`Ring::ended`].
    heard: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LinkPhase {
    /// Not connected for the first time yet: output waits.
    Waiting,
    Up(Rank),
    /// Ended; another neighbour may replace it.
    Down,
}

/// One rank's part in the ring.
#[derive(Debug)]
pub struct Ring {
    me: Rank,
    nranks: u32,
    links: [Link; Side::COUNT],
    /// All membership events so far, for neighbours to come; at most two per rank.
    history: Vec<MembershipEvent>,
    /// How meetings of survivors have ended, for neighbours to come as well.
    meetings: Vec<MeetingEnd>,
    /// Ranks known to be gone (dead or left), and those that have aborted.
    gone: Vec<bool>,
    aborted: Vec<bool>,
    gathers: TreeGather,
    /// Serial number of the last note of each rank: notes come from both sides, and count once.
    notes: Vec<u64>,
    /// Who has waited for whom for long.
    waits: LongWaits,
    events: VecDeque<PeerEvent>,
    /// Why no all-gather can complete any more.
    broken: Option<BootstrapError>,
    /// Whether the last predecessor ended without a goodbye, and has not been replaced.
    has_lost_prev: bool,
    /// Ranks before the new successor at whose addresses nobody listens, until that successor has told its events.
    suspects: Vec<Rank>,
    leaving: bool,
}

impl Ring {
    /// The part of rank `me` of `nranks`.
    pub fn new(me: Rank, nranks: u32) -> Ring {
        let branches = branches(me, nranks);
        let link = |side| {
            let has =
                nranks > 1 && Side::RING.contains(&side) || branches.iter().any(|branch| branch.side == side);
            let phase = if has { LinkPhase::Waiting } else { LinkPhase::Down };
            Link { phase, decoder: Decoder::new(PAYLOAD_MAX), out: Vec::new(), heard: false }
        };
        Ring {
            me,
            nranks,
            links: Side::ALL.map(link),
            history: Vec::new(),
            meetings: Vec::new(),
            gone: vec![false; nranks as usize],
            aborted: vec![false; nranks as usize],
            gathers: TreeGather::new(me, nranks),
            notes: vec![0; nranks as usize],
            waits: LongWaits::default(),
            events: VecDeque::new(),
            broken: None,
            has_lost_prev: false,
            suspects: Vec::new(),
            leaving: false,
        }
    }

    /// Names ranks that refused to become the successor, before the one that did is [attached](Self::attach).
    pub fn suspect(&mut self, refused: Vec<Rank>) {
        self.suspects.extend(refused);
    }

    /// The same where no rank is left that could be the successor.
    pub fn remain_alone(&mut self, refused: Vec<Rank>) {
        self.suspect(refused);
        self.judge_suspects();
    }

    /// The same while the ranks still join, when nobody can have left in order: a rank that cannot join says why before it ends.
    pub fn lose_while_joining(&mut self, refused: Vec<Rank>) {
        refused.into_iter().for_each(|rank| self.learn(MembershipEvent::Died { rank }, None));
    }

    /// Registers a connection to `peer`. If it replaces one that ended, it is sent all events so far.
    pub fn attach(&mut self, side: Side, peer: Rank) {
        let link = &mut self.links[side as usize];
        if link.phase != LinkPhase::Waiting {
            link.decoder = Decoder::new(PAYLOAD_MAX);
            link.out.clear();
            self.history
                .iter()
                .for_each(|event| frame::push(&mut link.out, KIND_EVENT, &[&event.to_bytes()]));
            self.meetings.iter().for_each(|end| frame::push(&mut link.out, KIND_MEETING, &[&end.to_bytes()]));
        }
        frame::push(&mut link.out, KIND_GREETING, &[]);
        link.phase = LinkPhase::Up(peer);
        link.heard = false;
        self.has_lost_prev &= side == Side::Next;
    }

    /// The neighbour connected on this side.
    pub fn peer(&self, side: Side) -> Option<Rank> {
        match self.links[side as usize].phase {
            LinkPhase::Up(peer) => Some(peer),
            _ => None,
        }
    }

    /// The rank to connect to next after the link to `Next` has ended: the first after `after` that is not known to
    /// be gone. `None` when it would be this rank itself.
    pub fn successor_after(&self, after: Rank) -> Option<Rank> {
        (1..self.nranks)
            .map(|step| Rank(((u64::from(after.0) + u64::from(step)) % u64::from(self.nranks)) as u32))
            .take_while(|&rank| rank != self.me)
            .find(|rank| !self.gone[rank.index()])
    }

    /// Handles bytes from a neighbour. If [`peer`](Self::peer) is `None` afterwards, close the connection.
    pub fn receive(&mut self, side: Side, mut bytes: &[u8]) {
        loop {
            let LinkPhase::Up(peer) = self.links[side as usize].phase else { return };
            let outcome = match self.links[side as usize].decoder.feed(&mut bytes) {
                Ok(None) => return,
                Ok(Some(frame)) => self.on_frame(side, &frame),
                Err(_) => Err("bytes that are no message of this version"),
            };
            if let Err(what) = outcome {
                self.links[side as usize].phase = LinkPhase::Down;
                self.give_up(BootstrapError::Protocol { rank: peer, what });
            }
        }
    }

    /// Handles bytes from a neighbour that are not what it sent.
    pub fn altered(&mut self, side: Side) {
        if let LinkPhase::Up(peer) = self.links[side as usize].phase {
            self.links[side as usize].phase = LinkPhase::Down;
            self.give_up(BootstrapError::Altered { rank: peer });
        }
    }

    /// Handles the end of a neighbour's stream. It means the neighbour's death if the neighbour has ever sent
    /// anything on it. Otherwise one of the two may have left in order while the other was connecting, too early for
    /// a goodbye here: ring repair finds out.
    pub fn ended(&mut self, side: Side) {
        let link = &mut self.links[side as usize];
        if let LinkPhase::Up(peer) = link.phase {
            link.phase = LinkPhase::Down;
            // An end that answers a goodbye is no death.
            self.has_lost_prev |= side == Side::Prev && !self.leaving;
            if link.heard {
                self.learn(MembershipEvent::Died { rank: peer }, Some(side));
            }
        }
    }

    /// Takes the bytes for a neighbour; the caller must write them.
    pub fn take_output(&mut self, side: Side) -> Vec<u8> {
        match self.links[side as usize].phase {
            LinkPhase::Waiting => Vec::new(),
            _ => std::mem::take(&mut self.links[side as usize].out),
        }
    }

    /// Starts this rank's part of the next all-gather. The result of the previous one must have been taken.
    pub fn submit(&mut self, block: &[u8]) -> Result<(), BootstrapError> {
        if block.len() > GATHER_BYTES_MAX {
            let error = BootstrapError::TooLarge { len_bytes: block.len(), max_bytes: GATHER_BYTES_MAX };
            self.give_up(error.clone());
            return Err(error);
        }
        self.health()?;
        self.gathers.submit(block).map_err(|what| BootstrapError::Protocol { rank: self.me, what })?;
        self.send_parts();
        Ok(())
    }

    /// The result of the last all-gather: `None` while it is in progress.
    pub fn take_gathered(&mut self) -> Option<Result<Vec<Vec<u8>>, BootstrapError>> {
        if let Some(gathered) = self.gathers.take() {
            return Some(gathered.map_err(too_large));
        }
        self.health().err().map(Err)
    }

    /// Whether a rank is known to have left or died.
    pub fn is_gone(&self, rank: Rank) -> bool {
        self.gone[rank.index()]
    }

    /// Whether any rank is known to be gone.
    pub fn is_thinned(&self) -> bool {
        self.gone.contains(&true)
    }

    /// Has every rank learn whose blocks of the current all-gather have come: this one has waited for long.
    pub fn hurry(&mut self) {
        self.gathers.hurry();
        self.send_parts();
    }

    /// The ranks whose blocks are missing in the current all-gather, if it has been [hurried](Self::hurry). Those that wait for others
    /// themselves, or say that they have given theirs, are not at fault: it is behind a rank that passes nothing on.
    pub fn missing(&self) -> RankList {
        let given = self.gathers.given();
        let is_behind = |rank: &Rank| self.waits.waits(*rank) || self.waits.has_given(*rank, given);
        let guilty: RankList = self.gathers.missing().filter(|rank| !is_behind(rank)).collect();
        if guilty.is_empty() { self.gathers.missing().collect() } else { guilty }
    }

    /// The ranks at fault for a wait for `awaited`, as far as ranks have said for whom they wait.
    pub fn guilty(&self, awaited: RankList) -> RankList {
        self.waits.guilty(self.me, awaited)
    }

    /// This rank has been waiting for these for long, or waits no more: every rank learns it.
    pub fn say_waiting(&mut self, awaited: Option<RankList>) {
        let (serial, given) = (self.waits.next_serial(self.me), self.gathers.given());
        self.learn_wait(LongWait { rank: self.me, serial, awaited, given }, None);
    }

    fn on_wait(&mut self, side: Side, payload: &[u8]) -> Result<(), &'static str> {
        let report = LongWait::from_bytes(payload).map_err(|_| "a report of a wait that cannot be read")?;
        let exists = |rank: &Rank| rank.0 < self.nranks;
        if !exists(&report.rank) || !report.awaited.iter().flat_map(RankList::named).all(exists) {
            return Err("a report of a wait of a rank that does not exist");
        }
        self.learn_wait(report, Some(side));
        Ok(())
    }

    fn learn_wait(&mut self, report: LongWait, from: Option<Side>) {
        if !self.waits.note(report) {
            return;
        }
        self.flood(from, KIND_WAIT, &report.to_bytes());
        // Who has given its block may be done, and would say nothing.
        let may_mean_me = |awaited: RankList| awaited.total() == 0 || awaited.named().contains(&self.me);
        let has_given = self.gathers.given() >= report.given;
        let has_said = self.waits.has_given(self.me, report.given);
        if report.awaited.is_some_and(may_mean_me) && has_given && !has_said {
            self.say_waiting(self.waits.of(self.me));
        }
    }

    /// The error if `peer` is known to be gone or to have aborted.
    pub fn lost(&self, peer: Rank) -> Option<BootstrapError> {
        self.history.iter().find(|event| event.rank() == peer).map(MembershipEvent::to_error)
    }

    /// Why no all-gather completes any more, unless a rank merely left in order.
    pub fn broken(&self) -> Option<BootstrapError> {
        self.broken.clone()
    }

    /// Whether this rank's program ended its join.
    pub fn is_cancelled(&self) -> bool {
        self.broken == Some(BootstrapError::Aborted)
    }

    /// Gives up: the other ranks learn the reason, and no all-gather completes any more.
    ///
    /// If the reason is an unreachable rank, the others may have no connection to that rank either whose end would
    /// report its loss: they receive the loss first.
    pub fn give_up(&mut self, error: BootstrapError) {
        if let BootstrapError::PeerLost { rank } = error {
            self.learn(MembershipEvent::Died { rank }, None);
        }
        let in_vain = match &error {
            BootstrapError::Timeout { ranks, limit, .. } if !ranks.is_empty() => Some((*ranks, *limit)),
            _ => None,
        };
        self.say_aborted(&error.to_string(), in_vain);
        if let Some((ranks, limit)) = in_vain.filter(|_| self.broken.is_none()) {
            self.events.push_back(PeerEvent::GaveUp { ranks, limit });
        }
        self.broken.get_or_insert(error);
    }

    /// Sends this rank's abort to the others.
    pub fn abort(&mut self, reason: &str) {
        self.say_aborted(reason, None);
    }

    fn say_aborted(&mut self, reason: &str, in_vain: Option<(RankList, Duration)>) {
        let reason = wire::cut(reason, REASON_BYTES_MAX).to_owned();
        self.learn(MembershipEvent::Aborted { rank: self.me, reason, in_vain }, None);
    }

    /// Says goodbye: later ends of neighbours are no deaths to this rank, and this rank's end is none to the others.
    pub fn leave(&mut self) {
        self.learn(MembershipEvent::Left { rank: self.me, gathers: self.gathers.current() }, None);
        self.leaving = true;
    }

    /// The ranks that have not connected to this one, or it not to them, since it joined.
    pub fn awaited(&self) -> RankList {
        let ring = [(Side::Prev, self.nranks.saturating_sub(1)), (Side::Next, 1)];
        let ring = ring.map(|(side, step)| Branch { rank: self.around(step), side });
        let all = ring.into_iter().chain(branches(self.me, self.nranks));
        let waiting = all.filter(|branch| self.links[branch.side as usize].phase == LinkPhase::Waiting);
        // Of two ranks each is before the other and after it.
        waiting.map(|branch| branch.rank).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// The connection by which this child in the tree comes, if it is awaited.
    pub fn side_of_child(&self, child: Rank) -> Option<Side> {
        let branches = branches(self.me, self.nranks);
        let branch = branches.iter().find(|branch| branch.rank == child)?;
        let is_awaited = self.links[branch.side as usize].phase == LinkPhase::Waiting;
        (is_awaited && matches!(branch.side, Side::Left | Side::Right)).then_some(branch.side)
    }

    /// The rank this many steps farther round the ring.
    fn around(&self, steps: u32) -> Rank {
        Rank(((u64::from(self.me.0) + u64::from(steps)) % u64::from(self.nranks)) as u32)
    }

    /// Whether this rank holds an event that a rank in the middle of connecting could otherwise miss: the
    /// reason why this rank gave up before its predecessor or a child connected; or, if the predecessor replaces a dead one, the
    /// events from this side of the gap, which possibly no other rank can forward to the other side.
    pub fn owes_an_event(&self) -> bool {
        let is_left = |rank: usize| rank != self.me.index() && !self.gone[rank];
        // One that has given up while it joined comes no more.
        let comes = |branch: &Branch| {
            matches!(branch.side, Side::Prev | Side::Left | Side::Right)
                && self.links[branch.side as usize].phase == LinkPhase::Waiting
                && is_left(branch.rank.index())
                && !self.aborted[branch.rank.index()]
        };
        let predecessor = Branch { rank: self.around(self.nranks.saturating_sub(1)), side: Side::Prev };
        let comers = branches(self.me, self.nranks).into_iter().chain([predecessor]);
        if self.broken.is_some() && comers.into_iter().any(|branch| comes(&branch)) {
            return true;
        }
        let is_open = self.links[Side::Prev as usize].phase == LinkPhase::Down;
        is_open && self.has_lost_prev && (0..self.gone.len()).any(is_left)
    }

    /// The next event of another rank.
    pub fn next_event(&mut self) -> Option<PeerEvent> {
        self.events.pop_front()
    }

    /// Why the current all-gather cannot complete.
    fn health(&self) -> Result<(), BootstrapError> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        // A rank that left after its n-th all-gather had forwarded all blocks of that one, so all up to it still
        // complete.
        let number = self.gathers.current();
        match self
            .history
            .iter()
            .find(|event| matches!(event, MembershipEvent::Left { gathers, .. } if *gathers <= number))
        {
            Some(left) => Err(left.to_error()),
            None => Ok(()),
        }
    }

    fn on_frame(&mut self, side: Side, frame: &Frame) -> Result<(), &'static str> {
        self.links[side as usize].heard = true;
        match frame.kind {
            KIND_GREETING => {
                if side == Side::Next {
                    self.judge_suspects();
                }
                Ok(())
            }
            KIND_PART => self.on_part(side, &frame.payload),
            KIND_NOTE => self.on_note(side, &frame.payload),
            KIND_MEETING => self.on_meeting(side, &frame.payload),
            KIND_WAIT => self.on_wait(side, &frame.payload),
            KIND_EVENT => {
                let event = MembershipEvent::from_bytes(&frame.payload)
                    .map_err(|_| "a membership event that cannot be read")?;
                let exists = |rank: &Rank| rank.0 < self.nranks;
                if !exists(&event.rank()) || !event.awaited().iter().all(exists) {
                    return Err("a membership event of a rank that does not exist");
                }
                let goodbye =
                    matches!(event, MembershipEvent::Left { rank, .. } if self.peer(side) == Some(rank));
                self.learn(event, Some(side));
                if goodbye {
                    self.links[side as usize].phase = LinkPhase::Down;
                }
                Ok(())
            }
            _ => Err("a message of unknown kind"),
        }
    }

    /// All events that anybody knows of are known: whose goodbye is not among them has died, if others have. If nobody has, three
    /// neighbours have left together, and the goodbye of the middle one reached nobody: blocks that it forwarded may still be under way.
    fn judge_suspects(&mut self) {
        let has_died = |event: &MembershipEvent| matches!(event, MembershipEvent::Died { .. });
        let ranks_die = self.history.iter().any(has_died);
        for rank in std::mem::take(&mut self.suspects) {
            let left = MembershipEvent::Left { rank, gathers: u64::MAX };
            self.learn(if ranks_die { MembershipEvent::Died { rank } } else { left }, None);
        }
    }

    fn on_part(&mut self, side: Side, payload: &[u8]) -> Result<(), &'static str> {
        if self.broken.is_some() {
            return Ok(());
        }
        self.gathers.receive(side, payload)?;
        self.send_parts();
        Ok(())
    }

    /// A link that has ended, and may by now lead to another rank, gets nothing: who was there had what it needed, or nobody gets more.
    fn send_parts(&mut self) {
        let branches = branches(self.me, self.nranks);
        for (side, head, blocks) in self.gathers.take_output() {
            let link = &mut self.links[side as usize];
            let is_branch = |peer| branches.contains(&Branch { rank: peer, side });
            let is_there = match link.phase {
                LinkPhase::Waiting => true,
                LinkPhase::Up(peer) => is_branch(peer),
                LinkPhase::Down => false,
            };
            if is_there {
                frame::push(&mut link.out, KIND_PART, &[&head.to_bytes(), &blocks]);
            }
        }
    }

    /// This rank has finished a meeting of survivors: every rank learns it, those that repair the ring meanwhile too.
    pub fn finish(&mut self, meeting: u64) {
        self.learn_end(MeetingEnd::Finished { rank: self.me, meeting }, None);
    }

    /// Ranks did not come to a meeting of survivors: every rank learns it in the same way, and the first that says so counts.
    pub fn miss(&mut self, meeting: u64, missing: RankList) {
        self.learn_end(MeetingEnd::Missed { missing, meeting }, None);
    }

    /// This rank leaves a meeting of survivors before its end: the others do not wait for it.
    pub fn withdraw(&mut self, meeting: u64) {
        self.learn_end(MeetingEnd::Withdrew { rank: self.me, meeting }, None);
    }

    /// The rank that has left a meeting before its end.
    pub fn withdrew(&self, meeting: u64) -> Option<Rank> {
        self.meetings.iter().find_map(|end| match end {
            MeetingEnd::Withdrew { rank, meeting: of } if *of == meeting => Some(*rank),
            _ => None,
        })
    }

    /// Whether a rank has finished a meeting.
    pub fn has_finished(&self, rank: Rank, meeting: u64) -> bool {
        self.meetings.contains(&MeetingEnd::Finished { rank, meeting })
    }

    /// The ranks that did not come to a meeting, if it has failed for that.
    pub fn missed(&self, meeting: u64) -> Option<RankList> {
        self.meetings.iter().find_map(|end| match end {
            MeetingEnd::Missed { missing, meeting: of } if *of == meeting => Some(*missing),
            _ => None,
        })
    }

    fn on_meeting(&mut self, side: Side, payload: &[u8]) -> Result<(), &'static str> {
        let end = MeetingEnd::from_bytes(payload).map_err(|_| "an end of a meeting that cannot be read")?;
        let exists = |rank: &Rank| rank.0 < self.nranks;
        let is_known = match &end {
            MeetingEnd::Finished { rank, .. } | MeetingEnd::Withdrew { rank, .. } => exists(rank),
            MeetingEnd::Missed { missing, .. } => missing.named().iter().all(exists),
        };
        if !is_known {
            return Err("an end of a meeting of a rank that does not exist");
        }
        self.learn_end(end, Some(side));
        Ok(())
    }

    fn learn_end(&mut self, end: MeetingEnd, from: Option<Side>) {
        let is_known = match end {
            MeetingEnd::Finished { rank, meeting } => self.has_finished(rank, meeting),
            MeetingEnd::Withdrew { meeting, .. } => self.withdrew(meeting).is_some(),
            MeetingEnd::Missed { meeting, .. } => self.missed(meeting).is_some(),
        };
        if !self.leaving && !is_known {
            self.flood(from, KIND_MEETING, &end.to_bytes());
            self.meetings.push(end);
        }
    }

    /// Sends a note to every rank. Ranks that join the ring or repair it meanwhile may miss it.
    pub fn note(&mut self, content: &[u8]) {
        let serial = self.notes[self.me.index()] + 1;
        let content = content.iter().copied().take(NOTE_BYTES_MAX).collect();
        self.pass_note(None, &Note { origin: self.me, serial, content });
    }

    fn on_note(&mut self, side: Side, payload: &[u8]) -> Result<(), &'static str> {
        let note = Note::from_bytes(payload).map_err(|_| "a note that cannot be read")?;
        if note.origin.0 >= self.nranks {
            return Err("a note of a rank that does not exist");
        }
        if note.origin != self.me && note.serial > self.notes[note.origin.index()] {
            self.events.push_back(PeerEvent::PeerNote { rank: note.origin, note: note.content.to_vec() });
            self.pass_note(Some(side), &note);
        }
        Ok(())
    }

    fn pass_note(&mut self, from: Option<Side>, note: &Note) {
        self.notes[note.origin.index()] = note.serial;
        self.flood(from, KIND_NOTE, &note.to_bytes());
    }

    /// Sends a frame to all neighbours but the one that it came from.
    fn flood(&mut self, from: Option<Side>, kind: u8, payload: &[u8]) {
        for side in Side::ALL {
            let link = &mut self.links[side as usize];
            if from != Some(side) && link.phase != LinkPhase::Down {
                frame::push(&mut link.out, kind, &[payload]);
            }
        }
    }

    fn learn(&mut self, event: MembershipEvent, from: Option<Side>) {
        let rank = event.rank();
        let known = match event {
            // A rank that aborted is expected to end; its goodbye or death adds only that it is gone.
            MembershipEvent::Aborted { .. } => &mut self.aborted[rank.index()],
            MembershipEvent::Died { .. } | MembershipEvent::Left { .. } => &mut self.gone[rank.index()],
        };
        let is_new = !std::mem::replace(known, true);
        if !is_new || self.leaving {
            return;
        }
        self.flood(from, KIND_EVENT, &event.to_bytes());
        self.tell_owner(&event);
        self.history.push(event);
    }

    fn tell_owner(&mut self, event: &MembershipEvent) {
        let rank = event.rank();
        let already_told = self.aborted[rank.index()] && self.gone[rank.index()];
        if rank == self.me || already_told {
            return;
        }
        match event {
            MembershipEvent::Died { rank } => self.events.push_back(PeerEvent::PeerDied { rank: *rank }),
            MembershipEvent::Aborted { rank, reason, in_vain } => {
                let (rank, reason, in_vain) = (*rank, reason.clone(), *in_vain);
                self.events.push_back(PeerEvent::PeerAborted { rank, reason, in_vain });
            }
            MembershipEvent::Left { rank, .. } => {
                self.events.push_back(PeerEvent::PeerLeft { rank: *rank });
                return;
            }
        }
        self.broken.get_or_insert_with(|| event.to_error());
    }
}

fn too_large(len_bytes: usize) -> BootstrapError {
    BootstrapError::TooLarge { len_bytes, max_bytes: GATHER_BYTES_MAX }
}

#[cfg(test)]
#[path = "tests/ring.rs"]
mod tests;

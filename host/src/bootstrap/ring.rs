//! Layer: host / bootstrap.
//! Takes: bytes and ends of stream from the two neighbours, the owner's blocks, its abort and its goodbye.
//! Gives: [`Ring`]: all-gathers, and the news of who died, aborted or left, for every rank. Sans-IO.
//! Never: waits, reads a clock, or forwards a piece of news twice.
//!
//! Blocks go round both ways, each half of the ring. News is flooded: whoever learns something new tells all its
//! neighbours but the one it has it from. So one death reaches everybody, because both neighbours of the dead see the
//! end of a stream and the rest of the ring is a line between them. After several deaths at once every line that is
//! left still ends in two ranks that saw an end. A rank that leaves in order says so first ("goodbye"), and its
//! neighbours close their side. Whoever has lost its successor, by death or goodbye, connects to the next rank that
//! still answers, and both tell each other all news so far: so the ring closes again, a later death is told to
//! everyone, and the lines hear of each other's deaths; for that a rank whose predecessor died stays, when it leaves, for the
//! next one. Only a rank that dies at the same moment as both its neighbours goes unnamed, since nobody is left who could
//! tell its death from a goodbye.

use std::collections::VecDeque;

use oxccl_shared::abi::Rank;

use super::error::{BootstrapError, RankList};
use super::frame::{self, Decoder, Frame};
use super::gather::{GATHER_BYTES_MAX, Gathers};
use super::news::{News, REASON_BYTES_MAX};
use super::wire::{Malformed, Reader};

const KIND_BLOCK: u8 = 1;
const KIND_NEWS: u8 = 2;
const KIND_GREETING: u8 = 3;
const KIND_NOTE: u8 = 4;

/// The longest note that [`Ring::note`] carries.
pub const NOTE_BYTES_MAX: usize = 256;
const BLOCK_HEAD_BYTES: usize = 16;
const PAYLOAD_MAX: usize = BLOCK_HEAD_BYTES + GATHER_BYTES_MAX;

/// One of the two neighbours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The one with the lower rank, round the ring.
    Prev = 0,
    /// The one with the higher rank, round the ring.
    Next = 1,
}

impl Side {
    /// Both, in order.
    pub const BOTH: [Side; 2] = [Side::Prev, Side::Next];

    /// The other one.
    pub fn other(self) -> Side {
        match self {
            Side::Prev => Side::Next,
            Side::Next => Side::Prev,
        }
    }
}

/// What happened to another rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PeerEvent {
    /// Its process or host is gone and did not say goodbye.
    PeerDied {
        /// Who.
        rank: Rank,
    },
    /// It told the others that it gave up.
    PeerAborted {
        /// Who.
        rank: Rank,
        /// What it said, at most 256 bytes.
        reason: String,
    },
    /// It closed in order.
    PeerLeft {
        /// Who.
        rank: Rank,
    },
    /// It told everybody something; what, is between the owners.
    PeerNote {
        /// Who.
        rank: Rank,
        /// What, at most 256 bytes.
        note: Vec<u8>,
    },
}

/// A connection to a neighbour, as far as bytes are concerned.
#[derive(Debug)]
struct Link {
    phase: LinkPhase,
    decoder: Decoder,
    out: Vec<u8>,
    /// Whether the neighbour has said anything: see [`Ring::ended`].
    heard: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LinkPhase {
    /// Not connected for the first time yet: what is to be sent waits.
    Waiting,
    Up(Rank),
    /// Ended; another neighbour may take its place.
    Down,
}

/// One rank's part in the ring.
#[derive(Debug)]
pub struct Ring {
    me: Rank,
    nranks: u32,
    links: [Link; 2],
    /// All news so far, for neighbours to come; at most two per rank.
    news: Vec<News>,
    /// Which ranks are known to be gone (dead or left), and which have aborted.
    gone: Vec<bool>,
    aborted: Vec<bool>,
    gathers: Gathers,
    /// Serial number of the last note of each rank: notes come from both sides, and count once.
    notes: Vec<u64>,
    events: VecDeque<PeerEvent>,
    /// Why no all-gather can complete any more.
    broken: Option<BootstrapError>,
    /// Whether the last predecessor ended without a goodbye, and no other has come since.
    has_lost_prev: bool,
    leaving: bool,
}

impl Ring {
    /// The part of rank `me` of `nranks`.
    pub fn new(me: Rank, nranks: u32) -> Ring {
        let phase = if nranks > 1 { LinkPhase::Waiting } else { LinkPhase::Down };
        let link = || Link { phase, decoder: Decoder::new(PAYLOAD_MAX), out: Vec::new(), heard: false };
        Ring {
            me,
            nranks,
            links: [link(), link()],
            news: Vec::new(),
            gone: vec![false; nranks as usize],
            aborted: vec![false; nranks as usize],
            gathers: Gathers::new(nranks),
            notes: vec![0; nranks as usize],
            events: VecDeque::new(),
            broken: None,
            has_lost_prev: false,
            leaving: false,
        }
    }

    /// A connection to `peer` is there. In the place of one that ended, it is told all news so far.
    pub fn attach(&mut self, side: Side, peer: Rank) {
        let link = &mut self.links[side as usize];
        if link.phase != LinkPhase::Waiting {
            link.decoder = Decoder::new(PAYLOAD_MAX);
            link.out.clear();
            self.news.iter().for_each(|news| frame::push(&mut link.out, KIND_NEWS, &[&news.to_bytes()]));
        }
        frame::push(&mut link.out, KIND_GREETING, &[]);
        link.phase = LinkPhase::Up(peer);
        link.heard = false;
        self.has_lost_prev &= side == Side::Next;
    }

    /// Who is connected on this side.
    pub fn peer(&self, side: Side) -> Option<Rank> {
        match self.links[side as usize].phase {
            LinkPhase::Up(peer) => Some(peer),
            _ => None,
        }
    }

    /// The rank to connect to next after the link to `Next` has ended: the first after `after` that is not known to
    /// be gone. `None` when it would be this rank itself.
    pub fn heir(&self, after: Rank) -> Option<Rank> {
        (1..self.nranks)
            .map(|step| Rank(((u64::from(after.0) + u64::from(step)) % u64::from(self.nranks)) as u32))
            .take_while(|&rank| rank != self.me)
            .find(|rank| !self.gone[rank.index()])
    }

    /// Bytes came from a neighbour. If [`peer`](Self::peer) is `None` afterwards, the connection is to be closed.
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

    /// The stream of a neighbour ended or broke. That is its death if it has ever said anything on it. If not, one of
    /// the two may just have left in order while the other was connecting, too early to say goodbye here.
    pub fn ended(&mut self, side: Side) {
        let link = &mut self.links[side as usize];
        if let LinkPhase::Up(peer) = link.phase {
            link.phase = LinkPhase::Down;
            // The end that answers a goodbye is none.
            self.has_lost_prev |= side == Side::Prev && !self.leaving;
            if link.heard {
                self.learn(News::Died { rank: peer }, Some(side));
            }
        }
    }

    /// What is to be written to a neighbour; taking it hands over the duty to write it.
    pub fn take_output(&mut self, side: Side) -> Vec<u8> {
        match self.links[side as usize].phase {
            LinkPhase::Waiting => Vec::new(),
            _ => std::mem::take(&mut self.links[side as usize].out),
        }
    }

    /// Begins this rank's part of the next all-gather. The one before must have been taken.
    pub fn submit(&mut self, block: &[u8]) -> Result<(), BootstrapError> {
        if block.len() > GATHER_BYTES_MAX {
            let error = BootstrapError::TooLarge { len_bytes: block.len(), max_bytes: GATHER_BYTES_MAX };
            self.give_up(error.clone());
            return Err(error);
        }
        self.health()?;
        let number = self.gathers.current();
        self.gathers
            .deposit(number, self.me, block)
            .map_err(|what| BootstrapError::Protocol { rank: self.me, what })?;
        // Each block is carried once to every other rank: half of them this way, half the other.
        for (side, hops) in [(Side::Next, self.nranks / 2), (Side::Prev, (self.nranks - 1) / 2)] {
            if hops > 0 {
                self.send_block(side, number, self.me, hops, block);
            }
        }
        Ok(())
    }

    /// The all-gather begun last: `None` while it is under way.
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

    /// Whose blocks the all-gather under way is waiting for.
    pub fn missing(&self) -> RankList {
        self.gathers.missing()
    }

    /// Whether `peer` is known to be gone or to have given up.
    pub fn lost(&self, peer: Rank) -> Option<BootstrapError> {
        self.news.iter().find(|news| news.rank() == peer).map(News::to_error)
    }

    /// Why no all-gather completes any more, unless it is only that a rank left in order.
    pub fn broken(&self) -> Option<BootstrapError> {
        self.broken.clone()
    }

    /// This rank gives up: the others learn that it did and why, and no all-gather completes any more.
    ///
    /// If that is because it could not reach a rank, the others may have no connection to that rank either, whose end would
    /// tell them: they hear of the loss first.
    pub fn give_up(&mut self, error: BootstrapError) {
        if let BootstrapError::PeerLost { rank } = error {
            self.learn(News::Died { rank }, None);
        }
        self.abort(&error.to_string());
        self.broken.get_or_insert(error);
    }

    /// Tells the others that this rank gives up.
    pub fn abort(&mut self, reason: &str) {
        let mut end = reason.len().min(REASON_BYTES_MAX);
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        self.learn(News::Aborted { rank: self.me, reason: reason[..end].to_owned() }, None);
    }

    /// Says goodbye: whatever happens afterwards is nobody's death to this rank, and this rank's end is none to the
    /// others.
    pub fn leave(&mut self) {
        self.learn(News::Left { rank: self.me, gathers: self.gathers.current() }, None);
        self.leaving = true;
    }

    /// Whether this rank knows something that a predecessor on its way here could not learn if it met nobody: why this rank has
    /// given up before it came; or, where it comes in the place of one that died, what this side of the gap has heard, which nobody
    /// else may be left to tell the other side.
    pub fn owes_its_predecessor_news(&self) -> bool {
        let is_left = |rank: usize| rank != self.me.index() && !self.gone[rank];
        match self.links[Side::Prev as usize].phase {
            LinkPhase::Waiting => {
                let predecessor = (self.me.index() + self.gone.len() - 1) % self.gone.len();
                self.broken.is_some() && is_left(predecessor)
            }
            LinkPhase::Down => self.has_lost_prev && (0..self.gone.len()).any(is_left),
            LinkPhase::Up(_) => false,
        }
    }

    /// The next thing that happened to another rank.
    pub fn next_event(&mut self) -> Option<PeerEvent> {
        self.events.pop_front()
    }

    /// Why the all-gather under way cannot complete.
    fn health(&self) -> Result<(), BootstrapError> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        // A rank that left after its n-th all-gather had forwarded everything up to there, so those still complete.
        let number = self.gathers.current();
        match self.news.iter().find(|news| matches!(news, News::Left { gathers, .. } if *gathers <= number)) {
            Some(left) => Err(left.to_error()),
            None => Ok(()),
        }
    }

    fn on_frame(&mut self, side: Side, frame: &Frame) -> Result<(), &'static str> {
        self.links[side as usize].heard = true;
        match frame.kind {
            KIND_GREETING => Ok(()),
            KIND_BLOCK => self.on_block(side, &frame.payload),
            KIND_NOTE => self.on_note(side, &frame.payload),
            KIND_NEWS => {
                let news =
                    News::from_bytes(&frame.payload).map_err(|Malformed| "news that cannot be read")?;
                if news.rank().0 >= self.nranks {
                    return Err("news of a rank that does not exist");
                }
                let goodbye = matches!(news, News::Left { rank, .. } if self.peer(side) == Some(rank));
                self.learn(news, Some(side));
                if goodbye {
                    self.links[side as usize].phase = LinkPhase::Down;
                }
                Ok(())
            }
            _ => Err("a message of unknown kind"),
        }
    }

    fn on_block(&mut self, side: Side, payload: &[u8]) -> Result<(), &'static str> {
        let mut reader = Reader::new(payload);
        let mut head = || Ok((Rank(reader.u32()?), reader.u32()?, reader.u64()?));
        let (origin, hops, number) = head().map_err(|Malformed| "a block that is too short")?;
        let block = reader.rest();
        if self.broken.is_some() {
            return Ok(());
        }
        self.gathers.deposit(number, origin, block)?;
        if hops > 1 {
            self.send_block(side.other(), number, origin, hops - 1, block);
        }
        Ok(())
    }

    /// Tells every rank something that need not reach those who join or heal the ring meanwhile.
    pub fn note(&mut self, note: &[u8]) {
        let serial = self.notes[self.me.index()] + 1;
        self.pass_note(None, self.me, serial, &note[..note.len().min(NOTE_BYTES_MAX)]);
    }

    fn on_note(&mut self, side: Side, payload: &[u8]) -> Result<(), &'static str> {
        let mut reader = Reader::new(payload);
        let mut head = || Ok((Rank(reader.u32()?), reader.u64()?));
        let (origin, serial) = head().map_err(|Malformed| "a note that is too short")?;
        let note = reader.rest();
        if origin.0 >= self.nranks || note.len() > NOTE_BYTES_MAX {
            return Err("a note that no rank can have sent");
        }
        if origin != self.me && serial > self.notes[origin.index()] {
            self.events.push_back(PeerEvent::PeerNote { rank: origin, note: note.to_vec() });
            self.pass_note(Some(side), origin, serial, note);
        }
        Ok(())
    }

    fn pass_note(&mut self, from: Option<Side>, origin: Rank, serial: u64, note: &[u8]) {
        self.notes[origin.index()] = serial;
        for side in Side::BOTH {
            let link = &mut self.links[side as usize];
            if from != Some(side) && link.phase != LinkPhase::Down {
                frame::push(
                    &mut link.out,
                    KIND_NOTE,
                    &[&origin.0.to_le_bytes(), &serial.to_le_bytes(), note],
                );
            }
        }
    }

    fn send_block(&mut self, side: Side, number: u64, origin: Rank, hops: u32, block: &[u8]) {
        let link = &mut self.links[side as usize];
        if link.phase != LinkPhase::Down {
            let (origin, hops, number) = (origin.0.to_le_bytes(), hops.to_le_bytes(), number.to_le_bytes());
            frame::push(&mut link.out, KIND_BLOCK, &[&origin, &hops, &number, block]);
        }
    }

    fn learn(&mut self, news: News, from: Option<Side>) {
        let rank = news.rank();
        let known = match news {
            // Whoever aborted is expected to end; its goodbye or death adds nothing but that it is gone.
            News::Aborted { .. } => &mut self.aborted[rank.index()],
            News::Died { .. } | News::Left { .. } => &mut self.gone[rank.index()],
        };
        let is_new = !std::mem::replace(known, true);
        if !is_new || self.leaving {
            return;
        }
        for side in Side::BOTH {
            let link = &mut self.links[side as usize];
            if from != Some(side) && link.phase != LinkPhase::Down {
                frame::push(&mut link.out, KIND_NEWS, &[&news.to_bytes()]);
            }
        }
        self.tell_owner(&news);
        self.news.push(news);
    }

    fn tell_owner(&mut self, news: &News) {
        let rank = news.rank();
        let already_told = self.aborted[rank.index()] && self.gone[rank.index()];
        if rank == self.me || already_told {
            return;
        }
        match news {
            News::Died { rank } => self.events.push_back(PeerEvent::PeerDied { rank: *rank }),
            News::Aborted { rank, reason } => {
                self.events.push_back(PeerEvent::PeerAborted { rank: *rank, reason: reason.clone() });
            }
            News::Left { rank, .. } => {
                self.events.push_back(PeerEvent::PeerLeft { rank: *rank });
                return;
            }
        }
        self.broken.get_or_insert_with(|| news.to_error());
    }
}

fn too_large(len_bytes: usize) -> BootstrapError {
    BootstrapError::TooLarge { len_bytes, max_bytes: GATHER_BYTES_MAX }
}

#[cfg(test)]
#[path = "tests/ring.rs"]
mod tests;

//! The part of a communicator that is independent of its machine: a rank among others, and its membership events.

use super::error::Error;
use super::handle::CommHandle;
use super::split::{Shrinks, Turns};
use super::stalls::Stalls;
use crate::bootstrap::{Bootstrap, PeerEvent, Watch};
use crate::launch::{Fault, Finished, Health, LastPart, Notice, Notify, Outstanding, StallNotice};
use crate::plan::CallRecord;
use crate::transport::TransportKind;
use crate::wire::Message;
use oxccl_shared::abi::Rank;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// Takes a note of another rank.
pub type Notes = Box<dyn Fn(Rank, &[u8]) + Send>;

/// A rank's membership in a communicator. Dropping it notifies the other ranks.
pub(super) struct Membership {
    pub rank: Rank,
    pub nranks: u32,
    pub handle: CommHandle,
    /// The rank at each position of each channel's ring.
    pub rings: Vec<Vec<Rank>>,
    /// The order of its splits.
    pub splits: Turns,
    /// How often each set of its ranks has gone on alone.
    pub shrinks: Shrinks,
    /// The only lasting strong reference, so that dropping it can notify the others; `None` only while it is being dropped, and in a forked child.
    watch: Option<Arc<Watch>>,
}

impl Membership {
    pub fn new(
        (rank, nranks): (Rank, u32),
        rings: Vec<Vec<Rank>>,
        handle: CommHandle,
        watch: Arc<Watch>,
    ) -> Membership {
        Membership {
            rank,
            nranks,
            handle,
            rings,
            splits: Turns::default(),
            shrinks: Shrinks::default(),
            watch: Some(watch),
        }
    }

    /// Leaves all as it is when this is dropped: it is another process's.
    pub fn forget(&mut self) {
        std::mem::forget(self.watch.take());
    }

    pub fn watch(&self) -> &Arc<Watch> {
        self.watch.as_ref().expect("a communicator that is not being dropped has its watch")
    }

    /// Who watches the communicator's calls.
    pub fn stalls(&self) -> Option<Arc<Stalls>> {
        self.handle.inside().map(|(_, stalls, _)| stalls)
    }

    pub fn operation_error(&self, outstanding: Outstanding) -> Error {
        self.handle.operation_error(outstanding)
    }

    /// This rank's collectives, if others cannot see that it made no more: kernels see what lies in memory, and with copy engines nobody
    /// knows for whom it waits. Who has finalized has met all others.
    fn unmet_collectives(&self) -> Option<u64> {
        let (health, stalls, _) = self.handle.inside()?;
        let is_unknown = stalls.is_polled() && !health.is_stopped() && !health.finalized().has_begun();
        is_unknown.then(|| health.collectives())
    }
}

impl Drop for Membership {
    /// Notifies the other ranks that this one leaves. A panicking thread aborts instead.
    fn drop(&mut self) {
        let Some(mut shared) = self.watch.take() else { return };
        let collectives = self.unmet_collectives();
        self.handle.ended();
        collectives.into_iter().for_each(|collectives| shared.note(&Notice::Leaves(collectives).to_bytes()));
        // A handle or the monitor may be using it at this moment and will release it soon; a split in progress, when the ranks have met.
        let watch = loop {
            match Arc::try_unwrap(shared) {
                Ok(watch) => break watch,
                Err(still_shared) => shared = still_shared,
            }
            std::thread::sleep(Duration::from_micros(20));
        };
        if !std::thread::panicking() {
            watch.close();
        }
    }
}

/// Makes the bootstrap's thread convert membership events into faults, and compare the peers' calls with this rank's
/// call at the same point. The same thread looks for operations without progress.
///
/// Other notes go to `notes`.
pub(super) fn watch(
    bootstrap: Bootstrap,
    (health, stalls): (&Arc<Health>, &Arc<Stalls>),
    notes: Option<Notes>,
) -> Arc<Watch> {
    let listener = Arc::new(Listener {
        me: bootstrap.rank(),
        health: health.clone(),
        stalls: stalls.clone(),
        replies: OnceLock::new(),
    });
    let hears = listener.clone();
    let watch = Arc::new(bootstrap.watch(Box::new(move |event| hears.event(event, notes.as_ref()))));
    // The cell is not shared yet, so it is empty.
    let _ = listener.replies.set(Arc::downgrade(&watch));
    let mut has_said = false;
    watch.call_back(Box::new(move |now, neighbours| {
        let own = &listener.health;
        // Those that wait from now on are answered when they say so.
        if own.finalized().has_begun() && !std::mem::replace(&mut has_said, true) {
            let standing = own.finalized().standing_after(own.collectives());
            own.waits().for_me().chain(standing).for_each(|rank| listener.say_finalized(rank));
        }
        listener.stalls.tick(now, neighbours, &|notice: StallNotice| listener.say(Notice::Stall(notice)))
    }));
    watch
}

/// What a rank makes of what it hears of the others.
struct Listener {
    me: Rank,
    health: Arc<Health>,
    stalls: Arc<Stalls>,
    /// Where answers go, once it is there.
    replies: OnceLock<Weak<Watch>>,
}

impl Listener {
    fn event(&self, event: PeerEvent, notes: Option<&Notes>) {
        match event {
            PeerEvent::PeerDied { rank } => drop(self.health.fail(Fault::PeerDied { rank }, None)),
            PeerEvent::PeerAborted { rank, reason, in_vain } => {
                self.stalls.note_said(rank, &reason);
                let _ = self.health.fail(Fault::of_abort(self.me, rank, in_vain), None);
            }
            // Operations would wait for the same ranks, and this one hears of the others no more.
            PeerEvent::GaveUp { ranks, limit } => {
                if let Some(rank) = ranks.named().first() {
                    self.health.fail(Fault::Timeout { rank: *rank, limit }, None);
                }
            }
            PeerEvent::PeerLeft { rank } => {
                self.health.note_left(rank);
                self.stalls.left(rank);
            }
            PeerEvent::PeerNote { rank, note } => match Notice::from_bytes(&note) {
                Ok(notice) => self.notice(rank, notice),
                Err(_) => notes.into_iter().for_each(|notes| notes(rank, &note)),
            },
        }
    }

    fn notice(&self, rank: Rank, notice: Notice) {
        let Listener { me, ref health, ref stalls, .. } = *self;
        match notice {
            Notice::Call(theirs) => self.compare(rank, theirs),
            Notice::Message { nth, half } if half.call.root == me => self.compare_halves(rank, nth, half),
            Notice::WaitsFor(peer) => {
                health.waits().note(rank, peer);
                if peer == Some(me) && health.finalized().has_begun() {
                    self.say_finalized(rank);
                }
            }
            Notice::StandsIn(seq) => {
                health.finalized().note_standing(rank, seq);
                if health.finalized().has_begun() && seq >= health.collectives() {
                    self.say_finalized(rank);
                }
            }
            Notice::Finalized { to, part } if to == me => {
                let is_near = stalls.link_to(rank).is_some_and(TransportKind::is_memory);
                health.finalized().note(rank, Finished { part, is_near });
            }
            // Comes before that it has left; between GPUs only, where no slots are counted.
            Notice::Leaves(collectives) => {
                let finished = Finished { part: LastPart::of_all(collectives), is_near: false };
                health.finalized().note(rank, finished);
            }
            Notice::Missed { rank: guilty, during, .. } if guilty == me => {
                health.fail(Fault::FinalizedEarly { rank }, during);
            }
            Notice::Missed { rank, collectives, .. } => {
                health.fail(Fault::PeerFinalized { rank, collectives }, None);
            }
            // The guilty one is to hear that the other gave up, which follows.
            Notice::TimedOut { rank, limit } if rank != me => {
                health.fail(Fault::Timeout { rank, limit }, None);
            }
            Notice::Stall(notice) => {
                stalls.heard(rank, notice, &|notice| self.say(Notice::Stall(notice)));
            }
            Notice::Inquiry(number) => {
                self.say(Notice::Said(number, stalls.standing()));
            }
            Notice::Said(number, standing) => stalls.roll().heard(rank, number, standing),
            Notice::Finalized { .. } | Notice::TimedOut { .. } | Notice::Message { .. } => {}
        }
    }

    /// Another rank's call, and this one's at the same point.
    fn compare(&self, rank: Rank, theirs: CallRecord) {
        let Some(ours) = self.health.recall(theirs.seq).filter(|ours| *ours != theirs) else { return };
        // Before the fault, so that the peer receives our call before it receives our abort.
        self.say(Notice::Call(ours));
        self.health.fail(Fault::Mismatch { rank, theirs: Some(theirs) }, Some(ours));
    }

    /// Another rank's half of a message with this one, and this one's own. Their lengths differ, or the sender of this notice named another of
    /// several messages in a group.
    fn compare_halves(&self, rank: Rank, nth: u64, theirs: CallRecord) {
        let Some(ours) = self.health.recorder().other_half(rank, &theirs, nth) else { return };
        if self.health.is_stopped() || ours.call.bytes() == theirs.call.bytes() {
            return;
        }
        // As in `compare`.
        self.say(Notice::Message { nth, half: ours });
        self.health.fail(Fault::Mismatch { rank, theirs: Some(theirs) }, Some(ours));
    }

    /// Tells a rank that waits for this one that nothing more comes of it.
    fn say_finalized(&self, rank: Rank) {
        self.say(Notice::Finalized { to: rank, part: self.health.part_with(rank) });
    }

    fn say(&self, notice: Notice) {
        if let Some(watch) = self.watch() {
            watch.note(&notice.to_bytes());
        }
    }

    fn watch(&self) -> Option<Arc<Watch>> {
        self.replies.get().and_then(Weak::upgrade)
    }
}

/// Reports over the bootstrap's ring, while the communicator exists.
pub(super) struct NotifyByWatch(Weak<Watch>);

impl NotifyByWatch {
    pub fn new(watch: &Arc<Watch>) -> NotifyByWatch {
        NotifyByWatch(Arc::downgrade(watch))
    }

    /// Sends a note of another kind.
    pub fn say(&self, note: &[u8]) {
        if let Some(watch) = self.0.upgrade() {
            watch.note(note);
        }
    }
}

impl Notify for NotifyByWatch {
    fn notify(&self, what: Notice) {
        if let Some(watch) = self.0.upgrade() {
            watch.note(&what.to_bytes());
        }
    }

    fn gave_up(&self, why: &Outstanding) {
        if let Some(watch) = self.0.upgrade() {
            watch.abort(&why.told());
        }
    }

    fn flush(&self) {
        if let Some(watch) = self.0.upgrade() {
            watch.flush();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::Config;
    use super::*;
    use crate::bootstrap::{BootstrapConfig, RankList, UniqueId};

    /// What rank 1 of 7 makes of an abort of rank 3.
    fn fault_of(reason: &str, in_vain: Option<(RankList, Duration)>) -> Fault {
        fault_after(PeerEvent::PeerAborted { rank: Rank(3), reason: reason.to_owned(), in_vain })
    }

    /// What it makes of an event that is a fault.
    fn fault_after(event: PeerEvent) -> Fault {
        let bind_addr = Some("127.0.0.1".parse().expect("an address"));
        let config = BootstrapConfig { bind_addr, ..BootstrapConfig::default() };
        let id = UniqueId::create_by(&config).expect("a root");
        let alone = Bootstrap::connect(&id, Rank(0), 1, &config).expect("nobody else comes");
        let health = Arc::new(Health::new(Rank(1), 7));
        let stalls = Arc::new(Stalls::new(&alone, &Config::default()));
        let listener = Listener { me: Rank(1), health: health.clone(), stalls, replies: OnceLock::new() };
        listener.event(event, None);
        alone.close();
        health.fault().expect("it is a fault").fault
    }

    /// Its next all-reduce waited for `OXCCL_TIMEOUT`, while the others had ended.
    #[test]
    fn a_rank_that_waited_in_vain_itself_goes_no_further() {
        let limit = Duration::from_secs(2);
        let ranks = [Rank(5), Rank(6)].into_iter().collect();
        let fault = fault_after(PeerEvent::GaveUp { ranks, limit });
        assert_eq!(fault, Fault::Timeout { rank: Rank(5), limit });
    }

    /// Ranks that had joined took the one that gave up for the guilty one.
    #[test]
    fn a_rank_that_waited_in_vain_is_not_at_fault() {
        let limit = Duration::from_secs(2);
        let waits = |ranks: &[u32]| Some((ranks.iter().map(|rank| Rank(*rank)).collect(), limit));
        let peer_timeout = |more| Fault::PeerTimeout { rank: Rank(5), more, by: Rank(3), limit };
        assert_eq!(fault_of("for rank 5", waits(&[5])), peer_timeout(0));
        assert_eq!(fault_of("for ranks 5 and 6", waits(&[5, 6])), peer_timeout(1));
        let aborted = Fault::PeerAborted { rank: Rank(3) };
        assert_eq!(fault_of("for ranks 5 and 1", waits(&[5, 1])), aborted, "this rank was awaited too");
        assert_eq!(fault_of("for somebody", waits(&[])), aborted);
        assert_eq!(fault_of("out of memory", None), aborted);
    }
}

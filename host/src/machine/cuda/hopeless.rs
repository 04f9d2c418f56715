//! Waits of GPUs for ranks that do nothing more: those that have finalized, or left.
//!
//! A kernel cannot ask other ranks whether they still come. The thread that polls kernels does it for them: it tells the others for which rank
//! a kernel waits, or which collective of this rank makes no progress. Ranks that have finalized answer.

use crate::launch::{Fault, Health, KernelAt, LAST_LOOKS, LEFT_GRACE, Notice, Notify, Standing};
use crate::plan::CallRecord;
use oxccl_shared::abi::Rank;
use std::time::{Duration, Instant};

/// How long an operation stands before the others are asked.
const ASK_AFTER: Duration = Duration::from_millis(500);
/// When their answers are there.
const ANSWER_TIME: Duration = Duration::from_millis(100);

/// What was seen so far.
#[derive(Default)]
pub(super) struct HopelessWaits {
    /// What the rank is in, and since when.
    at: Option<(Place, Instant)>,
    has_asked: bool,
    /// Which rank was found to do nothing more.
    found: Option<Rank>,
}

/// How far a rank has come.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place {
    done: u64,
    during: CallRecord,
    waits: Option<KernelAt>,
}

impl HopelessWaits {
    /// Called again and again with what this rank does. Returns the fault that ends its operation, if that can no longer complete, and
    /// when to call next, if that is soon.
    pub fn look(
        &mut self,
        now: Instant,
        standing: &Standing,
        has_graphs: bool,
        (health, notify): (&Health, &dyn Notify),
    ) -> (Option<Fault>, Option<Duration>) {
        let waits = standing.kernels.and_then(|kernels| kernels.waits);
        let place = standing.during.map(|during| Place { done: standing.done, during, waits });
        let place = place.filter(|_| !health.is_stopped());
        if self.at.map(|(before, _)| before) != place {
            self.go_on(place, now, notify);
            return (None, place.map(|_| ASK_AFTER));
        }
        let Some((place, since)) = self.at else { return (None, None) };
        if now - since >= ASK_AFTER && !std::mem::replace(&mut self.has_asked, true) {
            ask(&place, has_graphs, notify);
            return (None, Some(ANSWER_TIME));
        }
        let fault = self.has_asked.then(|| missing(&place, has_graphs, health)).flatten();
        let guilty = fault.and_then(|fault| fault.guilty());
        let is_sure = guilty.is_some() && self.found == guilty;
        self.found = guilty;
        let again = match fault {
            // It said nothing of what it did with this rank.
            Some(Fault::PeerLeft { .. }) => LEFT_GRACE,
            // What it did last may have arrived since this look.
            _ => LAST_LOOKS,
        };
        (fault.filter(|_| is_sure), guilty.map(|_| again))
    }

    /// The rank is somewhere else than it was.
    fn go_on(&mut self, place: Option<Place>, now: Instant, notify: &dyn Notify) {
        // Others would take it for one that still waits.
        if self.has_asked && self.at.is_some_and(|(before, _)| before.waits.is_some()) {
            notify.notify(Notice::WaitsFor(None));
        }
        *self = HopelessWaits { at: place.map(|place| (place, now)), ..HopelessWaits::default() };
    }
}

/// The collective of which other ranks know the number. Launches of graphs have none of their own.
fn collective(place: &Place, has_graphs: bool) -> Option<u64> {
    (!has_graphs && !place.during.call.func.is_message()).then_some(place.during.seq)
}

fn ask(place: &Place, has_graphs: bool, notify: &dyn Notify) {
    if let Some(at) = place.waits {
        notify.notify(Notice::WaitsFor(Some(at.peer)));
    }
    if let Some(seq) = collective(place, has_graphs) {
        notify.notify(Notice::StandsIn(seq));
    }
}

/// Why what a rank waits for does not come, if that is known.
fn missing(place: &Place, has_graphs: bool, health: &Health) -> Option<Fault> {
    let finalized = health.finalized();
    let peer = place.waits.map(|at| at.peer);
    // The one that it waits for may have failed because another had left, and is not to blame.
    let left = peer.map(|rank| health.waits().guilty(rank)).filter(|rank| health.has_left(*rank));
    if let Some(rank) = left {
        return Some(Fault::PeerLeft { rank });
    }
    // What it sent to this GPU's memory is there.
    let near = peer.and_then(|rank| Some((rank, finalized.of(rank).filter(|finished| finished.is_near)?)));
    let near = near.map(|(rank, finished)| (rank, finished.part.collectives));
    let message = || place.waits.filter(|_| !has_graphs).and_then(|at| without_message(at, health));
    let other = || collective(place, has_graphs).and_then(|seq| finalized.without(seq));
    near.or_else(message).or_else(other).map(|(rank, collectives)| match health.has_left(rank) {
        true => Fault::PeerLeft { rank },
        false => Fault::PeerFinalized { rank, collectives },
    })
}

/// The rank for which a kernel of messages waits, with its collectives, if it has finalized without its half of the one to it or from it. Those
/// that it called before may be on their way over a network.
fn without_message(at: KernelAt, health: &Health) -> Option<(Rank, u64)> {
    let finished = health.finalized().of(at.peer)?;
    let message = health.recorder().message_with(at.launch, at.peer, at.is_credit)?;
    finished.lacks_message(at.is_credit, message.nth).then_some((at.peer, finished.part.collectives))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::{Finished, Kernels, LastPart, Outstanding};
    use crate::plan::Call;
    use oxccl_shared::abi::{DataType, Func, RedOp};
    use std::sync::Mutex;

    #[derive(Default)]
    struct Said(Mutex<Vec<Notice>>);

    impl Notify for Said {
        fn notify(&self, what: Notice) {
            self.0.lock().unwrap().push(what);
        }

        fn gave_up(&self, _: &Outstanding) {}
    }

    /// A rank in its fourth collective or in a receive, whose kernel waits for rank 2 if it has one.
    fn standing(func: Func, has_kernel: bool) -> Standing {
        let call = Call { func, dtype: DataType::F32, op: RedOp::Sum, root: Rank(2), count: 8 };
        let at = KernelAt { peer: Rank(2), is_credit: false, step: 1, block: 0, launch: 5 };
        let kernels = has_kernel.then_some(Kernels { waits: Some(at), has_graphs: false });
        Standing { during: Some(CallRecord { seq: 3, call }), kernels, ..Standing::default() }
    }

    fn finalize(health: &Health, rank: u32, collectives: u64, is_near: bool) {
        let part = LastPart { collectives, sent: 0, received: 0, messages: Some([0; 2]) };
        health.finalized().note(Rank(rank), Finished { part, is_near });
    }

    /// The faults of looks half a second apart.
    fn faults(standing: &Standing, has_graphs: bool, health: &Health, said: &Said) -> [Option<Fault>; 5] {
        let (mut watch, start) = (HopelessWaits::default(), Instant::now());
        [0, 1, 2, 3, 4].map(|at| watch.look(start + ASK_AFTER * at, standing, has_graphs, (health, said)).0)
    }

    #[test]
    fn who_is_waited_for_is_asked_once_and_ends_the_wait() {
        let (health, said) = (Health::new(Rank(0), 4), Said::default());
        assert_eq!(faults(&standing(Func::AllReduce, true), false, &health, &said), [None; 5]);
        assert_eq!(*said.0.lock().unwrap(), [Notice::WaitsFor(Some(Rank(2))), Notice::StandsIn(3)]);
        // It made this collective: what it sent lies there, and the kernel waits for more.
        finalize(&health, 2, 4, true);
        let found = Some(Fault::PeerFinalized { rank: Rank(2), collectives: 4 });
        assert_eq!(
            faults(&standing(Func::AllReduce, true), false, &health, &said)[2..],
            [None, found, found]
        );
        assert_eq!(faults(&standing(Func::Recv, true), true, &health, &said)[3], found);
    }

    #[test]
    fn what_is_on_its_way_over_a_network_is_waited_for() {
        let (health, said) = (Health::new(Rank(0), 4), Said::default());
        finalize(&health, 2, 4, false);
        assert_eq!(faults(&standing(Func::AllReduce, true), false, &health, &said), [None; 5]);
        finalize(&health, 3, 3, false);
        let found = Some(Fault::PeerFinalized { rank: Rank(3), collectives: 3 });
        assert_eq!(faults(&standing(Func::AllReduce, true), false, &health, &said)[3], found);
        assert_eq!(
            faults(&standing(Func::AllReduce, true), true, &health, &said),
            [None; 5],
            "numbers say nothing"
        );
    }

    /// They waited out the timeout.
    #[test]
    fn a_message_over_a_network_that_the_other_did_not_call_does_not_come() {
        let (health, said) = (Health::new(Rank(0), 4), Said::default());
        let message = |func| {
            let call = Call { func, dtype: DataType::F32, op: RedOp::Sum, root: Rank(2), count: 8 };
            health.recorder().begin(&CallRecord { seq: 0, call })
        };
        // Two receives and a send before those in which a kernel waits.
        let _ = [Func::Recv, Func::Send, Func::Recv].map(message);
        let found = Some(Fault::PeerFinalized { rank: Rank(2), collectives: 4 });
        for (func, is_credit, before) in [(Func::Recv, false, [2, 9]), (Func::Send, true, [9, 1])] {
            let launch = message(func);
            let at = KernelAt { peer: Rank(2), is_credit, step: 1, block: 0, launch };
            let kernels = Some(Kernels { waits: Some(at), has_graphs: false });
            let standing = Standing { kernels, ..standing(func, true) };
            let finish = |messages| {
                let part = LastPart { messages, ..LastPart::of_all(4) };
                health.finalized().note(Rank(2), Finished { part, is_near: false });
            };
            finish(Some(before.map(|count| count + 1)));
            assert_eq!(faults(&standing, false, &health, &said), [None; 5], "on its way");
            finish(None);
            assert_eq!(faults(&standing, false, &health, &said), [None; 5], "graphs may have sent it");
            finish(Some(before));
            assert_eq!(faults(&standing, false, &health, &said)[3], found);
            assert_eq!(
                faults(&standing, true, &health, &said),
                [None; 5],
                "launches of graphs have no number"
            );
        }
    }

    #[test]
    fn copy_engines_do_not_say_for_whom_they_wait() {
        let (health, said) = (Health::new(Rank(0), 4), Said::default());
        finalize(&health, 1, 3, true);
        let found = Some(Fault::PeerFinalized { rank: Rank(1), collectives: 3 });
        assert_eq!(faults(&standing(Func::AllGather, false), false, &health, &said)[3], found);
        assert_eq!(*said.0.lock().unwrap(), [Notice::StandsIn(3)]);
    }

    #[test]
    fn a_rank_that_left_is_named_by_who_waits_for_it_or_for_one_that_does() {
        let (health, said) = (Health::new(Rank(0), 4), Said::default());
        health.note_left(Rank(3));
        assert_eq!(faults(&standing(Func::Recv, true), false, &health, &said), [None; 5]);
        health.waits().note(Rank(2), Some(Rank(3)));
        let found = Some(Fault::PeerLeft { rank: Rank(3) });
        assert_eq!(faults(&standing(Func::Recv, true), false, &health, &said)[3], found);
        // Copy engines: it left before this collective.
        assert_eq!(faults(&standing(Func::AllGather, false), false, &health, &said), [None; 5]);
        finalize(&health, 3, 3, false);
        assert_eq!(faults(&standing(Func::AllGather, false), false, &health, &said)[3], found);
    }

    #[test]
    fn a_rank_that_goes_on_takes_back_that_it_waits() {
        let (health, said) = (Health::new(Rank(0), 4), Said::default());
        let (mut watch, start) = (HopelessWaits::default(), Instant::now());
        let stands = standing(Func::Recv, true);
        for (at, standing) in (0..).zip([stands, stands, Standing::default(), Standing::default()]) {
            watch.look(start + ASK_AFTER * at, &standing, false, (&health, &said));
        }
        assert_eq!(*said.0.lock().unwrap(), [Notice::WaitsFor(Some(Rank(2))), Notice::WaitsFor(None)]);
    }

    #[test]
    fn a_rank_that_moves_asks_nobody() {
        let (health, said) = (Health::new(Rank(0), 4), Said::default());
        let (mut watch, start) = (HopelessWaits::default(), Instant::now());
        for at in 0..9 {
            let standing = Standing { done: u64::from(at), ..standing(Func::AllReduce, true) };
            watch.look(start + ASK_AFTER * at, &standing, false, (&health, &said));
        }
        assert!(said.0.lock().unwrap().is_empty());
    }
}

//! Whether a communicator is usable: state shared with its abort handles and its monitor thread.

use super::blame::Waits;
use super::fault::{Fault, Outstanding};
use super::finalized::{Finalized, LastPart};
use super::planned_traffic::PlannedTraffic;
use super::recorder::Recorder;
use super::stall::{IdleWindow, Standing};
use crate::plan::{Call, CallRecord};
use core::ops::Range;
use oxccl_device::traffic::{Counted, Traffic};
use oxccl_shared::abi::Rank;
use oxccl_shared::sync::{Line128, Sys, Word};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// Calls kept for comparison with other ranks'.
pub const LEDGER_RECORDS: usize = 16;

/// One communicator's health and the ledger of its latest calls.
#[derive(Default)]
pub struct Health {
    /// Nonzero once a fault is recorded. Every writer stores the same value, so several may.
    stopped: Line128<Word<u32, Sys>>,
    fault: Mutex<Option<Outstanding>>,
    /// Nonzero for the ranks that have closed the communicator. Writer: the monitor.
    left: Box<[Word<u32, Sys>]>,
    /// For which rank each rank waits.
    waits: Waits,
    /// Who has finalized.
    finalized: Finalized,
    /// Writer: the executor.
    ledger: Line128<[LedgerRecord; LEDGER_RECORDS]>,
    /// Called once a fault is recorded.
    alarm: OnceLock<Alarm>,
    /// The same, for who is to know of it.
    witness: OnceLock<Alarm>,
    /// The present wait, once it is slow. Writer: the executor.
    wait: Mutex<Option<SlowWait>>,
    /// Calls begun, and calls that have returned. Writer: the executor.
    calls: Line128<[Word<u64, Sys>; 2]>,
    recorder: Recorder,
    /// By rank: what has gone over its connections. Writer: the executor, of ranks on CPUs.
    traffic: Box<[Arc<Traffic>]>,
    /// Of a head on a CPU: the rank that stands for the network that reduces, and what has gone to that and come from it.
    reduction: OnceLock<(Rank, Arc<Traffic>)>,
    /// The same of ranks on GPUs, from their plans; set before their first call.
    pub(crate) planned_traffic: OnceLock<PlannedTraffic>,
    /// How the executor divides its time in the present call. Writer: who asks for the standing.
    idle: Mutex<IdleWindow>,
}

/// Stops parts that do not check a communicator's health themselves.
type Alarm = Box<dyn Fn() + Send + Sync>;

/// A wait of a kernel on the caller's thread that lasts.
#[derive(Clone, Copy, Debug)]
pub struct SlowWait {
    /// The peer.
    pub peer: Rank,
    /// Whether that rank stands for a network that reduces.
    pub is_for_network: bool,
    /// The call.
    pub during: Option<CallRecord>,
    /// How long it has lasted.
    pub waited: Duration,
    /// When the kernel looked last.
    pub looked_at: Instant,
}

/// A kernel that has not looked for so long has gone on, or its thread does not run.
const LOOKS_EVERY: Duration = Duration::from_millis(500);

impl SlowWait {
    fn is_fresh(&self) -> bool {
        self.looked_at.elapsed() < LOOKS_EVERY
    }
}

#[derive(Default)]
struct LedgerRecord {
    /// `seq + 1` of the record, 0 while it is being written.
    seq: Word<u64, Sys>,
    call: Word<u64, Sys>,
    count: Word<u64, Sys>,
}

impl Health {
    /// The health of rank `rank`'s end of a communicator of `nranks` ranks.
    pub fn new(rank: Rank, nranks: u32) -> Health {
        let left = (0..nranks).map(|_| Word::new(0)).collect();
        let (waits, recorder) = (Waits::new(rank, nranks), Recorder::new(nranks as usize));
        let traffic = (0..nranks).map(|_| Arc::default()).collect();
        Health { left, waits, recorder, traffic, ..Health::default() }
    }

    /// The latest calls with their times.
    #[inline]
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// By rank: what has gone over its connections, where that is counted.
    #[inline]
    pub fn traffic(&self) -> &[Arc<Traffic>] {
        &self.traffic
    }

    /// Whose bytes are counted from now on belong to another operation. The executor only.
    #[inline]
    pub(crate) fn begin_traffic(&self) {
        self.traffic.iter().chain(self.to_network()).for_each(|traffic| traffic.begin());
    }

    /// What has gone to a network that reduces, and come from it. `peer` stands for it where whom a rank waits for must be a rank.
    pub(crate) fn set_reduction(&self, peer: Rank, traffic: Arc<Traffic>) {
        // A communicator has one.
        let _ = self.reduction.set((peer, traffic));
    }

    /// The rank that stands for the network that reduces, and what that network has had.
    pub(crate) fn reduction(&self) -> Option<(Rank, Counted)> {
        self.reduction.get().map(|(peer, traffic)| (*peer, traffic.read()))
    }

    #[inline]
    fn to_network(&self) -> Option<&Arc<Traffic>> {
        self.reduction.get().map(|(_, traffic)| traffic)
    }

    /// Of a wait that is [counted](Self::count_wait), so much was for the network that reduces.
    #[cold]
    pub(crate) fn count_wait_for_network(&self, ticks: u64) {
        self.to_network().into_iter().for_each(|traffic| traffic.waited(ticks));
    }

    /// Bytes to and from a rank in the present operation, those of the network among them that it stands for.
    fn moved_with(&self, peer: Rank) -> Option<[u64; 2]> {
        let [sent, received] = self.traffic.get(peer.index())?.read().now;
        let of_network = self.reduction().filter(|(stand_in, _)| *stand_in == peer);
        let [more_sent, more_received] = of_network.map_or([0; 2], |(_, counted)| counted.now);
        Some([sent + more_sent, received + more_received])
    }

    /// The executor has waited for this rank since it looked last, so many ticks of the recorder's ago.
    #[inline]
    pub(crate) fn count_wait(&self, peer: Rank, ticks: u64) {
        if let Some(traffic) = self.traffic.get(peer.index()) {
            traffic.waited(ticks);
        }
    }

    /// Bytes sent and received in the present operation, or the latest.
    fn moved(&self) -> [u64; 2] {
        let each = self.traffic.iter().chain(self.to_network()).map(|traffic| traffic.read().now);
        each.fold([0, 0], |[sent, received], now| [sent + now[0], received + now[1]])
    }

    /// For which rank each rank waits.
    pub fn waits(&self) -> &Waits {
        &self.waits
    }

    /// Who has finalized.
    pub fn finalized(&self) -> &Finalized {
        &self.finalized
    }

    /// What this rank has done by now, all ranks and this one.
    pub fn part_with(&self, peer: Rank) -> LastPart {
        let [sent, received] = self.traffic.get(peer.index()).map_or([0; 2], |traffic| traffic.read().slots);
        let messages = self.finalized.has_counted_messages().then(|| self.recorder.messages_with(peer));
        LastPart { collectives: self.collectives(), sent, received, messages }
    }

    /// The collectives that this rank has begun.
    pub fn collectives(&self) -> u64 {
        self.latest().map_or(0, |latest| latest.seq + 1)
    }

    /// Records the executor's slow wait, or that it is over. Returns whether [`Self::standing`] has shown a wait until now.
    #[cold]
    pub(crate) fn note_wait(&self, wait: Option<SlowWait>) -> bool {
        let mut slot = self.wait.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        std::mem::replace(&mut *slot, wait).is_some_and(|before| before.is_fresh())
    }

    /// The slow wait of the caller's thread, if it goes on.
    pub(crate) fn slow_wait(&self) -> Option<SlowWait> {
        self.wait.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).filter(SlowWait::is_fresh)
    }

    /// The call in which the caller's thread waits, or the latest collective.
    pub(crate) fn present(&self) -> Option<CallRecord> {
        self.slow_wait().and_then(|wait| wait.during).or_else(|| self.latest())
    }

    /// What this rank does, as far as calls on the caller's thread show it.
    pub fn standing(&self) -> Standing {
        let wait = self.slow_wait();
        let (begun, done, latest) = (self.begun(), self.returned(), self.latest());
        let during = match wait {
            Some(wait) => wait.during,
            None => latest.filter(|_| done < begun),
        };
        let waits_for = wait.map(|wait| wait.peer);
        Standing {
            begun,
            done,
            latest,
            during,
            mark: self.recorder.mark_of_present(during),
            waits_for,
            waited_ms: wait.map_or(0, |wait| wait.waited.as_millis() as u64),
            moved: during.map(|_| self.moved()),
            is_for_network: wait.is_some_and(|wait| wait.is_for_network),
            with_peer: waits_for.and_then(|peer| self.moved_with(peer)),
            ..self.in_call()
        }
    }

    /// Of a standing, how long the latest call has lasted, if it is under way, and how much of it was waiting.
    fn in_call(&self) -> Standing {
        let Some((call, lasted)) = self.recorder.under_way() else { return Standing::default() };
        let mut window = self.idle.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let idle = window.look(call, self.recorder.ticks(), &self.traffic);
        Standing { lasted_ms: lasted.as_millis() as u64, idle, ..Standing::default() }
    }

    /// Counts anew how the call under way divides its time.
    pub fn count_anew(&self) {
        self.idle.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).begin_anew();
    }

    /// Records that a rank has closed the communicator.
    pub fn note_left(&self, rank: Rank) {
        if let Some(word) = self.left.get(rank.index()) {
            // RELEASE pairs with ACQUIRE in `has_left`.
            word.store_release(1);
        }
    }

    /// Whether a rank has closed the communicator.
    pub fn has_left(&self, rank: Rank) -> bool {
        // ACQUIRE pairs with RELEASE in `note_left`.
        self.left.get(rank.index()).is_some_and(|word| word.load_acquire() != 0)
    }

    /// Whether a fault is recorded.
    #[inline]
    pub fn is_stopped(&self) -> bool {
        // ACQUIRE pairs with RELEASE in `fail`.
        self.stopped.load_acquire() != 0
    }

    /// Records a fault, unless there is one already. Returns the recorded one.
    pub fn fail(&self, fault: Fault, during: Option<CallRecord>) -> Outstanding {
        let mut slot = self.fault.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let is_first = slot.is_none();
        let outstanding = *slot.get_or_insert(Outstanding { during, fault });
        // RELEASE pairs with ACQUIRE in `is_stopped`.
        self.stopped.store_release(1);
        // Within the lock: a concurrent `set_alarm` finds the fault, or we find its alarm.
        self.alarm.get().iter().for_each(|alarm| alarm());
        if is_first {
            self.witness.get().iter().for_each(|witness| witness());
        }
        outstanding
    }

    /// Sets the alarm, which is called when a fault is recorded, or now if one has been. Only the first alarm counts.
    pub fn set_alarm(&self, alarm: impl Fn() + Send + Sync + 'static) {
        let fault = self.fault.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let alarm = self.alarm.get_or_init(|| Box::new(alarm));
        if fault.is_some() {
            alarm();
        }
    }

    /// Sets what is called once, when a fault is recorded. It must not ask for the fault. Only the first counts.
    pub fn set_witness(&self, witness: impl Fn() + Send + Sync + 'static) {
        // Only the first counts.
        let _ = self.witness.set(Box::new(witness));
    }

    /// The recorded fault.
    #[inline]
    pub fn fault(&self) -> Option<Outstanding> {
        if self.is_stopped() { self.recorded() } else { None }
    }

    #[cold]
    fn recorded(&self) -> Option<Outstanding> {
        *self.fault.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Records the collective that starts now.
    #[inline]
    pub fn record(&self, record: &CallRecord) {
        let slot = &self.ledger[record.seq as usize % LEDGER_RECORDS];
        slot.seq.store_relaxed(0);
        oxccl_shared::sync::fence_release();
        slot.call.store_relaxed(record.call.to_word());
        slot.count.store_relaxed(record.call.count);
        // RELEASE pairs with ACQUIRE in `recall`.
        slot.seq.store_release(record.seq + 1);
    }

    /// The collective with this number, if it started and is still in the ledger.
    pub fn recall(&self, seq: u64) -> Option<CallRecord> {
        let slot = &self.ledger[seq as usize % LEDGER_RECORDS];
        // ACQUIRE pairs with RELEASE in `record`.
        if slot.seq.load_acquire() != seq + 1 {
            return None;
        }
        let call = Call::from_words(slot.call.load_relaxed(), slot.count.load_relaxed())?;
        oxccl_shared::sync::fence_acquire();
        (slot.seq.load_relaxed() == seq + 1).then_some(CallRecord { seq, call })
    }

    /// Counts calls that begin. The executor's thread only.
    #[inline]
    pub(crate) fn note_begun(&self, calls: usize) {
        let [begun, _] = &*self.calls;
        begun.store_relaxed(begun.load_relaxed() + calls as u64);
    }

    /// The collectives with these numbers were not made after all, nor `calls` calls of those that were counted. Who reads them at this time may
    /// find parts of those that take their places. The executor's thread only.
    pub(crate) fn take_back(&self, collectives: Range<u64>, calls: usize) {
        for seq in collectives {
            let slot = &self.ledger[seq as usize % LEDGER_RECORDS].seq;
            if slot.load_relaxed() == seq + 1 {
                slot.store_relaxed(0);
            }
        }
        let [begun, _] = &*self.calls;
        begun.store_relaxed(begun.load_relaxed() - calls as u64);
    }

    /// All calls that have begun have returned: on CPUs they are done, on GPUs enqueued. The executor's thread only.
    #[inline]
    pub(crate) fn note_returned(&self) {
        let [begun, returned] = &*self.calls;
        // RELEASE pairs with ACQUIRE in `returned`.
        returned.store_release(begun.load_relaxed());
    }

    /// Calls begun so far.
    pub fn begun(&self) -> u64 {
        self.calls[0].load_relaxed()
    }

    /// Calls begun before the latest call that has returned without an error.
    pub fn returned(&self) -> u64 {
        // ACQUIRE pairs with RELEASE in `note_returned`.
        self.calls[1].load_acquire()
    }

    /// The latest collective in the ledger, for threads other than the executor's.
    pub fn latest(&self) -> Option<CallRecord> {
        let seqs = self.ledger.iter().filter_map(|record| record.seq.load_relaxed().checked_sub(1));
        seqs.max().and_then(|seq| self.recall(seq))
    }

    /// The collectives up to this one that are still in the ledger, oldest first.
    pub fn remembered(&self, seq: u64) -> impl Iterator<Item = CallRecord> {
        let oldest = (seq + 1).saturating_sub(LEDGER_RECORDS as u64);
        (oldest..=seq).filter_map(|seq| self.recall(seq))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxccl_shared::abi::{DataType, Func, RedOp};

    #[test]
    fn the_first_fault_stays() {
        let health = Health::default();
        assert_eq!(health.fault(), None);
        health.fail(Fault::PeerDied { rank: Rank(3) }, None);
        assert_eq!(health.fail(Fault::Aborted, None).fault, Fault::PeerDied { rank: Rank(3) });
        assert!(health.is_stopped());
    }

    #[test]
    fn an_alarm_rings_whether_the_fault_comes_before_or_after() {
        use std::sync::{Arc, Mutex};
        for before in [true, false] {
            let (health, rung) = (Health::default(), Arc::new(Mutex::new(0)));
            let bell = rung.clone();
            let set = |health: &Health| health.set_alarm(move || *bell.lock().unwrap() += 1);
            if before {
                health.fail(Fault::Aborted, None);
                set(&health);
            } else {
                set(&health);
                assert_eq!(*rung.lock().unwrap(), 0);
                health.fail(Fault::Aborted, None);
            }
            assert_eq!(*rung.lock().unwrap(), 1);
        }
    }

    #[test]
    fn the_ledger_remembers_the_latest_calls_only() {
        let health = Health::default();
        let call = |count| Call {
            func: Func::AllReduce,
            dtype: DataType::F32,
            op: RedOp::Sum,
            root: Rank(0),
            count,
        };
        for seq in 0..40 {
            health.record(&CallRecord { seq, call: call(seq * 2) });
        }
        assert_eq!(health.recall(39).map(|r| r.call.count), Some(78));
        assert_eq!(health.recall(40), None);
        assert_eq!(health.recall(40 - LEDGER_RECORDS as u64 - 1), None);
        assert_eq!(health.latest().map(|r| r.seq), Some(39));
        assert_eq!(Health::default().latest(), None);
        let remembered: Vec<u64> = health.remembered(39).map(|record| record.seq).collect();
        assert_eq!(remembered, Vec::from_iter(40 - LEDGER_RECORDS as u64..40));
        health.note_begun(40);
        health.take_back(38..40, 2);
        assert_eq!((health.collectives(), health.begun()), (38, 38));
    }
}

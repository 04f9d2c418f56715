//! The latest calls of a communicator with their times: a flight recorder, read when something is asked or has gone wrong.
//!
//! Its memory is there from init, a line of 64 bytes for each call. The executor writes, any thread reads at any time: a record
//! that is being written, or was overwritten meanwhile, is left out.

use super::mark::Mark;
use super::ticks::{Scale, Ticks};
use crate::plan::{Call, CallRecord};
use core::ops::Range;
use oxccl_shared::abi::{Func, Rank};
use oxccl_shared::sync::{Line128, Sys, Word};
use std::sync::OnceLock;
use std::time::Duration;

/// Calls kept; a power of two.
pub const RECORDS: usize = 4096;

/// How far back a message is looked for.
const GROUP_LOOK: u64 = 256;

/// One more than the highest number of a function: not all are in use.
const FUNC_NUMBERS: usize = {
    let (mut at, mut highest) = (0, 0);
    while at < Func::ALL.len() {
        if Func::ALL[at] as usize > highest {
            highest = Func::ALL[at] as usize;
        }
        at += 1;
    }
    highest + 1
};

/// The recorder of one communicator.
pub struct Recorder {
    slots: Box<[Slot]>,
    ticks: Ticks,
    /// The tag that the caller gives to calls which begin from now on. Any thread that has a handle writes it.
    tag: Word<u64, Sys>,
    /// By slot: the stream, where calls have one. Writer: the executor.
    streams: OnceLock<Box<[Word<u64, Sys>]>>,
    /// Calls recorded so far. Writer: the executor.
    next: Word<u64, Sys>,
    /// By peer: messages sent to it and received from it so far. Writer: the executor.
    messages: Box<[[Word<u64, Sys>; 2]]>,
    /// By function: calls and bytes so far. Writer: the executor.
    totals: Line128<[[Word<u64, Sys>; 2]; FUNC_NUMBERS]>,
}

/// One call. Writer: the executor.
#[derive(Default)]
#[repr(align(64))]
struct Slot {
    /// The record's index plus one; 0 while it is being written.
    stamp: Word<u64, Sys>,
    seq: Word<u64, Sys>,
    call: Word<u64, Sys>,
    count: Word<u64, Sys>,
    began: Word<u64, Sys>,
    /// 0: not yet.
    ended: Word<u64, Sys>,
    /// Of a message: those before it in its direction.
    nth: Word<u64, Sys>,
    /// The caller's.
    tag: Word<u64, Sys>,
}

const _: () = assert!(size_of::<Slot>() == 64);

/// A call that was recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Recorded {
    /// Calls recorded before it.
    pub index: u64,
    /// The call.
    pub record: CallRecord,
    /// When it began: on GPUs, was enqueued. Nanoseconds since 1970.
    pub began_ns: u64,
    /// When the GPU began with it, where such times are kept.
    pub started_ns: Option<u64>,
    /// When it ended, where the executor knows, or the GPU's times are kept.
    pub ended_ns: Option<u64>,
    /// Of a message: how many there were before it, with the same peer in the same direction.
    pub nth: u64,
    /// Its tag and its stream.
    pub mark: Mark,
}

impl Default for Recorder {
    /// One that keeps nothing.
    fn default() -> Recorder {
        Recorder {
            slots: Box::default(),
            ticks: Ticks::new(),
            tag: Word::new(0),
            streams: OnceLock::new(),
            next: Word::new(0),
            messages: Box::default(),
            totals: Line128::default(),
        }
    }
}

impl Recorder {
    /// One with room for [`RECORDS`] calls of a communicator of so many ranks.
    pub fn new(nranks: usize) -> Recorder {
        Recorder {
            slots: (0..RECORDS).map(|_| Slot::default()).collect(),
            messages: (0..nranks).map(|_| Default::default()).collect(),
            ..Recorder::default()
        }
    }

    /// Calls have streams: from now on those are kept too, in memory that is there from now on.
    pub(crate) fn keep_streams(&self) {
        self.streams.get_or_init(|| self.slots.iter().map(|_| Word::new(0)).collect());
    }

    /// So many calls, which begin next, are enqueued on this stream. The executor only.
    pub(crate) fn enqueue_on(&self, stream: u64, calls: usize) {
        let next = self.next.load_relaxed();
        let kept = (next..next + calls as u64).filter_map(|index| self.kept_stream(index));
        kept.for_each(|kept| kept.store_relaxed(stream));
    }

    /// The caller's tag of calls that begin from now on.
    pub fn tag(&self, tag: u64) {
        self.tag.store_relaxed(tag);
    }

    fn slot(&self, index: u64) -> Option<&Slot> {
        self.slots.get(index as usize & (RECORDS - 1))
    }

    /// A call begins. Returns its index. The executor only.
    #[inline]
    pub(crate) fn begin(&self, record: &CallRecord) -> u64 {
        let index = self.next.load_relaxed();
        if let Some(slot) = self.slot(index) {
            slot.stamp.store_relaxed(0);
            oxccl_shared::sync::fence_release();
            slot.seq.store_relaxed(record.seq);
            slot.call.store_relaxed(record.call.to_word());
            slot.count.store_relaxed(record.call.count);
            slot.began.store_relaxed(self.ticks.now());
            slot.ended.store_relaxed(0);
            slot.nth.store_relaxed(self.count_message(record));
            slot.tag.store_relaxed(self.tag.load_relaxed());
            // RELEASE pairs with ACQUIRE in `read`.
            slot.stamp.store_release(index + 1);
        }
        self.next.store_release(index + 1);
        let [calls, bytes] = &self.totals[record.call.func as usize];
        calls.store_relaxed(calls.load_relaxed() + 1);
        bytes.store_relaxed(bytes.load_relaxed().wrapping_add(record.call.bytes()));
        index
    }

    fn kept_stream(&self, index: u64) -> Option<&Word<u64, Sys>> {
        self.streams.get()?.get(index as usize & (RECORDS - 1))
    }

    /// The mark of the latest call that is this one, of those that are kept.
    pub(crate) fn mark_of(&self, record: &CallRecord) -> Mark {
        let scale = self.ticks.scale();
        // ACQUIRE pairs with RELEASE in `begin`.
        let next = self.next.load_acquire();
        let kept = next.saturating_sub(self.slots.len() as u64)..next;
        let mut found = kept.rev().filter_map(|index| self.read(index, &scale));
        found.find(|found| found.record == *record).map_or(Mark::default(), |found| found.mark)
    }

    /// The same of the call that a rank is in, if it is in any.
    pub(crate) fn mark_of_present(&self, during: Option<CallRecord>) -> Mark {
        during.map_or(Mark::default(), |during| self.mark_of(&during))
    }

    /// Counts it if it is a message. Returns how many there were before it in its direction.
    #[inline]
    fn count_message(&self, record: &CallRecord) -> u64 {
        let func = record.call.func;
        match self.messages.get(record.call.root.index()) {
            Some(directions) if func.is_message() => {
                let counter = &directions[usize::from(func == Func::Recv)];
                let nth = counter.load_relaxed();
                counter.store_relaxed(nth + 1);
                nth
            }
            _ => 0,
        }
    }

    /// The calls from index `first` on were not made after all; `calls` begins with them, in their order. Who reads one of them at this time
    /// may find parts of the call that takes its place. The executor only.
    pub(crate) fn take_back(&self, first: u64, calls: impl Iterator<Item = Call>) {
        let next = self.next.load_relaxed();
        let kept = first.max(next.saturating_sub(RECORDS as u64));
        for slot in (kept..next).filter_map(|index| self.slot(index)) {
            slot.stamp.store_relaxed(0);
        }
        self.next.store_release(first);
        let less = |counter: &Word<u64, Sys>, by: u64| {
            counter.store_relaxed(counter.load_relaxed().wrapping_sub(by));
        };
        for call in calls.take((next - first) as usize) {
            let [made, bytes] = &self.totals[call.func as usize];
            less(made, 1);
            less(bytes, call.bytes());
            if let Some(directions) = self.messages.get(call.root.index())
                && call.func.is_message()
            {
                less(&directions[usize::from(call.func == Func::Recv)], 1);
            }
        }
    }

    /// The calls from this one on are over, unless they were before. The executor only.
    #[inline]
    pub(crate) fn end(&self, first: u64) {
        self.end_of(first..self.next.load_relaxed());
    }

    /// These calls are over, unless they were before. The executor only.
    #[inline]
    pub(crate) fn end_of(&self, calls: Range<u64>) {
        let (now, next) = (self.ticks.now(), self.next.load_relaxed());
        let first = calls.start.max(next.saturating_sub(RECORDS as u64));
        for slot in (first..calls.end).filter_map(|index| self.slot(index)) {
            if slot.ended.load_relaxed() == 0 {
                slot.ended.store_relaxed(now);
            }
        }
    }

    /// Calls recorded so far.
    #[inline]
    pub(crate) fn next(&self) -> u64 {
        self.next.load_relaxed()
    }

    /// Calls of each function so far, and the bytes of their blocks, for those that were called.
    pub fn totals(&self) -> impl Iterator<Item = (Func, u64, u64)> {
        let all = Func::ALL.iter().map(|func| (*func, &self.totals[*func as usize]));
        all.map(|(func, [calls, bytes])| (func, calls.load_relaxed(), bytes.load_relaxed()))
            .filter(|(_, calls, _)| *calls > 0)
    }

    /// The index of the latest call and how long it has lasted, if it is not over.
    pub(crate) fn under_way(&self) -> Option<(u64, Duration)> {
        // ACQUIRE pairs with RELEASE in `begin`.
        let index = self.next.load_acquire().checked_sub(1)?;
        let slot = self.slot(index)?;
        // ACQUIRE pairs with RELEASE in `begin`.
        let is_there = slot.stamp.load_acquire() == index + 1;
        let (began, ended) = (slot.began.load_relaxed(), slot.ended.load_relaxed());
        oxccl_shared::sync::fence_acquire();
        let is_it = is_there && slot.stamp.load_relaxed() == index + 1 && ended == 0;
        is_it.then(|| (index, self.ticks.scale().ago(began)))
    }

    /// Ticks of its clock.
    #[inline]
    pub(crate) fn ticks(&self) -> u64 {
        self.ticks.now()
    }

    /// What ticks mean.
    pub fn scale(&self) -> Scale {
        self.ticks.scale()
    }

    /// The latest calls, at most so many, oldest first.
    pub fn latest(&self, max: usize) -> Vec<Recorded> {
        // ACQUIRE pairs with RELEASE in `begin`.
        let next = self.next.load_acquire();
        let scale = self.ticks.scale();
        let first = next.saturating_sub(self.slots.len().min(max) as u64);
        (first..next).filter_map(|index| self.read(index, &scale)).collect()
    }

    /// The call of this index, if it is still kept. Where it is a message, of a group with others: the latest of these to or from `peer`.
    pub(crate) fn call_with(&self, index: u64, peer: Rank, is_send: bool) -> Option<CallRecord> {
        let last = self.read(index, &self.ticks.scale())?;
        Some(self.message_with(index, peer, is_send).unwrap_or(last).record)
    }

    /// The message to or from `peer` in the group of the call of this index; the latest, if there are several.
    pub(crate) fn message_with(&self, index: u64, peer: Rank, is_send: bool) -> Option<Recorded> {
        let scale = self.ticks.scale();
        let own = if is_send { Func::Send } else { Func::Recv };
        let before = (index + 1).saturating_sub(GROUP_LOOK)..=index;
        let group = before.rev().map_while(|index| self.read(index, &scale));
        let mut group = group.take_while(|found| found.record.call.func.is_message());
        group.find(|found| found.record.call.func == own && found.record.call.root == peer)
    }

    /// Messages sent and received so far, of each peer with which there were any.
    pub fn messages(&self) -> impl Iterator<Item = (Rank, [u64; 2])> {
        let read = |counters: &[Word<u64, Sys>; 2]| counters.each_ref().map(Word::load_relaxed);
        let all = (0..).map(Rank).zip(self.messages.iter().map(read));
        all.filter(|(_, counts)| *counts != [0; 2])
    }

    /// Messages sent to a peer and received from it so far.
    pub fn messages_with(&self, peer: Rank) -> [u64; 2] {
        self.messages.get(peer.index()).map_or([0; 2], |counters| counters.each_ref().map(Word::load_relaxed))
    }

    /// The send to a peer, or the receive from it, before which there were so many, if it is still kept.
    pub fn message(&self, peer: Rank, func: Func, nth: u64) -> Option<CallRecord> {
        let is_it = |found: &Recorded| {
            let call = found.record.call;
            (call.func, call.root, found.nth) == (func, peer, nth)
        };
        self.latest(RECORDS).into_iter().find(is_it).map(|found| found.record)
    }

    /// The half of a message that this rank has made, whose other half `peer` has made.
    pub(crate) fn other_half(&self, peer: Rank, half: &CallRecord, nth: u64) -> Option<CallRecord> {
        let own = if half.call.func == Func::Send { Func::Recv } else { Func::Send };
        self.message(peer, own, nth).filter(|_| half.call.func.is_message())
    }

    fn read(&self, index: u64, scale: &Scale) -> Option<Recorded> {
        let slot = self.slot(index)?;
        // ACQUIRE pairs with RELEASE in `begin`.
        if slot.stamp.load_acquire() != index + 1 {
            return None;
        }
        let call = Call::from_words(slot.call.load_relaxed(), slot.count.load_relaxed())?;
        let (seq, nth) = (slot.seq.load_relaxed(), slot.nth.load_relaxed());
        let (began, ended) = (slot.began.load_relaxed(), slot.ended.load_relaxed());
        let stream = self.kept_stream(index).map_or(0, Word::load_relaxed);
        let mark = Mark { tag: slot.tag.load_relaxed(), stream };
        oxccl_shared::sync::fence_acquire();
        (slot.stamp.load_relaxed() == index + 1).then(|| Recorded {
            index,
            record: CallRecord { seq, call },
            began_ns: scale.unix_ns(began),
            started_ns: None,
            ended_ns: (ended != 0).then(|| scale.unix_ns(ended)),
            nth,
            mark,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxccl_shared::abi::{DataType, Rank, RedOp};

    fn record(seq: u64) -> CallRecord {
        let call = Call {
            func: Func::AllReduce,
            dtype: DataType::F32,
            op: RedOp::Sum,
            root: Rank(0),
            count: seq * 3,
        };
        CallRecord { seq, call }
    }

    #[test]
    fn the_latest_calls_stay_with_their_times() {
        let recorder = Recorder::new(2);
        let calls = RECORDS as u64 + 100;
        for seq in 0..calls {
            let index = recorder.begin(&record(seq));
            if seq + 1 < calls {
                recorder.end(index);
            }
        }
        let latest = recorder.latest(usize::MAX);
        assert_eq!(latest.len(), RECORDS);
        assert!(
            latest.iter().zip(100..).all(|(found, seq)| found.record == record(seq) && found.index == seq)
        );
        assert!(latest.windows(2).all(|pair| pair[0].began_ns <= pair[1].began_ns));
        let (last, before) = latest.split_last().unwrap();
        assert!(before.iter().all(|found| found.ended_ns.is_some_and(|ended| ended >= found.began_ns)));
        assert_eq!(last.ended_ns, None);
        assert_eq!(recorder.latest(3).len(), 3);
        let bytes = (0..calls).map(|seq| seq * 3 * 4).sum();
        assert_eq!(recorder.totals().collect::<Vec<_>>(), [(Func::AllReduce, calls, bytes)]);
    }

    #[test]
    fn calls_have_the_callers_tag_and_their_stream() {
        let recorder = Recorder::new(2);
        recorder.begin(&record(0));
        recorder.tag(42);
        recorder.enqueue_on(0x70, 1);
        recorder.begin(&record(1));
        assert_eq!(
            recorder.mark_of(&record(1)),
            Mark { tag: 42, stream: 0 },
            "calls of a processor have none"
        );
        recorder.keep_streams();
        recorder.enqueue_on(0x70, 1);
        recorder.begin(&record(2));
        recorder.tag(0);
        recorder.enqueue_on(0x80, 1);
        recorder.begin(&record(3));
        let marks: Vec<String> = (0..5).map(|seq| recorder.mark_of(&record(seq)).to_string()).collect();
        assert_eq!(marks, ["", " [tag 42]", " [tag 42, stream 0x70]", " [stream 0x80]", ""]);
    }

    #[test]
    fn calls_of_a_group_end_together() {
        let recorder = Recorder::new(2);
        let first = recorder.begin(&record(0));
        recorder.begin(&record(1));
        assert!(recorder.latest(9).iter().all(|found| found.ended_ns.is_none()));
        recorder.end(first);
        assert!(recorder.latest(9).iter().all(|found| found.ended_ns.is_some()));
        for func in Func::ALL {
            recorder.begin(&CallRecord { seq: 2, call: Call { func: *func, ..record(2).call } });
        }
        assert_eq!(recorder.totals().count(), Func::ALL.len());
    }

    #[test]
    fn messages_are_counted_by_peer_and_direction() {
        let recorder = Recorder::new(2);
        let calls =
            [(Func::Send, 0), (Func::Recv, 0), (Func::AllReduce, 0), (Func::Send, 1), (Func::Send, 0)];
        for (func, peer) in calls {
            let call = Call { func, root: Rank(peer), ..record(1).call };
            recorder.begin(&CallRecord { seq: 0, call });
        }
        let nth: Vec<u64> = recorder.latest(9).iter().map(|found| found.nth).collect();
        assert_eq!(nth, [0, 0, 0, 0, 1]);
        let counts: Vec<_> = recorder.messages().collect();
        assert_eq!(counts, [(Rank(0), [2, 1]), (Rank(1), [1, 0])]);
        let found = |nth| recorder.message(Rank(0), Func::Send, nth).map(|record| record.call.func);
        assert_eq!((found(1), found(2)), (Some(Func::Send), None));
        let sent = recorder.message(Rank(0), Func::Send, 1).expect("it is kept");
        let sent_at = |index| recorder.message_with(index, Rank(0), true).map(|found| found.nth);
        assert_eq!([sent_at(4), sent_at(0)], [Some(1), Some(0)], "the first call of all too");
        let theirs =
            |func| CallRecord { seq: 0, call: Call { func, root: Rank(7), count: 1, ..record(1).call } };
        assert_eq!(recorder.other_half(Rank(0), &theirs(Func::Recv), 1), Some(sent));
        assert_eq!(recorder.other_half(Rank(0), &theirs(Func::Send), 1), None);
        assert_eq!(recorder.other_half(Rank(0), &theirs(Func::AllReduce), 1), None);
    }

    #[test]
    fn calls_that_were_not_made_are_not_counted() {
        let recorder = Recorder::new(2);
        let made = [(Func::AllReduce, 0), (Func::Send, 1), (Func::Recv, 1)];
        let refused = [(Func::AllReduce, 0), (Func::Send, 1), (Func::Send, 0), (Func::Recv, 1)];
        let call = |(func, peer)| Call { func, root: Rank(peer), ..record(1).call };
        let begin = |of| recorder.begin(&CallRecord { seq: 0, call: call(of) });
        let all = || {
            let calls: Vec<_> = recorder.latest(9).iter().map(|found| (found.record, found.nth)).collect();
            (calls, recorder.totals().collect::<Vec<_>>(), recorder.messages().collect::<Vec<_>>())
        };
        made.into_iter().for_each(|of| _ = begin(of));
        let before = all();
        refused.into_iter().for_each(|of| _ = begin(of));
        assert_ne!(all(), before);
        // The last one had not begun.
        let named = refused.into_iter().chain([(Func::Barrier, 0)]).map(call);
        recorder.take_back(3, named);
        assert_eq!(all(), before);
        assert_eq!((begin((Func::Send, 1)), recorder.messages_with(Rank(1))), (3, [2, 1]));
    }

    /// A kernel that carries a group of messages says for whom it waits; which message that is follows.
    #[test]
    fn the_message_of_a_group_is_found_by_its_peer() {
        let recorder = Recorder::new(4);
        let calls =
            [(Func::Recv, 3), (Func::AllReduce, 0), (Func::Send, 1), (Func::Recv, 2), (Func::Send, 2)];
        for (func, peer) in calls {
            let call = Call { func, root: Rank(peer), ..record(1).call };
            recorder.begin(&CallRecord { seq: 0, call });
        }
        let found = |index, peer, is_send| {
            recorder
                .call_with(index, Rank(peer), is_send)
                .map(|record| (record.call.func, record.call.root.0))
        };
        assert_eq!(found(4, 2, false), Some((Func::Recv, 2)));
        assert_eq!(found(4, 1, true), Some((Func::Send, 1)));
        assert_eq!(found(4, 3, false), Some((Func::Send, 2)), "behind a collective it is another group's");
        assert_eq!(found(1, 3, false), Some((Func::AllReduce, 0)));
        assert_eq!(found(5, 1, true), None);
    }

    #[test]
    fn one_without_room_keeps_nothing_and_counts() {
        let recorder = Recorder::default();
        recorder.begin(&record(0));
        recorder.end(0);
        assert_eq!((recorder.latest(9).len(), recorder.next()), (0, 1));
    }

    /// A reader beside a writer sees whole records or none.
    #[test]
    fn a_reader_meets_no_torn_record() {
        let recorder = Recorder::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| (0..200_000).for_each(|seq| _ = recorder.begin(&record(seq))));
            while recorder.next() < 200_000 {
                for found in recorder.latest(64) {
                    assert_eq!((found.record, found.index), (record(found.record.seq), found.record.seq));
                }
            }
        });
    }
}

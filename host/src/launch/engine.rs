//! One communicator's executor.

use super::call::RawCall;
use super::history::History;
use super::machine::{Machine, RawQueue, RunError};
use super::messages::{self, Message, OwnCopy, is_among_messages};
use super::planned::Planned;
use crate::plan::{Call, CallPlan};
use crate::profiler::{CallFacts, Events, Group, Profiler};

/// Runs a communicator's calls on its machine: collectives in order, then all messages at once.
pub struct Engine<M> {
    machine: M,
    history: History,
    /// How the calls that run next are carried out.
    planned: Planned,
    /// Messages of the calls under way, each with its tag; the capacity is kept.
    messages: Vec<(Message, u32)>,
    /// The same of those to ourselves.
    own: Vec<OwnCopy>,
    profiler: Profiler,
}

// SAFETY: the raw pointers are those of the calls under way, which run on the thread that has the engine.
unsafe impl<M: Machine> Send for Engine<M> {}

impl<M: Machine> Engine<M> {
    /// An executor over a machine whose connections are made.
    pub fn new(machine: M) -> Engine<M> {
        let calls_expected = 4 * machine.nranks() as usize + 64;
        let (planned, messages) = (Planned::new(calls_expected), Vec::with_capacity(calls_expected));
        let (history, own, profiler) = (History::default(), Vec::with_capacity(64), Profiler::default());
        Engine { machine, history, planned, messages, own, profiler }
    }

    /// The same, whose calls a plugin hears of.
    pub fn profiled_by(self, profiler: Profiler) -> Engine<M> {
        Engine { profiler, ..self }
    }

    /// What it runs calls on.
    pub fn machine(&self) -> &M {
        &self.machine
    }

    /// How many collectives it has begun, and a digest of all of them in order.
    pub(crate) fn collectives(&self) -> (u64, u32) {
        self.history.all()
    }

    /// The machine, for what it does beside calls.
    pub(crate) fn machine_mut(&mut self) -> &mut M {
        &mut self.machine
    }

    /// The machine alone.
    pub(crate) fn into_machine(self) -> M {
        self.machine
    }

    /// Runs `calls` on the first of `queues`, or enqueues them there: collectives in order, then all messages. They begin when the
    /// other queues have come to here too, which go on when all is done.
    ///
    /// # Errors
    /// The communicator's fault, if there is one by now; what buffers then hold is undefined.
    ///
    /// # Safety
    /// 1. Each call's buffers are valid for what its function reads and writes until it is done, and overlap only as `CollWork`
    ///    allows.
    /// 2. The queues are the machine's, at least one, and live until then.
    #[inline]
    pub unsafe fn run(&mut self, calls: &[RawCall], queues: &[RawQueue]) -> Result<(), RunError> {
        self.plan(calls);
        // SAFETY: obligations 1 and 2.
        unsafe { self.run_planned(calls, queues) }
    }

    /// Plans the calls of the next [`Self::run_planned`].
    #[inline]
    pub(crate) fn plan(&mut self, calls: &[RawCall]) {
        self.planned.plan(calls, |call, forced| self.machine.plan(call, forced));
        if self.machine.sees_buffers() {
            self.planned.place(calls, |raw, plan| self.machine.plan_placed(raw, plan));
        }
    }

    /// Apart, so that calls that go on have no place for its answer.
    #[cold]
    #[inline(never)]
    fn check(&self) -> Result<(), RunError> {
        self.machine.check().map_err(RunError::Stopped)
    }

    /// Makes the connections that the planned calls need, and loads what they need.
    ///
    /// # Errors
    /// The machine's.
    pub(crate) fn prepare(&mut self, calls: &[RawCall]) -> Result<(), RunError> {
        self.machine.check().map_err(RunError::Stopped)?;
        self.machine.connect_for(calls, self.planned.plans())?;
        self.machine.prepare(self.planned.plans())
    }

    /// As [`Self::run`], for the calls that were planned.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// 1. As there.
    pub(crate) unsafe fn run_planned(
        &mut self,
        calls: &[RawCall],
        queues: &[RawQueue],
    ) -> Result<(), RunError> {
        debug_assert!(self.planned.is_of(calls), "other calls than were planned");
        if self.machine.may_be_stopped() {
            self.check()?;
        }
        let Engine { machine, history, planned, messages, own, profiler } = self;
        let (plans, queue) = (planned.plans(), queues[0]);
        if !M::RETURNS_DONE {
            machine.health().recorder().enqueue_on(queue.addr() as u64, calls.len());
        }
        machine.connect_for(calls, plans)?;
        machine.compare(calls, plans)?;
        machine.health().note_begun(calls.len());
        let before = Before { history: *history, recorded: machine.health().recorder().next() };
        let body = |machine: &mut M| {
            let events = profiler.group();
            let mut run = Run { machine, history, plans, messages, own, queue, events: events.as_ref() };
            // SAFETY: obligation 1.
            unsafe { run.calls(calls) }
        };
        // SAFETY: (1) obligation 1.
        let ran = unsafe { machine.within(queues, plans, body) };
        if !M::RETURNS_DONE && ran.is_err() {
            self.take_back(calls, &before);
            return ran;
        }
        ran?;
        if !M::RETURNS_DONE && self.machine.count(calls, self.planned.plans(), self.planned.are_new()) {
            self.planned.note_counted();
        }
        self.machine.health().note_returned();
        Ok(())
    }

    /// The driver refused calls of which nothing was enqueued: they were not made. The program may repeat them, and then their numbers and
    /// tags are those of the other ranks, which make them once.
    #[cold]
    #[inline(never)]
    fn take_back(&mut self, calls: &[RawCall], before: &Before) {
        let health = self.machine.health();
        if health.is_stopped() {
            return;
        }
        let (begun, _) = self.history.all();
        health.take_back(before.history.all().0..begun, calls.len());
        self.history = before.history;
        let of_messages = |wanted: bool| {
            let all = calls.iter().zip(self.planned.plans());
            all.filter(move |(raw, plan)| is_among_messages(raw, plan) == wanted).map(|(raw, _)| raw.call)
        };
        // In the order in which they begin.
        health.recorder().take_back(before.recorded, of_messages(false).chain(of_messages(true)));
    }
}

/// What an engine had begun before the calls that it runs now.
struct Before {
    history: History,
    /// The index in the recorder of the next call.
    recorded: u64,
}

/// Calls under way.
struct Run<'a, M> {
    machine: &'a mut M,
    history: &'a mut History,
    plans: &'a [CallPlan],
    messages: &'a mut Vec<(Message, u32)>,
    own: &'a mut Vec<OwnCopy>,
    queue: RawQueue,
    events: Option<&'a Group<'a>>,
}

impl<'a, M: Machine> Run<'a, M> {
    /// # Safety
    /// 1. As [`Engine::run`].
    #[inline]
    unsafe fn calls(&mut self, calls: &[RawCall]) -> Result<(), RunError> {
        let mut has_messages = false;
        for (raw, plan) in calls.iter().zip(self.plans) {
            if is_among_messages(raw, plan) {
                has_messages = true;
                continue;
            }
            let index = self.begin(&raw.call);
            let _events = self.report(raw, plan);
            let queue = self.queue;
            match plan {
                // SAFETY: obligation 1.
                CallPlan::Collective(plan) => unsafe {
                    self.machine.collective(raw, plan, self.history.tag(), queue)?;
                },
                // SAFETY: obligation 1.
                CallPlan::CopyEngines(placement) => unsafe {
                    self.machine.copies(raw, *placement, queue)?;
                },
                // SAFETY: obligation 1.
                CallPlan::Symmetric(plan) => unsafe {
                    self.machine.symmetric(raw, plan, self.history.tag(), queue)?;
                },
                // SAFETY: obligation 1: of one rank every buffer is as long as the input.
                CallPlan::Local if raw.call.count > 0 => unsafe {
                    self.machine.copy(raw.send, raw.recv, raw.call.bytes() as usize, queue)?;
                },
                CallPlan::Local => {}
                // SAFETY: obligation 1.
                CallPlan::Messages => unsafe { self.all_gather(raw)? },
            }
            if M::RETURNS_DONE {
                self.machine.health().recorder().end(index);
            }
        }
        // SAFETY: obligation 1.
        if has_messages { unsafe { self.messages(calls) } } else { Ok(()) }
    }

    /// Tells a profiler that a call begins, until what is returned is dropped.
    #[inline]
    fn report(&self, raw: &RawCall, plan: &CallPlan) -> Option<Events<'a>> {
        let events = self.events?;
        let plan = if let CallPlan::Collective(plan) = plan { Some(plan) } else { None };
        let (call, send, recv, seq) = (&raw.call, raw.send, raw.recv, self.history.calls());
        Some(events.begin(&CallFacts { call, send, recv, seq, plan }))
    }

    /// Begins a collective. Returns its place in the recorder.
    #[inline]
    fn begin(&mut self, call: &Call) -> u64 {
        let record = self.history.begin(call, self.machine.health());
        let index = self.machine.health().recorder().begin(&record);
        self.machine.begins(&record);
        index
    }

    /// An all-gather that is made of messages. They come in its turn among the collectives: ranks may mix collectives and messages of a
    /// group in different orders.
    ///
    /// # Safety
    /// 1. As [`Engine::run`].
    unsafe fn all_gather(&mut self, raw: &RawCall) -> Result<(), RunError> {
        let (me, n, tag) = (self.machine.rank(), self.machine.nranks(), self.history.tag());
        let len_bytes = raw.call.bytes() as usize;
        let to = raw.recv.wrapping_add(me.index() * len_bytes);
        self.messages.clear();
        messages::split(raw, me, n, |message| self.messages.push((message, tag)));
        // SAFETY: obligation 1: our own is one block of the output, which is the input or does not overlap it.
        unsafe {
            self.machine.messages(self.messages, &[OwnCopy { from: raw.send, to, len_bytes }], self.queue)
        }
    }

    /// Everything that is made of messages between pairs, all at once.
    ///
    /// # Safety
    /// 1. As [`Engine::run`].
    unsafe fn messages(&mut self, calls: &[RawCall]) -> Result<(), RunError> {
        let rank = self.machine.rank();
        let is_to_others = |raw: &RawCall| raw.call.func.is_message() && raw.call.root != rank;
        if let [first, second] = calls
            && is_to_others(first)
            && is_to_others(second)
        {
            // SAFETY: obligation 1.
            return unsafe { self.two_messages([first, second]) };
        }
        self.messages.clear();
        let first = self.machine.health().recorder().next();
        let mut events = Vec::new();
        for (raw, plan) in calls.iter().zip(self.plans) {
            if is_among_messages(raw, plan) {
                self.add_messages(raw);
                events.extend(self.report(raw, plan));
            }
        }
        self.take_own()?;
        // SAFETY: obligation 1; our own are apart, or in place the same.
        unsafe { self.machine.messages(self.messages, self.own, self.queue)? };
        if M::RETURNS_DONE {
            self.machine.health().recorder().end(first);
        }
        Ok(())
    }

    /// Two messages to or from other ranks, as most groups of messages are: nothing is listed.
    ///
    /// # Safety
    /// 1. As [`Engine::run`].
    #[inline]
    unsafe fn two_messages(&mut self, [first, second]: [&RawCall; 2]) -> Result<(), RunError> {
        let messages = [
            (Message::of(first), messages::tag(&first.call)),
            (Message::of(second), messages::tag(&second.call)),
        ];
        let records = [self.history.outside(&first.call), self.history.outside(&second.call)];
        let first_record = self.machine.health().recorder().begin(&records[0]);
        self.machine.health().recorder().begin(&records[1]);
        // The machine keeps the latest call alone.
        self.machine.begins(&records[1]);
        let report = |raw| self.report(raw, &CallPlan::Messages);
        let _events = self.events.map(|_| [report(first), report(second)]);
        // SAFETY: obligation 1.
        unsafe { self.machine.messages(&messages, &[], self.queue)? };
        if M::RETURNS_DONE {
            self.machine.health().recorder().end(first_record);
        }
        Ok(())
    }

    /// Begins a send or a receive. Returns its tag.
    #[inline]
    fn begin_message(&mut self, raw: &RawCall) -> u32 {
        let record = self.history.outside(&raw.call);
        self.machine.health().recorder().begin(&record);
        self.machine.begins(&record);
        messages::tag(&raw.call)
    }

    /// Splits a call into messages.
    fn add_messages(&mut self, raw: &RawCall) {
        if raw.call.func.is_message() {
            let tag = self.begin_message(raw);
            return self.messages.push((Message::of(raw), tag));
        }
        let _ = self.begin(&raw.call);
        let tag = self.history.tag();
        let (me, n) = (self.machine.rank(), self.machine.nranks());
        messages::split(raw, me, n, |message| self.messages.push((message, tag)));
    }

    /// Takes the messages to ourselves out of the list: the k-th send goes to the k-th receive.
    fn take_own(&mut self) -> Result<(), RunError> {
        let rank = self.machine.rank();
        let own = |is_send| {
            let messages = self.messages.iter().map(|(message, _)| message);
            messages.filter(move |message| message.peer == rank && message.is_send == is_send)
        };
        if !own(true).map(|message| message.len_bytes).eq(own(false).map(|message| message.len_bytes)) {
            return Err(self.machine.own_messages_differ());
        }
        self.own.clear();
        self.own.extend(own(true).zip(own(false)).map(|(from, to)| OwnCopy {
            from: from.buffer,
            to: to.buffer,
            len_bytes: from.len_bytes,
        }));
        self.messages.retain(|(message, _)| message.peer != rank);
        Ok(())
    }
}

//! The order gate: it issues the proxy orders of calls and of graphs in the order in which kernels run.
//!
//! Without graphs, a call issues its orders at once and is the only issuer: no lock, no atomic. The kernels of a
//! graph run when it is launched, so a thread of the driver issues their orders then. While such a graph exists,
//! orders that a call issues at once would overtake those of a graph that waits on the stream. So the sink is then
//! behind a lock, and calls too issue their orders by a host function on the stream. When the last graph is gone and
//! no call waits for its turn, the call takes the sink back.
//!
//! A thread of the driver serves many streams, perhaps of other ranks. It holds the lock while it queues some
//! records; so does the call, which does not call the driver meanwhile.

use crate::gpu::HostWork;
use crate::launch::Health;
use crate::proxy::ProxyOrder;
use oxccl_shared::abi::KERNEL_MESSAGES_MAX;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The destination of orders.
pub(crate) trait Sink: Send + 'static {
    /// Accepts an order without blocking.
    fn give(&mut self, order: ProxyOrder);
    /// Whether all orders are complete.
    fn is_done(&self) -> bool;
}

/// The calling thread's end.
pub(super) struct OrderGate<S: Sink> {
    /// Set unless graphs, or calls made while they exist, may issue orders.
    own: Option<S>,
    /// The shared part, for threads of the driver.
    shared: Arc<SharedGate<S>>,
}

/// The sink, when threads other than the caller's may issue orders. As a stream's host function it is the turn of the
/// oldest waiting call; the turns of a communicator's calls come in call order, because streams run them so.
pub(crate) struct SharedGate<S: Sink> {
    state: Mutex<State<S>>,
    health: Arc<Health>,
}

struct State<S> {
    /// None while the calling thread has it, and when the communicator is gone.
    sink: Option<S>,
    /// Number of live graph nodes and of waiting calls.
    users: usize,
    /// The orders of these calls, in sequence; the last of each call is marked.
    waiting: VecDeque<(ProxyOrder, bool)>,
}

/// The orders of a captured call, issued at each launch of its graph.
pub(crate) struct Replay<S: Sink> {
    shared: Arc<SharedGate<S>>,
    orders: Box<[ProxyOrder]>,
}

impl<S: Sink> OrderGate<S> {
    /// A gate before `sink`, which gets no more orders once the communicator has stopped.
    pub fn new(sink: S, health: Arc<Health>) -> OrderGate<S> {
        let state = State { sink: None, users: 0, waiting: VecDeque::new() };
        OrderGate { own: Some(sink), shared: Arc::new(SharedGate { state: Mutex::new(state), health }) }
    }

    /// The sink, wherever it is; none once the communicator is gone.
    pub fn with_sink<T>(&mut self, visit: impl FnOnce(&mut S) -> T) -> Option<T> {
        match &mut self.own {
            Some(sink) => Some(visit(sink)),
            None => self.shared.lock().sink.as_mut().map(visit),
        }
    }

    /// Issues the orders of a call, if that is possible now. Otherwise the caller must enqueue the returned host
    /// function before the call's kernel, or call [`Self::withdraw`].
    #[must_use = "given now, or to be given by the stream"]
    pub fn call(&mut self, orders: &[ProxyOrder]) -> Option<Arc<SharedGate<S>>> {
        if self.own.is_none() {
            let mut state = self.shared.lock();
            if state.users > 0 {
                state.users += 1;
                let last = orders.len() - 1;
                state.waiting.extend(orders.iter().enumerate().map(|(at, order)| (*order, at == last)));
                return Some(self.shared.clone());
            }
            self.own = state.sink.take();
        }
        let sink = self.own.as_mut().expect("in the shared part, if not here");
        orders.iter().for_each(|order| sink.give(*order));
        None
    }

    /// Cancels the turn of the latest call.
    pub fn withdraw(&mut self) {
        let mut state = self.shared.lock();
        state.waiting.pop_back();
        while state.waiting.back().is_some_and(|(_, is_last)| !is_last) {
            state.waiting.pop_back();
        }
        state.users -= 1;
    }

    /// The orders of a call that is captured. Dropped with its graph.
    pub fn capture(&mut self, orders: &[ProxyOrder]) -> Replay<S> {
        let mut state = self.shared.lock();
        state.users += 1;
        if let Some(sink) = self.own.take() {
            state.sink = Some(sink);
            state.waiting.reserve(KERNEL_MESSAGES_MAX);
        }
        Replay { shared: self.shared.clone(), orders: orders.into() }
    }

    /// Whether all orders issued or waiting for their turn are complete.
    pub fn is_done(&self) -> bool {
        if let Some(sink) = &self.own {
            return sink.is_done();
        }
        let state = self.shared.lock();
        state.waiting.is_empty() && state.sink.as_ref().is_some_and(Sink::is_done)
    }
}

impl<S: Sink> Drop for OrderGate<S> {
    /// Later graph launches and turns find no sink.
    fn drop(&mut self) {
        let sink = self.shared.lock().sink.take();
        // The lock is free again: a sink may take its time to end.
        drop(sink);
    }
}

impl<S: Sink> SharedGate<S> {
    fn lock(&self) -> MutexGuard<'_, State<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S> State<S> {
    /// The sink, if it is of use: after a communicator has stopped, no thread takes orders.
    fn sink(&mut self, health: &Health) -> Option<&mut S> {
        self.sink.as_mut().filter(|_| !health.is_stopped())
    }
}

impl<S: Sink> HostWork for SharedGate<S> {
    /// Issues the orders of the oldest waiting call.
    fn run(&self) {
        let mut state = self.lock();
        while let Some((order, is_last)) = state.waiting.pop_front() {
            if let Some(sink) = state.sink(&self.health) {
                sink.give(order);
            }
            if is_last {
                break;
            }
        }
        state.users -= 1;
    }
}

impl<S: Sink> HostWork for Replay<S> {
    fn run(&self) {
        let mut state = self.shared.lock();
        if let Some(sink) = state.sink(&self.shared.health) {
            self.orders.iter().for_each(|order| sink.give(*order));
        }
    }
}

impl<S: Sink> Drop for Replay<S> {
    fn drop(&mut self) {
        self.shared.lock().users -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::Fault;
    use oxccl_shared::abi::Rank;

    /// Tags in the order of issue.
    struct Given(Arc<Mutex<Vec<u32>>>);

    impl Sink for Given {
        fn give(&mut self, order: ProxyOrder) {
            self.0.lock().unwrap().push(order.tag);
        }
        fn is_done(&self) -> bool {
            true
        }
    }

    type Part = (Box<Replay<Given>>, Vec<u32>);

    /// A step of a stream: what the host does, and the orders that a kernel needs.
    enum Step {
        Turn(Arc<SharedGate<Given>>),
        Part(Arc<Vec<Part>>, usize),
        Kernel(Vec<u32>),
    }

    /// A communicator whose operations use one stream after the other, as if they were one.
    struct Play {
        gate: OrderGate<Given>,
        given: Arc<Mutex<Vec<u32>>>,
        stream: VecDeque<Step>,
        graphs: Vec<Arc<Vec<Part>>>,
        /// Tags that kernels have used, in order.
        used: Vec<u32>,
        tag: u32,
        direct: usize,
    }

    fn order(tag: u32) -> ProxyOrder {
        ProxyOrder { tag, ..ProxyOrder::default() }
    }

    impl Play {
        fn new() -> Play {
            let given = Arc::new(Mutex::new(Vec::new()));
            let gate = OrderGate::new(Given(given.clone()), Arc::new(Health::new(Rank(0), 2)));
            let (stream, graphs, used) = (VecDeque::new(), Vec::new(), Vec::new());
            Play { gate, given, stream, graphs, used, tag: 0, direct: 0 }
        }

        fn orders(&mut self, count: u32) -> (Vec<u32>, Vec<ProxyOrder>) {
            let tags: Vec<u32> = (self.tag..self.tag + count).collect();
            self.tag += count;
            (tags.clone(), tags.into_iter().map(order).collect())
        }

        fn call(&mut self, count: u32) {
            let (tags, orders) = self.orders(count);
            match self.gate.call(&orders) {
                Some(turn) => self.stream.push_back(Step::Turn(turn)),
                None => self.direct += 1,
            }
            self.stream.push_back(Step::Kernel(tags));
        }

        fn refused(&mut self, count: u32) {
            let (_, orders) = self.orders(count);
            // Orders issued at once end a communicator whose launch is refused: only turns are withdrawn.
            if !self.graphs.is_empty() {
                let turn = self.gate.call(&orders);
                assert!(turn.is_some());
                self.gate.withdraw();
            }
        }

        fn capture(&mut self, calls: u32) {
            let part = |_| {
                let (tags, orders) = self.orders(2);
                (Box::new(self.gate.capture(&orders)), tags)
            };
            let parts = (0..calls).map(part).collect();
            self.graphs.push(Arc::new(parts));
        }

        /// Its orders come one after the other, each at any time before its kernel: here `ahead` of them before the
        /// first.
        fn launch(&mut self, graph: usize, ahead: usize) {
            let parts = self.graphs[graph].clone();
            let ahead = ahead.min(parts.len());
            self.stream.extend((0..ahead).map(|at| Step::Part(parts.clone(), at)));
            for (at, (_, tags)) in parts.iter().enumerate() {
                if at >= ahead {
                    self.stream.push_back(Step::Part(parts.clone(), at));
                }
                self.stream.push_back(Step::Kernel(tags.clone()));
            }
        }

        fn step(&mut self) {
            match self.stream.pop_front() {
                None => {}
                Some(Step::Turn(turn)) => turn.run(),
                Some(Step::Part(parts, at)) => parts[at].0.run(),
                Some(Step::Kernel(tags)) => {
                    self.used.extend(tags);
                    let given = self.given.lock().unwrap();
                    assert!(given.starts_with(&self.used), "{given:?} for kernels of {:?}", self.used);
                }
            }
        }

        fn run_dry(&mut self) {
            while !self.stream.is_empty() {
                self.step();
            }
            assert_eq!(*self.given.lock().unwrap(), self.used);
        }
    }

    /// All interleavings at random, thousands of times: a kernel finds its orders issued, in the order of kernels.
    #[test]
    fn orders_are_given_in_the_order_of_kernels_whoever_gives_them() {
        let mut random = 1u64;
        let mut below = |bound: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize % bound
        };
        let (mut direct, mut launched) = (0, 0);
        for _ in 0..300 {
            let mut play = Play::new();
            for _ in 0..60 {
                let graphs = play.graphs.len();
                match below(10) {
                    0 => play.capture(1 + below(4) as u32),
                    1 | 2 if graphs > 0 => {
                        launched += 1;
                        play.launch(below(graphs), below(5));
                    }
                    // The driver keeps what a launch in progress needs, as `stream` does here.
                    3 if graphs > 0 => drop(play.graphs.remove(below(graphs))),
                    4 => play.refused(1 + below(3) as u32),
                    5 | 6 => play.call(1 + below(3) as u32),
                    _ => play.step(),
                }
            }
            play.run_dry();
            play.graphs.clear();
            play.call(1);
            assert!(play.gate.own.is_some(), "with all graphs gone a call gives at once");
            direct += play.direct;
        }
        assert!(
            direct > 1000 && launched > 300,
            "{direct} calls gave at once, {launched} graphs were launched"
        );
    }

    /// The last graph is destroyed while a call made in its lifetime still waits for its turn.
    #[test]
    fn a_call_does_not_overtake_one_that_waits_for_its_turn() {
        let mut play = Play::new();
        play.capture(1);
        play.call(1);
        play.graphs.clear();
        play.call(1);
        assert_eq!(play.direct, 0);
        play.run_dry();
        play.call(1);
        assert_eq!(play.direct, 1);
    }

    #[test]
    fn a_graph_gives_nothing_for_a_communicator_that_has_stopped_or_is_gone() {
        let given = Arc::new(Mutex::new(Vec::new()));
        let health = Arc::new(Health::new(Rank(0), 2));
        let mut gate = OrderGate::new(Given(given.clone()), health.clone());
        let replay = gate.capture(&[order(1)]);
        let turn = gate.call(&[order(2), order(3)]).expect("a graph lives");
        replay.run();
        health.fail(Fault::Aborted, None);
        replay.run();
        turn.run();
        assert!(gate.is_done(), "the turn has been");
        drop(gate);
        replay.run();
        assert_eq!(*given.lock().unwrap(), [1]);
    }

    /// A calling thread and the driver's, concurrently: for Miri, sanitizers and deadlock detection.
    #[test]
    fn graphs_are_launched_and_dropped_on_other_threads() {
        let given = Arc::new(Mutex::new(Vec::new()));
        let mut gate = OrderGate::new(Given(given.clone()), Arc::new(Health::new(Rank(0), 2)));
        let (to_driver, driver) = std::sync::mpsc::channel::<Box<dyn FnOnce() + Send>>();
        std::thread::scope(|scope| {
            scope.spawn(move || driver.into_iter().for_each(|work| work()));
            for tag in 0..200 {
                let orders = [order(2 * tag), order(2 * tag + 1)];
                let run: Box<dyn FnOnce() + Send> = if tag % 4 == 0 {
                    let replay = gate.capture(&orders);
                    Box::new(move || replay.run())
                } else {
                    match gate.call(&orders) {
                        Some(turn) => Box::new(move || turn.run()),
                        None => Box::new(|| ()),
                    }
                };
                to_driver.send(run).expect("the driver runs");
            }
            drop(to_driver);
        });
        assert!(given.lock().unwrap().iter().copied().eq(0..400));
    }
}

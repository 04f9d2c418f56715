//! The thread that polls, on a clock that the test moves.

use super::super::polling::{Asked, Rounds};
use super::*;
use crate::bootstrap::{BootstrapConfig, UniqueId};
use crate::launch::{Elsewhere, Health, Mark, Outstanding, Progress};
use crate::plan::{Call, CallRecord};
use oxccl_shared::abi::{DataType, Func, RedOp};

const MS: Duration = Duration::from_millis(1);
/// As of a warn time of 10 s.
const LOOKED_AT_AFTER: Duration = Duration::from_millis(2500);

/// A GPU whose operations begin and end at these milliseconds, on a clock that the test moves.
struct Gpu {
    operations: Vec<[u64; 2]>,
    at_ms: Mutex<u64>,
    /// When its kernels' counters were read.
    samples: Mutex<Vec<u64>>,
    questions: Mutex<u32>,
}

impl Gpu {
    fn at_ms(&self) -> u64 {
        *self.at_ms.lock().unwrap()
    }
}

impl Probe for Gpu {
    fn check(&self) -> Result<(), Outstanding> {
        Ok(())
    }

    fn has_failed(&self) -> bool {
        false
    }

    fn progress(&self) -> Progress {
        Progress::default()
    }

    fn standing(&self) -> Standing {
        *self.questions.lock().unwrap() += 1;
        let counted = |index: usize| {
            let is_over = |operation: &&[u64; 2]| operation[index] <= self.at_ms();
            self.operations.iter().filter(is_over).count() as u64
        };
        let (begun, done) = (counted(0), counted(1));
        let (dtype, op) = (DataType::F32, RedOp::Sum);
        let call = Call { func: Func::AllReduce, dtype, op, root: Rank(0), count: 9 };
        let during = (done < begun).then_some(CallRecord { seq: done, call });
        Standing { begun, done, during, ..Standing::default() }
    }

    fn sample(&self, _: Slept) -> bool {
        self.samples.lock().unwrap().push(self.at_ms());
        false
    }

    fn count_anew(&self) {}

    fn is_polled(&self) -> bool {
        true
    }
}

/// The thread that polls, without the thread.
struct Polling {
    running: Running,
    gpu: Arc<Gpu>,
    start: Instant,
}

impl Asked for Polling {
    fn sample(&self, now: Instant, slept: Slept) {
        self.running.sample(now - self.start, slept);
    }

    fn poll(&self, now: Instant) -> Option<Duration> {
        self.running.poll(now - self.start)
    }

    fn lasts(&self, now: Instant) -> bool {
        self.running.lasts(now - self.start)
    }

    fn now(&self) -> Instant {
        self.start + MS * self.gpu.at_ms() as u32
    }
}

/// A minute of a GPU with these operations: when its counters were read, and how often the driver was asked.
fn a_minute(operations: &[[u64; 2]]) -> (Vec<u64>, u32) {
    let gpu = Arc::new(Gpu {
        operations: operations.to_vec(),
        at_ms: Mutex::default(),
        samples: Mutex::default(),
        questions: Mutex::default(),
    });
    let running = Running {
        probe: gpu.clone(),
        links: Vec::new(),
        polled: Some(Mutex::default()),
        data_links: Arc::default(),
        looked_at_after: LOOKED_AT_AFTER,
        window: Mutex::default(),
        is_alone: true,
    };
    let polling = Polling { running, gpu: gpu.clone(), start: Instant::now() };
    let mut rounds = Rounds::new(polling.now(), POLL_EVERY);
    while gpu.at_ms() < 60_000 {
        let rest = rounds.rest;
        *gpu.at_ms.lock().unwrap() += rest.as_millis().max(1) as u64;
        rounds.round(&polling, polling.now(), Slept { asked: rest, really: rest });
    }
    let samples = gpu.samples.lock().unwrap().clone();
    (samples, *gpu.questions.lock().unwrap())
}

#[test]
fn kernels_are_looked_at_only_while_an_operation_lasts() {
    assert_eq!(a_minute(&[]), (Vec::new(), 60), "in no operation");
    let short: Vec<[u64; 2]> = (0..29).map(|at| [2000 * at, 2000 * at + 1900]).collect();
    assert_eq!(a_minute(&short).0, Vec::<u64>::new(), "operations that do not last");
    let (samples, questions) = a_minute(&[[10_500, 30_500], [50_500, 52_000]]);
    let (first, last) = (samples[0], samples[samples.len() - 1]);
    // It is learnt within a second that it has begun, and that it is over.
    assert!((13_000..=14_500).contains(&first) && (30_500..=31_600).contains(&last), "{first} to {last}");
    assert!(samples.windows(2).all(|pair| pair[1] - pair[0] == 10), "each 10 ms");
    assert_eq!(questions, 60, "the driver is asked no more often");
}

/// Rank 0 of 3, in processes of their own.
fn stalls() -> Stalls {
    let bind_addr = Some("127.0.0.1".parse().expect("an address"));
    let config = BootstrapConfig { bind_addr, ..BootstrapConfig::default() };
    let id = UniqueId::create_by(&config).expect("a root");
    let alone = Bootstrap::connect(&id, Rank(0), 1, &config).expect("nobody else comes");
    let mut stalls = Stalls::new(&alone, &Config::default());
    alone.close();
    stalls.names.places = (70..73).map(|process| Place { host: "node8".into(), process }).collect();
    stalls.detector = Mutex::new(Detector::new(Rank(0), 3, stalls.warn));
    stalls
}

/// What an error with this fault says of its rank, after rank 1 of 3 has given up.
fn place_in_error(fault: Fault, reason: &str) -> Option<&'static str> {
    let stalls = stalls();
    stalls.note_said(Rank(1), reason);
    stalls.note_said(Rank(2), "too late");
    stalls.place_in_error(&fault)
}

/// One that was over for long was blamed.
#[test]
fn an_error_says_where_a_rank_waits_only_of_a_stall_that_is_not_over() {
    let (stalls, health) = (Arc::new(stalls()), Arc::new(Health::new(Rank(0), 3)));
    let memory = MemoryReport { peers: Vec::new(), own_bytes: 0 };
    stalls.start(health.clone(), &memory);
    let during = CallRecord { seq: 4, call: Call::ONE_BYTE };
    let stall = Stall {
        class: StallClass::MissingEnter,
        rank: Rank(2),
        waiter: Rank(1),
        during,
        mark: Mark::default(),
        waited: Duration::from_secs(9),
        lasted: Duration::from_secs(9),
        latest: None,
        is_in: None,
        in_comm_call: None,
        elsewhere: Some(Elsewhere { func: Func::Barrier, waits_for: Rank(0) }),
        moved: None,
        link: None,
        waits_at: None,
        stands_at: None,
        silent: 0,
    };
    let hear = |notice| stalls.heard(Rank(1), notice, &|_| ());
    let timeout = |rank| Fault::Timeout { rank: Rank(rank), limit: Duration::from_secs(30) };
    let said = |rank| stalls.elsewhere_in(&timeout(rank));
    assert_eq!(said(2), None);
    hear(StallNotice::Found(stall));
    let text = "its process is in barrier of another communicator and waits there for rank 0";
    assert_eq!((said(2).as_deref(), said(1)), (Some(text), None));
    hear(StallNotice::Over);
    assert_eq!(said(2), None);
    // This rank gives up a moment after the one that has reported it.
    hear(StallNotice::Found(stall));
    health.fail(timeout(2), None);
    hear(StallNotice::Over);
    assert_eq!(said(2).as_deref(), Some(text));
}

#[test]
fn an_error_has_the_reason_of_the_rank_that_gave_up() {
    let (rank, by, limit) = (Rank(2), Rank(1), Duration::from_secs(2));
    let missed = Fault::PeerTimeout { rank, more: 0, by, limit };
    assert_eq!(
        place_in_error(missed, "still waiting\nfor rank 2"),
        Some("process 72 of node8; rank 1 said: still waiting for rank 2")
    );
    assert_eq!(place_in_error(missed, ""), Some("process 72 of node8"));
    let aborted = |rank| Fault::PeerAborted { rank };
    assert_eq!(place_in_error(aborted(by), "no GPU"), Some("process 71 of node8; it said: no GPU"));
    assert_eq!(place_in_error(aborted(rank), "no GPU"), Some("process 72 of node8"));
    assert_eq!(place_in_error(Fault::Aborted, "no GPU"), None);
}

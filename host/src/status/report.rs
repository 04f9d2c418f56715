//! What is answered, as data.

use crate::launch::Mark;
use crate::plan::CallRecord;
use serde::{Deserialize, Serialize};

/// The version of [`ProcessReport`] as JSON. Fields are added without a new one.
pub const REPORT_FORMAT: u32 = 1;

/// A process with communicators.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ProcessReport {
    /// [`REPORT_FORMAT`].
    pub format: u32,
    /// The library's version.
    pub version: String,
    /// The host's name.
    pub host: String,
    /// The process's number there.
    pub pid: u32,
    /// The program's name.
    pub program: String,
    /// When it answered: nanoseconds since 1970.
    pub time_ns: u64,
    /// How long it asked the other ranks, in milliseconds; none if it did not.
    pub asked_ms: Option<u64>,
    /// Its communicators; one for each rank if it has several ranks of one.
    pub communicators: Vec<CommunicatorReport>,
}

/// Where a communicator is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum State {
    /// Its ranks are meeting and connecting.
    Joining,
    /// Operations can run.
    Ready,
    /// It has stopped for an error.
    Failed,
    /// This rank has left.
    Ended,
}

/// A rank of a communicator.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CommunicatorReport {
    /// Its name, the same on all ranks; empty until they have met.
    pub name: String,
    /// The random number that names it, in hexadecimal.
    pub id: String,
    /// This rank.
    pub rank: u32,
    /// The number of ranks.
    pub size: u32,
    /// Where it is in its life.
    pub state: State,
    /// Why it has failed.
    pub error: Option<String>,
    /// How long it has been there, in milliseconds.
    pub age_ms: u64,
    /// Since when: nanoseconds since 1970.
    #[serde(default)]
    pub began_ns: u64,
    /// Calls made so far.
    pub begun: u64,
    /// Of those, how many are done.
    pub done: u64,
    /// The operation that it is in.
    pub during: Option<OperationReport>,
    /// The call about the communicator that it is in, such as `split` or `finalize`.
    #[serde(default)]
    pub in_comm_call: Option<String>,
    /// For how long it has been in the operation, in milliseconds.
    pub during_ms: Option<u64>,
    /// The rank that it waits for, if it has for a while.
    pub waits_for: Option<u32>,
    /// The network that reduces between hosts, if it waits for that and for no rank.
    #[serde(default)]
    pub waits_for_network: Option<String>,
    /// For how long it has been without progress, in milliseconds.
    pub waited_ms: u64,
    /// Bytes sent and received in the operation that it is in, where they are counted.
    pub moved: Option<[u64; 2]>,
    /// The stall that the ranks know of.
    pub stall: Option<String>,
    /// Calls so far, by function.
    #[serde(default)]
    pub totals: Vec<TotalReport>,
    /// What has gone to and from each other rank so far, by rank. On GPUs, where only
    /// waits are counted, of those that last and once a second: those with waits, outages, reconnects or retries.
    #[serde(default)]
    pub peers: Vec<PeerReport>,
    /// What has gone to a network that reduces and come from it, of the head of a host on CPUs that has one.
    #[serde(default)]
    pub network: Option<NetworkReport>,
    /// Stalls that the ranks have found so far.
    #[serde(default)]
    pub stalls: u64,
    /// Connections to its listener that it refused: strangers, and who did not prove in time that it belongs here.
    #[serde(default)]
    pub refusals: u64,
    /// The latest operations, oldest first.
    pub recent: Vec<RecordReport>,
    /// All ranks, by rank.
    pub ranks: Vec<RankReport>,
}

/// One operation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct OperationReport {
    /// The function.
    pub function: String,
    /// Collectives before it.
    pub seq: u64,
    /// Elements, counted as NCCL counts them for this function.
    pub count: u64,
    /// The elements' type.
    pub dtype: String,
    /// The operator of a reduction.
    pub op: Option<String>,
    /// The root; of a message the peer.
    pub root: Option<u32>,
    /// The caller's tag, if it has given one.
    #[serde(default)]
    pub tag: Option<u64>,
    /// The stream that it was enqueued on, of ranks on GPUs.
    #[serde(default)]
    pub stream: Option<u64>,
}

/// The calls of one function.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TotalReport {
    /// The function.
    pub function: String,
    /// Calls begun.
    pub operations: u64,
    /// Bytes of their blocks: `count` elements each.
    pub bytes: u64,
}

/// What has gone between the rank that answers and another.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PeerReport {
    /// The other rank.
    pub rank: u32,
    /// The transport that reaches it.
    pub transport: Option<String>,
    /// Operations in which something went to it or came from it. Ranks on GPUs count what they enqueue.
    pub operations: u64,
    /// Bytes sent to it.
    pub sent_bytes: u64,
    /// Bytes received from it.
    pub received_bytes: u64,
    /// Slots sent to it, by a rank on a CPU.
    pub sent_slots: u64,
    /// Slots received from it, by a rank on a CPU.
    pub received_slots: u64,
    /// For how long it was waited for, in nanoseconds. Waits of a few microseconds are not counted.
    pub waited_ns: u64,
    /// Stalls in which it was found at fault.
    pub stalls: u64,
    /// Times for which its host answered nothing while an operation waited, as far as this rank is its neighbour in the bootstrap's ring.
    #[serde(default)]
    pub outages: u64,
    /// How long these took, in nanoseconds.
    #[serde(default)]
    pub unreachable_ns: u64,
    /// Connections to it in place of a neighbour that was lost.
    #[serde(default)]
    pub reconnects: u64,
    /// Attempts at such a connection that failed.
    #[serde(default)]
    pub retries: u64,
    /// Segments that the kernel has sent again on the open streams to it.
    #[serde(default)]
    pub retransmits: u64,
}

/// What has gone between a head and the network that reduces: aggregators, or a plugin's.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NetworkReport {
    /// What it is, in words: which aggregators.
    pub name: String,
    /// Operations in which something went to it or came from it.
    pub operations: u64,
    /// Bytes sent to it.
    pub sent_bytes: u64,
    /// Bytes received from it.
    pub received_bytes: u64,
    /// Slots sent to it.
    pub sent_slots: u64,
    /// Slots received from it.
    pub received_slots: u64,
    /// For how long it was waited for, in nanoseconds.
    pub waited_ns: u64,
}

/// An operation of the recorder.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RecordReport {
    /// The operation.
    pub operation: OperationReport,
    /// When it began: nanoseconds since 1970.
    pub began_ns: u64,
    /// When the GPU began with it, where such times are kept (`OXCCL_FLIGHT_TIMES`).
    #[serde(default)]
    pub started_ns: Option<u64>,
    /// When it ended, if it has and the library knows.
    pub ended_ns: Option<u64>,
}

/// A rank, as the rank that answers knows it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RankReport {
    /// The rank.
    pub rank: u32,
    /// Its host's name.
    pub host: String,
    /// Its process there.
    pub pid: u32,
    /// The transport that reaches it.
    pub link: Option<String>,
    /// Whether it has closed the communicator.
    pub has_left: bool,
    /// Whether its process or host is known to have died.
    #[serde(default)]
    pub has_died: bool,
    /// Whether it answered; none if it was not asked.
    pub answers: Option<bool>,
    /// Calls made so far, as far as it answered.
    pub begun: Option<u64>,
    /// Of those, how many are done.
    pub done: Option<u64>,
    /// The operation that it is in.
    pub during: Option<OperationReport>,
    /// The call about the communicator that it is in, such as `split` or `finalize`.
    #[serde(default)]
    pub in_comm_call: Option<String>,
    /// The latest collective.
    pub latest: Option<OperationReport>,
    /// The rank that it waits for, if it has for a while.
    pub waits_for: Option<u32>,
    /// The network that reduces between hosts, if it waits for that and for no rank.
    #[serde(default)]
    pub waits_for_network: Option<String>,
    /// For how long it has been without progress, in milliseconds.
    pub waited_ms: Option<u64>,
    /// Bytes sent and received in the operation that it is in, where they are counted.
    pub moved: Option<[u64; 2]>,
}

impl CommunicatorReport {
    /// Of a rank of which nothing more is known.
    pub(crate) fn new(rank: u32, size: u32) -> CommunicatorReport {
        CommunicatorReport {
            name: String::new(),
            id: String::new(),
            rank,
            size,
            state: State::Joining,
            error: None,
            age_ms: 0,
            began_ns: 0,
            begun: 0,
            done: 0,
            during: None,
            in_comm_call: None,
            during_ms: None,
            waits_for: None,
            waits_for_network: None,
            waited_ms: 0,
            moved: None,
            stall: None,
            totals: Vec::new(),
            peers: Vec::new(),
            network: None,
            stalls: 0,
            refusals: 0,
            recent: Vec::new(),
            ranks: Vec::new(),
        }
    }
}

impl From<(CallRecord, Mark)> for OperationReport {
    fn from((record, mark): (CallRecord, Mark)) -> OperationReport {
        let call = &record.call;
        OperationReport {
            function: call.func.to_string(),
            seq: record.seq,
            count: call.count,
            dtype: call.dtype.to_string(),
            op: call.func.is_reduction().then(|| call.op.to_string()),
            root: call.func.names_a_rank().then_some(call.root.0),
            tag: mark.tag(),
            stream: mark.stream(),
        }
    }
}

//! Layer: status / metrics.
//! Takes: what processes answered.
//! Gives: their counters: names, help, units, labels and values, for whoever writes them in a format ([`super::prometheus`], [`super::otlp`]).
//! Never: knows a format.

use oxccl::status::{CommunicatorReport, NetworkReport, PeerReport, ProcessReport, State, TotalReport};

/// What a number counts, where it is no bare number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
}

/// Whether a number only grows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// It does, for as long as the communicator lives.
    Counter,
    /// It says how things are now.
    Gauge,
}

/// A value.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Number {
    /// Of things.
    Whole(u64),
    /// Of a measure.
    Real(f64),
}

/// What a value is about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Label {
    /// A name.
    Text(String),
    /// A rank or a process.
    Number(u32),
}

/// A value of a metric.
#[derive(Clone, PartialEq, Debug)]
pub struct Point {
    /// What it is about.
    pub labels: Vec<(&'static str, Label)>,
    /// The value.
    pub value: Number,
    /// Since when it has been counted: nanoseconds since 1970.
    pub began_ns: u64,
}

/// A metric with its values.
#[derive(Clone, PartialEq, Debug)]
pub struct Metric {
    /// Its name, without the prefix `oxccl` and the unit.
    pub name: &'static str,
    /// What it is.
    pub help: &'static str,
    /// What it counts.
    pub unit: Option<Unit>,
    /// Whether it only grows.
    pub kind: Kind,
    /// Its values.
    pub points: Vec<Point>,
}

/// A metric of each `T`.
struct Row<T>(&'static str, Kind, Option<Unit>, &'static str, fn(&T) -> Number);

use Kind::{Counter, Gauge};
use Number::{Real, Whole};

const OF_RANK: [Row<CommunicatorReport>; 6] = [
    Row("ready", Gauge, None, "Whether operations can run on the communicator", |comm| {
        Whole(u64::from(comm.state == State::Ready))
    }),
    Row("calls_begun", Counter, None, "Calls made", |comm| Whole(comm.begun)),
    Row("calls_done", Counter, None, "Calls that are done", |comm| Whole(comm.done)),
    Row("stalls", Counter, None, "Stalls that the ranks have found", |comm| Whole(comm.stalls)),
    Row("refusals", Counter, None, "Connections to the rank's listener that it refused", |comm| {
        Whole(comm.refusals)
    }),
    Row("stalled", Gauge, None, "Whether an operation stands still now", |comm| {
        Whole(u64::from(comm.stall.is_some()))
    }),
];

const OF_FUNCTION: [Row<TotalReport>; 2] = [
    Row("function_calls", Counter, None, "Calls made, by function", |total| Whole(total.operations)),
    Row("function", Counter, Some(Unit::Bytes), "Bytes of the blocks of calls, by function", |total| {
        Whole(total.bytes)
    }),
];

const OF_PEER: [Row<PeerReport>; 12] = [
    Row("peer_operations", Counter, None, "Operations in which data went to or came from the peer", |peer| {
        Whole(peer.operations)
    }),
    Row("peer_sent", Counter, Some(Unit::Bytes), "Bytes sent to the peer", |peer| Whole(peer.sent_bytes)),
    Row("peer_received", Counter, Some(Unit::Bytes), "Bytes received from the peer", |peer| {
        Whole(peer.received_bytes)
    }),
    Row("peer_sent_slots", Counter, None, "Slots sent to the peer", |peer| Whole(peer.sent_slots)),
    Row("peer_received_slots", Counter, None, "Slots received from the peer", |peer| {
        Whole(peer.received_slots)
    }),
    Row(
        "peer_waited",
        Counter,
        Some(Unit::Seconds),
        "Time for which operations waited for the peer",
        |peer| Real(peer.waited_ns as f64 / 1e9),
    ),
    Row("peer_stalls", Counter, None, "Stalls in which the peer was found at fault", |peer| {
        Whole(peer.stalls)
    }),
    Row("peer_outages", Counter, None, "Times for which the peer's host answered nothing", |peer| {
        Whole(peer.outages)
    }),
    Row(
        "peer_unreachable",
        Counter,
        Some(Unit::Seconds),
        "Time for which the peer's host answered nothing",
        |peer| Real(peer.unreachable_ns as f64 / 1e9),
    ),
    Row("peer_reconnects", Counter, None, "Connections to the peer in place of a lost neighbour", |peer| {
        Whole(peer.reconnects)
    }),
    Row("peer_retries", Counter, None, "Failed attempts at such a connection", |peer| Whole(peer.retries)),
    Row("peer_retransmits", Counter, None, "Segments sent again on the streams to the peer", |peer| {
        Whole(peer.retransmits)
    }),
];

const OF_NETWORK: [Row<NetworkReport>; 4] = [
    Row(
        "network_operations",
        Counter,
        None,
        "Operations that a network that reduces had a part in",
        |network| Whole(network.operations),
    ),
    Row("network_sent", Counter, Some(Unit::Bytes), "Bytes sent to a network that reduces", |network| {
        Whole(network.sent_bytes)
    }),
    Row(
        "network_received",
        Counter,
        Some(Unit::Bytes),
        "Bytes received from a network that reduces",
        |network| Whole(network.received_bytes),
    ),
    Row(
        "network_waited",
        Counter,
        Some(Unit::Seconds),
        "Time for which operations waited for a network that reduces",
        |network| Real(network.waited_ns as f64 / 1e9),
    ),
];

/// All metrics, with a value for each rank, function and peer.
pub fn metrics<'a>(processes: impl IntoIterator<Item = &'a ProcessReport>) -> Vec<Metric> {
    let (mut of_rank, mut of_function) = (without_points(&OF_RANK), without_points(&OF_FUNCTION));
    let (mut of_peer, mut of_network) = (without_points(&OF_PEER), without_points(&OF_NETWORK));
    for process in processes {
        for comm in &process.communicators {
            let labels = rank_labels(process.pid, comm);
            let began_ns = comm.began_ns;
            add(&mut of_rank, &OF_RANK, comm, &labels, began_ns);
            for total in &comm.totals {
                let mut labels = labels.clone();
                labels.push(("function", Label::Text(total.function.clone())));
                add(&mut of_function, &OF_FUNCTION, total, &labels, began_ns);
            }
            if let Some(network) = &comm.network {
                add(&mut of_network, &OF_NETWORK, network, &labels, began_ns);
            }
            for peer in &comm.peers {
                let mut labels = labels.clone();
                let transport = peer.transport.clone().unwrap_or_default();
                labels.extend([("peer", Label::Number(peer.rank)), ("transport", Label::Text(transport))]);
                add(&mut of_peer, &OF_PEER, peer, &labels, began_ns);
            }
        }
    }
    // Most jobs have no such network.
    of_network.retain(|metric| !metric.points.is_empty());
    of_rank.into_iter().chain(of_function).chain(of_peer).chain(of_network).collect()
}

fn without_points<T>(rows: &[Row<T>]) -> Vec<Metric> {
    let metric = |Row(name, kind, unit, help, _): &Row<T>| Metric {
        name,
        help,
        unit: *unit,
        kind: *kind,
        points: Vec::new(),
    };
    rows.iter().map(metric).collect()
}

fn rank_labels(pid: u32, comm: &CommunicatorReport) -> Vec<(&'static str, Label)> {
    let name = if comm.name.is_empty() { &comm.id } else { &comm.name };
    vec![("comm", Label::Text(name.clone())), ("rank", Label::Number(comm.rank)), ("pid", Label::Number(pid))]
}

fn add<T>(metrics: &mut [Metric], rows: &[Row<T>], of: &T, labels: &[(&'static str, Label)], began_ns: u64) {
    for (metric, Row(.., value)) in metrics.iter_mut().zip(rows) {
        metric.points.push(Point { labels: labels.to_vec(), value: value(of), began_ns });
    }
}

#[cfg(test)]
pub mod tests {
    use oxccl::status::ProcessReport;

    /// A process with a rank that has a peer.
    pub fn processes() -> Vec<ProcessReport> {
        let json = r#"[{"format":1,"version":"0.1.0","host":"n","pid":40,"program":"train","time_ns":5000000000,"asked_ms":null,
            "communicators":[{"name":"d\"p","id":"00ff","rank":0,"size":2,"state":"ready","error":null,"age_ms":1,"began_ns":4999000000,"begun":9,
            "done":8,"during":null,"during_ms":null,"waits_for":null,"waited_ms":0,"moved":null,"stall":null,"recent":[],"ranks":[],"stalls":2,
            "totals":[{"function":"all_reduce","operations":9,"bytes":36}],
            "peers":[{"rank":1,"transport":"shm","operations":9,"sent_bytes":36,"received_bytes":32,"sent_slots":9,"received_slots":8,
                      "waited_ns":1500000000,"stalls":1,"outages":3,"unreachable_ns":7500000000,"reconnects":5,"retries":6,"retransmits":9}],"refusals":4}]}]"#;
        serde_json::from_str(json).unwrap()
    }
}

//! What processes answered, as Prometheus reads it: OpenMetrics text.

use oxccl::status::{CommunicatorReport, PeerReport, ProcessReport, State};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use std::fmt;
use std::sync::atomic::AtomicU64;

/// A rank of a communicator.
#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct OfRank {
    comm: String,
    rank: u32,
    pid: u32,
}

/// A function that it calls.
#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct OfFunction {
    comm: String,
    rank: u32,
    pid: u32,
    function: String,
}

/// Another rank, and the way to it.
#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct OfPeer {
    comm: String,
    rank: u32,
    pid: u32,
    peer: u32,
    transport: String,
}

type Numbers<S> = Family<S, Counter>;
type Seconds<S> = Family<S, Counter<f64, AtomicU64>>;

#[derive(Default)]
struct Metrics {
    up: Family<OfRank, Gauge>,
    begun: Numbers<OfRank>,
    done: Numbers<OfRank>,
    stalls: Numbers<OfRank>,
    stalled: Family<OfRank, Gauge>,
    calls: Numbers<OfFunction>,
    call_bytes: Numbers<OfFunction>,
    operations: Numbers<OfPeer>,
    sent_bytes: Numbers<OfPeer>,
    received_bytes: Numbers<OfPeer>,
    sent_slots: Numbers<OfPeer>,
    received_slots: Numbers<OfPeer>,
    waited: Seconds<OfPeer>,
    peer_stalls: Numbers<OfPeer>,
}

impl Metrics {
    fn register(&self, registry: &mut Registry) {
        registry.register("ready", "Whether operations can run on the communicator", self.up.clone());
        registry.register("calls_begun", "Calls made", self.begun.clone());
        registry.register("calls_done", "Calls that are done", self.done.clone());
        registry.register("stalls", "Stalls that the ranks have found", self.stalls.clone());
        registry.register("stalled", "Whether an operation stands still now", self.stalled.clone());
        registry.register("function_calls", "Calls made, by function", self.calls.clone());
        let (bytes, seconds) = (|| Unit::Bytes, || Unit::Seconds);
        let help = "Bytes of the blocks of calls, by function";
        registry.register_with_unit("function", help, bytes(), self.call_bytes.clone());
        let help = "Operations in which data went to or came from the peer";
        registry.register("peer_operations", help, self.operations.clone());
        registry.register_with_unit("peer_sent", "Bytes sent to the peer", bytes(), self.sent_bytes.clone());
        let help = "Bytes received from the peer";
        registry.register_with_unit("peer_received", help, bytes(), self.received_bytes.clone());
        registry.register("peer_sent_slots", "Slots sent to the peer", self.sent_slots.clone());
        registry.register("peer_received_slots", "Slots received from the peer", self.received_slots.clone());
        let help = "Time for which operations waited for the peer";
        registry.register_with_unit("peer_waited", help, seconds(), self.waited.clone());
        let help = "Stalls in which the peer was found at fault";
        registry.register("peer_stalls", help, self.peer_stalls.clone());
    }

    fn add(&self, pid: u32, report: &CommunicatorReport) {
        let comm = if report.name.is_empty() { report.id.clone() } else { report.name.clone() };
        let rank = OfRank { comm: comm.clone(), rank: report.rank, pid };
        self.up.get_or_create(&rank).set(i64::from(report.state == State::Ready));
        self.begun.get_or_create(&rank).inc_by(report.begun);
        self.done.get_or_create(&rank).inc_by(report.done);
        self.stalls.get_or_create(&rank).inc_by(report.stalls);
        self.stalled.get_or_create(&rank).set(i64::from(report.stall.is_some()));
        for total in &report.totals {
            let function = total.function.clone();
            let of = OfFunction { comm: comm.clone(), rank: report.rank, pid, function };
            self.calls.get_or_create(&of).inc_by(total.operations);
            self.call_bytes.get_or_create(&of).inc_by(total.bytes);
        }
        report.peers.iter().for_each(|peer| self.add_peer(&rank, peer));
    }

    fn add_peer(&self, rank: &OfRank, peer: &PeerReport) {
        let OfRank { comm, rank, pid } = rank.clone();
        let transport = peer.transport.clone().unwrap_or_default();
        let of = OfPeer { comm, rank, pid, peer: peer.rank, transport };
        self.operations.get_or_create(&of).inc_by(peer.operations);
        self.sent_bytes.get_or_create(&of).inc_by(peer.sent_bytes);
        self.received_bytes.get_or_create(&of).inc_by(peer.received_bytes);
        self.sent_slots.get_or_create(&of).inc_by(peer.sent_slots);
        self.received_slots.get_or_create(&of).inc_by(peer.received_slots);
        self.waited.get_or_create(&of).inc_by(peer.waited_ns as f64 / 1e9);
        self.peer_stalls.get_or_create(&of).inc_by(peer.stalls);
    }
}

/// The whole of it.
///
/// # Errors
/// Never, as far as is known: it is written to memory.
pub fn text(processes: &[ProcessReport]) -> Result<String, fmt::Error> {
    let (mut registry, metrics) = (Registry::with_prefix("oxccl"), Metrics::default());
    metrics.register(&mut registry);
    for process in processes {
        process.communicators.iter().for_each(|report| metrics.add(process.pid, report));
    }
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_has_its_lines_with_help_type_and_labels() {
        let json = r#"[{"format":1,"version":"0.1.0","host":"n","pid":40,"program":"train","time_ns":5,"asked_ms":null,
            "communicators":[{"name":"d\"p","id":"00ff","rank":0,"size":2,"state":"ready","error":null,"age_ms":1,"begun":9,"done":8,
            "during":null,"during_ms":null,"waits_for":null,"waited_ms":0,"moved":null,"stall":null,"recent":[],"ranks":[],"stalls":2,
            "totals":[{"function":"all_reduce","operations":9,"bytes":36}],
            "peers":[{"rank":1,"transport":"shm","operations":9,"sent_bytes":36,"received_bytes":32,"sent_slots":9,"received_slots":8,
                      "waited_ns":1500000000,"stalls":1}]}]}]"#;
        let text = text(&serde_json::from_str::<Vec<ProcessReport>>(json).unwrap()).unwrap();
        let labels = r#"{comm="d\"p",rank="0",pid="40",peer="1",transport="shm"}"#;
        for line in [
            "# HELP oxccl_peer_sent_bytes Bytes sent to the peer.".to_owned(),
            "# TYPE oxccl_peer_sent_bytes counter".to_owned(),
            format!("oxccl_peer_sent_bytes_total{labels} 36"),
            format!("oxccl_peer_received_bytes_total{labels} 32"),
            format!("oxccl_peer_waited_seconds_total{labels} 1.5"),
            format!("oxccl_peer_stalls_total{labels} 1"),
            r#"oxccl_stalls_total{comm="d\"p",rank="0",pid="40"} 2"#.to_owned(),
            r#"oxccl_function_calls_total{comm="d\"p",rank="0",pid="40",function="all_reduce"} 9"#.to_owned(),
            "# EOF".to_owned(),
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }
}

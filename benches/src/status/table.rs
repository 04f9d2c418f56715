//! What processes answered, for people: a block for each communicator, a line for each rank.

use crate::words::count;
use oxccl::status::{CommunicatorReport, OperationReport, PeerReport, ProcessReport, RankReport, State};
use std::fmt::Write;

/// A rank's line.
struct Row([String; 7]);

const HEAD: [&str; 7] = ["rank", "host", "pid", "link", "done/calls", "since", "operation"];

/// The whole of it.
pub fn table(processes: &[ProcessReport]) -> String {
    let mut all: Vec<(&ProcessReport, &CommunicatorReport)> = processes
        .iter()
        .flat_map(|process| process.communicators.iter().map(move |comm| (process, comm)))
        .collect();
    // One block for each communicator: that of its lowest rank here.
    all.sort_by(|(_, a), (_, b)| (&a.name, &a.id, a.rank).cmp(&(&b.name, &b.id, b.rank)));
    let mut text = String::new();
    for at in 0..all.len() {
        let (process, comm) = all[at];
        let same: Vec<_> = match comm.id.is_empty() {
            true => vec![(process, comm)],
            false => all.iter().copied().filter(|(_, other)| other.id == comm.id).collect(),
        };
        let is_first = comm.id.is_empty() || all[..at].iter().all(|(_, other)| other.id != comm.id);
        if is_first {
            if !text.is_empty() {
                text.push('\n');
            }
            block(&mut text, &same);
        }
    }
    text
}

fn block(text: &mut String, same: &[(&ProcessReport, &CommunicatorReport)]) {
    let [(process, comm), ..] = same else { return };
    let name = if comm.name.is_empty() { "(no name yet)" } else { &comm.name };
    let state = match comm.state {
        State::Joining => "joining",
        State::Ready => "ready",
        State::Failed => "failed",
        _ => "ended",
    };
    let id =
        if comm.id == comm.name || comm.id.is_empty() { String::new() } else { format!(" [{}]", comm.id) };
    let age = seconds(comm.age_ms);
    let CommunicatorReport { size, .. } = comm;
    let _ =
        writeln!(text, "communicator {name}{id}: {size} ranks, {state}, for {age}, of {}", process.program);
    let stall = same.iter().find_map(|(_, comm)| comm.stall.as_ref());
    if let Some(stall) = stall {
        let _ = writeln!(text, "  {stall}");
    }
    for (_, comm) in same {
        if let Some(error) = &comm.error {
            let _ = writeln!(text, "  rank {}: {error}", comm.rank);
        }
    }
    let mut rows: Vec<Row> = if comm.ranks.is_empty() {
        same.iter().map(|(process, comm)| unmet(process, comm)).collect()
    } else {
        comm.ranks.iter().map(|rank| row(rank, same)).collect()
    };
    rows.insert(0, Row(HEAD.map(str::to_owned)));
    columns(text, &rows);
    same.iter().for_each(|(_, comm)| peers(text, comm));
    same.iter().for_each(|(_, comm)| recent(text, comm));
}

/// A rank that has not met the others.
fn unmet(process: &ProcessReport, comm: &CommunicatorReport) -> Row {
    let dash = || "-".to_owned();
    let waits = "waits for the other ranks to join".to_owned();
    let pid = process.pid.to_string();
    Row([comm.rank.to_string(), process.host.clone(), pid, dash(), dash(), seconds(comm.age_ms), waits])
}

/// What a rank says itself, else what it answered to another.
fn row(rank: &RankReport, same: &[(&ProcessReport, &CommunicatorReport)]) -> Row {
    let own = same.iter().find(|(_, comm)| comm.rank == rank.rank).map(|(_, comm)| comm);
    let place = [rank.rank.to_string(), rank.host.clone(), rank.pid.to_string()];
    let link = rank.link.clone().unwrap_or_else(|| "-".into());
    let (calls, since, what) = match own {
        Some(own) => (
            Some((own.done, own.begun)),
            own.during_ms.or((own.waited_ms > 0).then_some(own.waited_ms)),
            doing(
                (own.during.as_ref(), own.in_comm_call.as_deref()),
                (own.waits_for, own.waits_for_network.as_deref()),
                own.recent.last().map(|last| &last.operation),
            ),
        ),
        None => {
            let waited = rank.waited_ms.filter(|waited| *waited > 0);
            let what = match rank.answers {
                _ if rank.has_left => "has left".to_owned(),
                _ if rank.has_died => "has died".to_owned(),
                Some(true) => {
                    let waits = (rank.waits_for, rank.waits_for_network.as_deref());
                    let during = (rank.during.as_ref(), rank.in_comm_call.as_deref());
                    doing(during, waits, rank.latest.as_ref())
                }
                Some(false) => "DOES NOT ANSWER: stopped, frozen or cut off".to_owned(),
                _ => "was not asked".to_owned(),
            };
            (rank.done.zip(rank.begun), waited, what)
        }
    };
    let calls = calls.map_or_else(|| "-".into(), |(done, begun)| format!("{done}/{begun}"));
    let [rank, host, pid] = place;
    Row([rank, host, pid, link, calls, since.map_or_else(|| "-".into(), seconds), what])
}

fn doing(
    (during, in_comm_call): (Option<&OperationReport>, Option<&str>),
    waits_for: (Option<u32>, Option<&str>),
    latest: Option<&OperationReport>,
) -> String {
    let waits = match waits_for {
        (_, Some(network)) => format!(", waits for {network}"),
        (Some(rank), None) => format!(", waits for rank {rank}"),
        (None, None) => String::new(),
    };
    let call = in_comm_call.unwrap_or("no call");
    match (during, latest) {
        (Some(during), _) => format!("{}{waits}", operation(during)),
        (None, Some(latest)) => format!("in {call}; its latest was {}", operation(latest)),
        (None, None) => format!("in {call}"),
    }
}

fn operation(op: &OperationReport) -> String {
    let mut text = op.function.clone();
    if op.function != "barrier" {
        let _ = write!(text, " of {} {}", op.count, op.dtype);
    }
    if let Some(op) = &op.op {
        let _ = write!(text, ", {op}");
    }
    let _ = match (op.function.as_str(), op.root) {
        ("send", Some(peer)) => write!(text, " to rank {peer}"),
        ("recv", Some(peer)) => write!(text, " from rank {peer}"),
        (_, Some(root)) => write!(text, ", root {root}"),
        _ => Ok(()),
    };
    if !matches!(op.function.as_str(), "send" | "recv") {
        let _ = write!(text, " (operation {})", op.seq);
    }
    if let Some(tag) = op.tag {
        let _ = write!(text, " [tag {tag}]");
    }
    text
}

/// A line for each other rank with which anything was exchanged, or to whose connections something has happened.
fn peers(text: &mut String, comm: &CommunicatorReport) {
    if comm.refusals > 0 {
        let _ = writeln!(text, "  rank {} has refused {}", comm.rank, count(comm.refusals, "connection"));
    }
    let is_shown = |peer: &&PeerReport| {
        peer.operations + peer.waited_ns + peer.outages + peer.reconnects + peer.retries > 0
    };
    let mut active = comm.peers.iter().filter(is_shown).peekable();
    let network = comm.network.as_ref().filter(|network| network.operations + network.waited_ns > 0);
    if active.peek().is_some() || network.is_some() {
        let _ = writeln!(text, "  rank {} has exchanged:", comm.rank);
    }
    if let Some(network) = network {
        let [sent, received] = [network.sent_bytes, network.received_bytes].map(|bytes| bytes as f64 / 1e6);
        let (operations, waited) = (count(network.operations, "operation"), network.waited_ns as f64 / 1e9);
        let _ = writeln!(
            text,
            "    with {}: {sent:.3} MB sent, {received:.3} MB received in {operations}; waited {waited:.3} s for it",
            network.name
        );
    }
    for peer in active {
        let link = peer.transport.as_deref().unwrap_or("-");
        let [sent, received] = [peer.sent_bytes, peer.received_bytes].map(|bytes| bytes as f64 / 1e6);
        let waited = peer.waited_ns as f64 / 1e9;
        let _ = write!(text, "    with rank {} over {link}: ", peer.rank);
        // It may have been waited for, and nothing come.
        if peer.operations + peer.sent_bytes + peer.received_bytes > 0 {
            let operations = count(peer.operations, "operation");
            let _ = write!(text, "{sent:.3} MB sent, {received:.3} MB received in {operations}; ");
        }
        let _ = write!(text, "waited {waited:.3} s for it");
        if peer.stalls > 0 {
            let _ = write!(text, "; stalled by it {}", times(peer.stalls));
        }
        if peer.outages > 0 {
            let lasted = peer.unreachable_ns as f64 / 1e9;
            let _ = write!(text, "; its host did not answer {}, {lasted:.1} s", times(peer.outages));
        }
        if peer.retransmits > 0 {
            let _ = write!(text, "; {} sent again", count(peer.retransmits, "segment"));
        }
        if peer.reconnects + peer.retries > 0 {
            let (reconnects, retries) = (count(peer.reconnects, "reconnect"), peer.retries);
            let retries = if retries == 1 { "1 retry".to_owned() } else { format!("{retries} retries") };
            let _ = write!(text, "; {reconnects} to it, {retries}");
        }
        let _ = writeln!(text);
    }
}

/// `once`, `2 times`
fn times(count: u64) -> String {
    if count == 1 { "once".to_owned() } else { format!("{count} times") }
}

fn recent(text: &mut String, comm: &CommunicatorReport) {
    let Some(last) = comm.recent.last() else { return };
    let _ = writeln!(text, "  latest operations of rank {}:", comm.rank);
    for found in &comm.recent {
        let lasted = match found.ended_ns {
            Some(ended) => format!("{:.1} us", ended.saturating_sub(found.began_ns) as f64 / 1e3),
            None => "not known to be done".to_owned(),
        };
        let before = last.began_ns.saturating_sub(found.began_ns) as f64 / 1e6;
        let _ = writeln!(text, "    -{before:.3} ms: {}, {lasted}", operation(&found.operation));
    }
}

fn seconds(ms: u64) -> String {
    format!("{:.1} s", ms as f64 / 1e3)
}

fn columns(text: &mut String, rows: &[Row]) {
    let mut widths = [0; 7];
    for Row(cells) in rows {
        widths.iter_mut().zip(cells).for_each(|(width, cell)| *width = (*width).max(cell.chars().count()));
    }
    for Row(cells) in rows {
        let mut line = String::from(" ");
        for (cell, width) in cells.iter().zip(widths) {
            let _ = write!(line, " {cell:width$} ");
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reports() -> Vec<ProcessReport> {
        let text = r#"[{"format":1,"version":"0.1.0","host":"node7","pid":40,"program":"train","time_ns":5000000000,"asked_ms":1000,
            "communicators":[{"name":"dp","id":"00ff","rank":0,"size":3,"state":"ready","error":null,"age_ms":61000,"begun":9,"done":8,
            "during":{"function":"all_reduce","seq":8,"count":1000,"dtype":"float","op":"sum","root":null},"during_ms":4200,"waits_for":2,
            "waited_ms":4100,"moved":null,"stall":null,"stalls":1,
            "peers":[{"rank":2,"transport":"net","operations":8,"sent_bytes":32000,"received_bytes":28000,"sent_slots":8,"received_slots":7,
                      "waited_ns":4200000000,"stalls":1,"outages":2,"unreachable_ns":9500000000,"reconnects":1,"retries":3,"retransmits":4}],"refusals":7,
            "recent":[{"operation":{"function":"barrier","seq":7,"count":0,"dtype":"uint8","op":null,"root":null},
                       "began_ns":4000000000,"ended_ns":4000002500}],
            "ranks":[
            {"rank":0,"host":"node7","pid":40,"link":null,"has_left":false,"answers":true,"begun":9,"done":8,"during":null,"latest":null,
             "waits_for":null,"waited_ms":0,"moved":null},
            {"rank":1,"host":"node7","pid":41,"link":"shm","has_left":false,"answers":true,"begun":8,"done":8,"during":null,
             "latest":{"function":"broadcast","seq":7,"count":3,"dtype":"float","op":null,"root":1},"waits_for":null,"waited_ms":0,"moved":null},
            {"rank":2,"host":"node8","pid":42,"link":"net","has_left":false,"answers":false,"begun":null,"done":null,"during":null,
             "latest":null,"waits_for":null,"waited_ms":null,"moved":null}]}]}]"#;
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn each_rank_has_a_line_that_says_what_it_does() {
        let text = table(&reports());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "communicator dp [00ff]: 3 ranks, ready, for 61.0 s, of train");
        assert!(lines[2].contains("8/9") && lines[2].contains("4.2 s"), "{text}");
        assert!(
            lines[2].ends_with("all_reduce of 1000 float, sum (operation 8), waits for rank 2"),
            "{text}"
        );
        assert!(
            lines[3].ends_with("in no call; its latest was broadcast of 3 float, root 1 (operation 7)"),
            "{text}"
        );
        let mut in_split = reports();
        in_split[0].communicators[0].ranks[1].in_comm_call = Some("split".into());
        assert!(
            table(&in_split).contains(" in split; its latest was broadcast of 3"),
            "{}",
            table(&in_split)
        );
        assert!(lines[4].contains("node8") && lines[4].contains("DOES NOT ANSWER"), "{text}");
        let mut dead = reports();
        dead[0].communicators[0].ranks[2].has_died = true;
        assert!(table(&dead).lines().nth(4).unwrap().ends_with("has died"), "{}", table(&dead));
        assert!(text.contains("barrier (operation 7), 2.5 us"), "{text}");
        let peer = "with rank 2 over net: 0.032 MB sent, 0.028 MB received in 8 operations; waited 4.200 s for it; stalled by it once; its host did not answer 2 times, 9.5 s; 4 segments sent again; 1 reconnect to it, 3 retries";
        assert!(text.contains(peer), "{text}");
        assert!(text.contains("rank 0 has refused 7 connections"), "{text}");
        assert!(!text.contains("aggregators"), "{text}");
        let mut one = reports();
        let comm = &mut one[0].communicators[0];
        comm.refusals = 1;
        let peers = &mut comm.peers;
        peers.retain(|peer| peer.rank == 2);
        (peers[0].operations, peers[0].outages, peers[0].retransmits, peers[0].retries) = (1, 1, 1, 1);
        let text = table(&one);
        let peer = "received in 1 operation; waited 4.200 s for it; stalled by it once; its host did not answer once, 9.5 s; 1 segment sent again; 1 reconnect to it, 1 retry";
        assert!(text.contains(peer) && text.contains("has refused 1 connection\n"), "{text}");
    }

    /// The heads of hosts seemed to wait for each other, and to send each other what went to a server.
    #[test]
    fn a_network_that_reduces_is_no_rank() {
        let mut reports = reports();
        let comm = &mut reports[0].communicators[0];
        let name = Some("aggregators node9:28040 (OXCCL_AGGREGATOR)".to_owned());
        (comm.waits_for, comm.waits_for_network) = (None, name.clone());
        comm.network = serde_json::from_str(
            r#"{"name":"aggregators node9:28040 (OXCCL_AGGREGATOR)","operations":3,"sent_bytes":4000000,"received_bytes":2000000,
                "sent_slots":5,"received_slots":4,"waited_ns":1500000000}"#,
        )
        .unwrap();
        let other = &mut comm.ranks[2];
        (other.answers, other.during, other.waits_for_network) = (Some(true), comm.during.clone(), name);
        let text = table(&reports);
        let waits = "(operation 8), waits for aggregators node9:28040 (OXCCL_AGGREGATOR)\n";
        assert_eq!(text.matches(waits).count(), 2, "{text}");
        let line = "    with aggregators node9:28040 (OXCCL_AGGREGATOR): 4.000 MB sent, 2.000 MB received in 3 operations; waited 1.500 s for it\n";
        assert!(text.contains(line) && !text.contains("waits for rank"), "{text}");
    }

    #[test]
    fn a_communicator_that_several_processes_have_is_one_block() {
        let mut two = reports();
        let mut other = two[0].clone();
        (other.pid, other.communicators[0].rank) = (41, 1);
        two.push(other);
        assert_eq!(table(&two).matches("communicator dp").count(), 1);
        two[1].communicators[0].id = "0100".into();
        assert_eq!(table(&two).matches("communicator dp").count(), 2);
    }
}

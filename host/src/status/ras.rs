//! NCCL's RAS protocol: commands and answers as text, so that `ncclras` and what parses its output work.
//!
//! Commands, answers, headings and JSON keys: NVIDIA/nccl, `src/ras/client.cc` and `src/ras/client_support.cc`. There is no
//! authentication in it; nothing can be changed through it. `oxccl status HOST:PORT` asks here too, by a command of its own: a
//! [`Question`] for the status, answered by a [`ProcessReport`].

use super::question::Question;
use super::report::{CommunicatorReport, ProcessReport, RankReport, State};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::time::Duration;

/// The version of the protocol that is spoken; clients of others go on in spite of it.
pub const RAS_PROTOCOL: u32 = 2;
/// The longest line that is read, its end included.
pub const RAS_LINE_BYTES_MAX: usize = 1024;
/// How long other ranks have to answer, if the client does not say.
const TIMEOUT: Duration = Duration::from_secs(5);
const TIMEOUT_MAX: Duration = Duration::from_secs(30);
/// The most operations of each rank in an answer. All that are remembered would be a flight record, which is for the process's own user.
const RECENT_MAX: usize = 16;

/// What one client has set.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RasClient {
    /// How long other ranks have to answer.
    pub timeout: Duration,
    /// Whether it wants JSON.
    pub is_json: bool,
    /// Whether it wants every rank.
    pub is_verbose: bool,
    /// It is `oxccl status`, which wants so many of the latest operations.
    pub recent_max: Option<usize>,
}

/// What a command leads to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RasReply {
    /// These words, and the next command.
    Line(String),
    /// The report, and the end.
    Status,
}

impl Default for RasClient {
    fn default() -> RasClient {
        RasClient { timeout: TIMEOUT, is_json: false, is_verbose: false, recent_max: None }
    }
}

impl RasClient {
    /// Reads a command without its end.
    pub fn command(&mut self, line: &[u8]) -> RasReply {
        // Flight records are for the process's own user alone.
        if let Some(Question::Status { recent_max, timeout }) = Question::parse(line) {
            (self.recent_max, self.timeout) = (Some(recent_max.min(RECENT_MAX)), timeout);
            return RasReply::Status;
        }
        let line = String::from_utf8_lossy(line);
        let line = line.strip_suffix('\r').unwrap_or(&line);
        let lower = line.to_ascii_lowercase();
        if lower.starts_with("client protocol ") {
            return RasReply::Line(format!("SERVER PROTOCOL {RAS_PROTOCOL}\n"));
        }
        if let Some(text) = lower.strip_prefix("timeout ") {
            return self.set_timeout(text);
        }
        if let Some(format) = lower.strip_prefix("set format ") {
            self.is_json = match format {
                "text" => false,
                "json" => true,
                _ => return RasReply::Line(format!("ERROR: Invalid format {format}\n")),
            };
            return RasReply::Line("OK\n".to_owned());
        }
        match lower.as_str() {
            "status" => RasReply::Status,
            "verbose status" => {
                self.is_verbose = true;
                RasReply::Status
            }
            _ => RasReply::Line(format!("ERROR: Unknown command {line}\n")),
        }
    }

    /// Seconds; 0 for no limit, which is the longest there is.
    fn set_timeout(&mut self, text: &str) -> RasReply {
        let seconds = text.parse::<f64>().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        let Some(timeout) = seconds else {
            return RasReply::Line(format!("ERROR: Invalid timeout value {text}\n"));
        };
        self.timeout = if timeout.is_zero() { TIMEOUT_MAX } else { timeout.min(TIMEOUT_MAX) };
        RasReply::Line("OK\n".to_owned())
    }

    /// The report.
    pub fn report(&self, process: &ProcessReport) -> String {
        match self.is_json {
            // Numbers and text only: it has a JSON form.
            _ if self.recent_max.is_some() => serde_json::to_string(process).unwrap_or_default(),
            true => format!("{:#}\n", as_json(process)),
            false => as_text(process, self.is_verbose),
        }
    }
}

/// The communicators of a process whose ranks have met, each once.
fn met(process: &ProcessReport) -> Vec<&CommunicatorReport> {
    let mut seen = BTreeSet::new();
    let met = process.communicators.iter().filter(|comm| !comm.ranks.is_empty());
    met.filter(|comm| seen.insert(&comm.id)).collect()
}

fn answers(rank: &RankReport) -> bool {
    rank.answers == Some(true)
}

fn as_json(process: &ProcessReport) -> Value {
    let met = met(process);
    let communicators: Vec<Value> = met.iter().map(|comm| communicator(process, comm)).collect();
    let timeouts = met.iter().filter(|comm| comm.ranks.iter().any(is_missing)).count();
    json!({
        "nccl_version": crate::NCCL_VERSION,
        "cuda_runtime_version": -1,
        "cuda_driver_version": -1,
        "timestamp": timestamp(process.time_ns / 1_000_000_000),
        "communicators_count": communicators.len(),
        "communicators": communicators,
        "ras": {
            "collection_time_sec": process.asked_ms.unwrap_or(0) as f64 / 1e3,
            "timeouts_count": timeouts,
        },
    })
}

/// Neither here nor gone in order.
fn is_missing(rank: &RankReport) -> bool {
    !answers(rank) && !rank.has_left
}

fn communicator(process: &ProcessReport, comm: &CommunicatorReport) -> Value {
    let ranks: Vec<Value> =
        comm.ranks.iter().filter(|rank| answers(rank)).map(|rank| live(process, comm, rank)).collect();
    let missing = |rank: &RankReport| {
        with_status(rank, json!({ "unresponsive": true, "considered_dead": comm.state == State::Failed }))
    };
    let missing: Vec<Value> = comm.ranks.iter().filter(|rank| is_missing(rank)).map(missing).collect();
    json!({
        "hash": format!("0x{}", comm.id.trim_start_matches('0')),
        "secondary_hash": "0x0:0x0",
        "size": comm.size,
        "ranks_count": ranks.len(),
        "missing_ranks_count": missing.len(),
        "ranks": ranks,
        "missing_ranks": missing,
    })
}

/// A rank that answered; of one in this process its state and counts are known too.
fn live(process: &ProcessReport, comm: &CommunicatorReport, rank: &RankReport) -> Value {
    let own = process.communicators.iter().find(|own| own.id == comm.id && own.rank == rank.rank);
    let has_failed = own.is_some_and(|own| own.state == State::Failed);
    let mut counts = BTreeMap::new();
    for total in own.into_iter().flat_map(|own| &own.totals) {
        counts.insert(nccl_name(&total.function), total.operations);
    }
    let status = json!({
        "init_state": 0,
        "async_error": if has_failed { REMOTE_ERROR } else { 0 },
        "finalize_called": false,
        "destroy_flag": false,
        "abort_flag": has_failed,
    });
    let mut live = with_status(rank, status);
    live["collective_counts"] = json!(counts);
    live
}

/// What every rank is described by.
fn with_status(rank: &RankReport, status: Value) -> Value {
    json!({
        "rank": rank.rank,
        "host": rank.host,
        "pid": rank.pid,
        "cuda_dev": -1,
        "nvml_dev": -1,
        "status": status,
    })
}

/// NCCL's number for an error of another process.
const REMOTE_ERROR: u32 = 6;

/// As NCCL spells a function.
fn nccl_name(function: &str) -> String {
    function.split('_').map(|word| word[..1].to_ascii_uppercase() + &word[1..]).collect()
}

fn as_text(process: &ProcessReport, is_verbose: bool) -> String {
    let met = met(process);
    let mut text = format!("NCCL version {} compiled with CUDA 0.0\n", crate::NCCL_VERSION);
    text.push_str("CUDA runtime version -1, driver version -1\n\nJob summary\n===========\n\n");
    summary(&mut text, &met);
    let took = process.asked_ms.unwrap_or(0) as f64 / 1e3;
    let _ = write!(text, "\nCommunicators... ({took:.2}s)\n=============\n\n");
    text.push_str("Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors\n");
    text.push_str("    #  in group  per comm  per node  per comm  in group\n");
    for (group, comm) in met.iter().enumerate() {
        let nodes = hosts(comm).len();
        let status = if comm.state == State::Failed { "ABORT" } else { "RUNNING" };
        let errors = if comm.ranks.iter().any(is_missing) { "INCOMPLETE" } else { "OK" };
        let per_node = comm.size as usize / nodes.max(1);
        let size = comm.size;
        let _ = writeln!(
            text,
            "{group:5}  {:8}  {nodes:8}  {per_node:8}  {size:8}  {size:8}  {status:>8}  {errors:>6}",
            1
        );
    }
    text.push_str("\nErrors\n======\n\n");
    for (group, comm) in met.iter().enumerate() {
        errors(&mut text, group, comm);
    }
    text.push_str("Warnings\n========\n\n");
    for comm in &met {
        comm.stall.iter().for_each(|stall| text.push_str(&format!("{stall}\n\n")));
    }
    if is_verbose {
        text.push_str("Ranks\n=====\n\n");
        met.iter().for_each(|comm| each_rank(&mut text, comm));
    }
    text
}

fn hosts(comm: &CommunicatorReport) -> BTreeSet<&str> {
    comm.ranks.iter().map(|rank| rank.host.as_str()).collect()
}

fn summary(text: &mut String, met: &[&CommunicatorReport]) {
    let processes: BTreeSet<(&str, u32)> =
        met.iter().flat_map(|comm| comm.ranks.iter().map(|rank| (rank.host.as_str(), rank.pid))).collect();
    let nodes: BTreeSet<&str> = processes.iter().map(|(host, _)| *host).collect();
    let (nodes, total) = (nodes.len(), processes.len());
    text.push_str("  Nodes  Processes         GPUs  Processes     GPUs\n");
    text.push_str("(total)   per node  per process    (total)  (total)\n");
    let _ = writeln!(text, "{nodes:7}  {:9}  {:11}  {total:9}  {:7}", total.div_ceil(nodes.max(1)), 0, 0);
}

fn errors(text: &mut String, group: usize, comm: &CommunicatorReport) {
    let missing: Vec<&RankReport> = comm.ranks.iter().filter(|rank| is_missing(rank)).collect();
    if missing.is_empty() && comm.error.is_none() {
        return;
    }
    let _ = writeln!(
        text,
        "#{group}-0 (0x{}) {}",
        comm.id,
        if missing.is_empty() { "ABORT" } else { "INCOMPLETE" }
    );
    for rank in missing {
        let _ =
            writeln!(text, "  Rank {} -- process {} on node {}: no answer", rank.rank, rank.pid, rank.host);
    }
    if let Some(error) = &comm.error {
        let _ = writeln!(text, "  Rank {}: {error}", comm.rank);
    }
    text.push('\n');
}

fn each_rank(text: &mut String, comm: &CommunicatorReport) {
    for rank in &comm.ranks {
        let what = rank.during.as_ref().or(rank.latest.as_ref());
        let what =
            what.map_or_else(|| "-".to_owned(), |op| format!("{} {} ({})", op.function, op.count, op.seq));
        let state = if answers(rank) { "answers" } else { "silent" };
        let _ = writeln!(
            text,
            "  0x{} rank {} process {} on node {}: {state}, {} of {} done, {what}",
            comm.id,
            rank.rank,
            rank.pid,
            rank.host,
            rank.done.unwrap_or(0),
            rank.begun.unwrap_or(0)
        );
    }
    text.push('\n');
}

/// `YYYY-MM-DD hh:mm:ss` in universal time, by Hinnant's `civil_from_days`.
fn timestamp(unix: u64) -> String {
    let (days, second) = ((unix / 86_400) as i64 + 719_468, unix % 86_400);
    let era = days / 146_097;
    let of_era = days % 146_097;
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + i64::from(month <= 2);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{:02}", second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(client: &mut RasClient, text: &str) -> String {
        match client.command(text.as_bytes()) {
            RasReply::Line(line) => line,
            RasReply::Status => "the report".to_owned(),
        }
    }

    #[test]
    fn the_commands_of_ncclras_are_understood() {
        let mut client = RasClient::default();
        assert_eq!(line(&mut client, "CLIENT PROTOCOL 2"), "SERVER PROTOCOL 2\n");
        assert_eq!(line(&mut client, "client protocol 1\r"), "SERVER PROTOCOL 2\n");
        assert_eq!(line(&mut client, "TIMEOUT 7"), "OK\n");
        assert_eq!(client.timeout, Duration::from_secs(7));
        assert_eq!(line(&mut client, "TIMEOUT 0"), "OK\n");
        assert_eq!(client.timeout, TIMEOUT_MAX);
        for wrong in [
            "TIMEOUT -1",
            "TIMEOUT x",
            "TIMEOUT inf",
            "TIMEOUT nan",
            "SET FORMAT xml",
            "STATUSES",
            "CONTROL x",
            "",
        ] {
            assert!(line(&mut client, wrong).starts_with("ERROR: "), "{wrong}");
        }
        assert_eq!(line(&mut client, "SET FORMAT JSON"), "OK\n");
        assert!(client.is_json);
        assert_eq!(line(&mut client, "set format text"), "OK\n");
        assert!(!client.is_json && !client.is_verbose);
        assert_eq!(client.command(b"STATUS"), RasReply::Status);
        assert_eq!(client.command(b"VERBOSE STATUS"), RasReply::Status);
        assert!(client.is_verbose);
        assert_eq!(line(&mut client, "\u{fffd}"), "ERROR: Unknown command \u{fffd}\n");
    }

    #[test]
    fn times_are_written_as_days_and_hours() {
        assert_eq!(timestamp(0), "1970-01-01 00:00:00");
        assert_eq!(timestamp(951_782_399), "2000-02-28 23:59:59");
        assert_eq!(timestamp(951_868_799), "2000-02-29 23:59:59");
        assert_eq!(timestamp(1_795_416_022), "2026-11-23 06:40:22");
    }

    #[test]
    fn functions_are_spelt_as_ncclras_does() {
        assert_eq!(
            (nccl_name("all_reduce"), nccl_name("reduce_scatter")),
            ("AllReduce".into(), "ReduceScatter".into())
        );
    }
}

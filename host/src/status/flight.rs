//! Flight records as PyTorch writes them: JSON with the fields of its flight recorder, one file for each rank of the job.
//!
//! Fields and names: PyTorch's page "Flight Recorder for Debugging" (docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html),
//! and what its analyser reads of them (`tools/flight_recorder/components`).

use super::report::{CommunicatorReport, RankReport};
use super::{Records, Subject};
use crate::launch::Recorded;
use crate::log;
use oxccl_shared::abi::{DataType, Extent, Func};
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// The version of PyTorch's format.
pub const FLIGHT_VERSION: &str = "2.5";

/// The flight record of one rank of the job.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct FlightFile {
    /// The rank: in the largest communicator of the process.
    pub rank: u32,
    /// PyTorch's dictionary.
    pub record: Value,
}

/// One communicator of the process.
struct Part<'a> {
    subject: &'a dyn Subject,
    report: CommunicatorReport,
}

/// The flight records of this process: one, unless it has several ranks of its largest communicator.
pub(super) fn flight_files(subjects: &[Arc<dyn Subject>]) -> Vec<FlightFile> {
    let parts: Vec<Part<'_>> = subjects
        .iter()
        .map(|subject| Part { subject: &**subject, report: subject.report(0, false) })
        .collect();
    // The oldest of the largest.
    let Some(world) = parts.iter().rev().max_by_key(|part| part.report.size) else { return Vec::new() };
    let id = &world.report.id;
    let owners: Vec<&Part<'_>> =
        parts.iter().filter(|part| part.report.id == *id && !id.is_empty()).collect();
    if owners.len() <= 1 {
        let all: Vec<&Part<'_>> = parts.iter().collect();
        return vec![FlightFile { rank: world.report.rank, record: record(&all, world) }];
    }
    let file = |owner: &&Part<'_>| {
        let rank = owner.report.rank;
        let is_its = |part: &&Part<'_>| {
            part.report.id == *id && part.report.rank == rank
                || part.report.id != *id && part.subject.world_rank() == rank
        };
        let its: Vec<&Part<'_>> = parts.iter().filter(is_its).collect();
        FlightFile { rank, record: record(&its, owner) }
    };
    owners.iter().map(file).collect()
}

/// Writes them to files, whole or not at all, with the rank behind `prefix`.
pub(super) fn write_files(subjects: &[Arc<dyn Subject>], prefix: &str) {
    for FlightFile { rank, record } in flight_files(subjects) {
        let path = PathBuf::from(format!("{prefix}{rank}"));
        match write_whole(&path, record.to_string().as_bytes()) {
            Ok(()) => tracing::warn!("the flight record of rank {rank} is in {}", path.display()),
            Err(error) => {
                tracing::warn!(%error, "the flight record of rank {rank} cannot be written to {}", path.display())
            }
        }
    }
}

/// Through a file that nobody else has made, and follows no link.
fn write_whole(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}.{:08x}", std::process::id(), getrandom::u32().unwrap_or_default()));
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::open(Path::new(&name), flags, Mode::RUSR | Mode::WUSR)?;
    let written = File::from(fd).write_all(bytes).and_then(|()| std::fs::rename(&name, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&name);
    }
    written
}

/// PyTorch's dictionary.
fn record(parts: &[&Part<'_>], world: &Part<'_>) -> Value {
    let (mut groups, mut status) = (serde_json::Map::new(), serde_json::Map::new());
    let mut entries: Vec<(u64, Value)> = Vec::new();
    for (pg, part) in parts.iter().enumerate() {
        let CommunicatorReport { id, name, .. } = &part.report;
        let ranks = world_ranks(&part.report.ranks, &world.report.ranks, part.report.size);
        groups.insert(id.clone(), json!({ "name": id, "desc": name, "ranks": format!("{ranks:?}") }));
        let records = part.subject.records();
        let last = |is_it: &dyn Fn(&Recorded) -> bool| {
            let seqs =
                records.list.iter().filter(|found| !found.record.call.func.is_message() && is_it(found));
            seqs.map(|found| found.record.seq as i64 + 1).max().unwrap_or(-1)
        };
        let fate = json!({
            "last_enqueued_collective": last(&|_| true),
            "last_started_collective": last(&|found| records.state(found) != "scheduled"),
            "last_completed_collective": last(&|found| records.state(found) == "completed"),
        });
        status.insert(id.clone(), fate);
        entries.extend(entries_of(pg, part, &records));
    }
    entries.sort_by_key(|(began, _)| *began);
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    json!({
        "version": FLIGHT_VERSION,
        "nccl_version": crate::NCCL_VERSION,
        "host_name": log::host_name(),
        "pid": std::process::id(),
        "rank": world.report.rank,
        "time_written_ns": time.as_nanos() as u64,
        "pg_config": groups,
        "pg_status": status,
        "entries": entries.into_iter().map(|(_, entry)| entry).collect::<Vec<Value>>(),
    })
}

/// The ranks of a communicator by their numbers in the largest one, which are found by their processes; by their own where some process
/// has several or none there.
fn world_ranks(ranks: &[RankReport], world: &[RankReport], size: u32) -> Vec<u32> {
    let mut by_process = HashMap::new();
    for rank in world {
        by_process.entry((&rank.host, rank.pid)).or_insert_with(Vec::new).push(rank.rank);
    }
    let found = |rank: &RankReport| match by_process.get(&(&rank.host, rank.pid)).map(Vec::as_slice) {
        Some(&[only]) => Some(only),
        _ => None,
    };
    let found: Option<Vec<u32>> = ranks.iter().map(found).collect();
    found.filter(|found| found.len() == size as usize).unwrap_or_else(|| (0..size).collect())
}

fn entries_of<'a>(
    pg: usize,
    part: &'a Part<'_>,
    records: &'a Records,
) -> impl Iterator<Item = (u64, Value)> + 'a {
    let CommunicatorReport { id, name, rank, size, .. } = &part.report;
    let timeout_ms = part.subject.timeout().as_millis() as u64;
    let mut messages = 0u64;
    records.list.iter().map(move |found| {
        let call = &found.record.call;
        let is_message = call.func.is_message();
        messages += u64::from(is_message);
        let buffers = call.func.buffers(call.root.0 == *rank);
        let shape = |extent: Extent| extent.elems(call.count as usize, *size).unwrap_or(usize::MAX);
        let state = records.state(found);
        let entry = json!({
            "frames": [],
            "record_id": found.index,
            "pg_id": pg,
            "process_group": [id, name],
            "collective_seq_id": found.record.seq + u64::from(!is_message),
            "p2p_seq_id": messages,
            "op_id": found.index + 1,
            "profiling_name": profiling_name(call.func, *rank, call.root.0),
            "time_created_ns": found.began_ns,
            "input_sizes": [[shape(buffers.send)]],
            "input_dtypes": [dtype_name(call.dtype)],
            "output_sizes": [[shape(buffers.recv)]],
            "output_dtypes": [dtype_name(call.dtype)],
            "state": state,
            "time_discovered_started_ns": (state != "scheduled" && !records.is_stream).then_some(found.began_ns),
            "time_discovered_completed_ns": found.ended_ns,
            "duration_ms": found.ended_ns.map(|ended| ended.saturating_sub(found.began_ns) as f64 / 1e6),
            "retired": state == "completed",
            "timeout_ms": timeout_ms,
            "is_p2p": is_message,
        });
        (found.began_ns, entry)
    })
}

/// The name that PyTorch's backend over NCCL gives the function.
fn profiling_name(func: Func, me: u32, root: u32) -> String {
    let name = match func {
        Func::AllReduce => "all_reduce",
        Func::AllGather => "_all_gather_base",
        Func::ReduceScatter => "_reduce_scatter_base",
        Func::AllToAll => "all_to_all",
        Func::Broadcast => "broadcast",
        Func::Reduce => "reduce",
        Func::Scatter => "scatter",
        Func::Gather => "gather",
        Func::Barrier => "all_reduce_barrier",
        Func::Send => return format!("nccl:send {me}->{root}"),
        Func::Recv => return format!("nccl:recv {me}<-{root}"),
    };
    format!("nccl:{name}")
}

/// PyTorch's name of a type.
fn dtype_name(dtype: DataType) -> &'static str {
    match dtype {
        DataType::I8 => "Char",
        DataType::U8 => "Byte",
        DataType::I32 => "Int",
        DataType::U32 => "UInt32",
        DataType::I64 => "Long",
        DataType::U64 => "UInt64",
        DataType::F16 => "Half",
        DataType::BF16 => "BFloat16",
        DataType::F32 => "Float",
        DataType::F64 => "Double",
        DataType::F8E4M3 => "Float8_e4m3fn",
        DataType::F8E5M2 => "Float8_e5m2",
    }
}

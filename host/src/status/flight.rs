//! Flight records as PyTorch writes them: JSON with the fields of its flight recorder, one file for each rank of the job.
//!
//! Fields and names: PyTorch's page "Flight Recorder for Debugging" (docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html),
//! and what its analyser reads of them (`torch/distributed/flight_recorder/components`).

use super::report::{CommunicatorReport, RankReport};
use super::{Records, Subject};
use crate::launch::Recorded;
use crate::log;
use crate::os::{describe, write_within_limit};
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
                let error = describe(&error);
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
    let written =
        write_within_limit(|| File::from(fd).write_all(bytes)).and_then(|()| std::fs::rename(&name, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&name);
    }
    written
}

/// PyTorch's dictionary.
fn record(parts: &[&Part<'_>], world: &Part<'_>) -> Value {
    let (mut groups, mut status) = (serde_json::Map::new(), serde_json::Map::new());
    // A communicator whose ranks are still meeting has neither a name nor calls.
    let parts: Vec<&Part<'_>> = parts.iter().copied().filter(|part| !part.report.id.is_empty()).collect();
    let records: Vec<Records> = parts.iter().map(|part| part.subject.records()).collect();
    let lists: Vec<&[Recorded]> = records.iter().map(|records| &records.list[..]).collect();
    let (before, kept) = as_one_ring(&lists);
    let of = |part: &&Part<'_>| world_ranks(&part.report.ranks, &world.report.ranks, part.report.size);
    let ranks: Vec<Vec<u32>> = parts.iter().map(of).collect();
    for ((part, records), ranks) in parts.iter().zip(&records).zip(&ranks) {
        insert_group(&mut groups, &part.report.id, description(&part.report), ranks);
        status.insert(part.report.id.clone(), fate(records));
    }
    let mut entries = Vec::with_capacity(kept.len());
    for (record_id, (pg, found)) in (before..).zip(kept) {
        let (part, records) = (parts[pg], &records[pg]);
        let group = match found.record.call.func.is_message() {
            true => pair(&part.report, &ranks[pg], found, &mut groups),
            false => Group {
                name: part.report.id.clone(),
                profiling_name: profiling_name(found),
                nth: found.record.seq,
            },
        };
        entries.push(entry(record_id, pg, &group, part, records, found));
    }
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
        "entries": entries,
    })
}

/// The calls of all communicators by time, as if one ring had kept them: none that is older than what a communicator has forgotten.
/// Before them the number of calls that came before. PyTorch's analyser leaves out what is not in all files by such numbers.
fn as_one_ring<'a>(lists: &[&'a [Recorded]]) -> (u64, Vec<(usize, &'a Recorded)>) {
    let firsts = lists.iter().filter_map(|list| list.first());
    let forgotten = firsts.filter(|first| first.index > 0).map(|first| first.began_ns).max().unwrap_or(0);
    let (mut before, mut kept) = (0, Vec::new());
    for (pg, list) in lists.iter().enumerate() {
        let (old, young) = list.split_at(list.partition_point(|found| found.began_ns < forgotten));
        let next = young.first().map(|first| first.index);
        before += next.or(old.last().map(|last| last.index + 1)).unwrap_or(0);
        kept.extend(young.iter().map(|found| (pg, found)));
    }
    kept.sort_by_key(|(_, found)| found.began_ns);
    (before, kept)
}

/// How far the collectives of a communicator have come.
fn fate(records: &Records) -> Value {
    let last = |is_it: &dyn Fn(&Recorded) -> bool| {
        let all = records.list.iter().filter(|found| !found.record.call.func.is_message() && is_it(found));
        all.map(|found| found.record.seq as i64 + 1).max().unwrap_or(-1)
    };
    json!({
        "last_enqueued_collective": last(&|_| true),
        "last_started_collective": last(&|found| records.state(found) != "scheduled"),
        "last_completed_collective": last(&|found| records.state(found) == "completed"),
    })
}

fn insert_group(groups: &mut serde_json::Map<String, Value>, name: &str, desc: &str, ranks: &[u32]) {
    if !groups.contains_key(name) {
        groups.insert(name.into(), json!({ "name": name, "desc": desc, "ranks": format!("{ranks:?}") }));
    }
}

/// The user's name of a communicator, or PyTorch's word where there is none.
fn description(report: &CommunicatorReport) -> &str {
    if report.name.is_empty() || report.name == report.id { "undefined" } else { &report.name }
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

/// What the analyser is to compare a call with: those of the same number in the same group.
struct Group {
    name: String,
    profiling_name: String,
    /// Calls before it.
    nth: u64,
}

/// The group of a message: its two ranks, in this direction. The analyser takes an entry for a call of all ranks of its group, so that
/// a message in the communicator's group would miss the others.
fn pair(
    report: &CommunicatorReport,
    ranks: &[u32],
    found: &Recorded,
    groups: &mut serde_json::Map<String, Value>,
) -> Group {
    let CommunicatorReport { id, rank, .. } = report;
    let call = &found.record.call;
    let of = |rank: u32| ranks.get(rank as usize).copied().unwrap_or(rank);
    let (me, peer, is_send) = (of(*rank), of(call.root.0), call.func == Func::Send);
    let (src, dst) = if is_send { (me, peer) } else { (peer, me) };
    let name = format!("{id}:{src}->{dst}");
    let members = if src == dst { vec![src] } else { vec![src.min(dst), src.max(dst)] };
    insert_group(groups, &name, description(report), &members);
    // By their places in the group.
    let place = |rank: u32| usize::from(rank != members[0]);
    let profiling_name = match is_send {
        true => format!("nccl:send {}->{}", place(src), place(dst)),
        false => format!("nccl:recv {}<-{}", place(dst), place(src)),
    };
    // The two ends of a message of a rank to itself would be taken for one call.
    let nth = if src == dst { 2 * found.nth + u64::from(!is_send) } else { found.nth };
    Group { name, profiling_name, nth }
}

fn entry(
    record_id: u64,
    pg: usize,
    group: &Group,
    part: &Part<'_>,
    records: &Records,
    found: &Recorded,
) -> Value {
    let CommunicatorReport { rank, size, .. } = &part.report;
    let call = &found.record.call;
    let is_message = call.func.is_message();
    let buffers = match call.func {
        // In place on every rank, as PyTorch has them: the analyser compares their sizes.
        Func::Broadcast | Func::Reduce => Func::AllReduce.buffers(true),
        func => func.buffers(call.root.0 == *rank),
    };
    let shape = |extent: Extent| extent.elems(call.count as usize, *size).unwrap_or(usize::MAX);
    let state = records.state(found);
    let nth = group.nth + 1;
    // The call of a rank on a GPU only enqueues.
    let started = if records.is_stream { found.started_ns } else { Some(found.began_ns) };
    json!({
        "frames": [],
        "record_id": record_id,
        "pg_id": pg,
        "process_group": [group.name, description(&part.report)],
        "collective_seq_id": nth,
        "p2p_seq_id": if is_message { nth } else { 0 },
        "op_id": record_id + 1,
        "profiling_name": group.profiling_name,
        "time_created_ns": found.began_ns,
        "input_sizes": [[shape(buffers.send)]],
        "input_dtypes": [dtype_name(call.dtype)],
        "output_sizes": [[shape(buffers.recv)]],
        "output_dtypes": [dtype_name(call.dtype)],
        "state": state,
        "time_discovered_started_ns": started,
        "time_discovered_completed_ns": found.ended_ns,
        "duration_ms": found.ended_ns.map(|ended| ended.saturating_sub(started.unwrap_or(found.began_ns)) as f64 / 1e6),
        "retired": state == "completed",
        "timeout_ms": part.subject.timeout().as_millis() as u64,
        "is_p2p": is_message,
        "tag": found.mark.tag(),
        "stream": found.mark.stream(),
    })
}

/// The name that PyTorch's backend over NCCL gives the function.
fn profiling_name(found: &Recorded) -> String {
    let name = match found.record.call.func {
        Func::AllReduce => "all_reduce",
        Func::AllGather => "_all_gather_base",
        Func::ReduceScatter => "_reduce_scatter_base",
        Func::AllToAll => "all_to_all",
        Func::Broadcast => "broadcast",
        Func::Reduce => "reduce",
        Func::Scatter => "scatter",
        Func::Gather => "gather",
        Func::Barrier => "all_reduce_barrier",
        Func::Send => "send",
        Func::Recv => "recv",
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::Mark;
    use crate::plan::{Call, CallRecord};
    use oxccl_shared::abi::{Rank, RedOp};

    fn recorded(index: u64, began_ns: u64) -> Recorded {
        let call = Call { func: Func::Barrier, dtype: DataType::U8, op: RedOp::Sum, root: Rank(0), count: 0 };
        Recorded {
            index,
            record: CallRecord { seq: index, call },
            began_ns,
            started_ns: None,
            ended_ns: None,
            nth: 0,
            mark: Mark::default(),
        }
    }

    #[test]
    fn calls_of_several_communicators_are_numbered_as_if_one_ring_kept_them() {
        let forgetful: Vec<Recorded> = (7..10).map(|index| recorded(index, 100 + 10 * index)).collect();
        let whole: Vec<Recorded> =
            [(0, 5), (1, 165), (2, 175), (3, 999)].map(|(i, at)| recorded(i, at)).into();
        let silent = [recorded(0, 1), recorded(1, 2)];
        let (before, kept) = as_one_ring(&[&forgetful, &whole, &silent, &[]]);
        let kept: Vec<(usize, u64)> = kept.iter().map(|(pg, found)| (*pg, found.index)).collect();
        assert_eq!(kept, [(0, 7), (1, 2), (0, 8), (0, 9), (1, 3)]);
        assert_eq!(before, 7 + 2 + 2);
        let (before, kept) = as_one_ring(&[&whole, &silent]);
        assert_eq!((before, kept.len()), (0, 6));
    }

    #[test]
    fn a_message_belongs_to_its_two_ends_and_direction() {
        let mut report = CommunicatorReport::new(2, 3);
        "c".clone_into(&mut report.id);
        let mut groups = serde_json::Map::new();
        // Rank 2 is rank 4 of the job, rank 0 rank 9.
        let mut end = |func: Func, peer: u32, nth: u64| {
            let mut found = recorded(0, 0);
            (found.record.call.func, found.record.call.root, found.nth) = (func, Rank(peer), nth);
            let Group { name, profiling_name, nth } = pair(&report, &[9, 1, 4], &found, &mut groups);
            (name, profiling_name, nth)
        };
        assert_eq!(end(Func::Send, 0, 3), ("c:4->9".into(), "nccl:send 0->1".into(), 3));
        assert_eq!(end(Func::Recv, 0, 1), ("c:9->4".into(), "nccl:recv 0<-1".into(), 1));
        assert_eq!(end(Func::Send, 2, 1), ("c:4->4".into(), "nccl:send 0->0".into(), 2));
        assert_eq!(end(Func::Recv, 2, 1), ("c:4->4".into(), "nccl:recv 0<-0".into(), 3));
        assert_eq!(groups["c:9->4"]["ranks"], "[4, 9]");
        assert_eq!(groups["c:4->4"]["ranks"], "[4]");
    }
}

//! Layer: tests.
//! Takes: flight records, and PyTorch's analyser where it is installed.
//! Gives: whether a record has the keys, types and order that the analyser reads; what the analyser says of a job.
//! Never: has PyTorch's code, or needs PyTorch.

use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Functions by the names that the analyser accepts.
const NAMES: [&str; 9] = [
    "all_reduce",
    "_all_gather_base",
    "_reduce_scatter_base",
    "all_to_all",
    "broadcast",
    "reduce",
    "scatter",
    "gather",
    "all_reduce_barrier",
];

/// Panics unless the record has what PyTorch's analyser reads, in the types that it wants.
pub fn check(record: &Value) {
    let (major, minor) =
        record["version"].as_str().and_then(|version| version.split_once('.')).expect("a version");
    assert!(major == "2" && minor.parse::<u32>().is_ok_and(|minor| minor >= 5), "{major}.{minor}");
    let groups = record["pg_config"].as_object().expect("groups");
    for (name, group) in groups {
        assert_eq!(group["name"].as_str(), Some(name.as_str()));
        let ranks: Vec<u32> =
            serde_json::from_str(group["ranks"].as_str().expect("a list as text")).expect("a list");
        assert!(ranks.is_sorted() && !ranks.is_empty() && group["desc"].is_string(), "{group}");
    }
    let entries = record["entries"].as_array().expect("entries");
    for entry in entries {
        check_entry(entry, groups);
    }
    // By these the analyser finds where all files begin.
    let ids: Vec<u64> = entries.iter().filter_map(|entry| entry["record_id"].as_u64()).collect();
    assert!(ids.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{ids:?}");
    // It takes neighbours with one number in one group for one coalesced call.
    let mut seen = std::collections::BTreeSet::new();
    for entry in entries {
        let number = (entry["process_group"][0].as_str(), entry["collective_seq_id"].as_u64());
        assert!(seen.insert(number), "{number:?} twice");
    }
}

fn check_entry(entry: &Value, groups: &serde_json::Map<String, Value>) {
    let [pg, desc] = &entry["process_group"].as_array().expect("a pair")[..] else { panic!("{entry}") };
    let group = groups.get(pg.as_str().expect("a name")).expect("a group of the record");
    assert_eq!(&group["desc"], desc);
    let ranks: Vec<usize> = serde_json::from_str(group["ranks"].as_str().unwrap_or("")).expect("a list");
    let name = entry["profiling_name"].as_str().and_then(|name| name.strip_prefix("nccl:")).expect("a name");
    let (func, ends) = name.split_once(' ').unwrap_or((name, ""));
    let is_message = match func {
        // Its ends by their places in the group.
        "send" | "recv" => {
            let (a, b) = ends.split_once(if func == "send" { "->" } else { "<-" }).expect("two ends");
            let place = |text: &str| text.parse::<usize>().expect("a place");
            assert!(place(a) < ranks.len() && place(b) < ranks.len() && ranks.len() <= 2, "{entry}");
            true
        }
        _ => {
            assert!(NAMES.contains(&func), "{func}");
            false
        }
    };
    assert_eq!(entry["is_p2p"].as_bool(), Some(is_message));
    assert!(
        ["scheduled", "started", "completed"].contains(&entry["state"].as_str().unwrap_or("")),
        "{entry}"
    );
    for sizes in ["input_sizes", "output_sizes"] {
        assert!(entry[sizes][0][0].is_u64(), "{entry}");
    }
    assert!(entry["input_dtypes"][0].is_string() && entry["output_dtypes"][0].is_string());
    for number in
        ["record_id", "pg_id", "collective_seq_id", "p2p_seq_id", "op_id", "time_created_ns", "timeout_ms"]
    {
        assert!(entry[number].is_u64(), "{number}: {entry}");
    }
    assert!(entry["retired"].is_boolean() && entry["frames"].is_array(), "{entry}");
    assert_eq!(entry["time_discovered_completed_ns"].is_u64(), entry["state"] == "completed");
}

/// What the analyser says of one call, from the database that it makes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// The group's name.
    pub group: String,
    /// The function.
    pub name: String,
    /// The number in the group.
    pub seq: u64,
    /// Ranks that have not called it.
    pub missing: Vec<u32>,
    /// Ranks whose call is another, and how it differs.
    pub culprits: Vec<(u32, String)>,
    /// Whether the call is no match of all ranks.
    pub is_unmatched: bool,
}

/// Turns the JSON files into pickles, runs the analyser, prints its database as JSON, and what it logged.
const ANALYSE: &str = r#"
import json, os, pickle, sys
try:
    from torch.distributed.flight_recorder import fr_trace
except ImportError:
    sys.exit(77)
folder = sys.argv[1]
for name in os.listdir(folder):
    path = os.path.join(folder, name)
    with open(path) as f: record = json.load(f)
    with open(path, "wb") as f: pickle.dump(record, f)
out = folder + ".db"
fr_trace.main([folder, "-o", out, *sys.argv[2:]])
with open(out, "rb") as f: types, db = pickle.load(f)
whole = {call.collective_id for call in db.ncclcalls if call.collective_id is not None}
print(json.dumps([{
    "group": c.group_id, "name": c.collective_name, "seq": c.collective_seq_id,
    "missing": sorted(c.missing_ranks or []), "whole": c.id in whole,
    "culprits": sorted([r, m.type_of_mismatch.state.name] for r, m in (c.mismatch_collectives or {}).items()),
} for c in db.collectives]))
"#;

/// What PyTorch's analyser says of the records in a folder, one file for each rank, which it rewrites as pickles; and what it logs.
/// `None`: there is no PyTorch here.
pub fn analyse(folder: &Path, options: &[&str]) -> Option<(Vec<Verdict>, String)> {
    let output = Command::new("python3").args(["-c", ANALYSE]).arg(folder).args(options).output().ok()?;
    if output.status.code() == Some(77) {
        return None;
    }
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{log}");
    let verdicts: Vec<Value> = serde_json::from_slice(&output.stdout).expect("JSON");
    let ranks = |value: &Value| -> Vec<u32> { serde_json::from_value(value.clone()).expect("ranks") };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let one = |found: &Value| Verdict {
        group: text(&found["group"]),
        name: text(&found["name"]),
        seq: found["seq"].as_u64().unwrap_or(0),
        missing: ranks(&found["missing"]),
        culprits: serde_json::from_value(found["culprits"].clone()).expect("ranks and words"),
        is_unmatched: found["whole"] == false,
    };
    Some((verdicts.iter().map(one).collect(), log))
}

//! Plans of calls by facts, pinned: what is decided today stays so unless somebody says otherwise.
//! `OXCCL_BLESS=1` writes the expected plans anew.

mod ordered;
pub(crate) mod over_hosts;
mod scenes;

use super::Call;
use oxccl_shared::abi::{DataType, Func, Rank, RedOp, fnv1a};
use scenes::Scene;
use std::fmt::Write;
use std::path::Path;

const FUNCS: [Func; 7] = [
    Func::AllReduce,
    Func::AllGather,
    Func::ReduceScatter,
    Func::Broadcast,
    Func::Reduce,
    Func::Barrier,
    Func::AllToAll,
];

/// Shown in the file, of all-reduce; what lies between, and the other functions, are in the digests.
const SHOWN: [u64; 5] = [1, 600, 30_000, 5_000_000, 1 << 30];

/// Elements and operators of what is digested.
const DIGESTED: [(DataType, RedOp); 4] = [
    (DataType::U8, RedOp::Max),
    (DataType::BF16, RedOp::Avg),
    (DataType::F32, RedOp::PreMulSum),
    (DataType::F64, RedOp::Prod),
];

/// Lengths around every power of two, and between them.
fn lengths() -> impl Iterator<Item = u64> {
    (0..34).flat_map(|power| {
        let bytes = 1u64 << power;
        [bytes - 1, bytes, bytes + 1, bytes + bytes / 2]
    })
}

fn call(func: Func, dtype: DataType, op: RedOp, count: u64) -> Call {
    Call { func, dtype, op, root: Rank(0), count: if func == Func::Barrier { 0 } else { count } }
}

fn digest(lines: impl Iterator<Item = String>) -> u64 {
    lines.fold(fnv1a::BASIS, |digest, line| fnv1a::extend(digest, line.as_bytes()))
}

/// The section of a scene.
fn section(out: &mut String, name: &str, scene: &Scene) {
    let _ = writeln!(out, "\n[{name}]");
    let funcs = || FUNCS.into_iter().filter(|func| scene.plans(*func));
    for func in funcs() {
        for count in SHOWN.iter().filter(|_| func == Func::AllReduce) {
            let call = call(func, DataType::F32, RedOp::Sum, *count);
            let _ = writeln!(out, "{func} {count}: {}", scene.plan(&call));
        }
        let plans = DIGESTED
            .iter()
            .flat_map(|(dtype, op)| lengths().map(|count| scene.plan(&call(func, *dtype, *op, count))));
        let _ = writeln!(out, "{func}: {:016x}", digest(plans));
    }
    let explained = funcs().filter(|func| super::tuning::TUNED.contains(func)).flat_map(|func| {
        [0, 3000, 1 << 26].map(|count| scene.explain(&call(func, DataType::F32, RedOp::Sum, count)))
    });
    let _ = writeln!(out, "explanations: {:016x}", digest(explained));
    for line in scene.others(lengths()) {
        let _ = writeln!(out, "{line}");
    }
}

#[test]
fn plans_stay_as_they_are() {
    let mut found = String::from(
        "# What is planned for calls of a count, by scene: see mod.rs. Digests are of more counts than are shown.\n",
    );
    for (name, scene) in scenes::all() {
        section(&mut found, &name, &scene);
    }
    for line in scenes::checks() {
        let _ = writeln!(found, "{line}");
    }
    hold("plans.txt", &found);
}

/// Compares with a file of this folder, line by line.
fn hold(file: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/plan/tests").join(file);
    if std::env::var_os("OXCCL_BLESS").is_some() {
        std::fs::write(&path, found).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap();
    let mut section = "";
    for (number, (expected, found)) in (1..).zip(expected.lines().zip(found.lines())) {
        section = if found.starts_with('[') { found } else { section };
        assert_eq!(found, expected, "{section}, line {number} of {}", path.display());
    }
    assert_eq!(found.lines().count(), expected.lines().count());
}

//! What each access of `shared::sync` becomes on a GPU: which instruction, of which width, with which order and scope.
//!
//! The kernels of `tests/ptx/` are compiled by `cargo xtask build-ptx`; no GPU is needed, but a compiler for PTX is.
//! `cargo xtask test --only ptx` runs these tests where one can be had.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// The oldest generation supported, and the one with most instructions used.
const GENERATIONS: [u32; 2] = [70, 90];

struct Probes {
    folder: PathBuf,
    /// Output of the build.
    said: String,
}

/// Builds the probes once.
fn probes() -> &'static Probes {
    static PROBES: OnceLock<Probes> = OnceLock::new();
    PROBES.get_or_init(|| {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("ptx-probes");
        // What an earlier run left would pass for this one's.
        let _ = std::fs::remove_dir_all(&folder);
        let output = Command::new(env!("CARGO"))
            .args(["run", "--quiet", "--package", "xtask", "--", "build-ptx", "--crate", "tests/ptx"])
            .args(["--sm", "70,90", "--out"])
            .arg(&folder)
            .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
            .output()
            .expect("cargo starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        // The status shows only that some probes break the rules, which they do on purpose.
        assert!(folder.join("manifest.json").is_file(), "the probes were not built:\n{said}");
        Probes { folder, said }
    })
}

/// The instructions of a probe that touch memory or order it, without operands; parameters are left out.
fn memory_instructions(probe: &str, sm: u32) -> Vec<String> {
    let path = probes().folder.join(format!("sm_{sm}/probe_{probe}.ptx"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let opcodes = text.lines().filter_map(|line| line.split_whitespace().find(|word| !word.starts_with('@')));
    let opcodes = opcodes.map(|opcode| opcode.trim_end_matches(';'));
    let touches = |opcode: &&str| {
        let family = opcode.split('.').next().unwrap_or(opcode);
        ["ld", "st", "fence", "membar", "atom", "red"].contains(&family) && !opcode.contains(".param")
    };
    opcodes.filter(touches).map(String::from).collect()
}

/// Compares probes with the expected instructions, on every generation; reports all differences at once.
fn assert_golden(golden: &[(String, Vec<&str>)]) {
    let mut differences = String::new();
    for sm in GENERATIONS {
        for (probe, expected) in golden {
            let found = memory_instructions(probe, sm);
            if found != *expected {
                differences += &format!("sm_{sm} {probe}: {found:?}, expected {expected:?}\n");
            }
        }
    }
    assert!(differences.is_empty(), "{differences}");
}

const SCOPES: [(&str, &str); 3] = [("block", "cta"), ("gpu", "gpu"), ("sys", "sys")];

#[test]
#[ignore = "needs a compiler for PTX: cargo xtask test --only ptx"]
fn needs_ptx_words_have_their_order_scope_and_width() {
    let mut golden: BTreeMap<String, [String; 2]> = BTreeMap::new();
    for (scope, qualifier) in SCOPES {
        for bits in ["32", "64"] {
            let plain = format!(".global.b{bits}");
            for order in ["relaxed", "acquire"] {
                let load = format!("ld.{order}.{qualifier}.global.u{bits}");
                golden.insert(format!("word_u{bits}_{scope}_load_{order}"), [load, format!("st{plain}")]);
            }
            for order in ["relaxed", "release"] {
                let store = format!("st.{order}.{qualifier}.global.u{bits}");
                golden.insert(format!("word_u{bits}_{scope}_store_{order}"), [store, String::new()]);
            }
        }
    }
    assert_eq!(golden.len(), 24);
    let golden: Vec<(String, Vec<&str>)> = golden
        .iter()
        .map(|(probe, [first, second])| {
            let both = [first.as_str(), second.as_str()];
            (probe.clone(), both.into_iter().filter(|opcode| !opcode.is_empty()).collect())
        })
        .collect();
    assert_golden(&golden);
}

#[test]
#[ignore = "needs a compiler for PTX: cargo xtask test --only ptx"]
fn needs_ptx_pairs_move_16_bytes_with_one_instruction() {
    for (scope, qualifier) in SCOPES {
        let load = |order: &str| format!("ld.{order}.{qualifier}.global.v2.u64");
        let (relaxed, acquire) = (load("relaxed"), load("acquire"));
        let store = format!("st.relaxed.{qualifier}.global.v2.u64");
        assert_golden(&[
            // The halves go to an output of no alignment to speak of, one by one.
            (format!("pair_{scope}_load_relaxed"), vec![&relaxed, "st.global.b64", "st.global.b64"]),
            (format!("pair_{scope}_load_acquire"), vec![&acquire, "st.global.b64", "st.global.b64"]),
            (format!("pair_{scope}_store_relaxed"), vec![&store]),
        ]);
    }
}

#[test]
#[ignore = "needs a compiler for PTX: cargo xtask test --only ptx"]
fn needs_ptx_fences_and_flags_keep_their_place() {
    assert_golden(&[
        ("fence_acquire".into(), vec!["fence.acq_rel.sys"]),
        ("fence_release".into(), vec!["fence.acq_rel.sys"]),
        ("fence_release_kernels".into(), vec![]),
        ("fence_release_loads".into(), vec![]),
        // Data before the flag; the flag before the data; nothing merged.
        ("publish".into(), vec!["st.global.b64", "st.release.sys.global.u64"]),
        ("await".into(), vec!["ld.acquire.sys.global.u64", "ld.global.b64", "st.global.b64"]),
        (
            "two_loads".into(),
            vec!["ld.relaxed.sys.global.u64", "ld.relaxed.sys.global.u64", "st.global.b64", "st.global.b64"],
        ),
    ]);
}

/// A reference promises the compiler that nobody writes, so it reads through a cache that sees no later store. Memory
/// that others write is therefore read through pointers and words.
#[test]
#[ignore = "needs a compiler for PTX: cargo xtask test --only ptx"]
fn needs_ptx_a_reference_to_data_of_others_is_read_through_the_wrong_cache() {
    let expected = vec!["ld.acquire.sys.global.u64", "ld.global.nc.b64", "st.global.b64"];
    assert_golden(&[("await_behind_a_reference".into(), expected)]);
}

/// The table of docs/memory-model.md: rustc's own loads, stores and fences would do, its read-modify-writes would not.
#[test]
#[ignore = "needs a compiler for PTX: cargo xtask test --only ptx"]
fn needs_ptx_rustc_loses_the_order_of_a_read_modify_write() {
    let mut golden = Vec::new();
    for order in ["relaxed", "acquire"] {
        golden.push((
            format!("core_load_{order}"),
            vec![format!("ld.{order}.sys.global.b64"), "st.global.b64".into()],
        ));
    }
    for order in ["relaxed", "release"] {
        golden.push((format!("core_store_{order}"), vec![format!("st.{order}.sys.global.b64")]));
    }
    golden.push(("core_fence_acq_rel".into(), vec!["fence.acq_rel.sys".into()]));
    golden.push(("core_fence_seq_cst".into(), vec!["fence.sc.sys".into()]));
    let exchange = vec!["atom.acq_rel.sys.global.cas.b64".into(), "st.global.b64".into()];
    golden.push(("core_compare_exchange".into(), exchange));
    for order in ["relaxed", "acq_rel", "seq_cst"] {
        // Neither order nor scope, whatever the source asked for. When this fails, rustc has learnt it.
        let add = vec!["atom.global.add.u64".into(), "st.global.b64".into()];
        golden.push((format!("core_fetch_add_{order}"), add));
    }
    golden.push(("core_swap_acq_rel".into(), vec!["atom.global.exch.b64".into(), "st.global.b64".into()]));
    let golden: Vec<(String, Vec<&str>)> = golden
        .iter()
        .map(|(probe, opcodes)| (probe.clone(), opcodes.iter().map(String::as_str).collect()))
        .collect();
    assert_golden(&golden);
}

/// The build finds by itself what the tests above pin as wrong.
#[test]
#[ignore = "needs a compiler for PTX: cargo xtask test --only ptx"]
fn needs_ptx_the_build_complains_of_what_is_wrong() {
    let said = &probes().said;
    for probe in ["fetch_add_relaxed", "fetch_add_acq_rel", "fetch_add_seq_cst", "swap_acq_rel"] {
        for sm in GENERATIONS {
            assert!(
                said.contains(&format!("error: sm_{sm}: probe_core_{probe}: `atom.")),
                "{probe}:\n{said}"
            );
        }
    }
    assert!(!said.contains("probe_core_compare_exchange:") && !said.contains("probe_word_"), "{said}");
}

//! What AMD GPUs execute for each access of `shared::sync`, for the barrier and for LDS. The kernels are compiled and read, not run.
//!
//! `cargo xtask test --only amdgcn` builds the probes of `tests/amdgcn/` and some of the library's kernels, and runs these tests;
//! `OXCCL_AMDGCN` is the folder with both.

use std::path::PathBuf;

/// MI200 and MI300.
const PROCESSORS: [&str; 2] = ["gfx90a", "gfx942"];

/// Everything that this wavefront has under way.
const WAIT: &str = "s_waitcnt vmcnt(0) expcnt(0) lgkmcnt(0)";

fn assembly(of: &str, cpu: &str) -> String {
    let folder = std::env::var_os("OXCCL_AMDGCN").expect("OXCCL_AMDGCN: cargo xtask test --only amdgcn");
    let path = PathBuf::from(folder).join(of).join(cpu).join("oxccl.s");
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The instructions of a kernel that touch memory or order it, with their cache bits and without operands. Waits for less than
/// everything are the compiler's affair.
fn memory_instructions(assembly: &str, kernel: &str) -> Vec<String> {
    let (_, body) = assembly.split_once(&format!("\n{kernel}:")).unwrap_or_else(|| panic!("no {kernel}"));
    let body = body.split("\n.Lfunc_end").next().unwrap_or(body);
    body.lines().filter_map(|line| instruction(line.split(';').next().unwrap_or(line))).collect()
}

fn instruction(line: &str) -> Option<String> {
    let mut words = line.split_whitespace();
    let opcode = words.next()?;
    if line.trim() == WAIT || opcode == "s_barrier" {
        return Some(line.trim().into());
    }
    let is_access =
        ["global_", "flat_", "buffer_", "ds_", "scratch_"].iter().any(|kind| opcode.starts_with(kind));
    let bits = words.filter(|word| ["sc0", "sc1", "nt", "glc", "slc"].contains(word));
    is_access.then(|| std::iter::once(opcode).chain(bits).collect::<Vec<_>>().join(" "))
}

/// What a processor adds to an access of system scope, and what it does to its caches.
struct Coherence {
    load: &'static str,
    store: &'static str,
    acquire: &'static [&'static str],
    release: [&'static str; 2],
}

fn coherence(cpu: &str) -> Coherence {
    match cpu {
        "gfx90a" => Coherence {
            load: " glc",
            store: "",
            acquire: &["buffer_invl2", "buffer_wbinvl1_vol"],
            release: ["buffer_wbl2", WAIT],
        },
        _ => Coherence {
            load: " sc0 sc1",
            store: " sc0 sc1",
            acquire: &["buffer_inv sc0 sc1"],
            release: ["buffer_wbl2 sc0 sc1", WAIT],
        },
    }
}

/// Compares probes with the expected instructions, on every processor; reports all differences at once.
fn assert_golden(golden: impl Fn(&Coherence) -> Vec<(String, Vec<String>)>) {
    let mut differences = String::new();
    for cpu in PROCESSORS {
        let assembly = assembly("probes", cpu);
        for (probe, expected) in golden(&coherence(cpu)) {
            let found = memory_instructions(&assembly, &format!("probe_{probe}"));
            if found != expected {
                differences += &format!("{cpu} {probe}: {found:?}, expected {expected:?}\n");
            }
        }
    }
    assert!(differences.is_empty(), "{differences}");
}

fn strings<'a>(parts: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    parts.into_iter().map(String::from).collect()
}

/// Every scope is the system's: neither of these processors is told another by rustc.
#[test]
#[ignore = "needs kernels: cargo xtask test --only amdgcn"]
fn needs_amdgcn_words_have_their_order_and_width() {
    assert_golden(|Coherence { load, store, acquire, release }| {
        let mut golden = Vec::new();
        for (bits, width) in [("32", "dword"), ("64", "dwordx2")] {
            let (read, write) =
                (format!("global_load_{width}{load}"), format!("global_store_{width}{store}"));
            let out = format!("global_store_{width}");
            for scope in ["block", "gpu", "sys"] {
                let of = |access: &str| format!("word_u{bits}_{scope}_{access}");
                golden.push((of("load_relaxed"), strings([&*read, &*out])));
                let acquired = [&*read].into_iter().chain(acquire.iter().copied()).chain([&*out]);
                golden.push((of("load_acquire"), strings(acquired)));
                golden.push((of("store_relaxed"), strings([&*write])));
                golden.push((of("store_release"), strings(release.iter().copied().chain([&*write]))));
            }
        }
        assert_eq!(golden.len(), 24);
        golden
    });
}

#[test]
#[ignore = "needs kernels: cargo xtask test --only amdgcn"]
fn needs_amdgcn_fences_and_flags_keep_their_place() {
    assert_golden(|Coherence { load, store, acquire, release }| {
        let (data, flag) = ("global_store_dwordx2", format!("global_store_dwordx2{store}"));
        let look = format!("global_load_dwordx2{load}");
        let publish = [data].into_iter().chain(*release).chain([&*flag]);
        let wait = [&*look].into_iter().chain(acquire.iter().copied()).chain(["global_load_dwordx2", data]);
        vec![
            ("fence_acquire".into(), strings(acquire.iter().copied())),
            ("fence_release".into(), strings(*release)),
            ("publish".into(), strings(publish)),
            ("await".into(), strings(wait)),
            ("two_loads".into(), strings([&*look, data, &*look, data])),
        ]
    });
}

/// LLVM 22 drops the wait for the cache's write-back where it knows of no access under way, as behind a barrier; LLVM's pull request
/// 178316 tells the story. The library waits by itself.
#[test]
#[ignore = "needs kernels: cargo xtask test --only amdgcn"]
fn needs_amdgcn_a_release_behind_a_barrier_waits_for_the_write_back() {
    assert_golden(|Coherence { store, release, .. }| {
        let flag = format!("global_store_dwordx2{store}");
        let clear = ["ds_write_b32", "ds_write_b32"];
        let barrier = ["global_store_dwordx2", WAIT, "s_barrier"];
        let all = clear.into_iter().chain(barrier).chain(*release).chain([&*flag]);
        vec![("publish_after_barrier".into(), strings(all))]
    });
}

/// In the kernels too: no write-back of a cache without its wait.
#[test]
#[ignore = "needs kernels: cargo xtask test --only amdgcn"]
fn needs_amdgcn_kernels_wait_for_every_write_back() {
    for cpu in PROCESSORS {
        let text = assembly("kernels", cpu);
        let instructions: Vec<String> =
            text.lines().filter_map(|line| instruction(line.split(';').next().unwrap_or(line))).collect();
        let write_backs: Vec<_> =
            instructions.windows(2).filter(|pair| pair[0].starts_with("buffer_wbl2")).collect();
        assert!(!write_backs.is_empty());
        assert!(write_backs.iter().all(|pair| pair[1] == WAIT), "{cpu}: {write_backs:?}");
        let barriers = instructions.windows(2).filter(|pair| pair[1] == "s_barrier").collect::<Vec<_>>();
        assert!(barriers.len() > 5 && barriers.iter().all(|pair| pair[0] == WAIT), "{cpu}: {barriers:?}");
        assert!(text.contains("ds_read") && text.contains("ds_write"), "{cpu}: connections are not in LDS");
    }
}

#[test]
#[ignore = "needs kernels: cargo xtask test --only amdgcn"]
fn needs_amdgcn_blocks_meet_at_barriers_and_share_lds() {
    // What every kernel begins with: the votes of its wavefront, for two turns.
    let clear = ["ds_write_b32", "ds_write_b32"];
    assert_golden(|_| {
        let store = "global_store_dwordx2";
        let lds = clear.into_iter().chain(["ds_write_b64", WAIT, "s_barrier", "ds_read_b64", store]);
        vec![
            ("barrier".into(), strings(clear.into_iter().chain([store, WAIT, "s_barrier", store]))),
            ("lds".into(), strings(lds)),
            ("pack".into(), strings(["global_load_dwordx4", "global_store_dwordx4"])),
        ]
    });
    for cpu in PROCESSORS {
        let vote = memory_instructions(&assembly("probes", cpu), "probe_vote");
        let barrier = vote.iter().position(|found| found == "s_barrier").unwrap();
        assert_eq!(vote[..barrier], strings(clear.into_iter().chain(["ds_write_b32", WAIT])), "{cpu}");
        assert_eq!(vote.iter().filter(|found| *found == "s_barrier").count(), 1, "{cpu}");
        assert!(vote[barrier + 1..].iter().any(|found| found == "ds_read_b32"), "{cpu}: {vote:?}");
    }
}

/// Wavefronts are 64 wide, and there is no kernel by LL128.
#[test]
#[ignore = "needs kernels: cargo xtask test --only amdgcn"]
fn needs_amdgcn_wavefronts_have_64_threads() {
    for cpu in PROCESSORS {
        let text = assembly("kernels", cpu);
        let kernels = text.matches(".symbol:").count();
        assert!(kernels > 4 && text.matches(".wavefront_size: 64").count() == kernels, "{cpu}: {kernels}");
        assert!(
            text.contains(&format!("amdhsa.target:   amdgcn-amd-amdhsa--{cpu}")) && !text.contains("_ll128")
        );
    }
}

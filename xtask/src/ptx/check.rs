//! Layer: xtask / ptx.
//! Takes: a module's text, and what the assembler said of it.
//! Gives: a complaint, which names the entry and the way out, for each kernel that would be slow, fail to launch, or
//! break the memory model.
//! Never: looks at what a kernel computes.

use super::cached;
use super::text::{Item, Kind, Ptx, instructions};
use super::usage::Usage;
use anyhow::Result;

/// Of one multiprocessor, on every generation since sm_70.
const REGISTERS: u32 = 65_536;
/// Registers are handed out to a thread by this many.
const REGISTER_UNIT: u32 = 8;
const WARP: u32 = 32;
/// The hardware's limit, for entries that state none of their own.
const MAX_THREADS: u32 = 1024;

/// The kernels that move data: a spill there is paid on every step.
const HOT: &str = "oxccl_";
/// What an entry may spill, in bytes of stores and loads together: bookkeeping between one slice and the next, which a slice
/// of many kilobytes does not notice. The loops over data are functions of their own or much tighter than this.
const BOOKKEEPING_BYTES: u32 = 128;
/// Why rings by Simple spill.
const RING_SPILLS: &str = "128 registers for 512 threads: what a call saves for each slice costs less than a third more packs in flight bring";
/// Why symmetric kernels that reduce do.
const REDUCING_SPILLS: &str = "sixteen packs are in flight, half of all registers; what a launch keeps for after the loop, and averages, spill some, \
     less than a hundredth of what a load over NVLink takes";
/// Why kernels to a network that reduces do.
const COLLNET_SPILLS: &str = "two directions and any number of ranks below to keep account of between slices; a network that reduces is slower than its loops";

/// Hot by name but not by nature: (entry or its beginning, reason).
const SPILLS_ALLOWED: &[(&str, &str)] = &[
    ("oxccl_all_reduce_binomial_simple", "tests/stranger: an example from outside, which nobody has tuned"),
    ("oxccl_all_reduce_collnetchain_simple", COLLNET_SPILLS),
    ("oxccl_reduce_scatter_collnetchain_simple", COLLNET_SPILLS),
    ("oxccl_all_reduce_ring_simple", RING_SPILLS),
    ("oxccl_reduce_scatter_ring_simple", RING_SPILLS),
    ("oxccl_reduce_ring_simple", RING_SPILLS),
    ("oxccl_all_reduce_symmetric", REDUCING_SPILLS),
    ("oxccl_reduce_scatter_symmetric", REDUCING_SPILLS),
    (
        "oxccl_all_reduce_tree_simple",
        "two directions to keep account of between slices; its loops do not spill",
    ),
    (
        "oxccl_all_reduce_twolevel_simple",
        "three levels to keep account of between slices; its loops do not spill",
    ),
    (
        "oxccl_all_reduce_twoshot_ll128",
        "what one pass keeps for the next, read once for a line of seven peers",
    ),
    (
        "oxccl_all_reduce_twoshot4_ll128",
        "what the pass over messages that are not aligned keeps, and the places of peers between passes",
    ),
    ("oxccl_all_to_all_oneshot4_ll128", "as that: its pass over messages that are not aligned"),
    ("oxccl_all_gather_oneshot4_ll128", "as that"),
    (
        "oxccl_all_reduce_twoshot_ll_f64",
        "bookkeeping of seven peers, as for all types; 16 bytes more than the others since ends have a third address",
    ),
];

/// What the text alone tells: accesses that mean less than the source says, barriers that may be miscompiled.
pub fn text(ptx: &Ptx) -> Vec<String> {
    let bodies = ptx.items.iter().filter(|item| matches!(item.kind, Kind::Entry | Kind::Function));
    let accesses = bodies.flat_map(|item| instructions(item.text).filter_map(|code| complaint(item, code)));
    let cached = cached::loads_of_others(ptx).into_iter().map(|(item, code)| {
        format!(
            "{}: `{code}`: read through a cache that sees no later store, because the source has a reference where \
             others write; use a pointer or shared::sync",
            item.name
        )
    });
    accesses.chain(cached).collect()
}

fn complaint(item: &Item, code: &str) -> Option<String> {
    let opcode = code.split_whitespace().next().unwrap_or(code);
    let has = |part: &str| opcode.split('.').any(|word| word == part);
    let any = |parts: &[&str]| parts.iter().any(|part| has(part));
    let why = if opcode.starts_with("atom.") || opcode.starts_with("red.") {
        let ordered = any(&["relaxed", "acquire", "release", "acq_rel"]) && any(&["cta", "gpu", "sys"]);
        (!ordered).then_some(
            "a read-modify-write without order or scope; words have one writer (docs/adr/0003-one-writer-words.md), \
             and where one is needed inline PTX spells .acq_rel.sys",
        )
    } else if has("volatile") {
        Some("a volatile access orders nothing and has no scope; use shared::sync")
    } else if opcode.starts_with("bar.") || (opcode.starts_with("barrier.") && has("aligned")) {
        let warp = opcode == "bar.warp.sync";
        (!warp).then_some("an aligned barrier, which the compiler may duplicate; use `barrier.sync id, n`")
    } else {
        None
    };
    why.map(|why| format!("{}: `{code}`: {why}", item.name))
}

/// The threads that an entry's head allows in each block: the product of `.maxntid` or `.reqntid`; 0 if it says nothing.
pub fn max_threads(entry: &Item) -> u32 {
    let head = entry.text.split('{').next().unwrap_or(entry.text);
    let bound = [".maxntid", ".reqntid"].iter().find_map(|word| Some(head.split_once(word)?.1));
    let Some(bound) = bound else { return 0 };
    let numbers = bound.split(['.', '\n', '{']).next().unwrap_or(bound);
    numbers.split(',').filter_map(|number| number.trim().parse::<u32>().ok()).product()
}

/// What the assembler's figures tell.
pub fn usage(entries: &[Usage]) -> Vec<String> {
    entries.iter().flat_map(|entry| [spills(entry), registers(entry)]).flatten().collect()
}

fn spills(entry: &Usage) -> Option<String> {
    let allowed = SPILLS_ALLOWED.iter().any(|(name, _)| entry.name.starts_with(name));
    let spilled = entry.spill_store_bytes + entry.spill_load_bytes;
    (entry.name.starts_with(HOT) && !allowed && spilled > BOOKKEEPING_BYTES).then(|| {
        format!(
            "{}: spills {} bytes of stores and {} of loads at {} registers; unroll less, inline what it calls, \
             or list it in xtask's SPILLS_ALLOWED with the reason",
            entry.name, entry.spill_store_bytes, entry.spill_load_bytes, entry.registers
        )
    })
}

fn registers(entry: &Usage) -> Option<String> {
    let fit = threads_that_fit(entry);
    (entry.max_threads > 0 && fit < entry.max_threads.next_multiple_of(WARP)).then(|| {
        format!(
            "{}: {} registers leave room for {fit} threads, and its bound is {}",
            entry.name, entry.registers, entry.max_threads
        )
    })
}

/// How many threads with the registers of `entry` a block can have.
fn threads_that_fit(entry: &Usage) -> u32 {
    let each = entry.registers.next_multiple_of(REGISTER_UNIT);
    (REGISTERS / each / WARP * WARP).min(MAX_THREADS)
}

/// What a launch must know of the entries that state no bound: the one of which the fewest threads fit.
pub fn unbounded(entries: &[&Usage]) -> Option<String> {
    let free = || entries.iter().filter(|entry| entry.max_threads == 0);
    let tightest = free().min_by_key(|entry| threads_that_fit(entry))?;
    let fit = threads_that_fit(tightest);
    (fit < MAX_THREADS).then(|| {
        format!(
            "{} of {} entries state no launch bound; {} takes {} registers, so that a block has at most {fit} threads \
             (to state one: asm!(\"// oxccl: .maxntid {fit}, 1, 1\"))",
            free().count(),
            entries.len(),
            tightest.name,
            tightest.registers
        )
    })
}

/// Fills in what the assembler does not report.
pub fn with_bounds(ptx: &Ptx, entries: &mut [Usage]) -> Result<()> {
    for item in ptx.entries() {
        let entry = entries.iter_mut().find(|entry| entry.name == item.name);
        match entry {
            Some(entry) => entry.max_threads = max_threads(item),
            None => anyhow::bail!("ptxas did not report `{}`", item.name),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(code: &str) -> Vec<String> {
        let file = format!(".version 7.8\n.visible .entry oxccl_x()\n{{\n\t{code}\n}}");
        text(&Ptx::parse(&file).unwrap())
    }

    #[test]
    fn accesses_that_mean_less_than_they_seem_are_found() {
        for bad in [
            "atom.global.add.u32 %r1, [%rd1], 1;",
            "@%p1 atom.sys.exch.b32 %r1, [%rd1], 1;",
            "red.add.u32 [%rd1], 1;",
            "ld.volatile.global.u32 %r1, [%rd1];",
            "bar.sync 0;",
            "barrier.sync.aligned 1, 64;",
        ] {
            let found = complaints(bad);
            assert!(found.len() == 1 && found[0].starts_with("oxccl_x: `"), "{bad}: {found:?}");
        }
        for good in [
            "atom.acq_rel.sys.global.cas.b64 %rd2, [%rd1], %rd3, %rd4;",
            "red.relaxed.gpu.add.u32 [%rd1], 1;",
            "ld.relaxed.sys.global.v4.u32 {%r1,%r2,%r3,%r4}, [%rd1];",
            "barrier.sync 1, 64;",
            "bar.warp.sync 0xffffffff;",
            "fence.acq_rel.sys;",
        ] {
            assert!(complaints(good).is_empty(), "{good}");
        }
    }

    #[test]
    fn bounds_are_read_from_the_head() {
        let bound = |head: &str| {
            let file = format!(".visible .entry x()\n{head}\n{{\n\t.maxntid 7;\n}}");
            max_threads(&Ptx::parse(&file).unwrap().items[0])
        };
        assert_eq!(bound(".maxntid 640, 1, 1\n.minnctapersm 1"), 640);
        assert_eq!(bound(".reqntid 16,4"), 64);
        assert_eq!(bound(""), 0);
    }

    #[test]
    fn registers_must_fit_the_bound() {
        let usage = |registers, max_threads| Usage { registers, max_threads, ..Usage::default() };
        assert!(registers(&usage(96, 640)).is_none());
        // 97 round up to 104: 630 threads, in warps 608.
        assert!(registers(&usage(97, 640)).unwrap().contains("608 threads, and its bound is 640"));
        assert!(registers(&usage(255, 0)).is_none());
    }

    #[test]
    fn the_tightest_entry_without_a_bound_is_told() {
        let usage = |name: &str, registers, max_threads| Usage {
            name: name.into(),
            registers,
            max_threads,
            ..Usage::default()
        };
        let (wide, tight, bound) = (usage("wide", 64, 0), usage("tight", 164, 0), usage("bound", 200, 128));
        let told = unbounded(&[&wide, &tight, &bound]).unwrap();
        assert!(told.starts_with("2 of 3 entries") && told.contains("tight takes 164 registers"), "{told}");
        assert!(told.contains("at most 384 threads"), "{told}");
        assert!(unbounded(&[&wide, &bound]).is_none());
    }

    #[test]
    fn only_hot_kernels_may_not_spill() {
        let usage =
            |name: &str, spill_load_bytes| Usage { name: name.into(), spill_load_bytes, ..Usage::default() };
        assert!(spills(&usage("oxccl_all_reduce_ring_ll_f32", BOOKKEEPING_BYTES + 4)).is_some());
        assert!(spills(&usage("oxccl_all_reduce_ring_ll_f32", BOOKKEEPING_BYTES)).is_none());
        assert!(spills(&usage("probe_x", 1000)).is_none());
    }
}

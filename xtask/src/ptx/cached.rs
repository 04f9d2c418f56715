//! Layer: xtask / ptx.
//! Takes: the functions of a module.
//! Gives: each load through the read-only cache (`ld.global.nc`) whose address does not come from one of the module's own
//! tables: such a load sees no store that happens while the kernel runs, whatever was acquired before.
//! Never: follows control flow; an address counts as a table's if any way to compute it starts at one.
//!
//! LLVM chooses that cache where the source promises that nobody writes: behind a shared reference that is a kernel's
//! argument. Data that peers write must be read through pointers, or through shared::sync.

use super::text::{Item, Kind, Ptx, instructions, words};
use std::collections::{BTreeMap, BTreeSet};

/// Each load, as `function: instruction`.
pub fn loads_of_others<'a>(ptx: &'a Ptx) -> Vec<(&'a Item<'a>, &'a str)> {
    let tables: BTreeSet<&str> =
        ptx.items.iter().filter(|item| item.kind == Kind::Variable).map(|item| item.name).collect();
    let bodies = ptx.items.iter().filter(|item| matches!(item.kind, Kind::Entry | Kind::Function));
    bodies.flat_map(|item| in_function(item, &tables)).collect()
}

fn in_function<'a>(item: &'a Item<'a>, tables: &BTreeSet<&str>) -> Vec<(&'a Item<'a>, &'a str)> {
    let is_cached = |code: &&str| code.starts_with("ld.") && code.contains(".nc.");
    let cached: Vec<&str> = instructions(item.text).filter(is_cached).collect();
    if cached.is_empty() {
        return Vec::new();
    }
    let mut sources: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for code in instructions(item.text) {
        let (results, operands) = results_and_operands(code);
        for result in words(results) {
            sources.entry(result).or_default().extend(words(operands));
        }
    }
    let from_table = |code: &str| {
        let mut open: Vec<&str> = words(results_and_operands(code).1).collect();
        let mut seen = BTreeSet::new();
        while let Some(word) = open.pop() {
            if tables.contains(word) {
                return true;
            }
            if seen.insert(word) {
                open.extend(sources.get(word).into_iter().flatten());
            }
        }
        false
    };
    cached.into_iter().filter(|code| !from_table(code)).map(|code| (item, code)).collect()
}

/// `add.s64 %rd3, %rd2, %rd1;` writes what stands before the first comma, or in the braces before it.
fn results_and_operands(code: &str) -> (&str, &str) {
    let all = code.split_once(char::is_whitespace).map_or("", |(_, operands)| operands).trim_start();
    let end = if all.starts_with('{') { all.find('}') } else { all.find(',') };
    all.split_at(end.unwrap_or(all.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(body: &str) -> usize {
        let text = format!(
            ".version 7.8\n.global .align 2 .b8 TABLE[4] = {{1}};\n.visible .entry x(.param .u64 x_param_0)\n{{\n{body}\n}}"
        );
        loads_of_others(&Ptx::parse(&text).unwrap()).len()
    }

    #[test]
    fn a_table_may_be_cached_and_an_argument_may_not() {
        let argument = "ld.param.b64 %rd1, [x_param_0];\ncvta.to.global.u64 %rd2, %rd1;\n";
        assert_eq!(found(&format!("{argument}ld.global.nc.b64 %rd3, [%rd2+8];")), 1);
        assert_eq!(found(&format!("{argument}ld.global.b64 %rd3, [%rd2];")), 0);
        assert_eq!(found("ld.global.nc.b8 %rs1, [TABLE+3];"), 0);
    }

    #[test]
    fn a_tables_address_is_followed_through_arithmetic_and_loops() {
        let walk = "ld.param.b64 %rd9, [x_param_0];\nmov.b64 %rd1, TABLE;\nadd.s64 %rd2, %rd1, %rd9;\n\
                    $L:\nmov.b64 %rd4, %rd2;\n@%p1 add.s64 %rd2, %rd4, 2;\nld.global.nc.v2.b8 {%rs1, %rs2}, [%rd4];";
        assert_eq!(found(walk), 0);
    }
}

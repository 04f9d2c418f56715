//! Layer: xtask / tidy / rules.
//! Takes: the host crate's sources.
//! Gives: the rules on which module may use which: a pure plan, transports without line formats, modules that depend downward.
//! Never: judges the other crates' order: cargo holds that no crate knows one above it.

use crate::tidy::finding::Findings;
use crate::tidy::source::{Source, identifiers, names_path};
use crate::tidy::tree::Tree;

pub fn pure_plan(tree: &Tree, findings: &mut Findings) {
    for (path, source) in tree.rust_below(&["host/src/plan"]) {
        for (line, code) in source.product_lines() {
            let why = if identifiers(code).any(|word| word == "unsafe") {
                "`unsafe`"
            } else if names_path(code, "std::time") || identifiers(code).any(|word| word == "Instant") {
                "a clock"
            } else if identifiers(code).any(|word| word.to_ascii_lowercase().contains("cuda")) {
                "CUDA"
            } else if names_path(code, "std::net")
                || names_path(code, "std::fs")
                || names_path(code, "std::io")
            {
                "I/O"
            } else {
                continue;
            };
            findings.hard(
                path,
                line,
                format!(
                    "{why} in plan/: a plan is a pure function of calls and topology, so \
                that every rank computes the same one and tests need no machine"
                ),
            );
        }
    }
}

pub fn protocol_names(tree: &Tree, findings: &mut Findings) {
    for (path, source) in tree.rust_below(&["host/src/transport", "host/src/proxy"]) {
        for (line, code) in source.product_lines() {
            let is_protocol = |word: &str| {
                let word = word.to_ascii_lowercase();
                ["ll", "ll128"].contains(&word.as_str())
                    || word.starts_with("ll_")
                    || word.starts_with("ll128_")
            };
            if let Some(word) = identifiers(code).find(|word| is_protocol(word)) {
                findings.hard(
                    path,
                    line,
                    format!(
                        "`{word}`: transports and the proxy ask shared::proto where bytes \
                    lie; one that knows a line format must be changed with it"
                    ),
                );
            }
        }
    }
}

/// `host/src/lib.rs` lists modules from the API down to the leaves; a module may use those listed after it.
pub fn downward(tree: &Tree, findings: &mut Findings) {
    let Some(root) = tree.file("host/src/lib.rs").and_then(|file| file.rust.as_ref()) else { return };
    let order = modules_of(root);
    let rank = |name: &str| order.iter().position(|module| module == name);
    for (path, source) in tree.rust_below(&["host/src/"]) {
        let inner = path.trim_start_matches("host/src/");
        let own = inner.split('/').next().unwrap_or(inner).trim_end_matches(".rs");
        let Some(own_rank) = rank(own) else { continue };
        for (line, used) in crate_paths(source) {
            if rank(&used).is_some_and(|used_rank| used_rank < own_rank) {
                findings.hard(
                    path,
                    line,
                    format!(
                        "`{own}` uses `{used}`, which host/src/lib.rs lists above it: \
                    modules depend downward only, so that each can be read without those above"
                    ),
                );
            }
        }
    }
}

/// Only the cuda machine knows NVIDIA's driver; the crate's root shows it to users.
pub fn driver(tree: &Tree, findings: &mut Findings) {
    for (path, source) in tree.rust_below(&["host/src/"]) {
        if path.starts_with("host/src/machine/cuda/") || path == "host/src/lib.rs" {
            continue;
        }
        for (line, code) in source.product_lines() {
            if names_path(code, "cuda::driver") {
                let why = "the driver outside machine/cuda: ask gpu::Gpu or the machine, so that another machine needs no change here";
                findings.hard(path, line, why.to_owned());
            }
        }
    }
}

/// The names in the `mod` lines, in order.
fn modules_of(source: &Source) -> Vec<String> {
    let is_mod = |code: &str| {
        let words: Vec<&str> = identifiers(code).collect();
        let at = words.iter().position(|word| *word == "mod")?;
        (at <= 2 && code.trim_end().ends_with(';')).then(|| words.get(at + 1).map(|word| word.to_string()))?
    };
    source.product_lines().filter_map(|(_, code)| is_mod(code)).collect()
}

/// Every first segment after `crate::`, `use crate::{a::b, c}` included, with its line.
fn crate_paths(source: &Source) -> Vec<(usize, String)> {
    let mut text = String::new();
    let mut line_of = Vec::new();
    for (line, code) in source.product_lines() {
        text.push_str(code);
        text.push('\n');
        line_of.resize(text.len(), line);
    }
    let mut found = Vec::new();
    for (at, key) in text.match_indices("crate::") {
        let before = text[..at].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '$') {
            continue;
        }
        let start = at + key.len();
        if text[start..].starts_with('{') {
            for (offset, name) in group_heads(&text[start + 1..]) {
                found.push((line_of[start + 1 + offset], name));
            }
        } else if let Some(name) = identifiers(&text[start..]).next() {
            found.push((line_of[at], name.to_string()));
        }
    }
    found
}

/// The first segments of a `{a::x, b::{c, d}, e}` list whose opening brace is behind us.
fn group_heads(list: &str) -> Vec<(usize, String)> {
    let (mut depth, mut fresh, mut heads) = (0, true, Vec::new());
    for (i, c) in list.char_indices() {
        match c {
            '}' if depth == 0 => break,
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => fresh = true,
            c if fresh && (c.is_alphabetic() || c == '_') => {
                fresh = false;
                heads.extend(identifiers(&list[i..]).next().map(|name| (i, name.to_string())));
            }
            _ => {}
        }
    }
    heads
}

#[cfg(test)]
mod tests {
    use crate::tidy::tests::found;

    const LIB: (&str, &str) =
        ("host/src/lib.rs", "pub mod api;\nmod plan;\npub(crate) mod transport;\nmod os;\n");

    #[test]
    fn plan_stays_pure() {
        let text =
            "use std::time::Instant;\nfn f() { unsafe { g() } }\n// unsafe in prose\nlet cuda_stream = 1;";
        let lines: Vec<usize> =
            found("pure-plan", &[("host/src/plan/mod.rs", text)]).iter().map(|f| f.line).collect();
        assert_eq!(lines, [1, 2, 4]);
        assert!(found("pure-plan", &[("host/src/launch/cpu.rs", text)]).is_empty());
    }

    #[test]
    fn transports_do_not_know_line_formats() {
        assert_eq!(found("protocol-names", &[("host/src/transport/shm/mod.rs", "Protocol::LL128")]).len(), 1);
        assert_eq!(found("protocol-names", &[("host/src/proxy/mod.rs", "layout.ll_offset()")]).len(), 1);
        assert!(
            found("protocol-names", &[("host/src/proxy/mod.rs", "poll(); fill_all(); // LL")]).is_empty()
        );
    }

    #[test]
    fn upward_use_is_found_and_downward_is_not() {
        let up = ("host/src/transport/mod.rs", "use crate::os;\nuse crate::api::Error;\n");
        let hits = found("downward", &[LIB, up]);
        assert_eq!((hits.len(), hits[0].line), (1, 2));
        assert!(hits[0].message.contains("`transport` uses `api`"));
    }

    #[test]
    fn groups_and_inline_paths_are_seen() {
        let group = ("host/src/os/mod.rs", "use crate::{\n    os::x,\n    plan::{a, b},\n};");
        let hits = found("downward", &[LIB, group]);
        assert_eq!((hits.len(), hits[0].line), (1, 3));
        let inline = ("host/src/plan/mod.rs", "fn f(e: crate::api::Error) {}");
        assert_eq!(found("downward", &[LIB, inline]).len(), 1);
    }

    #[test]
    fn the_driver_is_named_by_its_machine_only() {
        let text = "use crate::machine::cuda::driver::Device;";
        assert_eq!(found("driver", &[("host/src/api/device.rs", text)]).len(), 1);
        assert!(found("driver", &[("host/src/machine/cuda/gpu.rs", text)]).is_empty());
    }

    #[test]
    fn tests_and_macros_may_look_up() {
        let test = ("host/src/os/mod.rs", "#[cfg(test)]\nmod tests {\n    use crate::api::Error;\n}");
        assert!(found("downward", &[LIB, test]).is_empty());
        let restricted = ("host/src/os/mod.rs", "pub(crate) fn f() {}\npub(in crate::os) fn g() {}");
        assert!(found("downward", &[LIB, restricted]).is_empty());
    }
}

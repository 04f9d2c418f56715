//! Layer: xtask / tidy / rules.
//! Takes: who imports from whom inside each crate.
//! Gives: the rule that files form no circle, so that each can be read after those it uses.
//! Never: looks at tests, or counts `mod` lines and re-exports.

use crate::tidy::finding::Findings;
use crate::tidy::imports::Crate;
use crate::tidy::tree::Tree;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The crates' sources.
const CRATES: &[&str] = &["shared/src/", "device/src/", "host/src/", "benches/src/", "xtask/src/"];

/// Folders with circles older than the rule, and how many of their files lie on one. It only shrinks.
const KNOWN: &[(&str, usize)] = &[];

type Edges<'a> = BTreeMap<(&'a str, &'a str), usize>;

pub fn circles(tree: &Tree, findings: &mut Findings) {
    for folder in CRATES {
        let folders = [*folder];
        let edges = Crate::of(folder, tree.rust_below(&folders)).edges();
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        let found = knots(&edges);
        for knot in &found {
            for file in knot {
                *counts.entry(area(folder, file)).or_default() += 1;
            }
        }
        for knot in &found {
            let file = *knot.first().expect("a circle has files");
            let own = area(folder, file);
            let known = KNOWN.iter().find(|(path, _)| *path == own).map_or(0, |(_, count)| *count);
            if counts[own] > known {
                let message = format!(
                    "a circle of {} files: {}; what both ends need belongs into a file below them",
                    knot.len(),
                    walk(file, &edges, knot)
                );
                findings.soft(file, 0, message);
            }
        }
        for (path, known) in KNOWN.iter().filter(|(path, _)| path.starts_with(folder)) {
            let count = counts.get(path).copied().unwrap_or(0);
            if count < *known {
                findings.soft(
                    path,
                    0,
                    format!("{count} files on circles: lower the {known} in xtask's KNOWN"),
                );
            }
        }
    }
}

/// The folder directly below the crate's sources, or the sources themselves.
fn area<'a>(folder: &str, file: &'a str) -> &'a str {
    let inner = &file[folder.len()..];
    inner.find('/').map_or(&file[..folder.len() - 1], |end| &file[..folder.len() + end])
}

/// Sets of files of which each reaches each other, in order of their paths.
fn knots<'a>(edges: &Edges<'a>) -> Vec<BTreeSet<&'a str>> {
    let mut next: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (from, to) in edges.keys() {
        next.entry(from).or_default().push(to);
    }
    let reach = |start: &'a str| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![start]);
        while let Some(file) = open.pop() {
            open.extend(next.get(file).into_iter().flatten().copied().filter(|file| seen.insert(*file)));
        }
        seen
    };
    let reached: BTreeMap<&'a str, BTreeSet<&'a str>> =
        edges.keys().map(|(from, _)| *from).map(|file| (file, reach(file))).collect();
    let mut found: Vec<BTreeSet<&str>> = Vec::new();
    for (file, seen) in reached.iter().filter(|(file, seen)| seen.contains(**file)) {
        if !found.iter().any(|knot| knot.contains(file)) {
            let returns = |other: &&&str| reached.get(**other).is_some_and(|back| back.contains(file));
            found.push(seen.iter().filter(returns).copied().collect());
        }
    }
    found
}

/// The shortest way from `start` back to it: `a.rs:3 uses b.rs:7 uses a.rs`.
fn walk(start: &str, edges: &Edges, knot: &BTreeSet<&str>) -> String {
    let mut open = VecDeque::from([vec![start]]);
    let mut seen = BTreeSet::new();
    while let Some(way) = open.pop_front() {
        let last = *way.last().expect("a way has a start");
        for (_, to) in edges.keys().filter(|(from, to)| *from == last && knot.contains(to)) {
            if *to == start {
                let step = |pair: &[&str]| format!("{}:{} uses ", pair[0], edges[&(pair[0], pair[1])]);
                let whole: Vec<&str> = way.iter().copied().chain([start]).collect();
                return whole.windows(2).map(step).collect::<String>() + start;
            }
            if seen.insert(*to) {
                open.push_back(way.iter().copied().chain([*to]).collect());
            }
        }
    }
    String::new()
}

#[cfg(test)]
mod tests {
    use crate::tidy::tests::found;

    const ROOT: (&str, &str) = ("benches/src/main.rs", "mod a;\nmod b;\nmod c;");

    #[test]
    fn a_circle_is_found_with_its_way() {
        let a = ("benches/src/a.rs", "use crate::b::B;\npub struct A;");
        let b = ("benches/src/b.rs", "use crate::c::C;\npub struct B;");
        let c = ("benches/src/c.rs", "// why\nuse crate::a::A;\npub struct C;");
        let hits = found("circles", &[ROOT, a, b, c]);
        assert_eq!(hits.len(), 1);
        assert!(
            hits[0].message.contains(
                "3 files: benches/src/a.rs:1 uses benches/src/b.rs:1 uses benches/src/c.rs:2 uses benches/src/a.rs"
            ),
            "{}",
            hits[0].message
        );
    }

    #[test]
    fn what_only_leads_down_is_no_circle() {
        let a = ("benches/src/a.rs", "use crate::b::B;\nuse crate::c::C;");
        let b = (
            "benches/src/b.rs",
            "use crate::c::C;\npub struct B;\n#[cfg(test)]\nmod tests { use crate::a::f; }",
        );
        let c = ("benches/src/c.rs", "pub struct C;");
        assert!(found("circles", &[ROOT, a, b, c]).is_empty());
    }
}

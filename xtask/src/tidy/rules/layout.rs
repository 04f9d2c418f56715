//! Layer: xtask / tidy / rules.
//! Takes: paths, manifests, module docs, Markdown pages.
//! Gives: the rules on the shape of the repository.
//! Never: looks inside a function.

use super::LIBRARY;
use crate::tidy::Findings;
use crate::tidy::tree::Tree;

const DOC_WORDS: [&str; 4] = ["Layer:", "Takes:", "Gives:", "Never:"];

pub fn module_doc(tree: &Tree, findings: &mut Findings) {
    for (path, source) in tree.rust_below(LIBRARY) {
        let is_module = path.ends_with("/mod.rs") || path.ends_with("/lib.rs");
        if !is_module || path.contains("/tests/") {
            continue;
        }
        let doc = source.module_doc();
        let missing: Vec<&str> = DOC_WORDS
            .into_iter()
            .filter(|word| !doc.contains(word))
            .map(|word| word.trim_end_matches(':'))
            .collect();
        if !missing.is_empty() {
            findings.hard(
                path,
                1,
                format!(
                    "the module doc lacks {}: these four lines say where a module stands and \
                what it may not do",
                    missing.join(", ")
                ),
            );
        }
    }
}

const TOP_LEVEL: &[&str] = &[
    ".cargo",
    ".ci",
    ".gitignore",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README.md",
    "benches",
    "clippy.toml",
    "device",
    "docs",
    "host",
    "rustfmt.toml",
    "shared",
    "tests",
    "xtask",
];

pub fn top_level(tree: &Tree, findings: &mut Findings) {
    let mut seen: Vec<&str> = tree.paths.iter().filter_map(|path| path.split('/').next()).collect();
    seen.dedup();
    for name in seen.into_iter().filter(|name| !TOP_LEVEL.contains(name)) {
        findings.hard(
            name,
            0,
            "the top level is fixed: the tree shows the path of a collective, and a new root is a \
            decision (docs/adr) that also changes xtask's TOP_LEVEL",
        );
    }
}

pub fn lints(tree: &Tree, findings: &mut Findings) {
    let Some(root) = tree.file("Cargo.toml") else { return };
    let denies = |key: &str| {
        root.text.lines().any(|line| {
            line.split_once('=').is_some_and(|(name, level)| {
                name.trim() == key && ["\"deny\"", "\"forbid\""].contains(&level.trim())
            })
        })
    };
    for key in ["undocumented_unsafe_blocks", "unsafe_op_in_unsafe_fn"] {
        if !denies(key) {
            findings.hard(
                "Cargo.toml",
                0,
                format!(
                    "[workspace.lints] must deny {key}: each unsafe block says what \
                it relies on"
                ),
            );
        }
    }
    for member in ["shared", "device", "host", "xtask", "tests", "benches"] {
        let path = format!("{member}/Cargo.toml");
        let Some(manifest) = tree.file(&path) else { continue };
        let lines: Vec<&str> = manifest.text.lines().map(str::trim).collect();
        if !lines.windows(2).any(|pair| pair == ["[lints]", "workspace = true"]) {
            findings.hard(
                &path,
                0,
                "`[lints] workspace = true` is missing: the workspace's lints hold in every member",
            );
        }
    }
}

/// Roots that, at the start of a path in back quotes, make it a path of this repository.
const ROOTS: &[&str] = &["shared/", "device/", "host/", "xtask/", "tests/", "benches/", "docs/", ".ci/"];

pub fn doc_paths(tree: &Tree, findings: &mut Findings) {
    // A measurement is of its day and a record of its decision; both may name what has moved since.
    let is_history = |path: &str| path.starts_with("docs/measurements/") || path == "docs/changelog.md";
    for file in tree.files.iter().filter(|file| file.path.ends_with(".md") && !is_history(&file.path)) {
        for (i, line) in file.text.lines().enumerate() {
            for path in quoted_paths(line).chain(linked_paths(&file.path, line)) {
                if !tree.exists(&path) {
                    findings.hard(
                        &file.path,
                        i + 1,
                        format!(
                            "`{path}` does not exist: a page names only what the \
                        reader can open"
                        ),
                    );
                }
            }
        }
    }
}

/// Paths in back quotes; those with a placeholder or a wildcard are no paths.
fn quoted_paths(line: &str) -> impl Iterator<Item = String> {
    let inside = line.split('`').skip(1).step_by(2);
    inside
        .filter(|text| ROOTS.iter().any(|root| text.starts_with(root)))
        .filter(|text| !text.contains(['<', '*', ' ', '{']))
        .map(|text| text.split(':').next().unwrap_or(text).to_string())
}

/// Targets of relative links, from the repository's root.
fn linked_paths(page: &str, line: &str) -> impl Iterator<Item = String> {
    let folder = page.rsplit_once('/').map_or("", |(folder, _)| folder);
    let targets = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets
        .filter(|target| {
            !target.contains("://") && !target.starts_with('#') && !target.starts_with("mailto:")
        })
        .map(move |target| resolve(folder, target.split('#').next().unwrap_or(target)))
}

fn resolve(folder: &str, target: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            name => parts.push(name),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use crate::tidy::tests::found;

    #[test]
    fn a_module_without_the_four_lines_is_found() {
        let full = "//! Layer: a.\n//! Takes: b.\n//! Gives: c.\n//! Never: d.\nmod x;";
        assert!(found("module-doc", &[("host/src/plan/mod.rs", full)]).is_empty());
        let hits = found("module-doc", &[("host/src/plan/mod.rs", "//! Layer: a.\n//! Takes: b.\nmod x;")]);
        assert!(hits[0].message.contains("lacks Gives, Never"));
        assert!(found("module-doc", &[("host/src/plan/ring.rs", "mod x;")]).is_empty());
    }

    #[test]
    fn a_new_root_is_found() {
        let hits = found("top-level", &[("host/src/lib.rs", ""), ("scripts/run.sh", ""), ("notes.txt", "")]);
        assert_eq!(hits.iter().map(|hit| hit.path.as_str()).collect::<Vec<_>>(), ["scripts", "notes.txt"]);
    }

    #[test]
    fn a_member_that_drops_the_lints_is_found() {
        let root = "undocumented_unsafe_blocks = \"deny\"\nunsafe_op_in_unsafe_fn = \"deny\"\n";
        let good = ("host/Cargo.toml", "[lints]\nworkspace = true\n");
        assert!(found("lints", &[("Cargo.toml", root), good]).is_empty());
        assert_eq!(found("lints", &[("Cargo.toml", root), ("host/Cargo.toml", "[package]\n")]).len(), 1);
        assert_eq!(found("lints", &[("Cargo.toml", "undocumented_unsafe_blocks = \"warn\""), good]).len(), 2);
    }

    #[test]
    fn pages_name_only_what_exists() {
        let page = "See `host/src/lib.rs`, `host/src/gone.rs`, `shared/src/<x>.rs`, [a](../README.md), [b](no.md#x).";
        let hits = found("doc-paths", &[("docs/a.md", page), ("host/src/lib.rs", ""), ("README.md", "")]);
        let named: Vec<&str> = hits.iter().filter_map(|hit| hit.message.split('`').nth(1)).collect();
        assert_eq!(named, ["host/src/gone.rs", "docs/no.md"]);
    }
}

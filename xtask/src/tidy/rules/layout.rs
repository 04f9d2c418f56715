//! Layer: xtask / tidy / rules.
//! Takes: paths, manifests, module docs.
//! Gives: the rules on the shape of the repository.
//! Never: looks inside a function.

use crate::tidy::finding::Findings;
use crate::tidy::source::Source;
use crate::tidy::tree::{LIBRARY, Tree};

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
    ".github",
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

/// `tests/Cargo.toml` names its programs, so that many files are linked once; what it misses would never run.
pub fn test_programs(tree: &Tree, findings: &mut Findings) {
    const FOLDER: &str = "tests/tests/";
    let Some(manifest) = tree.file("tests/Cargo.toml") else { return };
    let named = |path: &str| {
        manifest.text.contains(&format!("path = \"{}\"", path.strip_prefix("tests/").unwrap_or(path)))
    };
    let roots: Vec<&Source> =
        tree.rust_below(&[FOLDER]).filter(|(path, _)| named(path)).map(|(_, source)| source).collect();
    for (path, _) in tree.rust_below(&[FOLDER]).filter(|(path, _)| !named(path)) {
        let inner = path[FOLDER.len()..].trim_end_matches(".rs");
        // Deeper files are modules of a folder's first file, without which it does not compile.
        let module = inner.strip_suffix("/mod").unwrap_or(inner);
        let line = format!("mod {module};");
        let is_module = roots.iter().any(|root| root.code.iter().any(|code| code.trim() == line));
        if !module.contains('/') && !is_module {
            findings.hard(
                path,
                0,
                "in no test program: it is neither named in tests/Cargo.toml nor a module of a file named there",
            );
        }
    }
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
    fn a_test_file_in_no_program_is_found() {
        let manifest = ("tests/Cargo.toml", "[[test]]\nname = \"suite\"\npath = \"tests/suite.rs\"\n");
        let suite = ("tests/tests/suite.rs", "mod kill;\nmod groups;\n// mod lost;\n");
        let known =
            [("tests/tests/kill.rs", ""), ("tests/tests/groups/mod.rs", ""), ("tests/tests/groups/a.rs", "")];
        let lost = [("tests/tests/lost.rs", ""), ("tests/tests/gone/mod.rs", "")];
        let tree: Vec<_> = [manifest, suite].into_iter().chain(known).chain(lost).collect();
        let hits = found("test-programs", &tree);
        let paths: Vec<&str> = hits.iter().map(|hit| hit.path.as_str()).collect();
        assert_eq!(paths, ["tests/tests/lost.rs", "tests/tests/gone/mod.rs"]);
    }
}

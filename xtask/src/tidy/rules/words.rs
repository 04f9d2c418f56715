//! Layer: xtask / tidy / rules.
//! Takes: Rust sources.
//! Gives: the rules on words that must not be there.
//! Never: finds itself: the words stand here in literals, and comments are searched only outside xtask.

use crate::tidy::finding::Findings;
use crate::tidy::source::identifiers;
use crate::tidy::tree::{LIBRARY, Tree};

const MARKERS: [&str; 3] = ["TODO", "FIXME", "XXX"];
const HOLES: [&str; 3] = ["todo!", "unimplemented!", "dbg!"];

/// Everywhere but here, comments included.
pub fn unfinished(tree: &Tree, findings: &mut Findings) {
    for (path, source) in tree.rust_below(&[""]).filter(|(path, _)| !path.starts_with("xtask/src/tidy/")) {
        for (i, raw) in source.raw.iter().enumerate() {
            if let Some(marker) =
                MARKERS.into_iter().find(|marker| identifiers(raw).any(|word| word == *marker))
            {
                findings.hard(
                    path,
                    i + 1,
                    format!("{marker}: what is not done stands in the issue list, not in the code"),
                );
            }
        }
        for (i, code) in source.code.iter().enumerate() {
            if let Some(hole) = HOLES.into_iter().find(|hole| names_macro(code, hole)) {
                findings.hard(path, i + 1, format!("{hole}: a hole that compiles is found by a user"));
            }
        }
    }
}

/// Words that the project made up, and the field's words for them.
const OWN_WORDS: &[(&str, &str)] = &[
    ("annex", "unpack buffer"),
    ("door", "order gate, single place of access"),
    ("glance", "abort check"),
    ("heir", "successor"),
    ("heirs", "successors"),
    ("nap", "sleep, back-off"),
    ("prologue", "operation header"),
    ("repertoire", "kernel set"),
    ("voice", "policy"),
    ("whereabouts", "locality"),
];

/// In code, comments and pages; records of a day keep the words of their day.
pub fn field_words(tree: &Tree, findings: &mut Findings) {
    let is_exempt = |path: &str| {
        path.starts_with("xtask/src/tidy/")
            || path.starts_with("docs/measurements/")
            || path.starts_with("docs/adr/")
            || path == "docs/changelog.md"
    };
    let is_read = |path: &str| path.ends_with(".rs") || path.ends_with(".md");
    for file in tree.files.iter().filter(|file| is_read(&file.path) && !is_exempt(&file.path)) {
        for (i, line) in file.text.lines().enumerate() {
            let words = words_of(line);
            if let Some((own, field)) = OWN_WORDS.iter().find(|(own, _)| words.iter().any(|word| word == own))
            {
                findings.soft(&file.path, i + 1, format!("`{own}`: the field says {field}"));
            }
        }
    }
}

/// The words of a line in lower case, those of identifiers one by one.
fn words_of(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for c in line.chars() {
        if !c.is_ascii_alphabetic() || (c.is_ascii_uppercase() && was_lower) {
            words.push(String::new());
        }
        if c.is_ascii_alphabetic() {
            words.last_mut().expect("starts with one").push(c.to_ascii_lowercase());
        }
        was_lower = c.is_ascii_lowercase();
    }
    words
}

const PRINTERS: [&str; 4] = ["println!", "print!", "eprintln!", "eprint!"];

pub fn printing(tree: &Tree, findings: &mut Findings) {
    for (path, source) in tree.rust_below(LIBRARY) {
        for (line, code) in source.product_lines() {
            if let Some(printer) = PRINTERS.into_iter().find(|printer| names_macro(code, printer)) {
                findings.hard(
                    path,
                    line,
                    format!(
                        "{printer}: a library does not own the terminal; events go through \
                    `tracing`"
                    ),
                );
            }
        }
    }
}

/// Whether a macro is called; `name` ends with `!`.
fn names_macro(code: &str, name: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(name).any(|(at, _)| !code[..at].chars().next_back().is_some_and(is_part))
}

#[cfg(test)]
mod tests {
    use crate::tidy::tests::found;

    #[test]
    fn markers_are_found_in_comments_and_holes_in_code() {
        let text = "// TODO: later\nfn f() { todo!() }\nlet method = \"TODOS\";\n// the todo! macro in prose";
        let lines: Vec<usize> = found("unfinished", &[("tests/a.rs", text)]).iter().map(|f| f.line).collect();
        assert_eq!(lines, [1, 2]);
    }

    #[test]
    fn printing_is_for_binaries() {
        let text = "fn f() { println!(\"x\") }\nfn g() { eprintln!(\"x\") }";
        assert_eq!(found("printing", &[("host/src/a.rs", text)]).len(), 2);
        assert!(found("printing", &[("benches/src/main.rs", text)]).is_empty());
        assert!(found("printing", &[("host/src/a.rs", "fn f() { my_println!(x); print(y) }")]).is_empty());
    }

    #[test]
    fn the_fields_words_are_asked_for_in_identifiers_too() {
        let text =
            "// Each nap is short.\nstruct KernelRepertoire;\nlet heirs_of = 1;\nlet snapshot = kidnap;\n";
        let lines =
            |path| found("field-words", &[(path, text)]).iter().map(|hit| hit.line).collect::<Vec<_>>();
        assert_eq!(lines("host/src/a.rs"), [1, 2, 3]);
        assert!(lines("docs/changelog.md").is_empty());
    }
}

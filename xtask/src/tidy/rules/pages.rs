//! Layer: xtask / tidy / rules.
//! Takes: Markdown pages.
//! Gives: the rules that what a page names exists: paths on every page, symbols on those that lead through the code.
//! Never: judges whether what it says of them is right.

use crate::tidy::finding::Findings;
use crate::tidy::symbols::Symbols;
use crate::tidy::tree::Tree;

/// Roots that, at the start of a path in back quotes, make it a path of this repository.
const ROOTS: &[&str] = &["shared/", "device/", "host/", "xtask/", "tests/", "benches/", "docs/", ".ci/"];

pub fn doc_paths(tree: &Tree, findings: &mut Findings) {
    // A measurement is of its day and a record of its decision; both may name what has moved since.
    let is_history = |path: &str| path.starts_with("docs/measurements/") || path == "docs/changelog.md";
    for file in tree.files.iter().filter(|file| file.path.ends_with(".md") && !is_history(&file.path)) {
        for (i, line) in file.text.lines().enumerate() {
            let quoted = quoted(line).filter_map(path_in).map(|(path, _)| path.to_string());
            for path in quoted.chain(linked_paths(&file.path, line)) {
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

/// On these pages a reader follows each name into the code.
fn leads_through_code(path: &str) -> bool {
    path == "docs/architecture.md" || path == "docs/write-your-own.md" || path.starts_with("docs/tour-")
}

/// Symbols are named as `path: symbol`, as `Type::member`, or in a table beside the path in the column before.
pub fn doc_symbols(tree: &Tree, findings: &mut Findings) {
    let symbols = Symbols::of(tree);
    for file in tree.files.iter().filter(|file| leads_through_code(&file.path)) {
        let mut is_code = false;
        for (i, line) in file.text.lines().enumerate() {
            is_code ^= line.trim_start().starts_with("```");
            if is_code {
                continue;
            }
            for Named { path, symbol } in named(line) {
                if !symbols.has(path, symbol) {
                    let place = if path.is_empty() { "this repository" } else { path };
                    findings.soft(
                        &file.path,
                        i + 1,
                        format!("`{symbol}` is not defined in {place}: the reader would look in vain"),
                    );
                }
            }
        }
    }
}

/// A stop of a tour names what to look for: a file alone is no address.
pub fn tour_stops(tree: &Tree, findings: &mut Findings) {
    for file in tree.files.iter().filter(|file| file.path.starts_with("docs/tour-")) {
        for (i, line) in file.text.lines().enumerate().filter(|(_, line)| is_stop(line)) {
            if !named(line).any(|named| !named.path.is_empty()) {
                findings.soft(
                    &file.path,
                    i + 1,
                    "a stop names a file and, in the next column, a symbol in it",
                );
            }
        }
    }
}

/// A row of a table that starts with a number.
fn is_stop(line: &str) -> bool {
    let first = line.strip_prefix('|').and_then(|rest| rest.split('|').next());
    first.is_some_and(|cell| cell.trim().parse::<u32>().is_ok())
}

/// A symbol that a page names, and where it says that it stands; an empty path says nothing.
struct Named<'a> {
    path: &'a str,
    symbol: &'a str,
}

fn named(line: &str) -> impl Iterator<Item = Named<'_>> {
    let is_row = line.starts_with('|');
    let mut before = "";
    line.split('|').flat_map(move |cell| {
        let beside = if is_row { before } else { "" };
        before = quoted(cell).filter_map(path_in).map(|(path, _)| path).next().unwrap_or("");
        quoted(cell).filter_map(move |text| named_in(text, beside))
    })
}

fn named_in<'a>(text: &'a str, beside: &'a str) -> Option<Named<'a>> {
    if let Some((path, symbol)) = path_in(text) {
        return symbol.map(|symbol| Named { path, symbol });
    }
    let is_symbol = text.split("::").all(|word| {
        word.starts_with(|c: char| c.is_ascii_alphabetic())
            && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    });
    let is_type =
        text.starts_with(|c: char| c.is_ascii_uppercase()) && text.contains(|c: char| c.is_ascii_lowercase());
    (is_symbol && (is_type || !beside.is_empty())).then_some(Named { path: beside, symbol: text })
}

fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// Splits `path: symbol` from back quotes. A text with a placeholder or a wildcard is no path.
fn path_in(text: &str) -> Option<(&str, Option<&str>)> {
    let (path, symbol) = match text.split_once(": ").or_else(|| text.split_once(':')) {
        Some((path, symbol)) => (path, Some(symbol)),
        None => (text, None),
    };
    let is_path = ROOTS.iter().any(|root| path.starts_with(root)) && !path.contains(['<', '*', ' ', '{']);
    is_path.then_some((path, symbol))
}

/// Targets of relative links, from the repository's root. Links to items (`crate::Item`) are rustdoc's to check.
fn linked_paths(page: &str, line: &str) -> impl Iterator<Item = String> {
    let folder = page.rsplit_once('/').map_or("", |(folder, _)| folder);
    let targets = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets
        .filter(|target| {
            !["://", "::", "mailto:"].iter().any(|other| target.contains(other)) && !target.starts_with('#')
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
    fn pages_name_only_paths_that_exist() {
        let page = "See `host/src/lib.rs`, `host/src/gone.rs`, `shared/src/<x>.rs`, [a](../README.md), [b](no.md#x), [c](crate::C).";
        let hits = found("doc-paths", &[("docs/a.md", page), ("host/src/lib.rs", ""), ("README.md", "")]);
        let named: Vec<&str> = hits.iter().filter_map(|hit| hit.message.split('`').nth(1)).collect();
        assert_eq!(named, ["host/src/gone.rs", "docs/no.md"]);
    }

    const CODE: (&str, &str) =
        ("host/src/plan/call.rs", "pub struct Call;\nimpl Call {\n    pub fn digest(&self) {}\n}\n");

    #[test]
    fn a_wrong_name_on_a_page_that_leads_through_the_code_is_found() {
        let page = "`host/src/plan/call.rs: Call` `host/src/plan: Call::digest` `Call::digest`, `Call`, `send`, `NCCL_ALGO`,\n\
                    `host/src/plan/call.rs: Kall`\n`Call::digset`\n`Callee`\n```text\n`Absent`\n```\n";
        let lines: Vec<usize> = found("doc-symbols", &[("docs/architecture.md", page), CODE])
            .iter()
            .map(|hit| hit.line)
            .collect();
        assert_eq!(lines, [2, 3, 4]);
        assert!(found("doc-symbols", &[("docs/net.md", page), CODE]).is_empty());
    }

    #[test]
    fn a_stop_names_a_symbol_of_its_file() {
        let tour = "| # | open | look for |\n|--:|---|---|\n| 1 | `host/src/plan/call.rs` | `digest` of `Call` |\n\
                    | 2 | `host/src/plan/call.rs` | `digset` |\n| 3 | `host/src/plan/call.rs` | the walk |\n";
        let page = ("docs/tour-x.md", tour);
        let lines = |rule| found(rule, &[page, CODE]).iter().map(|hit| hit.line).collect::<Vec<_>>();
        assert_eq!(lines("doc-symbols"), [4]);
        assert_eq!(lines("tour-stops"), [5]);
    }
}

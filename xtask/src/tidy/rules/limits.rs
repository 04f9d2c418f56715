//! Layer: xtask / tidy / rules.
//! Takes: every Rust file of the repository.
//! Gives: the size rules: a file is one idea, a function fits a screen.
//! Never: counts blank lines and comments of a function against it; it counts those of a file.

use crate::tidy::finding::Findings;
use crate::tidy::source::{Source, identifiers, item_end};
use crate::tidy::tree::Tree;

const FILE_LINES_SOFT: usize = 400;
const FILE_LINES_MAX: usize = 800;
const FUNCTION_LINES_SOFT: usize = 70;
const FUNCTION_LINES_MAX: usize = 100;

pub fn file_length(tree: &Tree, findings: &mut Findings) {
    for (path, source) in tree.rust_below(&[""]) {
        let lines = source.raw.len();
        let message = format!(
            "{lines} lines: a file is one idea (soft limit {FILE_LINES_SOFT}, hard {FILE_LINES_MAX})"
        );
        if lines > FILE_LINES_MAX {
            findings.hard(path, 0, message);
        } else if lines > FILE_LINES_SOFT {
            findings.soft(path, 0, message);
        }
    }
}

pub fn function_length(tree: &Tree, findings: &mut Findings) {
    for (path, source) in tree.rust_below(&[""]) {
        for (line, name, lines) in functions(source) {
            let message = format!(
                "`{name}` has {lines} lines of code: a function fits a screen (soft limit {FUNCTION_LINES_SOFT}, \
                 hard {FUNCTION_LINES_MAX})"
            );
            if lines > FUNCTION_LINES_MAX {
                findings.hard(path, line, message);
            } else if lines > FUNCTION_LINES_SOFT {
                findings.soft(path, line, message);
            }
        }
    }
}

/// Line, name and lines of code of each function. A nested one counts in its outer one too.
fn functions(source: &Source) -> Vec<(usize, String, usize)> {
    let mut found = Vec::new();
    for (i, code) in source.code.iter().enumerate() {
        let mut words = identifiers(code).skip_while(|word| *word != "fn").skip(1);
        // A line with `fn` and no name after it holds a function's type.
        let Some(name) = words.next().filter(|_| code.trim_start().contains("fn ")) else { continue };
        let end = item_end(&source.code, i);
        let lines = source.code[i..=end].iter().filter(|line| !line.trim().is_empty()).count();
        found.push((i + 1, name.to_string(), lines));
    }
    found
}

#[cfg(test)]
mod tests {
    use crate::tidy::tests::found;

    #[test]
    fn long_files_are_found() {
        let hits = found(
            "file-length",
            &[("host/src/a.rs", &"\n".repeat(801)), ("host/src/b.rs", &"\n".repeat(500))],
        );
        assert_eq!(hits.iter().map(|hit| hit.soft).collect::<Vec<_>>(), [false, true]);
        assert!(found("file-length", &[("host/src/a.rs", &"\n".repeat(400))]).is_empty());
    }

    #[test]
    fn long_functions_are_found_and_comments_are_free() {
        let body = |line: &str, count| {
            format!("impl X {{\n    pub fn long() {{\n{}    }}\n}}\n", line.repeat(count))
        };
        let hits = found("function-length", &[("host/src/a.rs", &body("        x();\n", 99))]);
        assert_eq!((hits.len(), hits[0].line, hits[0].soft), (1, 2, false));
        assert!(hits[0].message.contains("`long` has 101 lines"));
        assert!(found("function-length", &[("host/src/a.rs", &body("        // why\n", 99))]).is_empty());
    }

    #[test]
    fn a_function_type_is_no_function() {
        let text = format!("struct S {{\n    run: fn(&Tree) -> bool,\n{}}}", "    x: u32,\n".repeat(120));
        assert!(found("function-length", &[("host/src/a.rs", &text)]).is_empty());
    }
}

//! Layer: xtask / stages.
//! Takes: the orderings in `shared/src/fifo` and `shared/src/proto`.
//! Gives: the proof that loom's models look at them: each ordering is weakened in a copy, and some model must fail.
//! Never: changes the checkout; the copy lies in the target directory.

use crate::counts::Tally;
use crate::stages::Outcome;
use crate::tidy::source::Source;
use crate::tools::{root, target_dir};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// What is weakened, and to what.
const WEAKENINGS: &[(&str, &str)] = &[
    (".store_release(", ".store_relaxed("),
    (".load_acquire(", ".load_relaxed("),
    ("fence_acquire();", ""),
    ("fence_release();", ""),
];

/// In the comment above an ordering that no model can need, with the reason behind it.
const EXEMPT: &str = "// Not modelled: ";

const FOLDERS: &[&str] = &["shared/src/fifo", "shared/src/proto"];

/// One ordering made weaker.
#[derive(PartialEq, Eq, Debug)]
struct Mutant {
    /// From 1.
    line: usize,
    text: String,
}

/// Runs the models on every mutant. An ordering that can be weakened unnoticed is a failure.
pub fn run() -> Result<Outcome> {
    let copy = target_dir().join("loom-mutants");
    copy_workspace(&copy)?;
    ensure!(models_pass(&copy)?, "the models fail on the unchanged source; run `cargo xtask loom`");
    let mut tally = Tally::default();
    for folder in FOLDERS {
        let mut files: Vec<_> = fs::read_dir(copy.join(folder))?.collect::<Result<_, _>>()?;
        files.sort_by_key(|entry| entry.file_name());
        for path in files.into_iter().map(|entry| entry.path()) {
            let shown = path.strip_prefix(&copy).unwrap_or(&path).display().to_string();
            let original = fs::read_to_string(&path)?;
            for mutant in mutants_of(&original) {
                fs::write(&path, &mutant.text)?;
                let survived = models_pass(&copy)?;
                eprintln!("{} {shown}:{}", if survived { "SURVIVED" } else { "caught  " }, mutant.line);
                tally += if survived { Tally::ONE_FAILED } else { Tally::ONE_PASSED };
            }
            fs::write(&path, &original)?;
        }
    }
    eprintln!(
        "{} weakened orderings: {} caught, {} unnoticed",
        tally.passed + tally.failed,
        tally.passed,
        tally.failed
    );
    Ok(Outcome::of(tally.failed == 0, tally))
}

fn mutants_of(text: &str) -> Vec<Mutant> {
    let source = Source::new(text);
    let mut mutants = Vec::new();
    for (line, code) in source.product_lines() {
        if line > 1 && source.raw[line - 2].trim_start().starts_with(EXEMPT) {
            continue;
        }
        for (strong, weak) in WEAKENINGS.iter().filter(|(strong, _)| code.contains(strong)) {
            let mut lines = source.raw.clone();
            lines[line - 1] = lines[line - 1].replacen(strong, weak, 1);
            mutants.push(Mutant { line, text: lines.join("\n") + "\n" });
        }
    }
    mutants
}

/// A workspace of `shared/` alone, with this one's dependency versions.
fn copy_workspace(to: &Path) -> Result<()> {
    let manifest = fs::read_to_string(root().join("Cargo.toml"))?;
    let alone = manifest.lines().map(|line| match line.split_once(" = ") {
        Some(("members", _)) => "members = [\"shared\"]",
        _ => line,
    });
    fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
    fs::write(to.join("Cargo.toml"), alone.collect::<Vec<_>>().join("\n"))?;
    fs::copy(root().join("Cargo.lock"), to.join("Cargo.lock"))?;
    let shared = to.join("shared");
    if shared.exists() {
        fs::remove_dir_all(&shared)?;
    }
    copy_folder(&root().join("shared"), &shared)
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

fn models_pass(workspace: &Path) -> Result<bool> {
    let models = super::loom::models(&target_dir().join("loom-mutants/target"));
    let output = models.quiet().deadline(Duration::from_secs(300)).run(workspace)?;
    // A copy that does not compile would pass for a caught mutant.
    ensure!(output.success || output.text.contains("test result: FAILED"), "no model ran:\n{}", output.text);
    Ok(output.success)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_ordering_outside_tests_and_comments_is_one_mutant() {
        let text = "// a.store_release(1)\nfn f() {\n    a.store_release(1);\n    b.load_acquire();\n}\n\
                    #[cfg(test)]\nmod tests {\n    fn t() { a.store_release(2) }\n}\n";
        let mutants = mutants_of(text);
        assert_eq!(mutants.iter().map(|mutant| mutant.line).collect::<Vec<_>>(), [3, 4]);
        assert_eq!(mutants[0].text, text.replacen("    a.store_release", "    a.store_relaxed", 1));
    }

    #[test]
    fn an_ordering_that_no_model_can_need_says_so_in_the_line_above() {
        let text =
            "fn f() {\n    // Not modelled: a NIC reads it.\n    fence_acquire();\n    fence_acquire();\n}\n";
        let lines: Vec<_> = mutants_of(text).iter().map(|mutant| mutant.line).collect();
        assert_eq!(lines, [4]);
    }
}

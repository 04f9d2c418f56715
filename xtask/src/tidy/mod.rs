//! Layer: xtask / tidy.
//! Takes: the files that git knows, or would add.
//! Gives: a finding, with file, line, rule and the rule's reason, for each place that breaks a house rule.
//! Never: builds or runs anything; it reads text, so it holds in code that no configuration here compiles.

mod rules;
pub mod source;
mod tree;

use anyhow::Result;
use std::fmt;
use std::path::Path;
use tree::Tree;

/// One place that breaks a rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// From the root, with `/`.
    pub path: String,
    /// From 1; 0 for the file as a whole.
    pub line: usize,
    pub rule: &'static str,
    pub message: String,
    /// A soft limit passed: shown on demand, fails nothing.
    pub soft: bool,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.soft { "warning" } else { "error" };
        write!(f, "{}", self.path)?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        write!(f, ": {kind}[{}]: {}", self.rule, self.message)
    }
}

/// A rule: a name to cite, and what looks for breaches.
struct Rule {
    name: &'static str,
    check: fn(&Tree, &mut Findings),
}

/// Where rules put what they find.
struct Findings {
    rule: &'static str,
    all: Vec<Finding>,
}

impl Findings {
    fn hard(&mut self, path: &str, line: usize, message: impl Into<String>) {
        self.push(path, line, message.into(), false);
    }

    fn soft(&mut self, path: &str, line: usize, message: impl Into<String>) {
        self.push(path, line, message.into(), true);
    }

    fn push(&mut self, path: &str, line: usize, message: String, soft: bool) {
        self.all.push(Finding { path: path.into(), line, rule: self.rule, message, soft });
    }
}

fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Findings { rule: "", all: Vec::new() };
    for rule in rules::ALL {
        findings.rule = rule.name;
        (rule.check)(tree, &mut findings);
    }
    findings.all
}

/// Checks the repository at `root` and prints what it finds. Returns whether no hard limit is passed.
pub fn report(root: &Path, warnings: bool) -> Result<bool> {
    let tree = Tree::read(root)?;
    let findings = check(&tree);
    let (soft, hard): (Vec<_>, Vec<_>) = findings.iter().partition(|finding| finding.soft);
    for finding in hard.iter().chain(soft.iter().filter(|_| warnings)) {
        eprintln!("{finding}");
    }
    eprintln!(
        "tidy: {} files, {} rules, {} errors, {} soft limits passed{}",
        tree.files.len(),
        rules::ALL.len(),
        hard.len(),
        soft.len(),
        if warnings || soft.is_empty() { "" } else { " (cargo xtask tidy --warnings)" }
    );
    Ok(hard.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What one rule finds in a made-up tree.
    pub fn found(rule: &str, files: &[(&str, &str)]) -> Vec<Finding> {
        let tree = Tree::of(files);
        let all = check(&tree);
        all.into_iter().filter(|finding| finding.rule == rule).collect()
    }

    #[test]
    fn a_finding_reads_like_a_compiler_message() {
        let finding = Finding { path: "a.rs".into(), line: 3, rule: "r", message: "why".into(), soft: false };
        assert_eq!(finding.to_string(), "a.rs:3: error[r]: why");
    }
}

//! Layer: xtask / tidy.
//! Takes: the files that git knows, or would add.
//! Gives: a finding, with file, line, rule and the rule's reason, for each place that breaks a house rule.
//! Never: builds or runs anything; it reads text, so it holds in code that no configuration here compiles.

mod finding;
mod imports;
mod rules;
pub mod source;
mod symbols;
mod tree;

use anyhow::Result;
use finding::{Finding, Findings};
use std::path::Path;
use tree::Tree;

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
}

//! Layer: xtask / tidy.
//! Takes: what rules look for.
//! Gives: a place that breaks a rule, and how it reads.
//! Never: looks for one.

use super::tree::Tree;
use std::fmt;

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
pub struct Rule {
    pub name: &'static str,
    pub check: fn(&Tree, &mut Findings),
}

/// Where rules put what they find.
pub struct Findings {
    pub rule: &'static str,
    pub all: Vec<Finding>,
}

impl Findings {
    pub fn hard(&mut self, path: &str, line: usize, message: impl Into<String>) {
        self.push(path, line, message.into(), false);
    }

    pub fn soft(&mut self, path: &str, line: usize, message: impl Into<String>) {
        self.push(path, line, message.into(), true);
    }

    fn push(&mut self, path: &str, line: usize, message: String, soft: bool) {
        self.all.push(Finding { path: path.into(), line, rule: self.rule, message, soft });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_reads_like_a_compiler_message() {
        let finding = Finding { path: "a.rs".into(), line: 3, rule: "r", message: "why".into(), soft: false };
        assert_eq!(finding.to_string(), "a.rs:3: error[r]: why");
    }
}

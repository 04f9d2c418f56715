//! Layer: xtask / stages.
//! Takes: the lock file, the crates' own words on their licences, `.cargo/deny.toml`.
//! Gives: each crate that is under no licence which that file allows, from no source that it allows, or wanted in any version.
//! Never: needs a network or `cargo deny`, which reads the same file; where that is installed, it is asked, too.

use super::Outcome;
use crate::beside;
use crate::cmd::Cmd;
use crate::counts::Tally;
use crate::metadata::{Metadata, Package};
use crate::tools::root;
use anyhow::{Context, Result};
use serde::Deserialize;
use spdx::{Expression, Licensee, ParseMode};

const RULES: &str = ".cargo/deny.toml";

#[derive(Deserialize)]
struct Rules {
    licenses: Licences,
    sources: Sources,
}

#[derive(Deserialize)]
struct Licences {
    allow: Vec<String>,
}

#[derive(Deserialize)]
struct Sources {
    #[serde(rename = "allow-registry")]
    allow_registry: Vec<String>,
}

pub fn all() -> Result<Outcome> {
    let text = std::fs::read_to_string(root().join(RULES)).context(RULES)?;
    let rules = Rules::parse(&text)?;
    let metadata = Metadata::read(None)?;
    let mut tally = Tally::default();
    for package in &metadata.packages {
        let complaints = rules.complaints(package);
        for complaint in &complaints {
            beside::note(format_args!("{} {}: {complaint}", package.name, package.version));
        }
        tally += if complaints.is_empty() { Tally::ONE_PASSED } else { Tally::ONE_FAILED };
    }
    if Cmd::cargo().args("deny --version").probe(&root()).is_some() {
        let deny = Cmd::cargo().args("deny --offline check licenses bans sources").run(&root())?;
        tally += if deny.success { Tally::ONE_PASSED } else { Tally::ONE_FAILED };
    }
    Ok(Outcome::of(tally.failed == 0, tally))
}

impl Rules {
    fn parse(text: &str) -> Result<Rules> {
        let rules: Rules = toml::from_str(text).context(RULES)?;
        for licence in &rules.licenses.allow {
            Licensee::parse(licence).with_context(|| format!("{RULES}: {licence}"))?;
        }
        Ok(rules)
    }

    fn complaints(&self, package: &Package) -> Vec<String> {
        let mut complaints = Vec::new();
        match package.license.as_deref().map(|text| (text, Expression::parse_mode(text, ParseMode::LAX))) {
            None => complaints.push("it states no licence".into()),
            Some((text, Err(_))) => complaints.push(format!("its licence is not understood: {text}")),
            Some((text, Ok(expression))) if !self.allow(&expression) => {
                complaints.push(format!("{RULES} does not allow its licence: {text}"));
            }
            Some(_) => {}
        }
        let is_allowed = |source: &str| {
            let registry = source.strip_prefix("registry+");
            registry.is_some_and(|registry| self.sources.allow_registry.iter().any(|known| known == registry))
        };
        if let Some(source) = package.source.as_deref().filter(|source| !is_allowed(source)) {
            complaints.push(format!("{RULES} does not allow its source: {source}"));
        }
        // What others want is theirs; a path alone is a package of this workspace.
        let is_ours = package.source.is_none();
        let any = package.dependencies.iter().filter(|wanted| wanted.req == "*" && wanted.source.is_some());
        complaints
            .extend(any.filter(|_| is_ours).map(|wanted| format!("it takes any version of {}", wanted.name)));
        complaints
    }

    fn allow(&self, expression: &Expression) -> bool {
        let allowed = self.licenses.allow.iter().filter_map(|text| Licensee::parse(text).ok());
        let allowed: Vec<Licensee> = allowed.collect();
        expression.evaluate(|wanted| allowed.iter().any(|licence| licence.satisfies(wanted)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: &str =
        "[licenses]\nallow = ['MIT', 'Unicode-3.0']\n[sources]\nallow-registry = ['https://index']\n";

    fn package(json: &str) -> Package {
        let head = r#"{"id":"x","name":"x","version":"1.0.0","manifest_path":"/x/Cargo.toml","targets":[]"#;
        serde_json::from_str(&format!("{head},{json}}}")).unwrap()
    }

    fn complaints(json: &str) -> Vec<String> {
        Rules::parse(RULES).unwrap().complaints(&package(json))
    }

    #[test]
    fn licences_are_expressions() {
        for good in ["MIT", "GPL-3.0-only OR MIT", "MIT/Apache-2.0", "(MIT OR Apache-2.0) AND Unicode-3.0"] {
            let json = format!(r#""license":"{good}","source":"registry+https://index","dependencies":[]"#);
            assert!(complaints(&json).is_empty(), "{good}: {:?}", complaints(&json));
        }
        for bad in [r#""GPL-3.0-only""#, r#""MIT AND GPL-3.0-only""#, r#""no licence at all""#, "null"] {
            let json = format!(r#""license":{bad},"source":null,"dependencies":[]"#);
            assert_eq!(complaints(&json).len(), 1, "{bad}");
        }
    }

    #[test]
    fn sources_and_open_versions_are_seen() {
        let json = r#""license":"MIT","source":"git+https://index","dependencies":[]"#;
        assert!(complaints(json)[0].contains("source"));
        let json = r#""license":"MIT","source":null,"dependencies":[{"name":"y","req":"*","source":"registry+https://index"}]"#;
        assert!(complaints(json)[0].contains("any version of y"));
        let json = r#""license":"MIT","source":null,"dependencies":[{"name":"y","req":"*","source":null}]"#;
        assert!(complaints(json).is_empty());
    }

    #[test]
    fn a_licence_that_nobody_knows_is_no_rule() {
        assert!(Rules::parse(&RULES.replace("'MIT'", "'MITT'")).is_err());
    }
}

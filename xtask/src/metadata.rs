//! Layer: xtask.
//! Takes: `cargo metadata`.
//! Gives: the packages that the workspace is made of, and which of them are linked into a program.
//! Never: builds anything. Crates of other platforms, which no build here has needed, are fetched.

use crate::cmd::Cmd;
use crate::tools::root;
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

#[derive(Deserialize)]
pub struct Metadata {
    pub packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Deserialize)]
pub struct Package {
    id: String,
    pub name: String,
    pub version: String,
    pub license: Option<String>,
    /// None: of this workspace.
    pub source: Option<String>,
    pub manifest_path: PathBuf,
    pub dependencies: Vec<Requirement>,
    targets: Vec<Target>,
}

/// As a manifest has it.
#[derive(Deserialize)]
pub struct Requirement {
    pub name: String,
    pub req: String,
    pub source: Option<String>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<DependencyKind>,
}

#[derive(Deserialize)]
struct DependencyKind {
    /// None: linked; else for tests or build scripts.
    kind: Option<String>,
}

impl Metadata {
    /// Of everything in the lock file, or of what this platform needs.
    pub fn read(platform: Option<&str>) -> Result<Metadata> {
        let mut cargo = Cmd::cargo().args("metadata --format-version 1 --locked");
        if let Some(platform) = platform {
            cargo = cargo.arg("--filter-platform").arg(platform);
        }
        let output = cargo.quiet().run(&root())?;
        if !output.success {
            bail!("cargo metadata: {}", output.text);
        }
        let json = output
            .text
            .lines()
            .find(|line| line.starts_with('{'))
            .context("cargo metadata printed nothing")?;
        serde_json::from_str(json).context("cargo metadata")
    }

    /// The packages from elsewhere that are linked into these, by name and version.
    pub fn linked_into(&self, roots: &[&str]) -> Vec<&Package> {
        let by_id: BTreeMap<&str, &Package> =
            self.packages.iter().map(|package| (&*package.id, package)).collect();
        let nodes: BTreeMap<&str, &Node> = self.resolve.nodes.iter().map(|node| (&*node.id, node)).collect();
        let is_root = |package: &&Package| package.source.is_none() && roots.contains(&&*package.name);
        let mut open: Vec<&str> = self.packages.iter().filter(is_root).map(|package| &*package.id).collect();
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        while let Some(id) = open.pop() {
            if by_id[id].is_macro() || !seen.insert(id) {
                continue;
            }
            let is_linked =
                |dependency: &&Dependency| dependency.dep_kinds.iter().any(|kind| kind.kind.is_none());
            open.extend(nodes[id].deps.iter().filter(is_linked).map(|dependency| &*dependency.pkg));
        }
        let mut linked: Vec<&Package> =
            seen.into_iter().map(|id| by_id[id]).filter(|package| package.source.is_some()).collect();
        linked.sort_by_key(|package| (&package.name, &package.version));
        linked
    }
}

impl Package {
    /// It runs in the compiler.
    fn is_macro(&self) -> bool {
        self.targets.iter().any(|target| target.kind.iter().any(|kind| kind == "proc-macro"))
    }
}

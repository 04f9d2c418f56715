//! Layer: xtask / tidy.
//! Takes: the Rust files of one crate.
//! Gives: which file uses names that which other file defines, re-exports followed to the definition.
//! Never: expands macros or knows types; a method call is no import. Counts no `mod` line and no re-export as a use.

use super::source::{Source, defined_names};
use std::collections::{BTreeMap, BTreeSet};

/// The modules of a crate, by their path in it: `["plan", "call"]`; the root has none.
pub struct Crate<'a> {
    modules: BTreeMap<Vec<&'a str>, Module<'a>>,
}

struct Module<'a> {
    file: &'a str,
    defined: BTreeSet<&'a str>,
    /// What `use` lines call by a name of their own.
    bindings: BTreeMap<&'a str, Vec<&'a str>>,
    /// What is imported with `*`.
    globs: Vec<Vec<&'a str>>,
    uses: Vec<Use<'a>>,
}

/// One path in the code.
struct Use<'a> {
    line: usize,
    path: Vec<&'a str>,
}

/// Longer chains of re-exports are taken for circles.
const REEXPORTS_MAX: usize = 16;

impl<'a> Crate<'a> {
    /// The files below `folder` (with its closing `/`), programs of their own left out.
    pub fn of(folder: &str, files: impl Iterator<Item = (&'a str, &'a Source)>) -> Crate<'a> {
        let mut modules = BTreeMap::new();
        for (path, source) in files {
            let Some(inner) = path.strip_prefix(folder).filter(|inner| !inner.starts_with("bin/")) else {
                continue;
            };
            modules.insert(module_path(inner), Module::new(path, source));
        }
        Crate { modules }
    }

    /// Every use of one file by another, the first line of each.
    pub fn edges(&self) -> BTreeMap<(&'a str, &'a str), usize> {
        let mut edges = BTreeMap::new();
        for (at, module) in &self.modules {
            for Use { line, path } in &module.uses {
                let Some(target) = self.definer(at, path, REEXPORTS_MAX) else { continue };
                if target != module.file {
                    edges.entry((module.file, target)).or_insert(*line);
                }
            }
        }
        edges
    }

    /// The file that defines what `path` names in module `at`. None: a module itself, or another crate's.
    fn definer(&self, at: &[&'a str], path: &[&'a str], hops: usize) -> Option<&'a str> {
        let (first, rest) = path.split_first()?;
        let hops = hops.checked_sub(1)?;
        let below = |name| at.iter().copied().chain([name]).collect::<Vec<_>>();
        match *first {
            "crate" => self.descend(Vec::new(), rest, hops),
            "self" => self.descend(at.to_vec(), rest, hops),
            "super" => match at.split_last() {
                // What follows may be another `super`.
                Some((_, parent)) if rest.first() == Some(&"super") => self.definer(parent, rest, hops),
                Some((_, parent)) => self.descend(parent.to_vec(), rest, hops),
                None => None,
            },
            name if self.modules.contains_key(&below(name)) => self.descend(below(name), rest, hops),
            name => {
                let target = self.modules.get(at)?.bindings.get(name)?;
                // `use serde::Serialize` binds a name of another crate to itself.
                if target.as_slice() == [name] {
                    return None;
                }
                let whole: Vec<&str> = target.iter().chain(rest).copied().collect();
                self.definer(at, &whole, hops)
            }
        }
    }

    /// The same for what `rest` names seen from the module `at` itself.
    fn descend(&self, mut at: Vec<&'a str>, rest: &[&'a str], hops: usize) -> Option<&'a str> {
        for (i, name) in rest.iter().enumerate() {
            at.push(name);
            if self.modules.contains_key(&at) {
                continue;
            }
            at.pop();
            let module = self.modules.get(&at)?;
            if module.defined.contains(name) {
                return Some(module.file);
            }
            let through = |target: &[&'a str]| {
                let whole: Vec<&str> = target.iter().chain(&rest[i + 1..]).copied().collect();
                self.definer(&at, &whole, hops.checked_sub(1)?)
            };
            if let Some(target) = module.bindings.get(name) {
                return through(target);
            }
            let globbed = module.globs.iter().find_map(|glob| {
                let target: Vec<&str> = glob.iter().copied().chain([*name]).collect();
                through(&target)
            });
            // What a macro made counts as the module's own, unless an asterisk brings it.
            return globbed;
        }
        None
    }
}

fn module_path(inner: &str) -> Vec<&str> {
    let stem = inner.trim_end_matches(".rs");
    let stem = stem.strip_suffix("/mod").unwrap_or(stem);
    if ["lib", "main"].contains(&stem) { Vec::new() } else { stem.split('/').collect() }
}

impl<'a> Module<'a> {
    fn new(file: &'a str, source: &'a Source) -> Module<'a> {
        let mut reader = Reader {
            tokens: tokens(source),
            at: 0,
            depth: 0,
            inline: Vec::new(),
            module: Module {
                file,
                defined: source.product_lines().flat_map(|(_, code)| defined_names(code)).collect(),
                bindings: BTreeMap::new(),
                globs: Vec::new(),
                uses: Vec::new(),
            },
        };
        reader.read();
        reader.module
    }
}

/// An identifier, `::`, or one other character.
type Token<'a> = (usize, &'a str);

fn tokens(source: &Source) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    for (line, code) in source.product_lines() {
        let mut rest = code.trim_start();
        while let Some(first) = rest.chars().next() {
            let is_word = |c: char| c.is_alphanumeric() || c == '_';
            let len = match first {
                c if is_word(c) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
                ':' if rest.starts_with("::") => 2,
                c => c.len_utf8(),
            };
            tokens.push((line, &rest[..len]));
            rest = rest[len..].trim_start();
        }
    }
    tokens
}

struct Reader<'a> {
    tokens: Vec<Token<'a>>,
    at: usize,
    /// Of braces.
    depth: usize,
    /// The depths at which inline modules began: their `super` is the file.
    inline: Vec<usize>,
    module: Module<'a>,
}

impl<'a> Reader<'a> {
    fn token(&self, ahead: usize) -> &'a str {
        self.tokens.get(self.at + ahead).map_or("", |(_, token)| token)
    }

    fn read(&mut self) {
        while self.at < self.tokens.len() {
            match self.token(0) {
                "use" => self.use_item(),
                "mod" if self.token(2) == "{" => {
                    self.inline.push(self.depth);
                    self.depth += 1;
                    self.at += 3;
                }
                "{" => {
                    self.depth += 1;
                    self.at += 1;
                }
                "}" => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.inline.last() == Some(&self.depth) {
                        self.inline.pop();
                    }
                    self.at += 1;
                }
                token if is_name(token) => self.path(),
                _ => self.at += 1,
            }
        }
    }

    fn path(&mut self) {
        let line = self.tokens[self.at].0;
        let before = self.at.checked_sub(1).map_or("", |at| self.tokens[at].1);
        let path = self.segments();
        if path.len() > 1 && !["::", "."].contains(&before) {
            self.add(line, path);
        }
    }

    /// `a::b::c`, up to what is no name.
    fn segments(&mut self) -> Vec<&'a str> {
        let mut path = vec![self.token(0)];
        self.at += 1;
        while self.token(0) == "::" && is_name(self.token(1)) {
            path.push(self.token(1));
            self.at += 2;
        }
        path
    }

    fn add(&mut self, line: usize, path: Vec<&'a str>) {
        if let Some(path) = self.seen_from_file(path) {
            self.module.uses.push(Use { line, path });
        }
    }

    /// The path as the file's own module would write it; `None` for one into the file itself.
    fn seen_from_file(&self, mut path: Vec<&'a str>) -> Option<Vec<&'a str>> {
        let ups = path.iter().take_while(|name| **name == "super").count();
        if self.inline.is_empty() || !["super", "self"].contains(&path[0]) {
            return Some(path);
        }
        let own = ups.min(self.inline.len());
        path.drain(..own);
        (ups > own).then_some(path)
    }

    fn use_item(&mut self) {
        let before = self.at.checked_sub(1).map_or("", |at| self.tokens[at].1);
        // `pub` or the end of `pub(crate)`; `+ use<'a>` of a type is no item.
        let is_reexport = ["pub", ")"].contains(&before);
        self.at += 1;
        if is_name(self.token(0)) || ["::", "{"].contains(&self.token(0)) {
            self.use_tree(&[], is_reexport);
        }
    }

    fn use_tree(&mut self, prefix: &[&'a str], is_reexport: bool) {
        let line = self.tokens.get(self.at).map_or(0, |token| token.0);
        let mut path = prefix.to_vec();
        loop {
            match self.token(0) {
                "::" => self.at += 1,
                "{" => {
                    self.at += 1;
                    while !["}", ""].contains(&self.token(0)) {
                        self.use_tree(&path, is_reexport);
                        if self.token(0) == "," {
                            self.at += 1;
                        }
                    }
                    self.at += 1;
                    return;
                }
                "*" => {
                    self.at += 1;
                    self.module.globs.extend(self.seen_from_file(path));
                    return;
                }
                name if is_name(name) && name != "as" => {
                    path.push(name);
                    self.at += 1;
                }
                _ => break,
            }
        }
        if path.len() > 1 && path.last() == Some(&"self") {
            path.pop();
        }
        let mut name = path.last().copied().unwrap_or("");
        if self.token(0) == "as" {
            name = self.token(1);
            self.at += 2;
        }
        if path.is_empty() {
            // Nothing that is understood: the loop above must not stand still.
            self.at += 1;
            return;
        }
        if !is_reexport {
            self.add(line, path.clone());
        }
        if let Some(path) = self.seen_from_file(path) {
            self.module.bindings.insert(name, path);
        }
    }
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edges(files: &[(&'static str, &str)]) -> Vec<(String, String)> {
        let sources: Vec<(&str, Source)> =
            files.iter().map(|(path, text)| (*path, Source::new(text))).collect();
        let found = Crate::of("src/", sources.iter().map(|(path, source)| (*path, source)));
        let short = |path: &str| path.trim_start_matches("src/").to_string();
        found.edges().keys().map(|(from, to)| (short(from), short(to))).collect()
    }

    fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        expected.iter().map(|(from, to)| (from.to_string(), to.to_string())).collect()
    }

    #[test]
    fn a_name_is_followed_through_re_exports_to_its_file() {
        let files = [
            ("src/lib.rs", "mod plan;\nmod user;"),
            ("src/plan/mod.rs", "mod call;\npub use call::Call;\npub use facts::*;\nmod facts;"),
            ("src/plan/call.rs", "pub struct Call;"),
            ("src/plan/facts.rs", "pub struct Facts;"),
            ("src/user.rs", "use crate::plan::{Call, Facts};\nuse std::fmt;"),
        ];
        let expected = pairs(&[("user.rs", "plan/call.rs"), ("user.rs", "plan/facts.rs")]);
        assert_eq!(edges(&files), expected);
    }

    #[test]
    fn a_module_used_as_a_name_space_counts_where_it_is_used() {
        let files = [
            ("src/main.rs", "mod report;\nmod a;\nmod b;"),
            ("src/report/mod.rs", "pub mod table;\npub fn print() {}"),
            ("src/report/table.rs", "pub fn row() {}"),
            ("src/a.rs", "use crate::report;\nfn f() { report::table::row() }"),
            ("src/b.rs", "use crate::report::{self, table as t};\nfn f() { report::print(); t::row() }"),
        ];
        let expected =
            pairs(&[("a.rs", "report/table.rs"), ("b.rs", "report/mod.rs"), ("b.rs", "report/table.rs")]);
        assert_eq!(edges(&files), expected);
    }

    #[test]
    fn supers_of_inline_modules_and_of_files_are_told_apart() {
        let files = [
            ("src/lib.rs", "mod a;\nfn top() {}"),
            ("src/a/mod.rs", "mod b;\nfn own() {}\nmod inner { use super::own; use super::super::top; }"),
            (
                "src/a/b.rs",
                "use super::own;\nuse super::super::top;\n#[cfg(test)]\nmod tests { use crate::x::y; }",
            ),
        ];
        let expected = pairs(&[("a/b.rs", "a/mod.rs"), ("a/b.rs", "lib.rs"), ("a/mod.rs", "lib.rs")]);
        assert_eq!(edges(&files), expected);
    }
}

//! Layer: xtask / tidy.
//! Takes: the Rust files of the repository.
//! Gives: what is defined where: items by name, and the members of a type.
//! Never: parses; it knows the heads of items and where they end.

use super::source::{Source, defined_names, identifiers, item_end};
use super::tree::Tree;
use std::collections::{BTreeMap, BTreeSet};

/// Every definition, by the file that it stands in.
pub struct Symbols<'a> {
    files: BTreeMap<&'a str, Defined<'a>>,
}

#[derive(Default)]
struct Defined<'a> {
    names: BTreeSet<&'a str>,
    /// Functions, constants, fields and variants, with their type or trait.
    members: BTreeSet<(&'a str, &'a str)>,
    /// A type and a trait that it implements, or an alias and its type: what the second has, the first has too.
    inherits: BTreeSet<(&'a str, &'a str)>,
}

impl<'a> Symbols<'a> {
    pub fn of(tree: &'a Tree) -> Symbols<'a> {
        let files = tree.rust_below(&[""]).map(|(path, source)| (path, Defined::of(source))).collect();
        Symbols { files }
    }

    /// Whether `symbol` (`name` or `Type::member`) is defined in `path`, a file or a folder; everywhere if it is empty.
    pub fn has(&self, path: &str, symbol: &str) -> bool {
        match symbol.rsplit_once("::") {
            None => self.below(path).any(|file| file.names.contains(symbol) || file.has_member(symbol)),
            Some((owner, member)) => {
                let owner = owner.rsplit("::").next().unwrap_or(owner);
                self.below(path).any(|file| file.members.contains(&(owner, member)))
                    || self.is_inherited(owner, member)
            }
        }
    }

    /// Whether a trait that `owner` implements, or the type that it is an alias of, has `member`.
    fn is_inherited(&self, owner: &str, member: &str) -> bool {
        let pairs = self.files.values().flat_map(|file| &file.inherits);
        let mut bases =
            pairs.filter(|(subject, base)| *subject == owner && *base != owner).map(|(_, base)| *base);
        bases.any(|base| self.files.values().any(|file| file.members.contains(&(base, member))))
    }

    fn below<'s>(&'s self, path: &'s str) -> impl Iterator<Item = &'s Defined<'a>> {
        let path = path.trim_end_matches('/');
        let is_below = move |file: &str| {
            path.is_empty()
                || file.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        self.files.iter().filter(move |(file, _)| is_below(file)).map(|(_, defined)| defined)
    }
}

impl<'a> Defined<'a> {
    fn of(source: &'a Source) -> Defined<'a> {
        let mut defined = Defined::default();
        for (i, code) in source.code.iter().enumerate() {
            defined.names.extend(defined_names(code));
            defined.inherits.extend(alias(code));
            let Some(head) = Head::of(code) else { continue };
            if let Some(name) = head.implements {
                defined.inherits.insert((head.subject, name));
            }
            for line in &source.code[i..=item_end(&source.code, i)] {
                let inside = defined_names(line).chain(head.has_fields.then(|| field(line)).flatten());
                defined.members.extend(inside.map(|member| (head.subject, member)));
            }
        }
        defined
    }

    fn has_member(&self, name: &str) -> bool {
        self.members.iter().any(|(_, member)| *member == name)
    }
}

/// The first line of an item that has members.
struct Head<'a> {
    subject: &'a str,
    implements: Option<&'a str>,
    has_fields: bool,
}

impl<'a> Head<'a> {
    fn of(code: &'a str) -> Option<Head<'a>> {
        let mut words =
            identifiers(code).skip_while(|word| ["pub", "crate", "super", "unsafe"].contains(word));
        match words.next()? {
            "impl" => Head::of_impl(code),
            "trait" => Some(Head { subject: words.next()?, implements: None, has_fields: false }),
            "struct" | "enum" | "union" => {
                Some(Head { subject: words.next()?, implements: None, has_fields: true })
            }
            _ => None,
        }
    }

    fn of_impl(code: &'a str) -> Option<Head<'a>> {
        let rest = code[code.find("impl")? + 4..].trim_start();
        let rest = if rest.starts_with('<') { &rest[generics_end(rest)..] } else { rest };
        let (implements, subject) = match rest.split_once(" for ") {
            Some((name, subject)) => (last_segment(name), last_segment(subject)?),
            None => (None, last_segment(rest)?),
        };
        Some(Head { subject, implements, has_fields: false })
    }
}

/// `A` and `B` of `type A<T> = m::B<T>;`.
fn alias(code: &str) -> Option<(&str, &str)> {
    let (name, target) = code.split_once("type ")?.1.split_once('=')?;
    Some((identifiers(name).next()?, last_segment(target.split(';').next()?)?))
}

/// `b` of `a::b<c> where d`.
fn last_segment(path: &str) -> Option<&str> {
    let end = path.find(['<', '{', '(']).unwrap_or(path.len());
    identifiers(path[..end].split(" where ").next()?).last()
}

fn generics_end(text: &str) -> usize {
    let mut depth = 0;
    for (i, c) in text.char_indices() {
        match c {
            '<' => depth += 1,
            // The arrow of a function's type closes nothing.
            '>' if !text[..i].ends_with('-') => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return i + 1;
        }
    }
    text.len()
}

/// The name that a line of a struct or an enum starts with.
fn field(line: &str) -> Option<&str> {
    let line = line.trim_start();
    if line.starts_with(['#', '}', ')']) {
        return None;
    }
    identifiers(line).find(|word| !["pub", "crate", "super"].contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_members_fields_and_provided_methods_are_found_where_they_stand() {
        let text = "pub(crate) enum Kind {\n    One,\n    Two { x: u8 },\n}\npub struct Ring<'a, T: Fn() -> u8> {\n    pub len: &'a T,\n}\n\
                    impl<'a, T: Fn() -> u8> Ring<'a, T> {\n    pub const fn walk(&self) {}\n}\n\
                    unsafe impl super::Give for Ring<'_, X> {\n    fn given() {}\n}\n";
        let tree = Tree::of(&[
            ("host/src/a/ring.rs", text),
            (
                "host/src/b.rs",
                "pub trait Give {\n    fn more(&self) {}\n}\npub type Circle = super::Ring<'static, u8>;",
            ),
        ]);
        let symbols = Symbols::of(&tree);
        for known in ["Ring", "walk", "Ring::walk", "Ring::given", "Ring::len", "Kind::Two", "Ring::more"] {
            assert!(symbols.has("host/src/a/ring.rs", known) && symbols.has("host/src/a", known), "{known}");
        }
        for unknown in ["Give", "Ring::wlak", "Kind::Three", "wlak"] {
            assert!(!symbols.has("host/src/a", unknown), "{unknown}");
        }
        assert!(symbols.has("", "Circle::walk") && !symbols.has("", "Circle::wlak"));
        assert!(symbols.has("", "Give::more") && !symbols.has("host/src/b.rs", "Ring"));
    }
}

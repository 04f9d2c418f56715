//! Layer: xtask / ptx.
//! Takes: one PTX file with every entry.
//! Gives: one PTX file per module, with its entries and what they reach, so that a process loads only what it calls.
//! Never: changes an instruction. It moves one thing: launch bounds, which Rust cannot say, from a comment in the body
//! to the head of the entry.

use super::names::module_of;
use super::text::{Item, Kind, Ptx, instructions};
use anyhow::{Result, bail};
use std::collections::{BTreeMap, BTreeSet};

/// A comment that a kernel leaves by inline assembly; what follows becomes a directive of the entry:
/// `asm!("// oxccl: .maxntid 640, 1, 1")`.
const HOIST: &str = "// oxccl: ";

/// One PTX file, cut out of the whole.
#[derive(Debug)]
pub struct Module {
    pub name: String,
    pub text: String,
}

/// The symbols of each module, by its name.
type Symbols<'a> = BTreeMap<String, BTreeSet<&'a str>>;

/// Cuts `text` into modules, in order of their names.
pub fn split(text: &str) -> Result<Vec<Module>> {
    let ptx = Ptx::parse(text)?;
    check_defined(&ptx)?;
    let reach = Reach::of(&ptx);
    let mut members: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for entry in ptx.entries() {
        members.entry(module_of(entry.name)).or_default().push(entry.name);
    }
    let modules: Symbols = members
        .into_iter()
        .map(|(name, entries)| (name, entries.iter().flat_map(|entry| reach.from(entry)).collect()))
        .collect();
    check_no_shared_state(&ptx, &modules)?;
    Ok(modules.into_iter().map(|(name, symbols)| print(&ptx, name, &symbols)).collect())
}

/// A function declared and never defined would fail when the driver links it, on the user's machine.
fn check_defined(ptx: &Ptx) -> Result<()> {
    let defined: BTreeSet<&str> =
        ptx.items.iter().filter(|item| item.kind == Kind::Function).map(|item| item.name).collect();
    for item in &ptx.items {
        let missing = match item.kind {
            Kind::Declaration => !defined.contains(item.name),
            Kind::External => !item.is_shared(),
            _ => false,
        };
        if missing {
            bail!(
                "`{}` is declared and not defined: nobody would provide it when the kernel is loaded",
                item.name
            );
        }
    }
    Ok(())
}

/// Each module gets its own copy of what it reaches. That is fine for constants and code, but a variable that is written
/// would silently be several.
fn check_no_shared_state(ptx: &Ptx, modules: &Symbols) -> Result<()> {
    for variable in ptx.items.iter().filter(|item| item.kind == Kind::Variable && !item.is_shared()) {
        let users: Vec<&str> = modules
            .iter()
            .filter(|(_, symbols)| symbols.contains(variable.name))
            .map(|(name, _)| name.as_str())
            .collect();
        let writer = ptx.items.iter().find(|item| writes(item, variable.name));
        if let (Some(writer), true) = (writer, users.len() > 1) {
            bail!(
                "`{}` writes the variable `{}`, of which {} modules would have a copy each ({}): pass it as an argument",
                writer.name,
                variable.name,
                users.len(),
                users.join(", ")
            );
        }
    }
    Ok(())
}

/// Whether an instruction of `item` stores to `variable` by name.
fn writes(item: &Item, variable: &str) -> bool {
    instructions(item.text).any(|line| {
        let stores = ["st.", "atom.", "red."].iter().any(|opcode| line.starts_with(opcode));
        let target = line.split(['[', '+', ']']).nth(1).map(str::trim);
        stores && target == Some(variable)
    })
}

/// Who mentions whom.
struct Reach<'a> {
    mentions: BTreeMap<&'a str, BTreeSet<&'a str>>,
}

impl<'a> Reach<'a> {
    fn of(ptx: &'a Ptx<'a>) -> Reach<'a> {
        let known: BTreeSet<&str> = ptx.items.iter().map(|item| item.name).collect();
        let mut mentions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for item in &ptx.items {
            let mentioned = item.words().into_iter().filter(|word| known.contains(word));
            mentions.entry(item.name).or_default().extend(mentioned);
        }
        Reach { mentions }
    }

    /// `start` and everything it reaches.
    fn from(&self, start: &'a str) -> BTreeSet<&'a str> {
        let mut seen = BTreeSet::from([start]);
        let mut open = vec![start];
        while let Some(name) = open.pop() {
            let next = self.mentions.get(name).into_iter().flatten();
            open.extend(next.copied().filter(|name| seen.insert(name)));
        }
        seen
    }
}

/// The module's items in the order of the whole file, which declares before use.
fn print(ptx: &Ptx, name: String, symbols: &BTreeSet<&str>) -> Module {
    let mut text = format!("// OxCCL module {name}\n");
    for line in &ptx.header {
        text.push_str(line);
        text.push('\n');
    }
    for item in ptx.items.iter().filter(|item| symbols.contains(item.name)) {
        text.push('\n');
        match item.kind {
            Kind::Entry => text.push_str(&hoisted(item.text)),
            _ => text.push_str(item.text),
        }
        text.push('\n');
    }
    Module { name, text }
}

/// The entry with the directives its body asks for between its parameters and its body.
fn hoisted(entry: &str) -> String {
    let Some(body) = entry.find('{') else { return entry.into() };
    let mut directives: Vec<&str> = entry[body..]
        .lines()
        .filter_map(|line| line.trim().strip_prefix(HOIST))
        .filter(|directive| directive.starts_with('.'))
        .collect();
    // Inlining and unrolling may repeat the comment.
    directives.sort_unstable();
    directives.dedup();
    let mut head = entry[..body].to_string();
    for directive in directives {
        head.push_str(directive);
        head.push('\n');
    }
    head + &entry[body..]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HEADER: &str = ".version 7.8\n.target sm_90\n.address_size 64\n";

    /// A file with `graph[i]` saying which functions (`f0`, `f1`, ..) and variables (`v0`, ..) function `i` mentions.
    fn file(functions: &[Vec<usize>], variables: usize, entries: &[(String, Vec<usize>)]) -> String {
        let mention = |target: &usize| match *target {
            target if target < functions.len() => format!("\tcall.uni f{target}, ();\n"),
            target => format!("\tld.global.b32 %r1, [v{}];\n", (target - functions.len()) % variables.max(1)),
        };
        let mut text = HEADER.to_string();
        for i in 0..functions.len() {
            text += &format!(".func f{i}()\n;\n");
        }
        for i in 0..variables {
            // Every third variable holds the address of the next one.
            let next = (i + 1) % variables;
            let value = if i % 3 == 0 { format!("generic(v{next})") } else { i.to_string() };
            text += &format!(".global .align 8 .u64 v{i}[2] = {{{value}, 0}};\n");
        }
        for (name, targets) in entries {
            let body: String = targets.iter().map(mention).collect();
            text +=
                &format!(".visible .entry {name}(\n\t.param .u64 {name}_param_0\n)\n{{\n{body}\tret;\n}}\n");
        }
        for (i, targets) in functions.iter().enumerate() {
            let body: String = targets.iter().map(mention).collect();
            text += &format!(".func f{i}()\n{{\n{body}\tret;\n}}\n");
        }
        text
    }

    fn arbitrary_file() -> impl Strategy<Value = (String, Vec<String>)> {
        (0usize..8, 1usize..6).prop_flat_map(|(functions, variables)| {
            let targets = || prop::collection::vec(0..functions + variables, 0..4);
            let funcs = prop::sample::select(vec!["all_reduce", "all_gather", "send_recv"]);
            let algos = prop::sample::select(vec!["_ring", "_tree", ""]);
            let protos = prop::sample::select(vec!["_simple", "_ll", "_ll128"]);
            let dtypes = prop::sample::select(vec!["", "_f32", "_bf16", "_f8e4m3"]);
            let name = (funcs, algos, protos, dtypes)
                .prop_map(|(func, algo, proto, dtype)| format!("oxccl_{func}{algo}{proto}{dtype}"));
            let entries = prop::collection::btree_map(name, targets(), 0..20);
            (prop::collection::vec(targets(), functions), Just(variables), entries).prop_map(
                |(functions, variables, entries)| {
                    let entries: Vec<_> = entries.into_iter().collect();
                    let names = entries.iter().map(|(name, _)| name.clone()).collect();
                    (file(&functions, variables, &entries), names)
                },
            )
        })
    }

    proptest! {
        /// Each entry is in exactly one module; each module defines all it mentions and nothing that it does not reach.
        #[test]
        fn modules_are_complete_disjoint_and_minimal((text, names) in arbitrary_file()) {
            let whole = Ptx::parse(&text).unwrap();
            let modules = split(&text).unwrap();
            let mut entries = Vec::new();
            for module in &modules {
                let part = Ptx::parse(&module.text).unwrap();
                let inside: Vec<&str> = part.entries().map(|entry| entry.name).collect();
                entries.extend(inside.iter().map(|entry| entry.to_string()));
                prop_assert!(inside.iter().all(|entry| module_of(entry) == module.name));
                let defined: BTreeSet<&str> =
                    part.items.iter().filter(|i| i.kind != Kind::Declaration).map(|i| i.name).collect();
                let mut reached: BTreeSet<&str> = inside.iter().copied().collect();
                for item in &part.items {
                    for word in item.words() {
                        let is_symbol = whole.items.iter().any(|other| other.name == word);
                        prop_assert!(!is_symbol || defined.contains(word), "{} lacks {}", module.name, word);
                        if word != item.name {
                            reached.insert(word);
                        }
                    }
                }
                prop_assert!(defined.iter().all(|name| reached.contains(name) || mentions_itself(&part, name)));
                // What was taken is byte for byte what was there.
                for item in &part.items {
                    prop_assert!(whole.items.contains(item));
                }
            }
            entries.sort();
            prop_assert_eq!(entries, names);
        }

        /// No text makes the parser panic or run on for ever.
        #[test]
        fn any_text_is_parsed_or_refused(text in "[a-z.{}();=\\[\\] \n/*\"0-9]{0,80}") {
            let _ = split(&text);
        }
    }

    /// A variable whose initialiser names itself is mentioned though nobody else does.
    fn mentions_itself(ptx: &Ptx, name: &str) -> bool {
        ptx.items.iter().filter(|item| item.name == name).any(|item| item.text.matches(name).count() > 1)
    }

    #[test]
    fn an_undefined_function_is_refused_by_name() {
        let text = format!("{HEADER}.extern .func malloc(.param .b64 x)\n;\n.visible .entry a() {{ ret; }}");
        assert!(split(&text).unwrap_err().to_string().contains("`malloc`"));
    }

    #[test]
    fn dynamic_shared_memory_may_stay_external() {
        let text = format!(
            "{HEADER}.extern .shared .align 16 .b8 dyn[];\n.visible .entry a() {{ mov.b64 %rd1, dyn; }}"
        );
        assert!(split(&text).unwrap()[0].text.contains(".extern .shared"));
    }

    #[test]
    fn a_written_variable_may_not_be_copied() {
        let with = |a: &str, b: &str| {
            format!(
                "{HEADER}.global .u32 count = 0;\n.visible .entry {a}() {{\n\tst.global.u32 [count+4], %r1;\n}}\n\
                 .visible .entry {b}() {{\n\tld.global.u32 %r1, [count];\n}}"
            )
        };
        let error = split(&with("oxccl_all_reduce_ring_ll_f32", "oxccl_all_gather_ring_ll")).unwrap_err();
        let names = "all_gather_ring_ll, all_reduce_ring_ll_f32";
        assert!(error.to_string().contains("`count`") && error.to_string().contains(names));
        assert!(split(&with("oxccl_all_reduce_ring_simple_f32", "oxccl_all_reduce_tree_simple_f32")).is_ok());
    }

    #[test]
    fn launch_bounds_move_to_the_head_once() {
        let text = format!(
            "{HEADER}.visible .entry a(\n)\n{{\n\t// begin inline asm\n\t// oxccl: .maxntid 640, 1, 1\n\
             \t// oxccl: .maxntid 640, 1, 1\n\t// oxccl: .minnctapersm 1\n\tret;\n}}"
        );
        let module = &split(&text).unwrap()[0].text;
        assert!(module.contains(")\n.maxntid 640, 1, 1\n.minnctapersm 1\n{"), "{module}");
    }
}

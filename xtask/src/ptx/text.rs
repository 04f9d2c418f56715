//! Layer: xtask / ptx.
//! Takes: the text of one PTX file as LLVM writes it.
//! Gives: its header and its module-scope items, each with the name it declares or defines and the names it mentions.
//! Never: understands an instruction; it needs only where statements end.
//!
//! PTX has no nesting at module scope: a statement is a line (`.version`, `.target`, `.address_size`, `.file`), or ends
//! at a `;`, or is a function with a body in braces.

use anyhow::{Result, bail};
use std::collections::BTreeSet;

/// What a module-scope statement is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A kernel, with its body.
    Entry,
    /// A function with its body.
    Function,
    /// The declaration of a function that is defined elsewhere in the file, or nowhere.
    Declaration,
    /// A variable of the module.
    Variable,
    /// A variable that somebody else provides: `.extern .shared` is sized at launch.
    External,
}

/// One statement of module scope.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Item<'a> {
    pub kind: Kind,
    pub name: &'a str,
    /// The statement, from its first directive to its `;` or `}`.
    pub text: &'a str,
}

impl Item<'_> {
    /// Every word in the item that could be a symbol.
    pub fn words(&self) -> BTreeSet<&str> {
        words(self.text).collect()
    }

    /// Whether the variable lies in shared memory.
    pub fn is_shared(&self) -> bool {
        self.text.split_whitespace().any(|word| word == ".shared")
    }
}

/// A PTX file taken apart.
#[derive(Debug)]
pub struct Ptx<'a> {
    /// `.version`, `.target`, `.address_size` and `.file` lines.
    pub header: Vec<&'a str>,
    pub items: Vec<Item<'a>>,
}

impl<'a> Ptx<'a> {
    /// Takes `text` apart.
    pub fn parse(text: &'a str) -> Result<Ptx<'a>> {
        let mut ptx = Ptx { header: Vec::new(), items: Vec::new() };
        let mut at = skip_blank(text, 0);
        while at < text.len() {
            let end = match directive(&text[at..]) {
                ".version" | ".target" | ".address_size" | ".file" => {
                    let end = text[at..].find('\n').map_or(text.len(), |length| at + length);
                    ptx.header.push(text[at..end].trim_end());
                    end
                }
                ".section" => bail!("line {}: debug sections; build without debug info", line_of(text, at)),
                word if word.starts_with('.') => {
                    let end = statement_end(text, at)?;
                    ptx.items.push(item(&text[at..end], line_of(text, at))?);
                    end
                }
                word => bail!("line {}: `{word}` where a directive was expected", line_of(text, at)),
            };
            at = skip_blank(text, end);
        }
        Ok(ptx)
    }

    /// The entries' names, in order.
    pub fn entries(&self) -> impl Iterator<Item = &Item<'a>> {
        self.items.iter().filter(|item| item.kind == Kind::Entry)
    }
}

/// The instructions and directives of a body, one each, without comments, blanks, braces and predicates.
pub fn instructions(body: &str) -> impl Iterator<Item = &str> {
    body.lines()
        .map(|line| line.split("//").next().unwrap_or(line))
        .flat_map(|line| line.split_inclusive(';'))
        .map(|code| code.trim_start_matches(['{', '}', ' ', '\t']))
        .map(|code| match code.strip_prefix('@') {
            Some(guarded) => {
                guarded.split_once(char::is_whitespace).map_or("", |(_, code)| code.trim_start())
            }
            None => code,
        })
        .map(str::trim_end)
        .filter(|code| !code.is_empty())
}

/// Every identifier in `text` outside comments and strings.
pub fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut at = 0;
    std::iter::from_fn(move || {
        loop {
            at = skip_blank(text, at);
            let rest = text.get(at..).filter(|rest| !rest.is_empty())?;
            let length = word_length(rest);
            if length > 0 {
                let word = &rest[..length];
                at += length;
                if !word.starts_with(|c: char| c.is_ascii_digit()) {
                    return Some(word);
                }
            } else {
                at += step(rest);
            }
        }
    })
}

/// Letters, digits, `_`, `$` and `%`: what PTX allows in an identifier, numbers included.
fn word_length(text: &str) -> usize {
    text.find(|c: char| !(c.is_ascii_alphanumeric() || "_$%".contains(c))).unwrap_or(text.len())
}

/// The directive or word at the start.
fn directive(text: &str) -> &str {
    let dot = usize::from(text.starts_with('.'));
    &text[..dot + word_length(&text[dot..])]
}

/// Past white space and comments.
fn skip_blank(text: &str, mut at: usize) -> usize {
    loop {
        let rest = &text[at..];
        let trimmed = rest.trim_start();
        at += rest.len() - trimmed.len();
        if trimmed.starts_with("//") {
            at += trimmed.find('\n').unwrap_or(trimmed.len());
        } else if trimmed.starts_with("/*") {
            at += trimmed.find("*/").map_or(trimmed.len(), |end| end + 2);
        } else {
            return at;
        }
    }
}

/// Bytes of the string or the single character at the start.
fn step(text: &str) -> usize {
    match text.strip_prefix('"') {
        Some(inside) => inside.find('"').map_or(text.len(), |end| end + 2),
        None => text.chars().next().map_or(0, char::len_utf8),
    }
}

/// The end of the statement that starts at `start`: past its `;`, or past the body of a function.
fn statement_end(text: &str, start: usize) -> Result<usize> {
    let is_function = |head: &str| words(head).any(|word| word == "func" || word == "entry");
    let (mut at, mut depth) = (start, 0usize);
    let mut in_body = false;
    while at < text.len() {
        at = skip_blank(text, at);
        let rest = &text[at..];
        match rest.chars().next() {
            None => break,
            Some(';') if depth == 0 => return Ok(at + 1),
            Some('{') if depth == 0 => {
                in_body = is_function(&text[start..at]);
                depth = 1;
            }
            Some('{' | '(' | '[') => depth += 1,
            Some('}' | ')' | ']') => {
                depth = depth.saturating_sub(1);
                if depth == 0 && in_body {
                    return Ok(at + 1);
                }
            }
            Some(_) => {}
        }
        at += step(rest);
    }
    bail!("line {}: the statement has no end", line_of(text, start))
}

fn item(text: &str, line: usize) -> Result<Item<'_>> {
    let head = &text[..text.find(['{', '=']).unwrap_or(text.len())];
    let is = |what: &str| words(head).any(|word| word == what);
    let (kind, name) = if is("entry") || is("func") {
        let kind = match (text.ends_with('}'), is("entry")) {
            (false, _) => Kind::Declaration,
            (true, true) => Kind::Entry,
            (true, false) => Kind::Function,
        };
        (kind, function_name(head))
    } else if is("alias") {
        bail!("line {line}: `.alias` is not supported")
    } else {
        (if is("extern") { Kind::External } else { Kind::Variable }, variable_name(head))
    };
    match name {
        Some(name) => Ok(Item { kind, name, text }),
        None => bail!("line {line}: no name in `{}`", head.lines().next().unwrap_or(head)),
    }
}

/// The first identifier outside parentheses that is no directive: the return value's stands in parentheses before it.
fn function_name(head: &str) -> Option<&str> {
    let (mut at, mut depth) = (0, 0usize);
    loop {
        at = skip_blank(head, at);
        let rest = head.get(at..).filter(|rest| !rest.is_empty())?;
        let word = directive(rest);
        match rest.as_bytes()[0] {
            b'(' => depth += 1,
            b')' => depth = depth.saturating_sub(1),
            b'.' => {}
            _ if depth == 0 && !word.is_empty() => return Some(word),
            _ => {}
        }
        at += word.len().max(step(rest));
    }
}

/// The last identifier before `[`, `=` or `;`: types and alignments stand before it.
fn variable_name(head: &str) -> Option<&str> {
    let declarator = head.split(['[', ';']).next().unwrap_or(head);
    declarator
        .split_whitespace()
        .next_back()
        .filter(|word| word_length(word) == word.len() && !word.starts_with(|c: char| c.is_ascii_digit()))
}

fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
// Generated
.version 7.8
.target sm_90
.address_size 64
.file 1 "a { ; b"

.func  (.param .b32 func_retval0) helper
(
	.param .b32 helper_param_0
)
;
.func stop(.param .b64 stop_param_0)
.noreturn;
.extern .shared .align 16 .b8 dynamic[];
.global .align 8 .u64 FNS[2] = {helper, generic(TABLE)};
.global .align 4 .b8 TABLE[8] = {1, 0, 0, 0}; // used
	// .globl	go
.visible .entry go(
	.param .u64 .ptr .align 1 go_param_0
)
.maxntid 640, 1, 1
{
	.reg .b32 	%r<2>;
	{ // callseq 0, 0
	call.uni (retval0), helper, (param0); // not stop
	} // callseq 0
$L__BB0_1:
	ret;
}
.func  (.param .b32 func_retval0) helper(.param .b32 helper_param_0)
{
	mov.b64 	%rd1, FNS;
	ret;
}
"#;

    #[test]
    fn statements_end_where_they_should() {
        let ptx = Ptx::parse(FILE).unwrap();
        assert_eq!(ptx.header, [".version 7.8", ".target sm_90", ".address_size 64", ".file 1 \"a { ; b\""]);
        let found: Vec<(Kind, &str)> = ptx.items.iter().map(|item| (item.kind, item.name)).collect();
        assert_eq!(
            found,
            [
                (Kind::Declaration, "helper"),
                (Kind::Declaration, "stop"),
                (Kind::External, "dynamic"),
                (Kind::Variable, "FNS"),
                (Kind::Variable, "TABLE"),
                (Kind::Entry, "go"),
                (Kind::Function, "helper"),
            ]
        );
        assert!(ptx.items[2].is_shared() && !ptx.items[3].is_shared());
    }

    #[test]
    fn mentions_are_seen_and_comments_are_not() {
        let ptx = Ptx::parse(FILE).unwrap();
        let mentions = |i: usize| ptx.items[i].words();
        assert!(mentions(5).contains("helper") && !mentions(5).contains("stop"));
        assert!(mentions(3).contains("TABLE") && mentions(6).contains("FNS"));
    }

    #[test]
    fn instructions_stand_alone() {
        let body = "{\n\t// note\n\t@!%p1 bra \t$L; ret;\n\t{ .reg .pred p; @p st.u32 [x], 1; } // end\n}";
        let found: Vec<&str> = instructions(body).collect();
        assert_eq!(found, ["bra \t$L;", "ret;", ".reg .pred p;", "st.u32 [x], 1;"]);
    }

    #[test]
    fn broken_files_are_refused_with_the_line() {
        for (text, line) in [
            (".version 7.8\n.visible .entry x() {\n", "line 2"),
            ("\nnonsense;\n", "line 2"),
            (".section .debug_info { .b8 1 }", "debug"),
            (".alias a, b;", ".alias"),
            (".global .b8 7[3];", "no name"),
        ] {
            let error = Ptx::parse(text).unwrap_err().to_string();
            assert!(error.contains(line), "{text}: {error}");
        }
    }
}

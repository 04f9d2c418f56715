//! Layer: xtask / tidy.
//! Takes: the text of a Rust file.
//! Gives: the same text with comments and literals blanked, line by line, and which lines are tests.
//! Never: parses; a lexer of the parts that hide other parts is enough to look for names.

/// One Rust file, prepared for searching.
pub struct Source {
    /// The lines as they stand.
    pub raw: Vec<String>,
    /// The same lines with comments, strings and characters replaced by spaces.
    pub code: Vec<String>,
    /// Whether a line belongs to an item under `#[cfg(test)]` (or another `cfg` that holds only in tests).
    pub is_test: Vec<bool>,
}

impl Source {
    pub fn new(text: &str) -> Source {
        let blanked = blank(text);
        let code: Vec<String> = blanked.lines().map(String::from).collect();
        let is_test = mark_tests(&code);
        Source { raw: text.lines().map(String::from).collect(), code, is_test }
    }

    /// The same file, all of it a test.
    pub fn all_tests(mut self) -> Source {
        self.is_test.fill(true);
        self
    }

    /// Lines of code outside tests, with their numbers from 1.
    pub fn product_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.code
            .iter()
            .zip(&self.is_test)
            .enumerate()
            .filter(|(_, (_, is_test))| !**is_test)
            .map(|(i, (line, _))| (i + 1, line.as_str()))
    }

    /// The leading `//!` comment.
    pub fn module_doc(&self) -> String {
        let doc = self.raw.iter().take_while(|line| line.starts_with("//!") || line.trim().is_empty());
        doc.map(|line| line.trim_start_matches("//!")).collect::<Vec<_>>().join("\n")
    }
}

/// The identifiers of a line of code.
pub fn identifiers(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|word| !word.is_empty())
}

/// The names that a line of code defines as items: `x` of `fn x`, `struct x`, `macro_rules! x`.
pub fn defined_names(code: &str) -> impl Iterator<Item = &str> {
    const KEYWORDS: [&str; 10] =
        ["fn", "struct", "enum", "union", "trait", "type", "const", "static", "mod", "macro_rules"];
    let words = || identifiers(code);
    words()
        .zip(words().skip(1))
        // `const fn x` and `static mut X` name something else than their second word.
        .filter(|(key, name)| KEYWORDS.contains(key) && !KEYWORDS.contains(name) && *name != "mut")
        .map(|(_, name)| name)
        .chain(
            words().skip_while(|word| *word != "mut").skip(1).take(usize::from(code.contains("static mut "))),
        )
}

/// Where a path such as `std::env` is named as whole segments.
pub fn names_path(code: &str, path: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(path).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let after = code[at + path.len()..].chars().next();
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}

/// Replaces the text of comments, strings and character literals by spaces; line breaks stay.
fn blank(text: &str) -> String {
    let bytes: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut i = 0;
    while i < bytes.len() {
        let end = hidden_end(&bytes, i);
        if end > i {
            out.extend(bytes[i..end].iter().map(|c| if *c == '\n' { '\n' } else { ' ' }));
            i = end;
            continue;
        }
        // A whole identifier at once, so that the `r` of `for"` is not taken for a raw string's.
        if is_ident(bytes[i]) {
            while i < bytes.len() && is_ident(bytes[i]) {
                out.push(bytes[i]);
                i += 1;
            }
            continue;
        }
        out.push(bytes[i]);
        i += 1;
    }
    out
}

fn is_ident(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The end of the comment or literal that starts at `i`; `i` itself if none does.
fn hidden_end(text: &[char], i: usize) -> usize {
    let rest = &text[i..];
    match rest {
        ['/', '/', ..] => i + rest.iter().position(|c| *c == '\n').unwrap_or(rest.len()),
        ['/', '*', ..] => block_comment_end(text, i),
        ['"', ..] => string_end(text, i + 1),
        ['b' | 'c', '"', ..] => string_end(text, i + 2),
        ['r', '"' | '#', ..] => raw_string_end(text, i + 1).unwrap_or(i),
        ['b' | 'c', 'r', '"' | '#', ..] => raw_string_end(text, i + 2).unwrap_or(i),
        ['b', '\'', ..] => char_end(text, i + 1).unwrap_or(i),
        ['\'', ..] => char_end(text, i).unwrap_or(i),
        _ => i,
    }
}

fn block_comment_end(text: &[char], start: usize) -> usize {
    let (mut depth, mut i) = (1, start + 2);
    while i < text.len() && depth > 0 {
        match &text[i..] {
            ['/', '*', ..] => (depth, i) = (depth + 1, i + 2),
            ['*', '/', ..] => (depth, i) = (depth - 1, i + 2),
            _ => i += 1,
        }
    }
    i
}

fn string_end(text: &[char], start: usize) -> usize {
    let mut i = start;
    while i < text.len() {
        match text[i] {
            '\\' => i += 2,
            '"' => return i + 1,
            _ => i += 1,
        }
    }
    text.len()
}

/// `hashes` is where the `#`s (or the quote) start. `None`: a raw identifier such as `r#type`.
fn raw_string_end(text: &[char], hashes: usize) -> Option<usize> {
    let count = text[hashes..].iter().take_while(|c| **c == '#').count();
    let mut i = hashes + count;
    if text.get(i) != Some(&'"') {
        return None;
    }
    loop {
        i += 1;
        let quote = *text.get(i)? == '"';
        if quote && text[i + 1..].iter().take(count).filter(|c| **c == '#').count() == count {
            return Some(i + 1 + count);
        }
    }
}

/// `None`: a lifetime.
fn char_end(text: &[char], quote: usize) -> Option<usize> {
    match text.get(quote + 1)? {
        '\\' => {
            let close = text[quote + 3..].iter().position(|c| *c == '\'')?;
            Some(quote + 3 + close + 1)
        }
        _ => (text.get(quote + 2) == Some(&'\'')).then_some(quote + 3),
    }
}

/// Marks the item after each `#[cfg(test)]`: to the `;` or the closing brace that ends it.
fn mark_tests(code: &[String]) -> Vec<bool> {
    let mut is_test = vec![false; code.len()];
    let mut i = 0;
    while i < code.len() {
        let squeezed: String = code[i].split_whitespace().collect();
        let starts = squeezed.starts_with("#[cfg(test)]") || squeezed.starts_with("#[cfg(all(test,");
        let end = if starts { item_end(code, i) } else { i };
        if starts {
            is_test[i..=end].fill(true);
        }
        i = end + 1;
    }
    is_test
}

/// The last line of the item whose attributes start on line `start`.
pub fn item_end(code: &[String], start: usize) -> usize {
    let (mut depth, mut brackets) = (0i32, 0i32);
    for (i, line) in code.iter().enumerate().skip(start) {
        for c in line.chars() {
            match c {
                '[' | '(' => brackets += 1,
                ']' | ')' => brackets -= 1,
                '{' => depth += 1,
                '}' if depth == 1 && brackets == 0 => return i,
                '}' => depth -= 1,
                ';' if depth == 0 && brackets == 0 => return i,
                _ => {}
            }
        }
    }
    code.len() - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked() {
        let source = Source::new("let a = \"std::env\"; // std::env\nlet b = /* x /* y */ z */ 1;");
        assert_eq!(source.code[0].trim_end(), "let a =           ;");
        assert_eq!(source.code[1].split_whitespace().collect::<Vec<_>>(), ["let", "b", "=", "1;"]);
    }

    #[test]
    fn raw_strings_lifetimes_and_characters_do_not_confuse() {
        let text = "let s = r#\"a \" b\"#; fn f<'a>(x: &'a str) -> char { '\"' } const Q: u8 = b'\\''; end";
        let code = &Source::new(text).code[0];
        assert!(code.contains("fn f<'a>(x: &'a str) -> char {") && code.ends_with("end"), "{code}");
        assert!(!code.contains('"'));
    }

    #[test]
    fn raw_identifiers_stay() {
        assert!(Source::new("let r#type = 1;").code[0].contains("r#type"));
    }

    #[test]
    fn a_multi_line_string_keeps_line_numbers() {
        let source = Source::new("let a = \"x\ny\";\nunsafe {}");
        assert_eq!(source.code.len(), 3);
        assert!(source.code[2].starts_with("unsafe"));
    }

    #[test]
    fn test_modules_are_marked_to_their_closing_brace() {
        let source = Source::new("fn a() {}\n#[cfg(test)]\nmod tests {\n  fn b() { if x { } }\n}\nfn c() {}");
        assert_eq!(source.is_test, [false, true, true, true, true, false]);
    }

    #[test]
    fn a_test_only_mod_line_is_marked_alone() {
        let source = Source::new("#[cfg(test)]\nmod oracle;\nmod real;");
        assert_eq!(source.is_test, [true, true, false]);
    }

    #[test]
    fn paths_match_whole_segments() {
        assert!(names_path("use std::env;", "std::env"));
        assert!(!names_path("use std::environment;", "std::env"));
        assert!(!names_path("my_std::env", "std::env"));
    }
}

//! The text of a tuning file: TOML, one table for each backend and number of ranks.
//!
//! ```toml
//! version = 1
//!
//! [[table]]
//! backend = "cpu"            # cpu, cpu-streams or cuda
//! ranks = 2
//! machine = "Xeon ..."       # these three are for people
//! date = "2026-11-21"
//! oxccl = "0.1.0"
//!
//! [[table.choice]]
//! collective = "all_reduce"
//! max_bytes = 4096           # of the larger buffer; without it, everything above the row before
//! algorithm = "oneshot"      # direct: oneshot below 192 KiB, twoshot from there on, where a function has both
//! protocol = "simple"
//! channels = 4               # optional
//! time_us = [0.31, 0.3, 0.4] # median, least and greatest when it was measured; optional, for people
//! ```

use super::candidate::{Candidate, Candidates};
use super::table::{Backend, TUNED, TuneRow, TuneTable};
use core::fmt::Write;
use core::ops::Range;
use oxccl_shared::abi::{Func, Protocol};
use oxccl_shared::algo::registry::{SPECS, named};
use serde::Deserialize;
use thiserror::Error;
use toml::Spanned;

/// The format's version.
const VERSION: u32 = 1;

/// Where a row named `direct` changes from one-shot to two-shot: GPUs changed there when they had that name in files.
const TWO_SHOT_MIN_BYTES: u64 = 192 << 10;

/// Measured tables.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct TuneFile {
    /// For different backends or numbers of ranks each.
    pub sections: Vec<TuneSection>,
}

/// One table and its origin.
#[derive(Clone, PartialEq, Debug)]
pub struct TuneSection {
    /// Its key and origin.
    pub head: TuneHead,
    /// Its rows, function by function.
    pub records: Vec<TuneRecord>,
    /// The rows, ready for lookups.
    pub table: TuneTable,
    /// Comment lines to write beside it; ignored when reading.
    pub notes: Vec<String>,
}

/// What a table is for, and where it was measured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TuneHead {
    /// Kind of ranks.
    pub backend: Backend,
    /// Ranks.
    pub ranks: u32,
    /// For people: processors or GPUs, and the host's name.
    pub machine: String,
    /// For people.
    pub date: String,
    /// For people: the library's version.
    pub oxccl: String,
}

/// A row and its measurement.
#[derive(Clone, PartialEq, Debug)]
pub struct TuneRecord {
    /// The function.
    pub func: Func,
    /// The best candidate up to a size.
    pub row: TuneRow,
    /// Median, least and greatest time at the largest size of the row that was measured.
    pub time_us: Option<[f64; 3]>,
}

/// Letters of a line that an error shows.
const FIELD_MAX: usize = 40;
/// Letters of what the parser says, which may quote a value.
const WHAT_MAX: usize = 240;

/// A mistake in a file's text.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("line {line}, {field}: {what}")]
pub struct TuneFileError {
    /// From 1.
    pub line: usize,
    /// The path of the value.
    pub field: String,
    /// The mistake, and the expected form.
    pub what: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileText {
    version: Spanned<u32>,
    #[serde(default)]
    table: Vec<Spanned<SectionText>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SectionText {
    backend: Backend,
    ranks: Spanned<u32>,
    #[serde(default)]
    machine: String,
    #[serde(default)]
    date: String,
    #[serde(default)]
    oxccl: String,
    #[serde(default)]
    choice: Vec<Spanned<RowText>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RowText {
    collective: Spanned<String>,
    max_bytes: Option<Spanned<u64>>,
    algorithm: Spanned<String>,
    protocol: Spanned<String>,
    channels: Option<Spanned<u16>>,
    time_us: Option<[f64; 3]>,
}

/// Places in the text.
struct Text<'a>(&'a str);

impl Text<'_> {
    fn error(&self, span: Range<usize>, what: impl Into<String>) -> TuneFileError {
        let start = span.start.min(self.0.len());
        let bytes = self.0.as_bytes();
        let line = bytes[..start].iter().filter(|byte| **byte == b'\n').count() + 1;
        if !self.says_to_be_one() {
            let what = format!(
                "expected `version = {VERSION}` first, as `oxccl tune` writes it: this is no tuning file"
            );
            return TuneFileError { line: self.first().0, field: "the file".into(), what };
        }
        let text = self.0.lines().nth(line - 1).unwrap_or_default();
        let field = excerpt(text.split('=').next().unwrap_or_default().trim(), FIELD_MAX);
        let field = if field.is_empty() { "the file".into() } else { field };
        TuneFileError { line, field, what: excerpt(&what.into(), WHAT_MAX) }
    }

    /// The first line that says something, and its number.
    fn first(&self) -> (usize, &str) {
        let lines = (1..).zip(self.0.lines().map(str::trim));
        let mut said = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        said.next().unwrap_or((1, ""))
    }

    /// Of any other file nothing is shown: one with a secret may have been named by mistake.
    fn says_to_be_one(&self) -> bool {
        let (_, first) = self.first();
        first == "[[table]]" || first.split('=').next().unwrap_or_default().trim() == "version"
    }

    fn named<T>(
        &self,
        value: &Spanned<String>,
        parse: impl Fn(&str) -> Option<T>,
        expected: &str,
    ) -> Result<T, TuneFileError> {
        parse(value.get_ref()).ok_or_else(|| self.error(value.span(), format!("expected {expected}")))
    }
}

/// The start of a text, for a log.
fn excerpt(text: &str, chars_max: usize) -> String {
    let mut letters = text.chars();
    let mut start: String = letters.by_ref().take(chars_max).flat_map(visible).collect();
    if letters.next().is_some() {
        start.push_str("...");
    }
    start
}

fn visible(letter: char) -> impl Iterator<Item = char> {
    let escaped = letter.is_control().then(|| letter.escape_default());
    let same = escaped.is_none().then_some(letter);
    escaped.into_iter().flatten().chain(same)
}

/// The parser's message. Where nothing could stand it says that it expected nothing.
fn without_nothing(message: &str) -> &str {
    message.strip_suffix(", expected nothing").unwrap_or(message)
}

impl TuneFile {
    /// Parses a file. `offered` returns a backend's candidates.
    ///
    /// # Errors
    /// The first mistake, with its line and field.
    pub fn parse(
        text: &str,
        offered: impl Fn(Backend, Func) -> Candidates,
    ) -> Result<TuneFile, TuneFileError> {
        let at = Text(text);
        let file: FileText = toml::from_str(text)
            .map_err(|error| at.error(error.span().unwrap_or_default(), without_nothing(error.message())))?;
        if *file.version.get_ref() != VERSION {
            let what = format!("this OxCCL reads version {VERSION}");
            return Err(at.error(file.version.span(), what));
        }
        let mut sections: Vec<TuneSection> = Vec::new();
        for section in &file.table {
            let read = read_section(&at, section.get_ref(), &offered)?;
            let is_same = |known: &&TuneSection| {
                (known.head.backend, known.head.ranks) == (read.head.backend, read.head.ranks)
            };
            if sections.iter().find(is_same).is_some() {
                let what = "there is a table for this backend and number of ranks already";
                return Err(at.error(section.get_ref().ranks.span(), what));
            }
            sections.push(read);
        }
        Ok(TuneFile { sections })
    }

    /// The table for so many ranks of a kind.
    pub fn table(&self, backend: Backend, ranks: u32) -> Option<&TuneTable> {
        let mut sections = self.sections.iter();
        let found = sections.find(|section| (section.head.backend, section.head.ranks) == (backend, ranks));
        found.map(|section| &section.table)
    }

    /// The part that must be equal on all ranks: everything that choices depend on.
    pub fn key(&self) -> Vec<(Backend, u32, &TuneTable)> {
        let sections = self.sections.iter();
        sections.map(|section| (section.head.backend, section.head.ranks, &section.table)).collect()
    }

    /// Replaces the table of the same backend and number of ranks.
    pub fn replace(&mut self, section: TuneSection) {
        let key = (section.head.backend, section.head.ranks);
        self.sections.retain(|known| (known.head.backend, known.head.ranks) != key);
        self.sections.push(section);
    }

    /// As a file.
    pub fn to_text(&self) -> String {
        let mut out = String::from(
            "# What is fastest here, measured by `oxccl tune`. Communicators read it where OXCCL_TUNE_FILE names it (docs/tuning.md).\n",
        );
        let _ = writeln!(out, "version = {VERSION}");
        for section in &self.sections {
            section.write(&mut out);
        }
        out
    }
}

fn read_section(
    at: &Text<'_>,
    section: &SectionText,
    offered: impl Fn(Backend, Func) -> Candidates,
) -> Result<TuneSection, TuneFileError> {
    let SectionText { backend, ranks, machine, date, oxccl, choice } = section;
    if *ranks.get_ref() < 2 {
        return Err(at.error(ranks.span(), "expected at least 2: a rank that is alone has no choice"));
    }
    let head = TuneHead {
        backend: *backend,
        ranks: *ranks.get_ref(),
        machine: machine.clone(),
        date: date.clone(),
        oxccl: oxccl.clone(),
    };
    let mut read = TuneSection::new(head);
    for row in choice {
        for record in read_row(at, row.get_ref(), &read.table, |func| offered(*backend, func))? {
            let max_bytes = record.row.max_bytes;
            if let Err(why) = read.push(record) {
                let span = row.get_ref().max_bytes.as_ref().map_or(row.span(), Spanned::span);
                return Err(at.error(span, format!("{why} (this row ends at {max_bytes})")));
            }
        }
    }
    Ok(read)
}

/// The names of all algorithms, as an error asks for one of them.
fn expected_algorithms() -> String {
    let names = SPECS.map(|spec| spec.name());
    let (last, others) = names.split_last().expect("there are algorithms");
    format!("{} or {last}", others.join(", "))
}

/// The records of a row that follows those of `before`: two if its algorithm's name means two, of which each is for some of its sizes.
fn read_row(
    at: &Text<'_>,
    row: &RowText,
    before: &TuneTable,
    offered: impl Fn(Func) -> Candidates,
) -> Result<Vec<TuneRecord>, TuneFileError> {
    let tuned = |name: &str| Func::from_name(name).filter(|func| TUNED.contains(func));
    let func =
        at.named(&row.collective, tuned, "all_reduce, all_gather, reduce_scatter, broadcast or reduce")?;
    let known = |name: &str| named(name).next().map(|_| ());
    at.named(&row.algorithm, known, &expected_algorithms())?;
    let protocol = at.named(&row.protocol, Protocol::from_name, "ll, ll128 or simple")?;
    let offered = offered(func);
    let meant = named(row.algorithm.get_ref()).map(|spec| Candidate::new(spec.algorithm, protocol));
    let meant: Vec<Candidate> = meant.filter(|candidate| offered.has(*candidate)).collect();
    if meant.is_empty() {
        let what = format!("{func} has no {} {protocol} there, but {offered}", row.algorithm.get_ref());
        return Err(at.error(row.algorithm.span(), what));
    }
    if let Some(channels) = row.channels.as_ref().filter(|channels| *channels.get_ref() == 0) {
        return Err(at.error(channels.span(), "expected at least 1, or no such line"));
    }
    let max_bytes = row.max_bytes.as_ref().map_or(u64::MAX, |bytes| *bytes.get_ref());
    let channels = row.channels.as_ref().map(|channels| *channels.get_ref());
    let begins = before.rows(func).last().map_or(0, |last| last.max_bytes.saturating_add(1));
    let border = TWO_SHOT_MIN_BYTES;
    let ends = match meant[..] {
        [_, _] if max_bytes < border => vec![(meant[0], max_bytes)],
        [_, second] if begins >= border => vec![(second, max_bytes)],
        [first, second] => vec![(first, border - 1), (second, max_bytes)],
        _ => vec![(meant[0], max_bytes)],
    };
    let record = |(candidate, max_bytes)| {
        let row_read = TuneRow { max_bytes, candidate, channels };
        TuneRecord { func, row: row_read, time_us: row.time_us }
    };
    Ok(ends.into_iter().map(record).collect())
}

impl TuneSection {
    /// An empty table.
    pub fn new(head: TuneHead) -> TuneSection {
        TuneSection { head, records: Vec::new(), table: TuneTable::default(), notes: Vec::new() }
    }

    /// Adds a function's next row.
    ///
    /// # Errors
    /// Why it cannot be the next row.
    pub fn push(&mut self, record: TuneRecord) -> Result<(), &'static str> {
        let TuneRecord { func, row, .. } = record;
        let last = self.table.rows(func).last();
        if last.is_some_and(|last| last.max_bytes >= row.max_bytes) {
            return Err("rows of a collective must ascend, and end with the one that has no max_bytes");
        }
        self.table = self.table.with(func, row).ok_or("a collective has at most 16 rows")?;
        self.records.push(record);
        Ok(())
    }

    fn write(&self, out: &mut String) {
        let TuneHead { backend, ranks, machine, date, oxccl } = &self.head;
        let text = |text: &str| toml::Value::from(text).to_string();
        let _ = write!(out, "\n[[table]]\nbackend = {}\nranks = {ranks}\n", text(backend.name()));
        let _ = writeln!(out, "machine = {}", text(machine));
        let _ = writeln!(out, "date = {}\noxccl = {}", text(date), text(oxccl));
        for note in &self.notes {
            let _ = writeln!(out, "# {}", note.replace(['\n', '\r'], " "));
        }
        for TuneRecord { func, row, time_us } in &self.records {
            let _ = writeln!(out, "\n[[table.choice]]\ncollective = {}", text(func.name()));
            if row.max_bytes != u64::MAX {
                let _ = writeln!(out, "max_bytes = {}", row.max_bytes);
            }
            let Candidate { algorithm, protocol } = row.candidate;
            let _ = writeln!(out, "algorithm = {}", text(algorithm.name()));
            let _ = writeln!(out, "protocol = {}", text(protocol.name()));
            if let Some(channels) = row.channels {
                let _ = writeln!(out, "channels = {channels}");
            }
            if let Some([median, least, greatest]) = time_us {
                let _ = writeln!(out, "time_us = [{median:?}, {least:?}, {greatest:?}]");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxccl_shared::abi::Algorithm;

    const TEXT: &str = r#"version = 1
[[table]]
backend = "cpu"
ranks = 2
machine = "a \"quoted\" name"
[[table.choice]]
collective = "all_reduce"
max_bytes = 4096
algorithm = "direct"
protocol = "simple"
[[table.choice]]
collective = "all_reduce"
algorithm = "Ring"
protocol = "LL"
channels = 3
time_us = [1.0, 0.5, nan]
"#;

    fn parse(text: &str) -> Result<TuneFile, TuneFileError> {
        TuneFile::parse(text, |backend, func| {
            Candidates::of(|c| {
                c.algorithm == Algorithm::Ring || (func == Func::AllReduce && backend == Backend::Cpu)
            })
        })
    }

    #[test]
    fn what_stands_too_much_is_named_and_nothing_is_not_expected() {
        let error = parse("version = 01").unwrap_err().to_string();
        assert_eq!(error, "line 1, version: unexpected leading zero");
    }

    /// The error showed the first line of whatever file was named.
    #[test]
    fn of_a_file_that_is_no_tuning_file_nothing_is_shown() {
        for text in [
            "hunter2\n",
            "\n# key\nhunter2 = 1\n",
            "[hunter2]\nversion = 1\n",
            "hunter2",
            "version_hunter2 = 2",
        ] {
            let error = parse(text).unwrap_err();
            assert!(!error.to_string().contains("hunter2"), "{error}");
            let line = text.lines().position(|line| line.contains("hunter2")).unwrap() + 1;
            assert_eq!(error.line, line, "{error}");
            assert!(error.what.contains("expected `version = 1` first"), "{error}");
        }
        let long = format!("version = 1\n\x1b{} = 2\n", "k".repeat(500));
        let error = parse(&long).unwrap_err().to_string();
        assert!(error.len() < 400 && !error.contains('\x1b'), "{error}");
        assert!(error.starts_with("line 2, "), "{error}");
    }

    #[test]
    fn rows_are_found_by_size_ranks_and_backend() {
        let file = parse(TEXT).unwrap();
        let table = file.table(Backend::Cpu, 2).unwrap();
        assert_eq!(file.table(Backend::Cpu, 3), None);
        assert_eq!(file.table(Backend::Gpu, 2), None);
        let row = |bytes| table.row(Func::AllReduce, bytes).unwrap();
        assert_eq!(row(4096).1.candidate, Candidate::new(Algorithm::OneShot, Protocol::Simple));
        assert_eq!(row(4097).1.candidate, Candidate::new(Algorithm::Ring, Protocol::LL));
        assert_eq!((row(u64::MAX).0, row(u64::MAX).1.channels), (1, Some(3)));
        assert_eq!(table.row(Func::Reduce, 8), None);
        assert_eq!(table.row(Func::Send, 8), None);
    }

    #[test]
    fn what_is_written_is_what_was_read() {
        let mut file = parse(&TEXT.replace("nan", "7.25")).unwrap();
        file.sections[0].notes = vec!["a line\nand another".into()];
        let again = parse(&file.to_text()).unwrap();
        file.sections[0].notes.clear();
        assert_eq!(file, again);
        let other = TuneSection::new(TuneHead { ranks: 4, ..file.sections[0].head.clone() });
        file.replace(other.clone());
        file.replace(other);
        assert_eq!(parse(&file.to_text()).unwrap().sections.len(), 2);
    }

    #[test]
    fn what_is_wrong_is_named_with_line_and_field() {
        for (from, to, line, field, what) in [
            ("version = 1", "version = 2", 1, "version", "reads version 1"),
            ("version = 1\n", "", 1, "[[table]]", "missing field `version`"),
            ("\"cpu\"", "\"tpu\"", 3, "backend", "unknown variant"),
            ("ranks = 2", "ranks = 1", 4, "ranks", "at least 2"),
            ("ranks = 2", "ranks = -2", 4, "ranks", "invalid value"),
            ("\"all_reduce\"", "\"all_to_all\"", 7, "collective", "all_reduce, all_gather"),
            ("max_bytes = 4096", "max_bytes = \"4K\"", 8, "max_bytes", "invalid type"),
            ("max_bytes = 4096\n", "", 10, "[[table.choice]]", "ascend"),
            (
                "\"direct\"",
                "\"pat\"",
                9,
                "algorithm",
                "tree, ring, oneshot, twoshot, collnetchain, collnetdirect, twolevel or doubling",
            ),
            ("\"cpu\"", "\"cuda\"", 9, "algorithm", "has no direct simple there, but ring ll"),
            ("\"simple\"", "\"ll256\"", 10, "protocol", "ll128"),
            ("channels = 3", "channels = 0", 15, "channels", "at least 1"),
            ("channels = 3", "channels = 65536", 15, "channels", "invalid value"),
            ("channels = 3", "chanels = 3", 15, "chanels", "unknown field"),
            ("channels = 3", "channels =", 15, "channels", ""),
        ] {
            assert!(TEXT.contains(from), "{from}");
            let error = parse(&TEXT.replacen(from, to, 1)).unwrap_err();
            assert_eq!((error.line, error.field.as_str()), (line, field), "{error}");
            assert!(error.what.contains(what), "{error}");
        }
        let twice = format!("{TEXT}[[table]]\nbackend = \"cpu\"\nranks = 2\n");
        assert_eq!(parse(&twice).unwrap_err().line, 19);
    }

    #[test]
    fn the_old_name_of_two_algorithms_is_each_where_it_was() {
        let file = |rows: &[(&str, &str)]| {
            let row = |(name, max_bytes): &(&str, &str)| {
                format!(
                    "[[table.choice]]\ncollective = \"all_reduce\"\n{max_bytes}\nalgorithm = \"{name}\"\nprotocol = \"ll\"\n"
                )
            };
            let rows: String = rows.iter().map(row).collect();
            let text = format!("version = 1\n[[table]]\nbackend = \"cuda\"\nranks = 2\n{rows}");
            let file = TuneFile::parse(&text, |_, _| Candidates::ALL).unwrap();
            let rows = file.table(Backend::Gpu, 2).unwrap().rows(Func::AllReduce);
            rows.map(|row| (row.candidate.algorithm, row.max_bytes)).collect::<Vec<_>>()
        };
        use Algorithm::{OneShot, Ring, TwoShot};
        assert_eq!(file(&[("direct", "")]), [(OneShot, (192 << 10) - 1), (TwoShot, u64::MAX)]);
        assert_eq!(file(&[("Direct", "max_bytes = 4096")]), [(OneShot, 4096)]);
        let last = [("ring", "max_bytes = 196608"), ("direct", "")];
        assert_eq!(file(&last), [(Ring, 192 << 10), (TwoShot, u64::MAX)]);
        assert_eq!(file(&[("oneshot", "")]), [(OneShot, u64::MAX)]);
    }

    #[test]
    fn a_collective_has_only_so_many_rows() {
        let row = |bytes| {
            format!(
                "[[table.choice]]\ncollective = \"reduce\"\nmax_bytes = {bytes}\nalgorithm = \"ring\"\nprotocol = \"ll\"\n"
            )
        };
        let head = "version = 1\n[[table]]\nbackend = \"cpu\"\nranks = 2\n".to_string();
        let text = |rows: u64| head.clone() + &(0..rows).map(row).collect::<String>();
        assert!(parse(&text(16)).is_ok());
        assert!(parse(&text(17)).unwrap_err().what.contains("at most 16"));
    }
}

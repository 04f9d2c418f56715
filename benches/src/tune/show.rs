//! Layer: tune.
//! Takes: what was measured.
//! Gives: lines for a terminal, and comments for the file.
//! Never: decides what is fastest.

use super::found::Found;
use super::pick::{Row, Times, Way, winners};
use crate::collective::Collective;
use std::fmt::Write;

/// The fastest way at each size, beside the library's own choice.
pub fn table(found: &Found) -> String {
    let mut out = String::new();
    for ((collective, rows), untuned) in found.collectives.iter().zip(&found.untuned) {
        let _ = writeln!(out, "\n{}, float, {} ranks", collective.name(), found.ranks);
        let _ = writeln!(
            out,
            "{:>10}  {:<22}{:>10}{:>21}   without the file",
            "bytes", "fastest", "us", "least to greatest"
        );
        for ((row, won), untuned) in rows.iter().zip(winners(rows)).zip(untuned) {
            let Some(times) = won.and_then(|way| row.times[way].map(|times| (way, times))) else {
                let _ = writeln!(out, "{:>10}  left out: the time budget is used up", row.bytes);
                continue;
            };
            let (way, Times { median, least, greatest, .. }) = times;
            let _ = write!(
                out,
                "{:>10}  {:<22}{median:>10.2}{least:>10.2} -{greatest:>9.2}",
                row.bytes,
                name(&found.ways[way])
            );
            let other =
                found.ways.iter().position(|way| Some(way.candidate) == *untuned && way.channels.is_none());
            let _ = match other.and_then(|way| row.times[way].map(|times| (way, times.median))) {
                Some((same, _)) if same == way => writeln!(out, "   the same"),
                Some((other, us)) => writeln!(out, "   {} {us:.2}", found.ways[other].candidate),
                None => writeln!(out, "   -"),
            };
        }
    }
    out
}

/// Everything that was measured of a collective, a line for each size.
pub fn notes(collective: Collective, ways: &[Way], rows: &[Row]) -> Vec<String> {
    let one = |way: &Way, times: &Option<Times>| {
        let Times { median, least, greatest, is_rough } = (*times)?;
        Some(match is_rough {
            true => format!("{} about {median:.2}", name(way)),
            false => format!("{} {median:.2} ({least:.2}-{greatest:.2})", name(way)),
        })
    };
    let line = |row: &Row| {
        let times: Vec<String> =
            ways.iter().zip(&row.times).filter_map(|(way, times)| one(way, times)).collect();
        format!("{} {} bytes, us: {}", collective.name(), row.bytes, times.join(", "))
    };
    rows.iter().filter(|row| row.times.iter().any(Option::is_some)).map(line).collect()
}

fn name(way: &Way) -> String {
    match way.channels {
        None => way.candidate.to_string(),
        Some(channels) => format!("{} x{channels}", way.candidate),
    }
}

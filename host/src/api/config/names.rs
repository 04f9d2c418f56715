//! Names of variables that begin with `OXCCL_`: one that nobody reads is most likely misspelt, and would be ignored without a word.

use crate::log;
use std::sync::Once;

/// What the library, the tools and the launchers' convention read.
const KNOWN: &[&str] = &[
    "OXCCL_AGGREGATOR",
    "OXCCL_AGGREGATOR_NET",
    "OXCCL_BLESS",
    "OXCCL_BOOTSTRAP_TIMEOUT",
    "OXCCL_COMM_ID",
    "OXCCL_COMM_SECRET",
    "OXCCL_COMM_SECRET_FILE",
    "OXCCL_DETERMINISTIC",
    "OXCCL_DUPLICATE_GPUS",
    "OXCCL_ENCRYPT",
    "OXCCL_FLIGHT_FILE",
    "OXCCL_FLIGHT_SIGNAL",
    "OXCCL_FLIGHT_TIMES",
    "OXCCL_LOCAL_NRANKS",
    "OXCCL_LOCAL_RANK",
    "OXCCL_LOG",
    "OXCCL_NRANKS",
    "OXCCL_OUTAGE",
    "OXCCL_OUTBOX",
    "OXCCL_PDL",
    "OXCCL_PING_PONG",
    "OXCCL_PROXY_THREADS",
    "OXCCL_PTX_PATH",
    "OXCCL_RANK",
    "OXCCL_REQUIRE_SECRET",
    "OXCCL_SLOT_STORES",
    "OXCCL_CMA",
    "OXCCL_CMA_MIN_BYTES",
    "OXCCL_STALL_WARN",
    "OXCCL_STATUS",
    "OXCCL_SYMMETRIC",
    "OXCCL_TILE_KIB",
    "OXCCL_TIMEOUT",
    "OXCCL_TRANSPORT",
    "OXCCL_TUNE_FILE",
];
/// Names of the tests and the build, which no library reads.
const OTHERS: &[&str] = &[
    "OXCCL_TEST_",
    "OXCCL_FUZZ_",
    "OXCCL_AMDGCN",
    "OXCCL_EMBED_KERNELS",
    "OXCCL_KERNELS",
    "OXCCL_PACKAGED",
    "OXCCL_PERF_",
];

/// Warns once of each unknown name among these, those of the process's environment.
pub(super) fn warn_of_unknown(names: impl Iterator<Item = String>) {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| {
        for name in names.filter(|name| !is_known(name)) {
            match nearest(&name) {
                Some(known) => log::warn(format!("{name} is set, and nobody reads it; is {known} meant?")),
                None => log::warn(format!("{name} is set, and nobody reads it")),
            }
        }
    });
}

fn is_known(name: &str) -> bool {
    !name.starts_with("OXCCL_") || KNOWN.contains(&name) || OTHERS.iter().any(|other| name.starts_with(other))
}

/// The known name that differs least, in three letters at most.
fn nearest(name: &str) -> Option<&'static str> {
    KNOWN
        .iter()
        .map(|known| (distance(name, known), *known))
        .filter(|(far, _)| *far <= 3)
        .min()
        .map(|(_, known)| known)
}

/// Letters to be added, removed or changed.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.bytes().enumerate() {
            let changed = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn a_misspelt_name_is_unknown_and_the_right_one_is_proposed() {
        assert!(is_known("OXCCL_TIMEOUT") && is_known("PATH") && is_known("OXCCL_TEST_ANYTHING"));
        for (wrong, right) in [
            ("OXCCL_TIMOUT", "OXCCL_TIMEOUT"),
            ("OXCCL_TRANSPROT", "OXCCL_TRANSPORT"),
            ("OXCCL_TUNEFILE", "OXCCL_TUNE_FILE"),
        ] {
            assert!(!is_known(wrong));
            assert_eq!(nearest(wrong), Some(right));
        }
        assert_eq!(nearest("OXCCL_SOMETHING_ELSE"), None);
        assert_eq!(distance("", "abc"), 3);
    }

    /// Names in quotes: what is read and not listed would be called unknown.
    #[test]
    fn every_name_in_the_sources_is_listed() {
        fn visit(dir: &Path, found: &mut Vec<String>) {
            for entry in std::fs::read_dir(dir).expect("sources").flatten() {
                let path = entry.path();
                if path.is_dir() {
                    visit(&path, found);
                } else if let Ok(text) = std::fs::read_to_string(&path) {
                    for after in text.split("\"OXCCL_").skip(1) {
                        let end =
                            after.find(|c: char| !c.is_ascii_uppercase() && !c.is_ascii_digit() && c != '_');
                        if let Some(end) = end.filter(|end| after[*end..].starts_with('"')) {
                            found.push(format!("OXCCL_{}", &after[..end]));
                        }
                    }
                }
            }
        }
        let mut found = Vec::new();
        visit(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
        found.retain(|name| {
            !["OXCCL_TIMOUT", "OXCCL_TRANSPROT", "OXCCL_TUNEFILE", "OXCCL_SOMETHING_ELSE"].contains(&&**name)
        });
        // Prefixes, such as those above.
        found.retain(|name| !name.ends_with('_'));
        assert!(found.len() > 10, "{found:?}");
        for name in found {
            assert!(is_known(&name), "{name} is not in the list of this file");
        }
    }
}

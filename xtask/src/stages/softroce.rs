//! Layer: xtask / stages.
//! Takes: the tests of InfiniBand that need RoCE devices: the host crate's own, and those of promises that every network keeps.
//! Gives: them run in a guest that has two.
//! Never: fails because the guest cannot be fetched; that is a skipped stage.

use super::Outcome;
use crate::beside;
use crate::cmd::Cmd;
use crate::counts::Tally;
use crate::softroce::{Guests, Job, Run};
use crate::tools::root;
use anyhow::{Context, Result};
use std::path::PathBuf;
use std::time::Duration;

/// Booting takes 8 s and the tests a minute where nothing else runs.
const LIMIT: Duration = Duration::from_secs(210);

pub fn tests() -> Result<Outcome> {
    let guests = match Guests::prepare(false) {
        Ok(guests) => guests,
        Err(error) => return Ok(Outcome::Skipped(format!("{error:#}"))),
    };
    // The whole workspace is named so that what the stage `tests` built is used again.
    let build =
        "test --workspace --locked --lib --test infiniband --no-run --message-format json-render-diagnostics";
    let built = Cmd::cargo().args(build).deadline(Duration::from_secs(1500)).quiet().run(&root())?;
    if !built.success {
        beside::write(built.text.as_bytes());
        return Ok(Outcome::Failed(Tally::default()));
    }
    let run = |target: &str, filter: &str| -> Result<Run> {
        let program =
            test_program(&built.text, target).with_context(|| format!("cargo built no tests `{target}`"))?;
        // One at a time: some take the cable out.
        let args = [filter, "--include-ignored", "--test-threads", "1"].map(String::from).to_vec();
        Ok(Run { program, args })
    };
    let runs = vec![run("oxccl", "net::ib::tests")?, run("infiniband", "")?];
    let ended = guests.run(&Job { runs, memory_mb: 1024, limit: LIMIT, ..Job::default() })?;
    let tally = Tally::of_cargo_test(&ended.text);
    beside::note(format_args!("the guest took {:.1} s", ended.took.as_secs_f64()));
    Ok(Outcome::of(ended.status == 0 && tally.passed > 0, tally))
}

/// The tests of a target among what cargo says that it built.
fn test_program(messages: &str, target: &str) -> Option<PathBuf> {
    messages.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok()).find_map(
        |message| {
            let is_wanted = message["target"]["name"] == target && message["profile"]["test"] == true;
            is_wanted.then(|| message["executable"].as_str().map(PathBuf::from))?
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tests_of_a_target_are_found_among_other_messages() {
        let messages = r#"   Compiling oxccl
{"reason":"compiler-artifact","target":{"name":"oxccl"},"profile":{"test":false},"executable":null}
{"reason":"compiler-artifact","target":{"name":"xtask"},"profile":{"test":true},"executable":"/t/xtask-1"}
{"reason":"compiler-artifact","target":{"name":"oxccl"},"profile":{"test":true},"executable":"/t/oxccl-2"}
{"reason":"build-finished","success":true}"#;
        assert_eq!(test_program(messages, "oxccl"), Some("/t/oxccl-2".into()));
        assert_eq!(test_program(messages, "other"), None);
    }
}

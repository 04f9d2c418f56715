//! Every target under libFuzzer, in one program: `OXCCL_FUZZ_TARGET` names the one to run, or is `list`.
#![no_main]

use oxccl_fuzz::{TARGETS, Target};
use std::sync::OnceLock;

static CHOSEN: OnceLock<Target> = OnceLock::new();

/// Ends the program if there is nothing to fuzz.
fn choose() -> Target {
    let name = std::env::var("OXCCL_FUZZ_TARGET").unwrap_or_default();
    if let Some(target) = TARGETS.iter().find(|(known, _)| *known == name) {
        return *target;
    }
    for (known, _) in TARGETS {
        println!("{known}");
    }
    std::process::exit(i32::from(name != "list"))
}

libfuzzer_sys::fuzz_target!(
    init: {
        CHOSEN.get_or_init(choose);
    },
    |data: &[u8]| {
        let (_, run) = CHOSEN.get_or_init(choose);
        run(data)
    }
);

//! The states of communicators and groups, over a driver without GPUs: each test is a case of `tests/c/states.c`.

use super::fake;
use super::programs::{compile, compile_without_library, said};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The program with the cases.
pub fn program() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| compile("cc", "states.c", &["-std=c11"]))
}

fn case(name: &str) {
    let text = said(&fake::run(program(), &[name], &[]));
    assert!(text.contains(&format!("{name}: ok")), "{text}");
}

#[test]
fn a_program_loads_uses_closes_and_loads_it_again() {
    let program = compile_without_library("cc", "reload.c", &["-std=c11"]);
    let text = said(&fake::run(&program, &[], &[]));
    assert!(text.contains("reload: ok"), "{text}");
}

macro_rules! cases {
    ($($(#[$doc:meta])* $name:ident)*) => {
        $($(#[$doc])* #[test]
        fn $name() {
            case(stringify!($name));
        })*
    };
}

cases! {
    one_rank
    init_all
    init_split_and_destroy_in_groups
    non_blocking_init
    abort_of_a_non_blocking_init
    abort_of_a_blocking_init
    a_watchdog_asks_while_another_enqueues
    finalize
    a_refused_group_ends_nothing
    lonely_messages
    foreign_handles
    suspend_and_resume
    shrink_grow_and_revoke
    memory
    settings_of_one_call
    one_sided
    signals_without_windows
    copy_engines
    copy_engines_that_differ
    copy_engines_without_a_rank
    copy_engines_without_a_rank_that_ended
    steps_of_a_group_keep_their_order
    simulated_groups
    false_counts
    fork
    exit_without_destroy
}

//! The checks of `examples/cuda_check` as tests, for machines with a GPU.

#[path = "../examples/cuda_check/checks.rs"]
mod checks;
#[path = "../examples/cuda_check/arenas.rs"]
mod arenas;

use arenas::{Layout, Way};
use std::process::Command;

/// This very program, made to run [`needs_gpu_child`] only.
fn this_test() -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a running program has a file"));
    command.args(["--exact", "needs_gpu_child", "--ignored", "--nocapture"]);
    command
}

#[test]
#[ignore = "a process of the other tests"]
fn needs_gpu_child() {
    arenas::run_child(|line| println!("\n{line}"));
}

#[test]
#[ignore = "needs a GPU"]
fn needs_gpu_devices_memory_streams_kernels_and_graphs() {
    for (name, check) in checks::DEVICE {
        check().unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
#[ignore = "needs a GPU"]
fn needs_gpu_arenas_of_threads() {
    for way in Way::ALL {
        arenas::threads(way).unwrap_or_else(|error| panic!("{way:?}: {error}"));
    }
}

#[test]
#[ignore = "needs a GPU"]
fn needs_gpu_arenas_of_processes() {
    for way in Way::ALL {
        for layout in Layout::ALL {
            let said = arenas::processes(way, layout, this_test);
            said.unwrap_or_else(|error| panic!("{way:?}, {layout:?}: {error}"));
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn needs_gpu_a_kernel_that_faults_is_named() {
    arenas::fault(this_test).unwrap_or_else(|error| panic!("{error}"));
}

//! Ranks on GPUs as processes of a program of their own, which tests can stop and kill.

use oxccl_tests::devices::gpus;
use oxccl_tests::process::Launch;
use std::path::PathBuf;

/// What they need of this process's environment.
const FROM_HERE: [&str; 4] =
    ["OXCCL_PTX_PATH", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "OXCCL_DUPLICATE_GPUS"];

/// A job of `nranks`. Where there are fewer GPUs they share them.
pub fn launch(nranks: u32) -> Launch {
    let set = FROM_HERE.iter().filter_map(|name| Some((name, std::env::var(name).ok()?)));
    let launch = set.fold(Launch::new(program(), nranks), |launch, (name, value)| launch.env(name, &value));
    if nranks > gpus() { launch.env("OXCCL_DUPLICATE_GPUS", "1") } else { launch }
}

/// The program that is a rank: beside this one, where both were copied, else where it was built.
fn program() -> &'static str {
    let name = "oxccl-gpu-rank";
    let beside = std::env::current_exe().ok().and_then(|exe| exe.parent().map(|folder| folder.join(name)));
    let found = beside
        .filter(|path| path.exists())
        .unwrap_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_oxccl-gpu-rank")));
    Box::leak(found.to_string_lossy().into_owned().into_boxed_str())
}

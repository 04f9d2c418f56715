//! Layer: perf / version.
//! Takes: `oxccl -V` or `oxccl --version`.
//! Gives: the version; with `--version` what a report of an error needs, too: which build this is, of which NCCL's interface, with which
//! kernels.
//! Never: needs a GPU; fails because there are no kernels.

use crate::say::{ended, say};
use oxccl::Config;
use oxccl::cuda::bundle::{Bundle, find_bundle};
use oxccl::os::build_id;
use oxccl_shared::abi::ABI_DIGEST;
use std::process::ExitCode;

/// `line` is what clap says: name and version.
pub fn show(line: &clap::Error) -> ExitCode {
    let mut text = line.to_string();
    if std::env::args_os().any(|argument| argument == "--version") {
        text += &details();
    }
    ended(say(&text))
}

fn details() -> String {
    let configured = Config::from_env().ok().and_then(|config| config.ptx_path);
    let kernels = match find_bundle(configured.as_deref()) {
        Ok(bundle) => of_bundle(&bundle),
        Err(error) => error.to_string(),
    };
    format!(
        "NCCL's interface: {}\nbuild: {}\nmemory layouts: {ABI_DIGEST:016x}\nkernels: {kernels}\n",
        oxccl::NCCL_VERSION,
        build_id().unwrap_or_else(|| "unknown".into()),
    )
}

fn of_bundle(bundle: &Bundle) -> String {
    let refused = bundle.check_abi().err().map(|error| format!("; not usable: {error}")).unwrap_or_default();
    format!("{} of {}, commit {}{refused}", bundle.digest(), bundle.path().display(), bundle.commit())
}

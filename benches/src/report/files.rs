//! Where the files of a run go: one of each, or with `suite` one for each collective.

use super::facts::{ReportError, Run};
use crate::target::Target;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};

/// The JSON of the collective that is being measured. With `suite`, `--json` names a directory, which is made.
pub fn json(run: &Run<'_>) -> Result<Option<PathBuf>, ReportError> {
    let Some(path) = &run.args.json else { return Ok(None) };
    if run.args.target != Target::Suite {
        return Ok(Some(path.clone()));
    }
    let failed = |error: std::io::Error| ReportError::Write { path: path.clone(), reason: error.to_string() };
    std::fs::create_dir_all(path).map_err(failed)?;
    Ok(Some(path.join(format!("{}.json", run.collective.name()))))
}

/// The page of tables; with `suite` and `--json` it lies beside the figures unless another place is named.
pub fn markdown(run: &Run<'_>) -> Option<PathBuf> {
    let beside = || {
        let directory = run.args.json.as_ref().filter(|_| run.args.target == Target::Suite)?;
        Some(directory.join("suite.md"))
    };
    run.args.markdown.clone().or_else(beside)
}

/// The plot; with `suite` the collective's name becomes part of the file's.
pub fn plot(run: &Run<'_>) -> Option<PathBuf> {
    let path = run.args.plot.as_ref()?;
    if run.args.target != Target::Suite {
        return Some(path.clone());
    }
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    Some(path.with_file_name(format!("{stem}-{}.svg", run.collective.name())))
}

/// Whether the file can be written; one that is there keeps what it holds.
pub fn try_write(path: &Path) -> Result<(), ReportError> {
    let tried = OpenOptions::new().create(true).append(true).open(path);
    tried.map(drop).map_err(|error| ReportError::Write { path: path.into(), reason: error.to_string() })
}

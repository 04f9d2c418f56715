//! Where the files of a run go: one of each, or with `suite` one for each collective.

use super::facts::{ReportError, Run};
use crate::cli::PerfArgs;
use crate::out::{self, OutError};
use crate::target::Target;
use std::path::{Path, PathBuf};

/// The JSON of the collective that is being measured. With `suite`, `--json` names a folder.
pub fn json(run: &Run<'_>) -> Option<PathBuf> {
    let path = run.args.json.as_ref()?;
    match run.args.target {
        Target::Suite => Some(path.join(format!("{}.json", run.collective.name()))),
        Target::One(_) => Some(path.clone()),
    }
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

/// Whether the files of a run can be written: an hour's measurements are not to end at one that cannot.
pub fn probe(args: &PerfArgs) -> Result<(), ReportError> {
    let outputs = [("--json", &args.json), ("--markdown", &args.markdown), ("--plot", &args.plot)];
    out::distinct(outputs.map(|(option, path)| (option, path.as_deref()))).map_err(ReportError::Outputs)?;
    let probed = |path: &Option<PathBuf>, probe: fn(&Path) -> Result<(), OutError>| match path {
        Some(path) => probe(path).map_err(|error| ReportError::Write { path: path.clone(), error }),
        None => Ok(()),
    };
    probed(&args.json, if args.target == Target::Suite { out::probe_folder } else { out::probe })?;
    probed(&args.markdown, out::probe)?;
    probed(&args.plot, out::probe)
}

/// Writes one.
pub fn write(path: &Path, text: &str) -> Result<(), ReportError> {
    out::replace(path, text).map_err(|error| ReportError::Write { path: path.into(), error })
}

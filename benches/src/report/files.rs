//! Where the files of a run go: one of each, or with `suite` one for each collective.

use super::facts::{ReportError, Run};
use crate::cli::PerfArgs;
use crate::out::{self, OutError, Outputs};
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
pub fn probe(args: &PerfArgs) -> Result<Outputs, ReportError> {
    out::distinct(outputs_of(args)).map_err(ReportError::Outputs)?;
    let mut outputs = Outputs::default();
    let is_suite = args.target == Target::Suite;
    for (option, path) in outputs_of(args) {
        let Some(path) = path else { continue };
        let tried = match option {
            "--json" if is_suite => out::probe_folder(path),
            // Its name is that of no file which the suite writes.
            "--plot" if is_suite && out::is_special(path) => Ok(()),
            _ => outputs.probe(path),
        };
        tried.map_err(|error| unwritten(path, error))?;
    }
    Ok(outputs)
}

fn outputs_of(args: &PerfArgs) -> [(&'static str, Option<&Path>); 3] {
    let outputs = [("--json", &args.json), ("--markdown", &args.markdown), ("--plot", &args.plot)];
    outputs.map(|(option, path)| (option, path.as_deref()))
}

/// Writes one.
pub fn write(outputs: &mut Outputs, path: &Path, text: &str) -> Result<(), ReportError> {
    outputs.replace(path, text).map_err(|error| unwritten(path, error))
}

fn unwritten(path: &Path, error: OutError) -> ReportError {
    ReportError::Write { path: path.into(), error }
}

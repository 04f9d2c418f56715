//! Finds a plugin and its table by NCCL's rules.

use super::abi::Opaque;
use super::calls::{Calls, MissingFunction};
use crate::net::NetError;
pub use libloading::os::unix::Library;
use libloading::os::unix::{RTLD_LOCAL, RTLD_NOW};
use std::error::Error;

/// The file to try if the user names none.
const DEFAULT: &str = "libnccl-net.so";
/// What a name may be the middle of.
const MIDDLE: &str = "libnccl-net-";
/// The name under which the program itself is the plugin.
const STATIC: &str = "STATIC_PLUGIN";
/// Supported versions of the table, newest first.
const VERSIONS: [u32; 5] = [12, 11, 10, 9, 8];
/// Most names that are tried (`NCCL_NET_MAX_PLUGINS`).
const NAMES_MAX: usize = 16;

/// The user's choice of plugins (`NCCL_NET_PLUGIN`).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PluginConfig {
    /// Names or paths, best first. `None`: `libnccl-net.so`, if it exists.
    pub names: Option<Vec<String>>,
}

impl PluginConfig {
    /// Parses the variable's value: names separated by commas, or `none`.
    pub fn parse(text: &str) -> PluginConfig {
        let is_none = text.eq_ignore_ascii_case("none");
        let names = text.split(',').filter(|name| !name.is_empty() && !is_none);
        PluginConfig { names: Some(names.take(NAMES_MAX).map(str::to_owned).collect()) }
    }

    /// The names to try.
    pub fn names(&self) -> Vec<&str> {
        match &self.names {
            Some(names) => names.iter().map(String::as_str).collect(),
            None => vec![DEFAULT],
        }
    }

    /// Whether the user asked for plugins by name.
    pub fn is_explicit(&self) -> bool {
        self.names.is_some()
    }
}

/// The user's choice of another plugin (`NCCL_TUNER_PLUGIN`, `NCCL_PROFILER_PLUGIN`).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PluginName {
    /// A name or a path; empty for none. `None`: what is there by the name that NCCL looks for.
    pub name: Option<String>,
}

impl PluginName {
    /// Parses the variable's value: a name, or `none`.
    pub fn parse(text: &str) -> PluginName {
        let is_none = text.eq_ignore_ascii_case("none");
        PluginName { name: Some(if is_none { String::new() } else { text.to_owned() }) }
    }
}

/// The newest supported table of a plugin whose symbol starts with `symbol`. The plugin stays loaded for the life of
/// the process: its threads may run in it.
///
/// # Errors
/// [`NetError::Absent`]: no such file, or no supported table in it.
pub fn table(name: &str, symbol: &str) -> Result<(u32, Opaque), NetError> {
    let library = open(name, DEFAULT, MIDDLE).map_err(|reason| absent(name, reason))?;
    let found = find_in(&library, symbol, &VERSIONS);
    let Some(found) = found else {
        return Err(absent(name, format!("it has none of {symbol}8 to {symbol}12")));
    };
    std::mem::forget(library);
    Ok(found)
}

/// The error of a plugin that is missing or lacks a function.
pub fn absent(name: &str, reason: String) -> NetError {
    NetError::Absent { net: format!("plugin {name}"), reason }
}

/// The network of a plugin.
///
/// # Errors
/// As [`table`].
pub fn load(name: &str) -> Result<Calls, NetError> {
    let (version, table) = table(name, "ncclNetPlugin_v")?;
    // SAFETY: the symbol's name states the type, and the plugin is never unloaded.
    unsafe { read(name, version, table) }
}

/// The network with this table.
///
/// # Errors
/// As [`table()`].
///
/// # Safety
/// 1. `table` is a net table of that version, 8 to 12, and stays one.
pub unsafe fn read(name: &str, version: u32, table: Opaque) -> Result<Calls, NetError> {
    // SAFETY: obligation 1.
    let calls = unsafe { Calls::read(version, table) };
    calls.map_err(|MissingFunction(what)| absent(name, format!("its ncclNetPlugin_v{version} has no {what}")))
}

/// The first of these versions of a table that a plugin has, and where.
pub fn find_in(library: &Library, symbol: &str, versions: &[u32]) -> Option<(u32, Opaque)> {
    versions.iter().find_map(|&version| {
        let symbol = format!("{symbol}{version}\0");
        // SAFETY: the address of an object is a pointer, whatever the object is.
        let table = unsafe { library.get::<Opaque>(symbol.as_bytes()) }.ok()?;
        Some((version, table.as_raw_ptr()))
    })
}

/// Loads a plugin: the program itself, or the first of the files that its name may mean.
///
/// # Errors
/// Why no file can be loaded.
pub fn open(name: &str, default: &str, middle: &str) -> Result<Library, String> {
    if name == STATIC {
        return Ok(Library::this());
    }
    let mut failures = Vec::new();
    for file in files(name, default, middle) {
        if waits_for_a_writer(&file) {
            failures.push(format!("{file} is no file"));
            continue;
        }
        // SAFETY: the user asked to run this plugin's code in this process, its initialisers included.
        match unsafe { Library::open(Some(&file), RTLD_NOW | RTLD_LOCAL) } {
            Ok(library) => return Ok(library),
            Err(error) => {
                failures.push(error.source().map_or_else(|| error.to_string(), ToString::to_string))
            }
        }
    }
    Err(failures.join("; "))
}

/// Whether a path names a pipe or a device: the loader would open it, and wait without end where nobody writes.
fn waits_for_a_writer(file: &str) -> bool {
    file.contains('/') && std::fs::metadata(file).is_ok_and(|meta| !meta.is_file())
}

/// The files that a name may mean, in the order of trial.
fn files(name: &str, default: &str, middle: &str) -> Vec<String> {
    let mut files = vec![name.to_owned()];
    if name != default && !name.contains('/') {
        files.push(format!("{middle}{name}.so"));
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_is_no_plugin() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("plugin.so");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0)
            .unwrap();
        let why = open(pipe.to_str().unwrap(), DEFAULT, "libnccl-net-").unwrap_err();
        assert!(why.contains("is no file"), "{why}");
    }

    #[test]
    fn names_are_read_as_nccl_reads_them() {
        let names = |text: &str| PluginConfig::parse(text).names.expect("the variable was set");
        assert_eq!(names("ofi"), ["ofi"]);
        assert_eq!(names("ofi,,/opt/x.so"), ["ofi", "/opt/x.so"]);
        assert!(names("none").is_empty() && names("None").is_empty() && names("").is_empty());
        assert_eq!(names(&"a,".repeat(99)).len(), NAMES_MAX);
        assert_eq!(PluginConfig::default().names(), [DEFAULT]);
    }

    #[test]
    fn a_name_is_a_file_or_the_middle_of_one() {
        let files = |name| super::files(name, DEFAULT, MIDDLE);
        assert_eq!(files("ofi"), ["ofi", "libnccl-net-ofi.so"]);
        assert_eq!(files("/opt/libx.so"), ["/opt/libx.so"]);
        assert_eq!(files(DEFAULT), [DEFAULT]);
    }

    #[test]
    fn what_is_missing_is_said() {
        let error = load("surely-not-there").err().expect("there is no such plugin").to_string();
        assert!(error.contains("plugin surely-not-there") && error.contains("libnccl-net-surely"), "{error}");
        let error = load(STATIC).err().expect("this program is no plugin").to_string();
        assert!(error.contains("ncclNetPlugin_v8"), "{error}");
    }
}

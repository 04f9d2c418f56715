//! The tests' plugins, which are C as other people's are, as files to load.

use libloading::Library;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use tempfile::TempDir;

/// Versions of the tables that the library supports.
pub const VERSIONS: [u32; 5] = [8, 9, 10, 11, 12];

/// What a library of plugins has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tables {
    /// A network that sends.
    Net,
    /// A network that reduces.
    Coll,
    /// Both, as most have that reduce.
    Both,
    /// None: a tuner.
    Tuner,
    /// None: a profiler.
    Profiler,
}

/// A shared library; the file is removed when this is dropped, since a loaded plugin needs it no longer.
#[derive(Debug)]
pub struct PluginFile {
    _folder: TempDir,
    path: PathBuf,
}

impl PluginFile {
    /// Compiles the plugins for a version of their tables. The call named `fault` fails; `flags` are further compiler
    /// flags.
    ///
    /// # Panics
    /// If that fails.
    pub fn build(tables: Tables, version: u32, fault: &str, flags: &[&str]) -> PluginFile {
        let source = |name: &str| format!("{}/plugin/{name}.c", env!("CARGO_MANIFEST_DIR"));
        let sources = match tables {
            Tables::Net => vec![source("net_plugin")],
            Tables::Coll => vec![source("coll_plugin")],
            Tables::Both => vec![source("net_plugin"), source("coll_plugin")],
            Tables::Tuner => vec![source("tuner_plugin")],
            Tables::Profiler => vec![source("profiler_plugin")],
        };
        let folder = tempfile::tempdir().expect("a folder for the plugin");
        let path = folder.path().join(format!("libnccl-net-v{version}{fault}.so"));
        let warnings = ["-Wall", "-Wextra", "-Wno-unused-parameter", "-Wno-unused-function", "-Werror"];
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-O1"]).args(warnings).args(flags);
        cc.arg(format!("-DVERSION={version}")).arg(format!("-DFAULT=\"{fault}\""));
        let status = cc.arg("-o").arg(&path).args(sources).status().expect("a C compiler");
        assert!(status.success(), "{cc:?}");
        PluginFile { _folder: folder, path }
    }

    /// As `NCCL_NET_PLUGIN` and its like name it.
    ///
    /// # Panics
    /// If the folder for temporary files has a name that is no text.
    pub fn name(&self) -> &str {
        self.path.to_str().expect("the folder's name is text")
    }
}

/// What a plugin has counted, by the names of its numbers.
#[derive(Debug)]
pub struct PluginNumbers(Library);

impl PluginNumbers {
    /// Of a plugin of these tests, which has no initialisers.
    ///
    /// # Panics
    /// If it cannot be loaded.
    pub fn of(file: &PluginFile) -> PluginNumbers {
        // SAFETY: the plugin has no initialisers.
        PluginNumbers(unsafe { Library::new(file.name()) }.expect("the plugin"))
    }

    /// A number.
    ///
    /// # Panics
    /// If there is none of this name.
    pub fn get(&self, name: &str) -> i32 {
        self.at(name, 0)
    }

    /// One of a list, which has to be as long.
    ///
    /// # Panics
    /// If there is none of this name.
    pub fn at(&self, name: &str, place: usize) -> i32 {
        // SAFETY: the plugins' numbers are atomic integers.
        let number = unsafe { self.0.get::<*const AtomicI32>(name.as_bytes()) }.expect("a number");
        // SAFETY: as above; the library is loaded, and lists are as long as the places are many.
        unsafe { (*number.add(place)).load(Relaxed) }
    }
}

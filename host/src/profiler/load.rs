//! Finds a profiler plugin by NCCL's rules, and has one set of functions for all versions.

use super::abi::{
    Code, Descr4, Descr5, End, Facts, Init4, Init5, Opaque, Profiler4, Profiler5, Start4, Start5, Stop,
};
use super::about::About;
use crate::net::plugin::load::{Library, find_in, open};
use crate::net::plugin::{PluginName, log};
use core::ffi::{CStr, c_char, c_int};
use std::ffi::CString;
use std::ptr::null_mut;

/// The file to try if the user names none.
const DEFAULT: &str = "libnccl-profiler.so";
/// What a name may be the middle of.
const MIDDLE: &str = "libnccl-profiler-";
/// The name of every table, before its version.
const SYMBOL: &str = "ncclProfiler_v";
/// Supported versions, newest first.
const VERSIONS: [u32; 3] = [6, 5, 4];

#[derive(Clone, Copy, Debug)]
enum Functions {
    Four(Init4, Start4),
    Five(Init5, Start5),
}

/// A plugin that is loaded. It stays loaded for the life of the process.
#[derive(Clone, Debug)]
pub struct Plugin {
    /// What it calls itself.
    pub name: String,
    functions: Functions,
    stop: Stop,
    end: End,
}

impl Plugin {
    /// The plugin that the user wants, or one that is there without being asked for. One that is named and cannot be used is a warning,
    /// as in NCCL.
    pub fn find(wanted: &PluginName) -> Option<Plugin> {
        match wanted.name.as_deref() {
            Some("") => None,
            Some(name) => {
                let warn = |reason: &String| {
                    tracing::warn!(
                        "NCCL_PROFILER_PLUGIN: profiler plugin {name}: {reason}; there is none then"
                    );
                };
                load(name).inspect_err(warn).ok()
            }
            None => load(DEFAULT).ok(),
        }
    }

    /// Whether its events have those of the calls' own above them.
    pub fn has_api_events(&self) -> bool {
        matches!(self.functions, Functions::Five(..))
    }

    /// Starts it for a communicator. Returns its context and which events it wants.
    ///
    /// # Safety
    /// 1. The plugin is loaded.
    pub unsafe fn init(&self, about: &About<'_>) -> Result<(Opaque, u32), Code> {
        let (mut context, mut mask): (Opaque, c_int) = (null_mut(), 0);
        let name = CString::new(about.name.unwrap_or_default()).unwrap_or_default();
        let [nodes, ranks, rank] = [about.nhosts, about.nranks, about.rank.0].map(|number| number as c_int);
        let (log, number) = (log::logger(), about.communicator);
        log::begin();
        let code = match self.functions {
            // SAFETY: obligation 1; what it writes is ours, the name lives until it returns.
            Functions::Four(init, _) => unsafe {
                init(&mut context, &mut mask, name.as_ptr(), number, nodes, ranks, rank, log)
            },
            // SAFETY: as above.
            Functions::Five(init, _) => unsafe {
                init(&mut context, number, &mut mask, name.as_ptr(), nodes, ranks, rank, log)
            },
        };
        if code == 0 { Ok((context, mask as u32)) } else { Err(code) }
    }

    /// Starts an event; null if it fails, or the plugin wants nothing of it.
    ///
    /// # Safety
    /// 1. The context is its own. 2. `parent` is null or an event of it that is not over; `facts` are those of the kind.
    pub unsafe fn start(
        &self,
        context: Opaque,
        kind: u32,
        parent: Opaque,
        rank: c_int,
        facts: Facts,
    ) -> Opaque {
        let mut event: Opaque = null_mut();
        let code = match self.functions {
            Functions::Four(_, start) => {
                let mut descr = Descr4 { kind: kind as u8, parent, rank, facts };
                // SAFETY: obligations 1 and 2; both are ours, and live until it returns.
                unsafe { start(context, &mut event, &mut descr) }
            }
            Functions::Five(_, start) => {
                let mut descr = Descr5 { kind: kind.into(), parent, rank, facts };
                // SAFETY: as above.
                unsafe { start(context, &mut event, &mut descr) }
            }
        };
        if code == 0 { event } else { null_mut() }
    }

    /// Ends an event.
    ///
    /// # Safety
    /// 1. It is one of the plugin's, not over yet.
    pub unsafe fn stop(&self, event: Opaque) {
        // SAFETY: obligation 1. Nobody could do anything about an error.
        let _ = unsafe { (self.stop)(event) };
    }

    /// Ends its work for a communicator.
    ///
    /// # Safety
    /// 1. The context is its own, and is not used again.
    pub unsafe fn end(&self, context: Opaque) {
        log::begin();
        // SAFETY: obligation 1.
        let code = unsafe { (self.end)(context) };
        if code != 0 {
            tracing::warn!("profiler plugin {}: {}", self.name, log::describe(code));
        }
    }
}

fn load(name: &str) -> Result<Plugin, String> {
    let library = open(name, DEFAULT, MIDDLE)?;
    let found = find_in(&library, SYMBOL, &VERSIONS);
    // It may have started threads.
    std::mem::forget::<Library>(library);
    let (version, table) = found.ok_or_else(|| format!("it has none of {SYMBOL}4 to {SYMBOL}6"))?;
    let lacks = |what: &str| format!("its {SYMBOL}{version} has no {what}");
    macro_rules! read {
        ($table:ty, $functions:path) => {{
            // SAFETY: the symbol's name states the type, and the plugin is never unloaded.
            let table = unsafe { &*table.cast::<$table>() };
            let init = table.init.ok_or_else(|| lacks("init"))?;
            let start = table.start_event.ok_or_else(|| lacks("startEvent"))?;
            Ok(Plugin {
                name: text(table.name),
                functions: $functions(init, start),
                stop: table.stop_event.ok_or_else(|| lacks("stopEvent"))?,
                end: table.finalize.ok_or_else(|| lacks("finalize"))?,
            })
        }};
    }
    match version {
        4 => read!(Profiler4, Functions::Four),
        _ => read!(Profiler5, Functions::Five),
    }
}

fn text(at: *const c_char) -> String {
    if at.is_null() {
        return "without a name".to_owned();
    }
    // SAFETY: a table's name is a string as long as the table.
    unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned()
}

//! Finds a tuner plugin by NCCL's rules.

use super::calls::{Calls, MissingFunction};
use crate::net::plugin::load::{Library, find_in, open};
use crate::net::plugin::{PluginConfig, PluginName};
use std::fmt;
use std::sync::Arc;
use thiserror::Error;

/// The file to try if the user names none.
const DEFAULT: &str = "libnccl-tuner.so";
/// What a name may be the middle of.
const MIDDLE: &str = "libnccl-tuner-";
/// The name of every table, before its version.
const SYMBOL: &str = "ncclTunerPlugin_v";
/// Supported versions, newest first.
const VERSIONS: [u32; 5] = [6, 5, 4, 3, 2];

/// Why a tuner plugin is of no use.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum TunerError {
    /// There is none of that name, or it has no supported table.
    #[error("tuner plugin {name}: {reason}")]
    Absent {
        /// The name that was asked for.
        name: String,
        /// Why.
        reason: String,
    },
    /// It refused to serve a communicator.
    #[error("{plugin}: init: {reason}")]
    Init {
        /// The plugin.
        plugin: String,
        /// Its result, and its last warning.
        reason: String,
    },
}

/// A plugin that is loaded. It stays loaded for the life of the process.
#[derive(Debug)]
pub struct Plugin {
    pub(super) calls: Calls,
    version: u32,
}

impl fmt::Display for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tuner plugin {} ({SYMBOL}{})", self.calls.name, self.version)
    }
}

impl Plugin {
    /// The plugin that the user wants, or one that is there without being asked for. One that is named and cannot be used is a warning,
    /// as in NCCL.
    pub fn find(config: &PluginName, nets: &PluginConfig) -> Option<Arc<Plugin>> {
        match config.name.as_deref() {
            Some("") => None,
            Some(name) => {
                let found = load(name);
                let found = found
                    .inspect_err(|error| tracing::warn!("NCCL_TUNER_PLUGIN: {error}; there is none then"));
                found.ok().map(Arc::new)
            }
            None => {
                let nets = nets.names();
                let found = [DEFAULT].into_iter().chain(nets).find_map(|name| load_from(name).ok());
                found.map(Arc::new)
            }
        }
    }
}

fn load(name: &str) -> Result<Plugin, TunerError> {
    load_from(name).map_err(|reason| TunerError::Absent { name: name.to_owned(), reason })
}

fn load_from(name: &str) -> Result<Plugin, String> {
    let library = open(name, DEFAULT, MIDDLE)?;
    let found = find_in(&library, SYMBOL, &VERSIONS);
    // A net plugin may have started threads, also if it is no tuner.
    std::mem::forget::<Library>(library);
    let (version, table) = found.ok_or_else(|| format!("it has none of {SYMBOL}2 to {SYMBOL}6"))?;
    // SAFETY: the symbol's name states the type, and the plugin is never unloaded.
    let calls = unsafe { Calls::read(version, table) };
    let calls = calls.map_err(|MissingFunction(what)| format!("its {SYMBOL}{version} has no {what}"))?;
    Ok(Plugin { calls, version })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_said_and_what_nobody_named_is_not_missed() {
        let error = load("surely-not-there").err().unwrap().to_string();
        assert!(
            error.contains("tuner plugin surely-not-there") && error.contains("libnccl-tuner-surely"),
            "{error}"
        );
        let error = load("STATIC_PLUGIN").err().unwrap().to_string();
        assert!(error.contains("ncclTunerPlugin_v2"), "{error}");
        for text in ["none", "None", ""] {
            assert!(Plugin::find(&PluginName::parse(text), &PluginConfig::default()).is_none());
        }
        assert!(Plugin::find(&PluginName::parse("surely-not-there"), &PluginConfig::default()).is_none());
        assert!(Plugin::find(&PluginName::default(), &PluginConfig::default()).is_none());
    }
}

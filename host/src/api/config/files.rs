//! NCCL's files of settings: lines `NAME=VALUE` for variables that the environment does not set. `#` begins a comment.
//!
//! The user's is named by `NCCL_CONF_FILE`, or else `~/.nccl.conf`; it wins over `/etc/nccl.conf`.

use crate::log;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Longer ones are no files of settings.
const BYTES_MAX: u64 = 1 << 20;

/// What they say, in an environment with these variables.
pub(super) fn settings(environment: &dyn Fn(&str) -> Option<String>) -> BTreeMap<String, String> {
    let path = |name| environment(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    let of_user = path("NCCL_CONF_FILE").or_else(|| Some(path("HOME")?.join(".nccl.conf")));
    let mut settings = read(Path::new("/etc/nccl.conf"));
    settings.extend(of_user.iter().flat_map(|path| read(path)));
    settings
}

fn read(path: &Path) -> BTreeMap<String, String> {
    let Ok(about) = std::fs::metadata(path) else { return BTreeMap::new() };
    if !about.is_file() || about.len() > BYTES_MAX {
        log::warn(format!("{}: a file of lines NAME=VALUE was expected; it is ignored", path.display()));
        return BTreeMap::new();
    }
    match std::fs::read(path) {
        Ok(bytes) => settings_of(&String::from_utf8_lossy(&bytes)),
        Err(error) => {
            log::warn(format!("{}: {error}; it is ignored", path.display()));
            BTreeMap::new()
        }
    }
}

fn settings_of(text: &str) -> BTreeMap<String, String> {
    let is_ours = |name: &str| name.starts_with("NCCL_") || name.starts_with("OXCCL_");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let pairs =
        lines.filter_map(|line| line.split_once('=')).map(|(name, value)| (name.trim(), value.trim()));
    pairs.filter(|(name, _)| is_ours(name)).map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_settings() {
        let text = "# NCCL_ALGO=Tree\nNCCL_SOCKET_IFNAME==eth0\n\n NCCL_DEBUG = INFO \nPATH=/tmp\nNCCL_NET\nOXCCL_STATUS=0\nNCCL_DEBUG=WARN";
        let found = settings_of(text);
        let expected = [("NCCL_DEBUG", "WARN"), ("NCCL_SOCKET_IFNAME", "=eth0"), ("OXCCL_STATUS", "0")];
        assert!(found.iter().map(|(name, value)| (name.as_str(), value.as_str())).eq(expected), "{found:?}");
    }

    #[test]
    fn the_file_that_is_named_stands_for_that_of_the_user() {
        let dir = tempfile::tempdir().expect("a folder");
        let [named, own] = ["named", ".nccl.conf"].map(|name| dir.path().join(name));
        std::fs::write(&named, "NCCL_DEBUG=INFO\n").expect("written");
        std::fs::write(&own, "NCCL_DEBUG=WARN\nNCCL_NET=Socket\n").expect("written");
        let found = |file: &Path| {
            let variable = |name: &str| match name {
                "HOME" => Some(dir.path().to_string_lossy().into_owned()),
                _ => Some(file.to_string_lossy().into_owned()),
            };
            ["NCCL_DEBUG", "NCCL_NET"].map(|name| settings(&variable).get(name).cloned().unwrap_or_default())
        };
        assert_eq!(found(&named)[0], "INFO");
        assert_eq!(found(Path::new("")), ["WARN", "Socket"]);
    }

    #[test]
    fn what_is_no_file_is_no_setting() {
        assert!(read(Path::new("/nowhere/nccl.conf")).is_empty());
        assert!(read(Path::new("/dev/zero")).is_empty());
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("nccl.conf");
        std::fs::write(&path, b"NCCL_DEBUG=INFO\n\xff\n").expect("written");
        assert_eq!(read(&path).get("NCCL_DEBUG").map(String::as_str), Some("INFO"));
    }
}

//! What `NCCL_DEBUG` and its siblings say.

use std::path::PathBuf;

/// How much is written. Each level contains the ones before, but for the version, which is not a warning.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Level {
    /// Nothing.
    #[default]
    None,
    /// One line with the versions.
    Version,
    /// What went wrong, or will.
    Warn,
    /// What a support engineer asks first.
    Info,
    /// Everything.
    Trace,
}

impl Level {
    /// A level by NCCL's name, whatever its case.
    pub fn parse(text: &str) -> Option<Level> {
        Some(match text.to_ascii_uppercase().as_str() {
            "NONE" => Level::None,
            "VERSION" => Level::Version,
            "WARN" => Level::Warn,
            // NCCL's level of aborts lies between these two.
            "INFO" | "ABORT" => Level::Info,
            "TRACE" => Level::Trace,
            _ => return None,
        })
    }
}

/// Parts of the library whose information is written; warnings always are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Subsystems(u32);

/// NCCL's names, by bit.
const NAMES: [&str; 18] = [
    "INIT",
    "COLL",
    "P2P",
    "SHM",
    "NET",
    "GRAPH",
    "TUNING",
    "ENV",
    "ALLOC",
    "CALL",
    "PROXY",
    "NVLS",
    "BOOTSTRAP",
    "REG",
    "PROFILE",
    "RAS",
    "ALLOC_HOST",
    "DESTROY",
];

impl Subsystems {
    /// All of them.
    pub const ALL: Subsystems = Subsystems(u32::MAX);

    /// A list with commas between, `^` before it for all others.
    pub fn parse(text: &str) -> Option<Subsystems> {
        let (is_inverted, list) = text.strip_prefix('^').map_or((false, text), |list| (true, list));
        let mut bits = 0;
        for name in list.split(',') {
            bits |= match name.trim().to_ascii_uppercase().as_str() {
                "ALL" => u32::MAX,
                name => Subsystems::of(NAMES.iter().find(|known| **known == name)?).0,
            };
        }
        Some(Subsystems(if is_inverted { !bits } else { bits }))
    }

    fn of(name: &str) -> Subsystems {
        Subsystems(NAMES.iter().position(|known| *known == name).map_or(0, |bit| 1 << bit))
    }

    /// The one that a module's events belong to: a module's path, or `oxccl::` and a name in small letters.
    pub(super) fn of_target(target: &str) -> Subsystems {
        const MODULES: [(&str, &str); 13] = [
            ("oxccl::bootstrap", "BOOTSTRAP"),
            ("oxccl::net", "NET"),
            ("oxccl::connect::gpu::net", "NET"),
            ("oxccl::connect::gpu::survey", "GRAPH"),
            ("oxccl::topology", "GRAPH"),
            ("oxccl::graph", "GRAPH"),
            ("oxccl::plan", "TUNING"),
            ("oxccl::proxy", "PROXY"),
            ("oxccl::transport::shm", "SHM"),
            ("oxccl::mem", "SHM"),
            ("oxccl::transport", "P2P"),
            ("oxccl::env", "ENV"),
            ("nccl::memory", "ALLOC"),
        ];
        let within = |module: &str| {
            target.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
        };
        let known = MODULES.iter().find(|(module, _)| within(module));
        Subsystems::of(known.map_or("INIT", |(_, name)| name))
    }

    pub(super) fn meets(self, other: Subsystems) -> bool {
        self.0 & other.0 != 0
    }
}

impl Default for Subsystems {
    /// NCCL's: what happens once per communicator.
    fn default() -> Subsystems {
        let bits = ["INIT", "ENV", "BOOTSTRAP"].map(|name| Subsystems::of(name).0);
        Subsystems(bits.iter().sum())
    }
}

/// `NCCL_DEBUG`, `NCCL_DEBUG_SUBSYS` and `NCCL_DEBUG_FILE`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LogSettings {
    /// How much.
    pub level: Level,
    /// Of what.
    pub subsystems: Subsystems,
    /// Where to, instead of standard output; `%h` stands for the host's name, `%p` for the process's number, `%%` for `%`.
    pub file: Option<String>,
    /// Variables of the environment that are about this library, to be shown.
    pub environment: Vec<(String, String)>,
}

impl LogSettings {
    /// The file's path on this host, in this process.
    pub(super) fn path(&self, host: &str, process: u32) -> Option<PathBuf> {
        let mut path = String::new();
        let mut rest = self.file.as_deref()?.chars();
        while let Some(next) = rest.next() {
            match (next, rest.clone().next()) {
                ('%', Some('h')) => path.push_str(host),
                ('%', Some('p')) => path.push_str(&process.to_string()),
                ('%', Some('%')) => path.push('%'),
                (other, _) => {
                    path.push(other);
                    continue;
                }
            }
            rest.next();
        }
        Some(path.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_have_nccls_names_and_order() {
        let levels = ["none", "Version", "WARN", "INFO", "TRACE"].map(|name| Level::parse(name).unwrap());
        assert!(levels.is_sorted() && levels[0] == Level::default());
        assert_eq!((Level::parse("abort"), Level::parse("loud")), (Some(Level::Info), None));
    }

    #[test]
    fn subsystems_are_listed_or_left_out() {
        let net = Subsystems::of("NET");
        assert!(Subsystems::parse("init, net").unwrap().meets(net));
        assert!(
            !Subsystems::parse("^NET").unwrap().meets(net)
                && Subsystems::parse("^NET").unwrap().meets(Subsystems::of("P2P"))
        );
        assert!(Subsystems::parse("ALL").unwrap().meets(net) && !Subsystems::default().meets(net));
        assert_eq!((Subsystems::parse("NETT"), Subsystems::parse("")), (None, None));
    }

    #[test]
    fn modules_belong_to_subsystems() {
        let of = Subsystems::of_target;
        assert_eq!(of("oxccl::net::ib::port"), Subsystems::of("NET"));
        assert_eq!(of("oxccl::network"), Subsystems::of("INIT"));
        assert_eq!(of("oxccl::transport::shm"), Subsystems::of("SHM"));
        assert_eq!(of("oxccl::api::builder"), Subsystems::of("INIT"));
    }

    #[test]
    fn a_files_name_has_the_host_and_the_process() {
        let path =
            |file: &str| LogSettings { file: Some(file.into()), ..LogSettings::default() }.path("node7", 42);
        assert_eq!(path("/tmp/nccl.%h.%p.log"), Some("/tmp/nccl.node7.42.log".into()));
        assert_eq!(path("a%%b%q%"), Some("a%b%q%".into()));
        assert_eq!(LogSettings::default().path("h", 1), None);
    }
}

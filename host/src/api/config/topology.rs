//! The variables of the topology.

use super::error::ConfigError;
use super::parse::{self, Source};
use crate::topology::search::CHANNELS_MAX;
use crate::topology::{Dump, PathKind, TopologySettings};
use oxccl_shared::abi::Rank;
use std::path::PathBuf;

const LEVEL: &str =
    "LOC, NVL, C2C, PIX, PXB, P2C, PXN, PHB or SYS was expected, or an old number from 0 to 5";
const CROSS_NIC: &str = "0 (never), 1 (always) or 2 (if better) was expected";
const RANK: &str = "a rank was expected";
const RINGS: &str = "up to 32 rings with | between were expected, each every rank of the communicator once, such as 0 1 2|2 1 0";

/// The levels of NCCL's older releases, by number.
const OLD_LEVELS: [PathKind; 6] =
    [PathKind::Loc, PathKind::Pix, PathKind::Pxb, PathKind::Phb, PathKind::Sys, PathKind::Sys];

pub(super) fn read(env: &Source<'_>) -> Result<TopologySettings, ConfigError> {
    let mut settings = TopologySettings {
        file: env.get("NCCL_TOPO_FILE").map(PathBuf::from),
        dump: dump(env, "NCCL_TOPO_DUMP_FILE", "NCCL_TOPO_DUMP_FILE_RANK")?,
        graph_file: env.get("NCCL_GRAPH_FILE").map(PathBuf::from),
        graph_dump: dump(env, "NCCL_GRAPH_DUMP_FILE", "NCCL_GRAPH_DUMP_FILE_RANK")?,
        ..TopologySettings::default()
    };
    env.set("NCCL_P2P_LEVEL", LEVEL, &mut settings.p2p_level, level)?;
    env.set("NCCL_NET_GDR_LEVEL", LEVEL, &mut settings.gdr_level, level)?;
    env.set("NCCL_CROSS_NIC", CROSS_NIC, &mut settings.cross_nic, |text| {
        text.parse().ok().filter(|number| *number <= 2)
    })?;
    let ignore = &mut settings.ignore_cpu_affinity;
    env.set("NCCL_IGNORE_CPU_AFFINITY", parse::FLAG, ignore, parse::flag)?;
    env.set("NCCL_RINGS", RINGS, &mut settings.rings, rings)?;
    Ok(settings)
}

/// Checks them for a communicator of so many ranks.
pub(super) fn validate(settings: &TopologySettings, nranks: u32) -> Result<(), ConfigError> {
    if settings.rings_fit(nranks) {
        return Ok(());
    }
    let ring = |ring: &Vec<Rank>| ring.iter().map(Rank::to_string).collect::<Vec<_>>().join(" ");
    let value = settings.rings.iter().flatten().map(ring).collect::<Vec<_>>().join("|");
    Err(ConfigError { variable: "NCCL_RINGS", value, expected: RINGS })
}

fn dump(env: &Source<'_>, file: &str, rank: &'static str) -> Result<Option<Dump>, ConfigError> {
    let mut by = Rank(0);
    env.set(rank, RANK, &mut by, |text| text.parse().ok().map(Rank))?;
    Ok(env.get(file).map(|path| Dump { path: PathBuf::from(path), rank: by }))
}

fn level(text: &str) -> Option<Option<PathKind>> {
    let old = text.parse().ok().and_then(|number: usize| OLD_LEVELS.get(number).copied());
    // NVB and NET are path types, but no valid limits.
    let is_level = |kind: &PathKind| *kind <= PathKind::Sys && *kind != PathKind::Nvb;
    old.or_else(|| text.to_ascii_uppercase().parse().ok().filter(is_level)).map(Some)
}

fn rings(text: &str) -> Option<Option<Vec<Vec<Rank>>>> {
    let ring = |text: &str| {
        text.split_whitespace().map(|rank| rank.parse().ok().map(Rank)).collect::<Option<Vec<_>>>()
    };
    let rings = text.split('|').map(ring).collect::<Option<Vec<_>>>()?;
    // Each channel is used twice, so at most half of the maximal number.
    let is_usable = rings.len() <= CHANNELS_MAX / 2 && rings.iter().all(|ring| !ring.is_empty());
    is_usable.then_some(Some(rings))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn settings(pairs: &[(&str, &str)]) -> Result<TopologySettings, ConfigError> {
        let lookup = |name: &str| pairs.iter().find(|p| p.0 == name).map(|p| p.1.to_string());
        read(&Source { lookup: &lookup, is_tolerant: false })
    }

    #[test]
    fn nccl_names_are_understood() {
        let settings = settings(&[
            ("NCCL_TOPO_FILE", "/tmp/a.xml"),
            ("NCCL_TOPO_DUMP_FILE", "b.xml"),
            ("NCCL_TOPO_DUMP_FILE_RANK", "3"),
            ("NCCL_GRAPH_FILE", "c.xml"),
            ("NCCL_GRAPH_DUMP_FILE", "d.xml"),
            ("NCCL_P2P_LEVEL", "nvl"),
            ("NCCL_NET_GDR_LEVEL", "3"),
            ("NCCL_CROSS_NIC", "1"),
            ("NCCL_IGNORE_CPU_AFFINITY", "1"),
            ("NCCL_RINGS", "0 2 1 | 2 0 1"),
        ])
        .unwrap();
        let dump = |path: &str, rank| Some(Dump { path: path.into(), rank });
        let expected = TopologySettings {
            file: Some("/tmp/a.xml".into()),
            dump: dump("b.xml", Rank(3)),
            graph_file: Some("c.xml".into()),
            graph_dump: dump("d.xml", Rank(0)),
            p2p_level: Some(PathKind::Nvl),
            gdr_level: Some(PathKind::Phb),
            cross_nic: 1,
            ignore_cpu_affinity: true,
            rings: Some(vec![vec![Rank(0), Rank(2), Rank(1)], vec![Rank(2), Rank(0), Rank(1)]]),
        };
        assert_eq!(settings, expected);
        assert_eq!(validate(&settings, 3), Ok(()));
        let error = validate(&settings, 4).unwrap_err();
        assert_eq!((error.variable, error.value.as_str()), ("NCCL_RINGS", "0 2 1|2 0 1"));
    }

    #[test]
    fn an_empty_environment_gives_the_defaults() {
        assert_eq!(settings(&[("NCCL_P2P_LEVEL", "")]), Ok(TopologySettings::default()));
    }

    #[test]
    fn bad_values_name_the_variable() {
        let many = ["0"; 33].join("|");
        for (variable, value) in [
            ("NCCL_TOPO_DUMP_FILE_RANK", "first"),
            ("NCCL_GRAPH_DUMP_FILE_RANK", "-1"),
            ("NCCL_P2P_LEVEL", "NET"),
            ("NCCL_P2P_LEVEL", "6"),
            ("NCCL_NET_GDR_LEVEL", "near"),
            ("NCCL_NET_GDR_LEVEL", "NVB"),
            ("NCCL_CROSS_NIC", "3"),
            ("NCCL_IGNORE_CPU_AFFINITY", "yes"),
            ("NCCL_RINGS", "0 1|"),
            ("NCCL_RINGS", "0 a"),
            ("NCCL_RINGS", many.as_str()),
        ] {
            let error = settings(&[(variable, value)]).unwrap_err();
            assert_eq!((error.variable, error.value.as_str()), (variable, value));
        }
    }

    proptest! {
        /// Any text is a level or is refused with the variable; names ignore case, and larger old numbers never mean
        /// a nearer level.
        #[test]
        fn levels_are_names_or_old_numbers(text in "\\PC{1,8}", kind in proptest::sample::select(&PathKind::ALL[..])) {
            let of = |text: &str| settings(&[("NCCL_NET_GDR_LEVEL", text)]).map(|settings| settings.gdr_level);
            match of(&text) {
                Ok(Some(level)) => {
                    let trimmed = text.trim();
                    prop_assert!(trimmed.eq_ignore_ascii_case(level.name()) || trimmed.parse::<usize>().is_ok());
                }
                Ok(None) => prop_assert!(false, "{text:?} was not looked at"),
                Err(error) => prop_assert_eq!((error.variable, error.value), ("NCCL_NET_GDR_LEVEL", text)),
            }
            let is_level = kind <= PathKind::Sys && kind != PathKind::Nvb;
            for name in [kind.name().to_owned(), kind.name().to_ascii_lowercase()] {
                prop_assert_eq!(of(&name).is_ok_and(|level| level == Some(kind)), is_level);
            }
        }
    }

    #[test]
    fn old_numbers_grow_with_the_distance() {
        let of = |number: u32| settings(&[("NCCL_NET_GDR_LEVEL", &number.to_string())]).unwrap().gdr_level;
        assert!((0..5).all(|number| of(number) <= of(number + 1)));
        assert_eq!((of(0), of(2), of(5)), (Some(PathKind::Loc), Some(PathKind::Pxb), Some(PathKind::Sys)));
    }
}

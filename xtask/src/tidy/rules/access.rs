//! Layer: xtask / tidy / rules.
//! Takes: the library's sources.
//! Gives: the rules of the form "only this place touches that": atomics, the environment, NCCL's result type.
//! Never: applies to `#[cfg(test)]` items; a test may look behind an interface.

use crate::tidy::finding::Findings;
use crate::tidy::source::{identifiers, names_path};
use crate::tidy::tree::{LIBRARY, Tree};

/// Where atomics may be named, and why.
const ATOMICS_HERE: &[(&str, &str)] = &[
    ("shared/src/sync/", "where they are wrapped"),
    ("device/src/gpu/amdgcn/barrier.rs", "tells the compiler that a barrier orders memory"),
];

const ATOMIC_TYPES: &[&str] = &[
    "AtomicBool",
    "AtomicU8",
    "AtomicU16",
    "AtomicU32",
    "AtomicU64",
    "AtomicUsize",
    "AtomicI8",
    "AtomicI16",
    "AtomicI32",
    "AtomicI64",
    "AtomicIsize",
    "AtomicPtr",
];

pub fn atomics(tree: &Tree, findings: &mut Findings) {
    for (path, source) in tree.rust_below(LIBRARY) {
        if ATOMICS_HERE.iter().any(|(place, _)| path.starts_with(place)) {
            continue;
        }
        for (line, code) in source.product_lines() {
            let module = names_path(code, "sync::atomic") || names_path(code, "atomic::Ordering");
            if module || identifiers(code).any(|word| ATOMIC_TYPES.contains(&word)) {
                findings.hard(
                    path,
                    line,
                    "atomics go through shared::sync (Word), which names order and scope; \
                    allowed elsewhere only in xtask's ATOMICS_HERE",
                );
            }
        }
    }
}

const ENVIRONMENT_HERE: &[(&str, &str)] =
    &[("host/src/api/config.rs", "validates, documents and shows every variable")];

pub fn environment(tree: &Tree, findings: &mut Findings) {
    for (path, source) in tree.rust_below(LIBRARY) {
        if ENVIRONMENT_HERE.iter().any(|(place, _)| path.starts_with(place)) {
            continue;
        }
        for (line, code) in source.product_lines() {
            let reads =
                names_path(code, "std::env") || names_path(code, "env::var") || names_path(code, "env::vars");
            let reads = reads || identifiers(code).any(|word| word == "getenv" || word == "var_os");
            if reads {
                findings.hard(
                    path,
                    line,
                    "the environment is read once, in host/src/api/config.rs, so that every \
                    variable is validated, documented and shown in one place",
                );
            }
        }
    }
}

/// An exemption for a missing file would silently apply to the next file at that path.
pub fn exemptions(tree: &Tree, findings: &mut Findings) {
    for (path, why) in ATOMICS_HERE.iter().chain(ENVIRONMENT_HERE) {
        if !tree.exists(path) {
            let message = format!("`{path}` ({why}) does not exist, and xtask's access.rs exempts it");
            findings.hard("xtask/src/tidy/rules/access.rs", 0, message);
        }
    }
}

pub fn nccl_result(tree: &Tree, findings: &mut Findings) {
    for (path, source) in tree.rust_below(LIBRARY) {
        for (line, code) in source.product_lines() {
            if identifiers(code).any(|word| word == "ncclResult_t") {
                findings.hard(
                    path,
                    line,
                    "only the C interface, a crate of its own, knows ncclResult_t: the library's own errors \
                    say more, and are mapped to it in one file",
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::tidy::tests::found;

    #[test]
    fn an_atomic_elsewhere_is_found_with_its_line() {
        let text = "// AtomicU64 in a comment is fine\nuse std::sync::{Arc, atomic::AtomicU64};\n";
        let hits = found("atomics", &[("host/src/proxy/mod.rs", text)]);
        assert_eq!((hits.len(), hits[0].line), (1, 2));
        assert!(!found("atomics", &[("device/src/a.rs", "use core::sync::atomic::*;")]).is_empty());
    }

    #[test]
    fn exempt_places_and_tests_may_name_atomics() {
        let text = "use core::sync::atomic::AtomicU64;";
        assert!(found("atomics", &[("shared/src/sync/arch/host.rs", text)]).is_empty());
        let test = "#[cfg(test)]\nmod tests {\n use core::sync::atomic::AtomicU64;\n}";
        assert!(found("atomics", &[("host/src/a.rs", test)]).is_empty());
    }

    #[test]
    fn a_tests_module_in_its_own_file_is_a_test() {
        let text = "use core::sync::atomic::AtomicU64;";
        assert!(found("atomics", &[("host/src/bootstrap/tests/ring.rs", text)]).is_empty());
    }

    #[test]
    fn ordering_of_comparisons_is_not_an_atomic() {
        assert!(found("atomics", &[("host/src/a.rs", "use core::cmp::Ordering;")]).is_empty());
    }

    #[test]
    fn the_environment_has_one_reader() {
        let text = "let x = std::env::var(name);";
        assert_eq!(found("environment", &[("host/src/bootstrap/mod.rs", text)]).len(), 1);
        assert!(found("environment", &[("host/src/api/config.rs", text)]).is_empty());
        assert!(found("environment", &[("benches/src/main.rs", text)]).is_empty());
        assert!(found("environment", &[("host/src/a.rs", "let p = env!(\"X\");")]).is_empty());
    }

    #[test]
    fn nccl_result_stays_out_of_the_library() {
        assert_eq!(found("nccl-result", &[("host/src/api/error.rs", "fn f() -> ncclResult_t {}")]).len(), 1);
        assert!(found("nccl-result", &[("host/capi/src/lib.rs", "fn f() -> ncclResult_t {}")]).is_empty());
    }

    #[test]
    fn an_exemption_for_a_missing_file_is_found() {
        let others = [("shared/src/sync/mod.rs", ""), ("device/src/gpu/amdgcn/barrier.rs", "")];
        let hits = found("exemptions", &others);
        assert_eq!(hits.len(), 1);
        assert!(hits[0].message.contains("host/src/api/config.rs"), "{}", hits[0].message);
        let [sync, barrier] = others;
        assert!(found("exemptions", &[sync, barrier, ("host/src/api/config.rs", "")]).is_empty());
    }
}

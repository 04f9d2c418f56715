//! Layer: xtask / tidy / rules.
//! Takes: a tree.
//! Gives: the rules, grouped by what they look at; each message carries the rule's reason.
//! Never: has an exception that is not written in a list beside its rule.

mod doors;
mod layers;
mod layout;
mod limits;
mod words;

use super::Rule;

/// The library crates' sources.
const LIBRARY: &[&str] = &["shared/src/", "device/src/", "host/src/"];

pub const ALL: &[Rule] = &[
    Rule { name: "atomics", check: doors::atomics },
    Rule { name: "environment", check: doors::environment },
    Rule { name: "nccl-result", check: doors::nccl_result },
    Rule { name: "pure-plan", check: layers::pure_plan },
    Rule { name: "protocol-names", check: layers::protocol_names },
    Rule { name: "downward", check: layers::downward },
    Rule { name: "driver", check: layers::driver },
    Rule { name: "file-length", check: limits::file_length },
    Rule { name: "function-length", check: limits::function_length },
    Rule { name: "module-doc", check: layout::module_doc },
    Rule { name: "top-level", check: layout::top_level },
    Rule { name: "lints", check: layout::lints },
    Rule { name: "doc-paths", check: layout::doc_paths },
    Rule { name: "unfinished", check: words::unfinished },
    Rule { name: "printing", check: words::printing },
];

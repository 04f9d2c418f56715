//! Layer: xtask / tidy / rules.
//! Takes: a tree.
//! Gives: the rules, grouped by what they look at; each message carries the rule's reason.
//! Never: has an exception that is not written in a list beside its rule.

mod access;
mod circles;
mod layers;
mod layout;
mod limits;
mod pages;
mod words;

use crate::tidy::finding::Rule;

pub const ALL: &[Rule] = &[
    Rule { name: "atomics", check: access::atomics },
    Rule { name: "environment", check: access::environment },
    Rule { name: "nccl-result", check: access::nccl_result },
    Rule { name: "exemptions", check: access::exemptions },
    Rule { name: "pure-plan", check: layers::pure_plan },
    Rule { name: "protocol-names", check: layers::protocol_names },
    Rule { name: "downward", check: layers::downward },
    Rule { name: "driver", check: layers::driver },
    Rule { name: "circles", check: circles::circles },
    Rule { name: "file-length", check: limits::file_length },
    Rule { name: "function-length", check: limits::function_length },
    Rule { name: "module-doc", check: layout::module_doc },
    Rule { name: "top-level", check: layout::top_level },
    Rule { name: "lints", check: layout::lints },
    Rule { name: "doc-paths", check: pages::doc_paths },
    Rule { name: "doc-symbols", check: pages::doc_symbols },
    Rule { name: "tour-stops", check: pages::tour_stops },
    Rule { name: "test-programs", check: layout::test_programs },
    Rule { name: "unfinished", check: words::unfinished },
    Rule { name: "field-words", check: words::field_words },
    Rule { name: "printing", check: words::printing },
];

//! The bundle of `cargo xtask build-ptx`, read as the library reads it.
//!
//! `cargo xtask test --only ptx` builds it and runs these tests; by hand, `OXCCL_PTX_PATH` is its path.

use oxccl::DataType;
use oxccl::cuda::bundle::{Bundle, ImageForm, find_bundle};
use oxccl_shared::algo::kernels::kernels;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

fn bundle() -> Arc<Bundle> {
    let configured = std::env::var_os("OXCCL_PTX_PATH").map(PathBuf::from);
    find_bundle(configured.as_deref()).unwrap_or_else(|error| panic!("{error}"))
}

/// Every image is there, is what was written, and is of the form that it claims; PTX defines the kernels listed.
#[test]
#[ignore = "needs kernels: cargo xtask test --only ptx"]
fn needs_ptx_every_image_reads_and_holds_its_kernels() {
    let bundle = bundle();
    let mut seen = BTreeSet::new();
    for (entry, sm) in bundle.entries() {
        let images = bundle.images(entry, sm).unwrap();
        assert!(images.iter().any(|image| image.sm() == sm), "{entry} for sm_{sm}");
        for image in images.iter().filter(|image| image.sm() == sm) {
            if !seen.insert((image.module().to_owned(), sm, image.form() == ImageForm::Ptx)) {
                continue;
            }
            let contents = bundle.read(image).unwrap_or_else(|error| panic!("{error}"));
            match image.form() {
                ImageForm::MachineCode => assert!(contents.starts_with(b"\x7fELF"), "{}", image.module()),
                ImageForm::Ptx => {
                    let text = std::str::from_utf8(&contents).unwrap();
                    assert!(text.contains(&format!(".entry {entry}(")), "{entry} in {}", image.module());
                    assert!(text.contains(&format!(".target sm_{sm}")), "{}", image.module());
                }
            }
        }
    }
    assert!(seen.len() > 10, "{} images", seen.len());
}

/// No type that the library takes lacks its kernels.
#[test]
#[ignore = "needs kernels: cargo xtask test --only ptx"]
fn needs_ptx_every_reduction_has_a_kernel_for_every_type() {
    let bundle = bundle();
    let entries: BTreeSet<&str> = bundle.entries().map(|(entry, _)| entry).collect();
    for func in ["all_reduce", "reduce_scatter", "reduce"] {
        for dtype in DataType::ALL {
            for proto in ["ll", "simple"] {
                // Kernels are named after Rust's types, tables after NCCL's.
                let entry = format!("oxccl_{func}_ring_{proto}_{}", format!("{dtype:?}").to_lowercase());
                assert!(entries.contains(entry.as_str()), "no {entry}");
            }
        }
    }
}

/// The bundle is the registry's, no more and no less.
#[test]
#[ignore = "needs kernels: cargo xtask test --only ptx"]
fn needs_ptx_the_bundle_has_the_kernels_of_the_registry() {
    let bundle = bundle();
    let entries: BTreeSet<String> = bundle.entries().map(|(entry, _)| entry.to_string()).collect();
    let kernels: BTreeSet<String> = kernels().map(|kernel| kernel.to_string()).collect();
    assert_eq!(entries, kernels);
}

/// Kernels have bulk copies whole or not at all, none before Hopper. A slot is published only when its stores are complete, through the
/// proxy's fence.
#[test]
#[ignore = "needs kernels: cargo xtask test --only ptx"]
fn needs_ptx_bulk_copies_are_complete_before_slots_are_published() {
    const PUBLISHING: [&str; 4] = [
        "cp.async.bulk.wait_group",
        "fence.proxy.async",
        "st.relaxed.sys.global.u64",
        "st.release.sys.global.u64",
    ];
    let bundle = bundle();
    for entry in
        ["oxccl_all_gather_ring_simple", "oxccl_all_reduce_ring_simple_bf16", "oxccl_send_recv_simple"]
    {
        let images: BTreeSet<u32> =
            bundle.entries().filter(|(name, _)| *name == entry).map(|(_, sm)| sm).collect();
        for sm in images {
            let images = bundle.images(entry, sm).unwrap();
            let image =
                images.iter().find(|image| image.sm() == sm && image.form() == ImageForm::Ptx).unwrap();
            let text = bundle.read(image).unwrap();
            let opcodes = opcodes_of(std::str::from_utf8(&text).unwrap(), entry);
            let has = |wanted: &str| opcodes.iter().any(|opcode| opcode == wanted);
            let copies = [
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes",
                "cp.async.bulk.global.shared::cta.bulk_group",
                "cp.async.bulk.wait_group.read",
                "mbarrier.test_wait.parity.acquire.cta.shared::cta.b64",
            ];
            let has_copies = has(copies[0]);
            assert!(copies.iter().all(|copy| has(copy) == has_copies), "{entry} for sm_{sm}: {opcodes:?}");
            assert!(sm >= 90 || !has_copies, "{entry} for sm_{sm}");
            let ordering: Vec<&str> = opcodes
                .iter()
                .map(String::as_str)
                .filter(|opcode| PUBLISHING.contains(opcode))
                .skip_while(|opcode| *opcode != PUBLISHING[0])
                .collect();
            if entry == "oxccl_send_recv_simple" {
                // A question comes first, then what a message straight into a window publishes, whose header was stored long before, then
                // slots that are filled by ordinary stores.
                let mut releases = (0..).zip(&ordering).filter(|(_, opcode)| **opcode == PUBLISHING[3]);
                let arrival = releases.nth(1).map(|(at, _)| at);
                let complete = [PUBLISHING[0], PUBLISHING[1], PUBLISHING[3]];
                let is_ordered = arrival.is_none_or(|at: usize| ordering[..=at].ends_with(&complete));
                assert!(is_ordered && arrival.is_some() == has_copies, "{entry} for sm_{sm}: {ordering:?}");
                continue;
            }
            let waits = ordering.iter().enumerate().filter(|(_, opcode)| **opcode == PUBLISHING[0]);
            for (at, _) in waits.clone() {
                let next = ordering.get(at + 1);
                assert!(
                    next != Some(&PUBLISHING[2]) && next != Some(&PUBLISHING[3]),
                    "{entry}: {ordering:?}"
                );
            }
            let published = ordering.windows(4).filter(|four| *four == PUBLISHING).count();
            assert!((published > 0) == has_copies, "{entry} for sm_{sm}: {ordering:?}");
        }
    }
}

/// What the library may start early waits by itself, where it is compiled for a generation that can; nothing else says that the next kernel
/// may start.
#[test]
#[ignore = "needs kernels: cargo xtask test --only ptx"]
fn needs_ptx_kernels_that_start_early_wait_by_themselves() {
    const EARLY: [&str; 2] = ["griddepcontrol.wait", "griddepcontrol.launch_dependents"];
    let (bundle, mut seen) = (bundle(), [0; 2]);
    for (entry, sm) in bundle.entries() {
        let kernel = kernels().find(|kernel| kernel.to_string() == entry).unwrap();
        let images = bundle.images(entry, sm).unwrap();
        let image = images.iter().find(|image| image.sm() == sm && image.form() == ImageForm::Ptx).unwrap();
        let text = bundle.read(image).unwrap();
        let opcodes = opcodes_of(std::str::from_utf8(&text).unwrap(), entry);
        let found = EARLY.map(|wanted| opcodes.iter().any(|opcode| opcode == wanted));
        let waits = kernel.starts_early() && sm >= 90;
        assert_eq!(found[0], waits, "{entry} for sm_{sm}");
        assert!(waits || !found[1], "{entry} for sm_{sm} admits the next kernel and does not wait");
        seen[usize::from(waits)] += 1;
    }
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
}

/// The instructions of an entry in order, without operands.
fn opcodes_of(text: &str, entry: &str) -> Vec<String> {
    let start = text.find(&format!(".entry {entry}(")).unwrap();
    let body = &text[start..];
    let body = &body[..body.find("\n}").unwrap()];
    let words = body
        .split([';', '{', '\n'])
        .filter_map(|code| code.split_whitespace().find(|word| !word.starts_with('@')).map(str::to_owned));
    words.collect()
}

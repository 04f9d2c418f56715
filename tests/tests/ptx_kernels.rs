//! The bundle of `cargo xtask build-ptx`, read as the library reads it.
//!
//! `cargo xtask test --only ptx` builds it and runs these tests; by hand, `OXCCL_PTX_PATH` is its path.

use oxccl::DataType;
use oxccl::cuda::bundle::{Bundle, ImageForm, find_bundle};
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
    let kernels: BTreeSet<String> =
        oxccl_shared::algo::kernels::kernels().map(|kernel| kernel.to_string()).collect();
    assert_eq!(entries, kernels);
}

//! A valid bundle, and every kind of defect.

use super::*;
use proptest::prelude::*;

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A module of one kernel of its own name, with PTX and, perhaps, machine code.
fn module(name: &str, sm: u32, images: &mut Vec<u8>, has_code: bool) -> String {
    let mut put = |contents: &[u8]| {
        images.resize(images.len().next_multiple_of(64), 0);
        let offset = images.len();
        images.extend_from_slice(contents);
        format!(r#"{{"offset":{offset},"bytes":{},"sha256":"{}"}}"#, contents.len(), hex(contents))
    };
    let ptx = put(format!(".version 7.8 // {name} {sm}\0").as_bytes());
    let cubin = if has_code { put(format!("\x7fELF {name} {sm}").as_bytes()) } else { "null".into() };
    format!(
        r#"{{"name":"{name}","sm":{sm},"entries":[{{"name":"oxccl_{name}","registers":32,"max_threads":640}}],"ptx":{ptx},"cubin":{cubin}}}"#
    )
}

fn file(modules: &str, images: &[u8]) -> Vec<u8> {
    let index = format!(
        r#"{{"compiler":"rustc 1.97","commit":"abc","abi":"{ABI_DIGEST:016x}","modules":[{modules}]}}"#
    );
    let mut file = b"OXCCLPTX\x01\0\0\0".to_vec();
    file.extend_from_slice(&(index.len() as u32).to_le_bytes());
    file.extend_from_slice(index.as_bytes());
    file.resize(file.len().next_multiple_of(64), 0);
    file.extend_from_slice(images);
    file
}

/// `all_reduce_f32` for sm_70 (no machine code), 80, 90 and 100.
pub(super) fn good() -> Vec<u8> {
    let mut images = Vec::new();
    let modules: Vec<String> =
        [70, 80, 90, 100].iter().map(|sm| module("all_reduce_f32", *sm, &mut images, *sm != 70)).collect();
    file(&modules.join(","), &images)
}

fn open(bytes: Vec<u8>) -> Result<Bundle, BundleError> {
    Bundle::from_bytes("test.oxptx", bytes)
}

fn defect(bytes: Vec<u8>) -> (u64, Defect) {
    match open(bytes) {
        Err(BundleError::Malformed { offset, defect, .. }) => (offset, defect),
        other => panic!("a defect was expected, not {other:?}"),
    }
}

fn choices(bundle: &Bundle, sm: u32) -> Vec<(u32, ImageForm)> {
    let images = bundle.images("oxccl_all_reduce_f32", sm).unwrap();
    images.iter().map(|image| (image.sm(), image.form())).collect()
}

#[test]
fn a_device_gets_machine_code_of_its_major_then_ptx_from_the_newest() {
    use ImageForm::{MachineCode, Ptx};
    let bundle = open(good()).unwrap();
    assert_eq!(choices(&bundle, 90), [(90, MachineCode), (90, Ptx), (80, Ptx), (70, Ptx)]);
    assert_eq!(choices(&bundle, 86), [(80, MachineCode), (80, Ptx), (70, Ptx)]);
    assert_eq!(choices(&bundle, 75), [(70, Ptx)]);
    assert_eq!(choices(&bundle, 121), [(100, Ptx), (90, Ptx), (80, Ptx), (70, Ptx)]);
}

#[test]
fn kernels_of_other_layouts_are_refused_by_the_commit_that_they_are_of() {
    assert!(open(good()).unwrap().for_this_library().is_ok());
    let ours = format!("{ABI_DIGEST:016x}");
    let text = |bytes: Vec<u8>, from: &str, to: &str| {
        let at = bytes.windows(from.len()).position(|part| part == from.as_bytes()).unwrap();
        [&bytes[..at], to.as_bytes(), &bytes[at + from.len()..]].concat()
    };
    let of_another = text(good(), &ours, "0123456789abcdef");
    let older = text(good(), &format!(r#""abi":"{ours}""#), r#""abd":"0123456789abcdef""#);
    for (bytes, layouts) in [(of_another, "0123456789abcdef"), (older, "before")] {
        let refused = open(bytes).unwrap().for_this_library().unwrap_err();
        let said = refused.to_string();
        for part in ["test.oxptx", "commit abc", layouts, &ours, "build-ptx"] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
}

#[test]
fn images_are_what_was_written() {
    let bundle = open(good()).unwrap();
    let images = bundle.images("oxccl_all_reduce_f32", 90).unwrap();
    assert_eq!(bundle.read(&images[0]).unwrap(), b"\x7fELF all_reduce_f32 90");
    assert_eq!(bundle.read(&images[1]).unwrap(), b".version 7.8 // all_reduce_f32 90\0");
    let facts = images[0].entry("oxccl_all_reduce_f32").unwrap();
    assert_eq!((facts.registers, facts.max_threads, facts.shared_bytes), (32, 640, 0));
    assert_eq!((bundle.compiler(), bundle.commit()), ("rustc 1.97", "abc"));
    assert_eq!(bundle.entries().count(), 4);
}

#[test]
fn a_file_on_disk_reads_like_one_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("oxccl.oxptx");
    std::fs::write(&path, good()).unwrap();
    let bundle = Bundle::open(&path).unwrap();
    let images = bundle.images("oxccl_all_reduce_f32", 80).unwrap();
    assert_eq!(bundle.read(&images[0]).unwrap(), b"\x7fELF all_reduce_f32 80");
    // Truncates the open file: an error with the offset, no signal.
    std::fs::File::options().write(true).open(&path).unwrap().set_len(64).unwrap();
    let error = bundle.read(&images[0]).unwrap_err();
    assert!(matches!(error, BundleError::Io { kind: std::io::ErrorKind::UnexpectedEof, .. }), "{error}");
}

#[test]
fn what_is_missing_is_named() {
    let bundle = open(good()).unwrap();
    let error = bundle.images("oxccl_all_reduce_u7", 90).unwrap_err().to_string();
    assert!(error.contains("oxccl_all_reduce_u7") && error.contains("test.oxptx"), "{error}");
    let error = bundle.images("oxccl_all_reduce_f32", 61).unwrap_err().to_string();
    assert!(error.contains("sm_70, sm_80") && error.contains("sm_61") && error.contains("oldest"), "{error}");
}

#[test]
fn heads_that_are_wrong() {
    assert_eq!(defect(Vec::new()), (0, Defect::Truncated { wanted_bytes: 16 }));
    assert!(matches!(defect(b"\x7fELF............".to_vec()), (0, Defect::Magic { .. })));
    let with = |at: usize, value: u32| {
        let mut bytes = good();
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        bytes
    };
    assert_eq!(defect(with(8, 2)), (8, Defect::Version { found: 2, expected: 1 }));
    assert!(matches!(defect(with(12, u32::MAX)), (12, Defect::IndexTooLong { .. })));
    let len = good().len() as u64;
    assert_eq!(defect(with(12, 1 << 20)), (len, Defect::Truncated { wanted_bytes: 16 + (1 << 20) }));
    assert!(matches!(defect(with(12, 20)), (16.., Defect::Index(_))));
}

#[test]
fn images_outside_the_file_are_refused_before_they_are_asked_for() {
    let hash = "0".repeat(64);
    for (offset, bytes) in [(0u64, 1u64 << 40), (1 << 40, 1), (u64::MAX, 1), (0, u64::MAX), (0, 65)] {
        let text = format!(
            r#"{{"name":"m","sm":90,"entries":[],"ptx":{{"offset":{offset},"bytes":{bytes},"sha256":"{hash}"}},"cubin":null}}"#
        );
        let (_, defect) = defect(file(&text, &[0; 64]));
        assert!(matches!(defect, Defect::Outside { .. }), "{defect}");
    }
}

#[test]
fn a_name_may_be_there_once() {
    let mut images = Vec::new();
    let twice = [module("m", 90, &mut images, true), module("m", 90, &mut images, true)].join(",");
    assert_eq!(defect(file(&twice, &images)), (16, Defect::Twice { name: "m".into(), sm: 90 }));
}

#[test]
fn changed_bytes_are_found() {
    let mut bytes = good();
    let at = bytes.len() - 1;
    bytes[at] ^= 1;
    let bundle = open(bytes).unwrap();
    let images = bundle.images("oxccl_all_reduce_f32", 100).unwrap();
    let error = bundle.read(&images[0]).unwrap_err();
    assert!(matches!(error, BundleError::Malformed { defect: Defect::Hash { sm: 100, .. }, .. }), "{error}");
}

#[test]
fn ptx_without_its_end_is_refused() {
    let text = b"no zero";
    let span = format!(r#"{{"offset":0,"bytes":7,"sha256":"{}"}}"#, hex(text));
    let record = format!(r#"{{"name":"m","sm":90,"entries":[{{"name":"e"}}],"ptx":{span},"cubin":null}}"#);
    let bundle = open(file(&record, text)).unwrap();
    let error = bundle.read(&bundle.images("e", 90).unwrap()[0]).unwrap_err();
    assert!(matches!(error, BundleError::Malformed { defect: Defect::Unterminated { .. }, .. }), "{error}");
}

proptest! {
    /// Opening and reading any file returns a result, and data read has its hash.
    #[test]
    fn hostile_files_end_in_errors(at in 0usize..2000, value in any::<u8>(), cut in 0usize..3000) {
        let mut bytes = good();
        let len = bytes.len();
        bytes[at % len] = value;
        bytes.truncate(len.saturating_sub(cut.saturating_sub(1500)));
        if let Ok(bundle) = open(bytes) {
            for (entry, sm) in bundle.entries() {
                for image in bundle.images(entry, sm).unwrap_or_default() {
                    if let Ok(contents) = bundle.read(&image) {
                        prop_assert_eq!(contents.len() as u64, image.bytes());
                    }
                }
            }
        }
    }

    /// Random bytes.
    #[test]
    fn noise_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(open(bytes).is_err());
    }
}

//! The file with the kernels lies where anybody may have put it.

use oxccl::cuda::bundle::Bundle;

/// Any file is refused with a reason, or each of its images is refused or has the length that it claims; nothing is read
/// outside the file.
pub fn bundle(data: &[u8]) {
    let bundle = match Bundle::from_bytes("fuzzed", data.to_vec()) {
        Ok(bundle) => bundle,
        Err(error) => return assert!(error.to_string().contains("fuzzed")),
    };
    for (entry, sm) in bundle.entries() {
        let images = bundle.images(entry, sm).expect("what is listed for a generation runs on it");
        assert!(images.iter().all(|image| image.sm() <= sm && image.entry(entry).is_some()));
        for image in &images {
            if let Ok(contents) = bundle.read(image) {
                assert_eq!(contents.len() as u64, image.bytes());
                assert!(contents.len() <= data.len());
            }
        }
    }
}

//! The kernels that the library carries if it was built with the feature `embed-kernels`: compressed by its build script.

use super::{Bundle, BundleError};
use std::sync::Arc;

/// The bundle, unpacked when first asked for: it takes its full size of memory from then on. None in a library built without.
///
/// # Errors
/// [`BundleError::Io`] if it cannot be unpacked; [`BundleError::Malformed`].
pub fn bundle() -> Option<Result<Arc<Bundle>, BundleError>> {
    #[cfg(feature = "embed-kernels")]
    return Some(carried::bundle());
    #[cfg(not(feature = "embed-kernels"))]
    None
}

#[cfg(feature = "embed-kernels")]
mod carried {
    use super::{Arc, Bundle, BundleError};
    use std::sync::LazyLock;

    const COMPRESSED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/oxccl.oxptx.packed"));
    /// Stands for a path in errors.
    const NAME: &str = "the kernels in this library";

    pub fn bundle() -> Result<Arc<Bundle>, BundleError> {
        static BUNDLE: LazyLock<Result<Arc<Bundle>, BundleError>> = LazyLock::new(|| {
            let unpacked = super::super::packed::unpack(COMPRESSED).map_err(|error| BundleError::Io {
                path: NAME.into(),
                offset: 0,
                kind: error.kind(),
            })?;
            Bundle::from_bytes(NAME, unpacked).map(Arc::new)
        });
        BUNDLE.clone()
    }
}

#[cfg(all(test, feature = "embed-kernels"))]
mod tests {
    use super::bundle;

    #[test]
    fn the_library_carries_kernels_of_its_own_layouts() {
        let bundle = bundle().expect("the feature").expect("a bundle");
        bundle.check_abi().expect("built from this source");
        let (entry, sm) =
            bundle.entries().next().map(|(entry, sm)| (entry.to_owned(), sm)).expect("a kernel");
        for image in bundle.images(&entry, sm).expect("an image") {
            assert_eq!(bundle.read(&image).expect("its bytes").len() as u64, image.bytes());
        }
    }
}

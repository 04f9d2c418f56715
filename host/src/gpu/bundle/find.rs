//! Finds the bundle.

use super::{Bundle, BundleError};
use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const FILE: &str = "oxccl.oxptx";
/// The output path of `cargo xtask build-ptx`, in the checkout that this library was compiled from. None in packages: the path would
/// be that of a stranger.
const CHECKOUT: Option<(&str, &str)> = match (option_env!("OXCCL_PACKAGED"), option_env!("CARGO_TARGET_DIR"))
{
    (Some(_), _) => None,
    (None, Some(target)) => Some((env!("CARGO_MANIFEST_DIR"), target)),
    (None, None) => Some((env!("CARGO_MANIFEST_DIR"), "target")),
};

/// Opens the bundle: only `configured` (from `OXCCL_PTX_PATH`) if set; otherwise the one in this library, if it was built with the
/// feature `embed-kernels`; otherwise the first of
/// 1. `oxccl.oxptx` beside the executable,
/// 2. `../lib/oxccl.oxptx` from there,
/// 3. `oxccl.oxptx` beside the shared library that this code is in, for programs such as Python that load it from
///    elsewhere,
/// 4. the same beside the file that this shared library's name is a link to,
/// 5. `target/ptx/oxccl.oxptx` in the checkout that this library was compiled from, unless it is of a package.
///
/// An existing but invalid file is an error: using the next one would hide that.
///
/// # Errors
/// [`BundleError::NotFound`] with all paths; [`BundleError::Io`], [`BundleError::Malformed`] of the file found.
pub fn find_bundle(configured: Option<&Path>) -> Result<Arc<Bundle>, BundleError> {
    if let Some(path) = configured {
        return open_first(vec![path.into()]).map(Arc::new);
    }
    match super::embedded::bundle() {
        Some(bundle) => bundle,
        None => open_first(places(executable().as_deref(), this_library().as_deref())).map(Arc::new),
    }
}

fn open_first(places: Vec<PathBuf>) -> Result<Bundle, BundleError> {
    for place in &places {
        match Bundle::open(place) {
            Err(BundleError::Io { kind: std::io::ErrorKind::NotFound, .. }) => {}
            found => return found,
        }
    }
    Err(BundleError::NotFound { tried: places })
}

fn places(executable: Option<&Path>, library: Option<&Path>) -> Vec<PathBuf> {
    let mut places = Vec::new();
    if let Some(folder) = executable.and_then(Path::parent) {
        places.push(folder.join(FILE));
        places.extend(folder.parent().map(|above| above.join("lib").join(FILE)));
    }
    places.extend(library.and_then(Path::parent).map(|folder| folder.join(FILE)));
    let linked = library.and_then(|library| std::fs::canonicalize(library).ok());
    places.extend(linked.as_deref().and_then(Path::parent).map(|folder| folder.join(FILE)));
    if let Some((package, target)) = CHECKOUT {
        let checkout = Path::new(package).parent().unwrap_or(Path::new("/"));
        places.push(checkout.join(target).join("ptx").join(FILE));
    }
    let mut seen = std::collections::HashSet::new();
    places.retain(|place| seen.insert(place.clone()));
    places
}

fn executable() -> Option<PathBuf> {
    std::fs::read_link("/proc/self/exe").ok()
}

/// The file that contains this function.
fn this_library() -> Option<PathBuf> {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: the address is that of a function of this program, and `info` is valid for a write.
    let found = unsafe { libc::dladdr(this_library as *const libc::c_void, info.as_mut_ptr()) };
    if found == 0 {
        return None;
    }
    // SAFETY: zeroed is a valid value, and `dladdr` said that it filled it.
    let name = unsafe { info.assume_init() }.dli_fname;
    if name.is_null() {
        return None;
    }
    // SAFETY: the loader's own string, which ends with a zero byte and lives as long as the library.
    let name = unsafe { CStr::from_ptr(name) };
    let path = PathBuf::from(OsStr::from_bytes(name.to_bytes()));
    // For an executable it is its argv[0]; `executable` handles that case.
    path.is_absolute().then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_stand_in_order_and_once() {
        let found = places(Some(Path::new("/opt/app/bin/train")), Some(Path::new("/opt/oxccl/libnccl.so.2")));
        let (last, first) = found.split_last().unwrap();
        let expected = ["/opt/app/bin/oxccl.oxptx", "/opt/app/lib/oxccl.oxptx", "/opt/oxccl/oxccl.oxptx"];
        assert_eq!(first, expected.map(PathBuf::from));
        assert!(last.ends_with("ptx/oxccl.oxptx") && last.is_absolute());
        let same = places(Some(Path::new("/a/x")), Some(Path::new("/a/x")));
        assert_eq!(same.iter().filter(|place| place.starts_with("/a")).count(), 1);
    }

    #[test]
    fn a_link_to_the_library_leads_to_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        let (real, link) = (folder.path().join("real/libnccl.so.2"), folder.path().join("libnccl.so.2"));
        std::fs::create_dir(folder.path().join("real")).unwrap();
        std::fs::write(&real, "").unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let found = places(None, Some(&link));
        let real = std::fs::canonicalize(&real).unwrap();
        assert_eq!(found[..2], [link.with_file_name(FILE), real.with_file_name(FILE)]);
    }

    #[test]
    fn a_missing_bundle_names_every_place_and_the_command() {
        let error =
            open_first(vec!["/nonexistent/a".into(), "/nonexistent/b".into()]).unwrap_err().to_string();
        for part in
            ["/nonexistent/a, /nonexistent/b are not there", "cargo xtask build-ptx", "OXCCL_PTX_PATH"]
        {
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn what_was_configured_is_the_only_place() {
        let error = find_bundle(Some(Path::new("/nonexistent/k.oxptx"))).unwrap_err();
        assert_eq!(error, BundleError::NotFound { tried: vec!["/nonexistent/k.oxptx".into()] });
    }

    #[test]
    fn this_test_is_loaded_from_its_executable() {
        if let Some(library) = this_library() {
            assert_eq!(std::fs::canonicalize(library).unwrap(), executable().unwrap());
        }
    }
}

//! A bundle made small, to be carried in the library: PTX without numbers (`renumber`), compressed. Machine code compresses to a tenth at best,
//! and the driver can make it, so it is left out unless asked for.
//!
//! The build script packs, the library unpacks: both compile this file.

use super::renumber;
use serde_json::Value;
use std::io::{Error, ErrorKind, Read, Result};

/// Most of the file is the same for many kernels, far apart: a window over all of it.
const WINDOW_LOG: u32 = 27;
const LEVEL: i32 = 19;
/// What nothing unpacks to: some ten times all kernels for all generations.
const BYTES_MAX: u64 = 2 << 30;
/// As the bundle has them: its magic, format and length of the index; images start at multiples.
const HEADER_BYTES: usize = 16;
const ALIGN: usize = 64;

/// Packs the file of `cargo xtask build-ptx`, with machine code for the generations in `code_for` alone.
///
/// # Errors
/// `bundle` is none.
pub fn pack(bundle: &[u8], code_for: &[u64]) -> Result<Vec<u8>> {
    let small = without_code(bundle, code_for).ok_or_else(|| invalid("it is no bundle of kernels"))?;
    let mut encoder = zstd::stream::Encoder::new(Vec::new(), LEVEL)?;
    encoder.window_log(WINDOW_LOG)?;
    encoder.long_distance_matching(true)?;
    std::io::Write::write_all(&mut encoder, &renumber::encode(&small))?;
    encoder.finish()
}

/// The bundle that was packed.
///
/// # Errors
/// These are not the bytes of [`pack`].
pub fn unpack(packed: &[u8]) -> Result<Vec<u8>> {
    let mut decoder = zstd::stream::Decoder::new(packed)?;
    decoder.window_log_max(WINDOW_LOG)?;
    let mut coded = Vec::new();
    decoder.take(BYTES_MAX).read_to_end(&mut coded)?;
    renumber::decode(&coded).ok_or_else(|| invalid("it was damaged"))
}

fn invalid(why: &str) -> Error {
    Error::new(ErrorKind::InvalidData, why)
}

/// The same bundle without some images.
fn without_code(bundle: &[u8], code_for: &[u64]) -> Option<Vec<u8>> {
    let index_bytes = u32::from_le_bytes(bundle.get(12..HEADER_BYTES)?.try_into().ok()?) as usize;
    let index_end = HEADER_BYTES.checked_add(index_bytes)?;
    let mut index: Value = serde_json::from_slice(bundle.get(HEADER_BYTES..index_end)?).ok()?;
    let old = bundle.get(index_end.next_multiple_of(ALIGN)..).unwrap_or_default();
    let mut images = Vec::new();
    for module in index.get_mut("modules")?.as_array_mut()? {
        let has_code = module.get("sm")?.as_u64().is_some_and(|sm| code_for.contains(&sm));
        for form in ["ptx", "cubin"] {
            let image = module.get_mut(form)?;
            if image.is_null() {
                continue;
            }
            if form == "cubin" && !has_code {
                *image = Value::Null;
                continue;
            }
            let number =
                |name: &str| image.get(name)?.as_u64().and_then(|number| usize::try_from(number).ok());
            let (start, bytes) = (number("offset")?, number("bytes")?);
            let contents = old.get(start..start.checked_add(bytes)?)?;
            images.resize(images.len().next_multiple_of(ALIGN), 0);
            image["offset"] = images.len().into();
            images.extend_from_slice(contents);
        }
    }
    let index = serde_json::to_vec(&index).ok()?;
    let mut file = bundle[..12].to_vec();
    file.extend(u32::try_from(index.len()).ok()?.to_le_bytes());
    file.extend(index);
    file.resize(file.len().next_multiple_of(ALIGN), 0);
    file.extend(images);
    Some(file)
}

#[cfg(test)]
mod tests {
    use super::super::tests::good;
    use super::super::{Bundle, ImageForm};
    use super::*;

    fn through(code_for: &[u64]) -> Bundle {
        let packed = pack(&good(), code_for).unwrap();
        Bundle::from_bytes("packed", unpack(&packed).unwrap()).unwrap()
    }

    #[test]
    fn ptx_of_every_generation_comes_back_and_machine_code_if_asked_for() {
        let whole = Bundle::from_bytes("whole", good()).unwrap();
        let (small, with_code) = (through(&[]), through(&[90]));
        small.check_abi().unwrap();
        assert!(whole.entries().eq(small.entries()) && whole.digest() != small.digest());
        for (entry, sm) in whole.entries() {
            let images = small.images(entry, sm).unwrap();
            assert!(images.iter().all(|image| image.form() == ImageForm::Ptx));
            let same = |of: &Bundle, form| {
                let find = |bundle: &Bundle| {
                    let images = bundle.images(entry, sm).unwrap();
                    let image = images.iter().find(|image| image.form() == form)?;
                    Some((image.sm(), bundle.read(image).unwrap()))
                };
                find(of) == find(&whole)
            };
            assert!(same(&small, ImageForm::Ptx) && same(&with_code, ImageForm::Ptx));
            assert_eq!(same(&with_code, ImageForm::MachineCode), [70, 90].contains(&sm), "{sm}");
        }
    }

    #[test]
    fn what_is_no_bundle_or_damaged_is_refused() {
        assert!(pack(b"nothing", &[]).is_err());
        assert!(pack(&good()[..200], &[]).is_err());
        let packed = pack(&good(), &[]).unwrap();
        assert!(unpack(&packed[..packed.len() - 3]).is_err());
        assert!(unpack(b"nothing").is_err());
    }
}

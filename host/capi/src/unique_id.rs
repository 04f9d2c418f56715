//! `ncclUniqueId` and the library's own.

use crate::config::Settings;
use crate::encryption;
use crate::pointer::Out;
use crate::result::{Failure, Outcome};
use crate::types::UniqueIdBytes;
use oxccl::{Error, UniqueId};
use std::ffi::c_char;

/// `ncclGetUniqueId`.
pub fn create(out: Out<UniqueIdBytes>) -> Outcome {
    out.check("uniqueId")?;
    out.write(bytes_of(&make(&Settings::default())?), "uniqueId")
}

/// A new id, whose root waits here.
pub fn make(settings: &Settings) -> Outcome<UniqueId> {
    let config = settings.engine()?;
    Ok(encryption::create(&config.bootstrap).map_err(Error::from)?)
}

pub fn bytes_of(id: &UniqueId) -> UniqueIdBytes {
    UniqueIdBytes { internal: id.to_bytes().map(|byte| byte as c_char) }
}

/// The id that a caller passed.
///
/// # Errors
/// `ncclInvalidArgument`.
pub fn parse(bytes: &UniqueIdBytes) -> Outcome<UniqueId> {
    let bytes = bytes.internal.map(|byte| byte as u8);
    UniqueId::from_bytes(&bytes)
        .map_err(|error| Failure::invalid_argument(format!("commId: {error}; ncclGetUniqueId makes ids")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_comes_back_and_others_are_refused() {
        let id = UniqueId::from_address(([127, 0, 0, 1], 4711).into(), b"seed");
        let bytes = bytes_of(&id);
        assert_eq!(parse(&bytes), Ok(id));
        let failure = parse(&UniqueIdBytes { internal: [0; 128] }).unwrap_err();
        assert!(failure.text.contains("no unique id of OxCCL"), "{}", failure.text);
    }
}

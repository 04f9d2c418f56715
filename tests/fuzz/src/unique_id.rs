//! A unique id comes from a file, an environment variable or another program.

use oxccl::bootstrap::{UNIQUE_ID_BYTES, UniqueId};

/// Any 128 bytes are refused, or are an id that is written as it was read and whose secret is not shown.
pub fn unique_id(data: &[u8]) {
    let Some(bytes) = data.first_chunk::<UNIQUE_ID_BYTES>() else { return };
    match UniqueId::from_bytes(bytes) {
        Ok(id) => {
            assert_eq!(id.to_bytes(), *bytes);
            assert_ne!(id.root_addr().port(), 0);
            assert!(format!("{id:?}").len() < 200);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

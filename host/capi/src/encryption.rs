//! `ncclSetEncryption`: what connections between hosts carry is encrypted, and only ranks with the same key meet.

use crate::pointer::{In, Text};
use crate::result::{Failure, Outcome};
use crate::types::{EncryptionConfig, MAGIC};
use oxccl::{BootstrapConfig, BootstrapError, Config, UniqueId};
use std::sync::{PoisonError, RwLock};

/// The process's key, if encryption is on.
static KEY: RwLock<Option<Box<[u8]>>> = RwLock::new(None);

/// `ncclSetEncryption`, for ids and communicators made from now on. Every rank sets the same key, the one that makes the id before it makes it.
pub fn set(config: In<EncryptionConfig>) -> Outcome {
    let head = config.bytes(12, "config")?;
    let size = usize::from_ne_bytes(head[..8].try_into().unwrap_or_default());
    let magic = u32::from_ne_bytes(head[8..].try_into().unwrap_or_default());
    if magic != MAGIC || size < size_of::<EncryptionConfig>() {
        return Err(Failure::invalid_argument(
            "config was not initialised: start from NCCL_ENCRYPTION_CONFIG_INITIALIZER (its size or its magic number is wrong)",
        ));
    }
    let config = config.read("config")?;
    let key = match config.mode {
        0 => None,
        1 => Some(key_of(&Text::of_field(config.psk))?),
        mode => {
            return Err(Failure::invalid_argument(format!("config.mode is {mode}; 0 or 1 was expected")));
        }
    };
    *KEY.write().unwrap_or_else(PoisonError::into_inner) = key;
    Ok(())
}

fn key_of(psk: &Text) -> Outcome<Box<[u8]>> {
    let key = psk.bytes().filter(|key| !key.is_empty()).ok_or_else(|| {
        Failure::invalid_argument(
            "config.psk is null or empty; with NCCL_ENCRYPTION_MODE_PSK the key that all ranks share was expected",
        )
    })?;
    Ok(key.into_boxed_slice())
}

fn with_key<R>(then: impl FnOnce(Option<&[u8]>) -> R) -> R {
    then(KEY.read().unwrap_or_else(PoisonError::into_inner).as_deref())
}

/// Turns encryption on where a key is set.
pub fn apply(config: &mut Config) {
    config.net.socket.encrypt |= with_key(|key| key.is_some());
}

/// A new id, whose root waits here for ranks that have the key as well.
pub fn create(config: &BootstrapConfig) -> Result<UniqueId, BootstrapError> {
    with_key(|key| match key {
        Some(key) => UniqueId::create_with_key(config, key),
        None => UniqueId::create_by(config),
    })
}

/// The id by which this process joins.
pub fn join(id: UniqueId) -> UniqueId {
    with_key(|key| key.map_or(id, |key| id.with_key(key)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Code;
    use std::ffi::CStr;

    fn config(mode: i32, psk: Option<&CStr>) -> EncryptionConfig {
        let psk = psk.map_or(std::ptr::null(), CStr::as_ptr);
        EncryptionConfig { size: size_of::<EncryptionConfig>(), magic: MAGIC, version: 23203, mode, psk }
    }

    fn put(mut config: EncryptionConfig) -> Outcome {
        set(In::new(&raw mut config))
    }

    /// One test, since the key is the process's.
    #[test]
    fn a_key_is_everybodys_who_meets_and_encrypts() {
        let id = UniqueId::from_address(([127, 0, 0, 1], 4711).into(), b"seed");
        let mut settings = Config::default();
        for refused in [config(1, None), config(1, Some(c"")), config(2, Some(c"key"))] {
            assert!(put(refused).is_err_and(|failure| failure.code == Code::InvalidArgument));
        }
        apply(&mut settings);
        assert!(join(id) == id && !settings.net.socket.encrypt);

        assert!(put(config(1, Some(c"one key"))).is_ok());
        apply(&mut settings);
        let one = join(id);
        assert!(one != id && join(id) == one && settings.net.socket.encrypt);
        assert!(put(config(1, Some(c"another key"))).is_ok());
        assert!(join(id) != one && join(id) != id);
        assert!(put(config(0, Some(c"one key"))).is_ok());
        assert_eq!(join(id), id);
    }
}

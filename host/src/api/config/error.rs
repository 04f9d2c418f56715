//! The error of a setting.

use thiserror::Error;

/// An invalid setting.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{variable}={value}: {expected}")]
pub struct ConfigError {
    /// The variable or option.
    pub variable: &'static str,
    /// Its value.
    pub value: String,
    /// The expected form.
    pub expected: &'static str,
}

/// The error of [`crate::api::CommunicatorBuilder::build`] for several ranks without an id.
pub(in crate::api) const MISSING_ID: ConfigError = ConfigError {
    variable: "unique_id",
    value: String::new(),
    expected: "an id was expected: create one on one rank and give it to all, or use from_env",
};

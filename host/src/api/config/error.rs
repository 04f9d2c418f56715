//! The error of a setting.

use thiserror::Error;

/// An invalid setting.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{variable}={}: {expected}", printable(.value))]
pub struct ConfigError {
    /// The variable or option.
    pub variable: &'static str,
    /// Its value.
    pub value: String,
    /// The expected form.
    pub expected: &'static str,
}

/// What a terminal would obey is written as Rust would.
fn printable(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for c in value.chars() {
        if c.is_control() { text.extend(c.escape_default()) } else { text.push(c) }
    }
    text
}

/// The error of [`crate::api::CommunicatorBuilder::build`] for several ranks without an id.
pub(in crate::api) const MISSING_ID: ConfigError = ConfigError {
    variable: "unique_id",
    value: String::new(),
    expected: "an id was expected: create one on one rank and give it to all, or use from_env",
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_written_out() {
        let error =
            ConfigError {
                variable: "NCCL_ALGO", value: "ä\"\u{1b}]0;x\u{7}".to_owned(), expected: "a name"
            };
        assert_eq!(error.to_string(), "NCCL_ALGO=ä\"\\u{1b}]0;x\\u{7}: a name");
    }
}

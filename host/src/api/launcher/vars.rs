//! Variables of launchers.

use super::error::LaunchError;

/// A source of variables.
pub(super) struct Vars<'a>(pub &'a dyn Fn(&str) -> Option<String>);

impl Vars<'_> {
    pub fn get(&self, name: &str) -> Option<String> {
        (self.0)(name).filter(|value| !value.is_empty())
    }

    pub fn first(&self, names: &'static [&'static str]) -> Option<(&'static str, String)> {
        names.iter().find_map(|&name| self.get(name).map(|value| (name, value)))
    }

    pub fn number(&self, name: &'static str) -> Result<Option<u32>, LaunchError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match value.trim().parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(LaunchError::Bad { variable: name, value, expected: "a whole number from 0" }),
        }
    }
}

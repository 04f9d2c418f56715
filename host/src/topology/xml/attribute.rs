//! Layer: host / topology / xml, below its readers.
//! Takes: an element's attributes as text.
//! Gives: numbers, flags and addresses within stated ranges, or an error with the expected form.
//! Never: guesses. Empty text counts as absent: NCCL writes it for unknown values.

use super::XmlError;
use super::element::Element;
use crate::topology::{BusId, PathKind};
use std::ops::RangeInclusive;

impl Element {
    /// A number, decimal or with `0x`.
    pub fn number(
        &self,
        attribute: &'static str,
        range: RangeInclusive<i64>,
        expected: &'static str,
    ) -> Result<Option<i64>, XmlError> {
        self.parsed(attribute, expected, |text| integer(text).filter(|number| range.contains(number)))
    }

    /// As [`Self::number`], for what fits 32 bits.
    pub fn count(
        &self,
        attribute: &'static str,
        max: u32,
        expected: &'static str,
    ) -> Result<Option<u32>, XmlError> {
        Ok(self.number(attribute, 0..=i64::from(max), expected)?.map(|number| number as u32))
    }

    /// 0 or 1.
    pub fn flag(&self, attribute: &'static str) -> Result<Option<bool>, XmlError> {
        Ok(self.number(attribute, 0..=1, "0 or 1")?.map(|number| number == 1))
    }

    /// Hexadecimal of up to 64 bits.
    pub fn hex(
        &self,
        attribute: &'static str,
        max: u64,
        expected: &'static str,
    ) -> Result<Option<u64>, XmlError> {
        self.parsed(attribute, expected, |text| {
            let digits = text.strip_prefix("0x").unwrap_or(text);
            let is_plain = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
            u64::from_str_radix(digits, 16).ok().filter(|number| is_plain && *number <= max)
        })
    }

    /// A device's number in a graph: decimal, or hexadecimal with the host in the upper eight of 64 bits.
    pub fn hex_or_decimal(&self, attribute: &'static str) -> Result<u64, XmlError> {
        self.parsed(attribute, "a device's number", |text| match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with('+')),
            None => text.parse().ok(),
        })?
        .ok_or_else(|| self.missing(attribute))
    }

    /// A finite number that is not negative.
    pub fn real(&self, attribute: &'static str) -> Result<Option<f32>, XmlError> {
        self.parsed(attribute, "a number from 0 to 1000000", |text| {
            text.parse::<f32>().ok().filter(|number| (0.0..=1e6).contains(number)).map(f32::abs)
        })
    }

    /// A PCI address.
    pub fn bus_id(&self, attribute: &'static str) -> Result<BusId, XmlError> {
        self.parsed(attribute, "a PCI address such as 0000:06:00.0", |text| text.parse().ok())?
            .ok_or_else(|| self.missing(attribute))
    }

    /// A path type's name.
    pub fn path_kind(&self, attribute: &'static str) -> Result<Option<PathKind>, XmlError> {
        self.parsed(attribute, "a path type such as NVL, PIX or SYS", |text| text.parse().ok())
    }

    /// Free text.
    pub fn text(&self, attribute: &'static str) -> Option<String> {
        self.get(attribute).filter(|text| !text.is_empty()).map(str::to_owned)
    }

    /// The error for a missing attribute.
    pub fn missing(&self, attribute: &'static str) -> XmlError {
        XmlError::Missing { line: self.line, element: self.name.clone(), attribute }
    }

    /// The error for an invalid value.
    pub fn wrong(&self, attribute: &'static str, expected: &'static str) -> XmlError {
        let value = self.get(attribute).unwrap_or_default().to_owned();
        XmlError::Value { line: self.line, element: self.name.clone(), attribute, value, expected }
    }

    fn parsed<T>(
        &self,
        attribute: &'static str,
        expected: &'static str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, XmlError> {
        match self.get(attribute).filter(|text| !text.is_empty()) {
            Some(text) => parse(text).map(Some).ok_or_else(|| self.wrong(attribute, expected)),
            None => Ok(None),
        }
    }
}

fn integer(text: &str) -> Option<i64> {
    match text.strip_prefix("0x") {
        Some(digits) if !digits.starts_with(['+', '-']) => i64::from_str_radix(digits, 16).ok(),
        Some(_) => None,
        None => text.parse().ok(),
    }
}

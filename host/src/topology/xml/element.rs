//! Layer: host / topology / xml, below its readers.
//! Takes: bytes from anywhere.
//! Gives: [`Element`]s with their lines, within the limits of [`super`].
//! Never: text between elements: the formats keep everything in attributes.

use super::{ATTRIBUTES_MAX, DEPTH_MAX, ELEMENTS_MAX, FILE_BYTES_MAX, VALUE_CHARS_MAX, XmlError};
use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

/// An element and its content.
#[derive(Debug)]
pub(super) struct Element {
    pub name: String,
    /// Its first line, counted from 1.
    pub line: u32,
    pub attributes: Vec<(String, String)>,
    pub children: Vec<Element>,
}

impl Element {
    /// The root element, which must be called `expected`.
    pub fn parse(text: &str, expected: &'static str) -> Result<Element, XmlError> {
        if text.len() > FILE_BYTES_MAX {
            return Err(XmlError::Limit { line: 1, what: "bytes", max: FILE_BYTES_MAX });
        }
        let root = Parser::new(text).run()?;
        match root {
            Some(root) if root.name == expected => Ok(root),
            Some(root) => Err(XmlError::Root { line: root.line, found: root.name, expected }),
            None => Err(XmlError::Empty { expected }),
        }
    }

    /// An attribute's text.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

struct Parser<'a> {
    text: &'a str,
    reader: Reader<&'a [u8]>,
    /// Open elements.
    open: Vec<Element>,
    root: Option<Element>,
    elements: usize,
    /// The position up to which lines are counted, and the line there.
    counted: (usize, u32),
}

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Parser<'a> {
        Parser {
            text,
            reader: Reader::from_str(text),
            open: Vec::new(),
            root: None,
            elements: 0,
            counted: (0, 1),
        }
    }

    fn run(mut self) -> Result<Option<Element>, XmlError> {
        loop {
            let start = self.reader.buffer_position() as usize;
            match self.reader.read_event() {
                Ok(Event::Start(tag)) => {
                    let element = self.element(&tag, start)?;
                    self.open.push(element);
                }
                Ok(Event::Empty(tag)) => {
                    let element = self.element(&tag, start)?;
                    self.close(element)?;
                }
                // The reader has checked that it closes the innermost element.
                Ok(Event::End(_)) => {
                    if let Some(element) = self.open.pop() {
                        self.close(element)?;
                    }
                }
                Ok(Event::DocType(_)) => return Err(self.syntax(start, "document types are not read")),
                Ok(Event::Eof) if self.open.is_empty() => return Ok(self.root),
                Ok(Event::Eof) => {
                    let name = self.open.pop().map(|element| element.name).unwrap_or_default();
                    return Err(self.syntax(start, &format!("<{name}> is never closed")));
                }
                Ok(_) => {}
                Err(error) => {
                    let at = self.reader.error_position() as usize;
                    return Err(self.syntax(at, &error.to_string()));
                }
            }
        }
    }

    fn element(&mut self, tag: &BytesStart<'_>, start: usize) -> Result<Element, XmlError> {
        let line = self.line(start);
        self.elements += 1;
        if self.elements > ELEMENTS_MAX {
            return Err(XmlError::Limit { line, what: "elements", max: ELEMENTS_MAX });
        }
        if self.open.len() >= DEPTH_MAX {
            return Err(XmlError::Limit { line, what: "elements inside each other", max: DEPTH_MAX });
        }
        let name = String::from_utf8_lossy(tag.name().as_ref()).into_owned();
        let mut attributes = Vec::new();
        for attribute in tag.attributes() {
            let attribute = attribute.map_err(|error| self.syntax(start, &error.to_string()))?;
            let key = String::from_utf8_lossy(attribute.key.as_ref()).into_owned();
            let value = attribute
                .unescape_value()
                .map_err(|error| self.syntax(start, &error.to_string()))?
                .into_owned();
            if attributes.len() >= ATTRIBUTES_MAX {
                return Err(XmlError::Limit { line, what: "attributes", max: ATTRIBUTES_MAX });
            }
            if value.chars().count() > VALUE_CHARS_MAX || key.len() > VALUE_CHARS_MAX {
                return Err(XmlError::Limit {
                    line,
                    what: "characters of an attribute",
                    max: VALUE_CHARS_MAX,
                });
            }
            if value.chars().any(char::is_control) {
                return Err(self.syntax(start, &format!("control characters in the attribute {key}")));
            }
            attributes.push((key, value));
        }
        Ok(Element { name, line, attributes, children: Vec::new() })
    }

    fn close(&mut self, element: Element) -> Result<(), XmlError> {
        match self.open.last_mut() {
            Some(parent) => parent.children.push(element),
            None if self.root.is_none() => self.root = Some(element),
            None => {
                let what = format!("<{}> stands after the root element", element.name);
                return Err(XmlError::Syntax { line: element.line, what });
            }
        }
        Ok(())
    }

    fn syntax(&mut self, at: usize, what: &str) -> XmlError {
        XmlError::Syntax { line: self.line(at), what: what.to_owned() }
    }

    /// The line of a position. Positions increase, so the text is scanned once.
    fn line(&mut self, at: usize) -> u32 {
        let (from, line) = if at >= self.counted.0 { self.counted } else { (0, 1) };
        let at = at.min(self.text.len());
        let breaks = self.text.as_bytes()[from..at].iter().filter(|byte| **byte == b'\n').count();
        self.counted = (at, line + breaks as u32);
        self.counted.1
    }
}

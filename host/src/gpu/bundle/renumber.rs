//! PTX in a form that compresses to a third: registers and labels by how long ago they were new, not by number.
//!
//! Kernels for several types are nearly the same code with other numbers, since a compiler numbers registers through a function. With
//! each number replaced by the count of registers of its class that became new since it did, the same code is the same text. Any bytes
//! pass, and come back exactly.
//!
//! ```text
//! %rd17, new, one more than the new one before       %rd NEXT
//! %rd17, new, otherwise                              %rd JUMP difference
//! %rd17, known                                       %rd BACK distance
//! $L__BB3_7                                          $L__BB, then NEXT or JUMP as the function's number is that of the label before,
//!                                                    then 7 like a register's number
//! one of these four bytes                            ESCAPE byte + 64
//! ```

use std::collections::HashMap;

const NEXT: u8 = 1;
const JUMP: u8 = 2;
const BACK: u8 = 3;
const ESCAPE: u8 = 4;
const ESCAPED: u8 = 64;
/// What begins a label of LLVM's.
const LABEL: &[u8] = b"$L__BB";
/// Digits of a number that is replaced: it stays within 32 bits.
const DIGITS_MAX: usize = 9;
/// Letters of a register's class.
const LETTERS_MAX: usize = 4;
/// Of the longest class's name, that of labels.
const NAME_BYTES: usize = LABEL.len();

/// The numbers of one class in one function.
#[derive(Default)]
struct Class {
    order: HashMap<i64, usize>,
    numbers: Vec<i64>,
}

impl Class {
    fn last(&self) -> i64 {
        self.numbers.last().copied().unwrap_or(0)
    }

    fn add(&mut self, number: i64) {
        self.order.insert(number, self.numbers.len());
        self.numbers.push(number);
    }
}

/// What both directions know at the same place.
#[derive(Default)]
struct State {
    classes: HashMap<[u8; NAME_BYTES], Class>,
    /// Of the label before.
    function: i64,
}

impl State {
    /// A `}` that begins a line ends a function, whose registers are not those of the next.
    fn pass(&mut self, byte: u8, before: Option<&u8>) {
        if byte == b'}' && before == Some(&b'\n') {
            self.classes.clear();
        }
    }

    fn class(&mut self, name: &[u8]) -> &mut Class {
        let mut key = [0; NAME_BYTES];
        key[..name.len()].copy_from_slice(name);
        self.classes.entry(key).or_default()
    }
}

/// The length of the class's name after a `%`, if it is followed by something.
fn class_len(text: &[u8]) -> Option<usize> {
    let len = text.iter().take(LETTERS_MAX + 1).take_while(|byte| byte.is_ascii_lowercase()).count();
    (1..=LETTERS_MAX).contains(&len).then_some(len)
}

/// A number as it would be printed, and its length.
fn number(text: &[u8]) -> Option<(i64, usize)> {
    let len = text.iter().take(DIGITS_MAX + 1).take_while(|byte| byte.is_ascii_digit()).count();
    let is_plain = (1..=DIGITS_MAX).contains(&len) && (len == 1 || text[0] != b'0');
    let digits = str::from_utf8(&text[..len]).ok().filter(|_| is_plain)?;
    Some((digits.parse().ok()?, len))
}

/// `text` in the form that compresses.
pub fn encode(text: &[u8]) -> Vec<u8> {
    let (mut state, mut out, mut at) = (State::default(), Vec::with_capacity(text.len()), 0);
    while let Some(byte) = text.get(at) {
        let rest = &text[at..];
        if let Some(len) = encode_register(rest, &mut state, &mut out) {
            at += len;
        } else if let Some(len) = encode_label(rest, &mut state, &mut out) {
            at += len;
        } else {
            match byte {
                NEXT..=ESCAPE => out.extend([ESCAPE, byte + ESCAPED]),
                byte => out.push(*byte),
            }
            state.pass(*byte, at.checked_sub(1).map(|before| &text[before]));
            at += 1;
        }
    }
    out
}

/// Returns how much of `text` was taken.
fn encode_register(text: &[u8], state: &mut State, out: &mut Vec<u8>) -> Option<usize> {
    let name = text.strip_prefix(b"%")?;
    let letters = class_len(name)?;
    let (value, digits) = number(&name[letters..])?;
    out.extend(&text[..=letters]);
    encode_number(value, state.class(&name[..letters]), out);
    Some(1 + letters + digits)
}

fn encode_label(text: &[u8], state: &mut State, out: &mut Vec<u8>) -> Option<usize> {
    let (function, function_digits) = number(text.strip_prefix(LABEL)?)?;
    let rest = text[LABEL.len() + function_digits..].strip_prefix(b"_")?;
    let (value, digits) = number(rest)?;
    out.extend(LABEL);
    match function == state.function {
        true => out.push(NEXT),
        false => encode_jump(function, out),
    }
    state.function = function;
    encode_number(value, state.class(LABEL), out);
    Some(LABEL.len() + function_digits + 1 + digits)
}

fn encode_number(value: i64, class: &mut Class, out: &mut Vec<u8>) {
    match class.order.get(&value) {
        Some(order) => {
            out.push(BACK);
            out.extend((class.numbers.len() - order).to_string().bytes());
        }
        None => {
            match value - class.last() {
                1 => out.push(NEXT),
                difference => encode_jump(difference, out),
            }
            class.add(value);
        }
    }
}

fn encode_jump(by: i64, out: &mut Vec<u8>) {
    out.push(JUMP);
    out.extend(by.to_string().bytes());
}

/// What [`encode`] was given; `None` for bytes that it never gives.
pub fn decode(coded: &[u8]) -> Option<Vec<u8>> {
    let (mut state, mut out, mut at) = (State::default(), Vec::with_capacity(coded.len() * 5 / 4), 0);
    while let Some(&byte) = coded.get(at) {
        let rest = &coded[at..];
        let marked = |prefix: usize| matches!(rest.get(prefix), Some(&(NEXT..=BACK)));
        let letters = rest.strip_prefix(b"%").and_then(class_len);
        if let Some(letters) = letters.filter(|letters| marked(1 + letters)) {
            out.extend(&rest[..=letters]);
            at +=
                1 + letters + decode_number(&rest[1 + letters..], state.class(&rest[1..=letters]), &mut out)?;
        } else if rest.starts_with(LABEL) && marked(LABEL.len()) {
            at += decode_label(rest, &mut state, &mut out)?;
        } else {
            let plain = match byte {
                NEXT..=BACK => return None,
                ESCAPE => {
                    at += 1;
                    coded.get(at)?.checked_sub(ESCAPED).filter(|plain| (NEXT..=ESCAPE).contains(plain))?
                }
                plain => plain,
            };
            state.pass(plain, out.last());
            out.push(plain);
            at += 1;
        }
    }
    Some(out)
}

fn decode_label(rest: &[u8], state: &mut State, out: &mut Vec<u8>) -> Option<usize> {
    let (mark, tail) = rest[LABEL.len()..].split_first()?;
    let digits = match *mark {
        NEXT => 0,
        JUMP => {
            let (function, digits) = number(tail)?;
            state.function = function;
            digits
        }
        _ => return None,
    };
    out.extend(LABEL);
    out.extend(state.function.to_string().bytes());
    out.push(b'_');
    Some(LABEL.len() + 1 + digits + decode_number(&tail[digits..], state.class(LABEL), out)?)
}

/// Reads from a mark on, and returns how much it was.
fn decode_number(coded: &[u8], class: &mut Class, out: &mut Vec<u8>) -> Option<usize> {
    let (mark, tail) = coded.split_first()?;
    let (value, len) = match *mark {
        NEXT => (class.last() + 1, 0),
        JUMP => {
            let sign = usize::from(tail.first() == Some(&b'-'));
            let (size, digits) = number(&tail[sign..])?;
            (class.last() + if sign == 1 { -size } else { size }, sign + digits)
        }
        BACK => {
            let (distance, digits) = number(tail)?;
            let order = class.numbers.len().checked_sub(usize::try_from(distance).ok()?)?;
            (*class.numbers.get(order)?, digits)
        }
        _ => return None,
    };
    if *mark != BACK {
        class.add(value);
    }
    out.extend(value.to_string().bytes());
    Some(1 + len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TWO: &str = "\
.func a()\n{\n\t.reg .b32 %r<4>;\n\tmov.u32 %r1, %tid.x;\n$L__BB0_1:\n\tadd.s32 %r3, %r1, 7;\n\tbra $L__BB0_1;\n}\n\
.func b()\n{\n\t.reg .b32 %r<4>;\n\tmov.u32 %r8, %tid.x;\n$L__BB1_5:\n\tadd.s32 %r10, %r8, 7;\n\tbra $L__BB1_5;\n}\n";

    #[test]
    fn the_same_code_with_other_numbers_is_the_same_text() {
        let coded = encode(TWO.as_bytes());
        assert_eq!(decode(&coded).as_deref(), Some(TWO.as_bytes()));
        let text = String::from_utf8(coded).unwrap();
        let bodies: Vec<&str> =
            text.split("\tadd").skip(1).map(|body| body.split('}').next().unwrap()).collect();
        assert_eq!(bodies, [".s32 %r\u{2}2, %r\u{3}2, 7;\n\tbra $L__BB\u{1}\u{3}1;\n"; 2]);
    }

    /// Text as PTX is, and as it is not.
    fn text() -> impl Strategy<Value = Vec<u8>> {
        let register = ("[a-z]{1,5}", 0u64..3000).prop_map(|(class, number)| format!("%{class}{number}"));
        let label = (0u32..3, 0u32..50).prop_map(|(function, number)| format!("$L__BB{function}_{number}"));
        let odd = prop::sample::select(vec![
            "%",
            "%r",
            "%r<17>",
            "%r007",
            "%r99999999999",
            "$L__BB",
            "$L__BB1",
            "$L__BB1_",
            "\n}\n",
            "}",
            "-",
            "0",
            "_",
            " ",
            "12",
        ]);
        let bytes = prop::collection::vec(any::<u8>(), 0..4);
        let few = (0u32..4).prop_map(|number| format!("%r{number}"));
        let part = prop_oneof![
            register.prop_map(String::into_bytes),
            few.prop_map(String::into_bytes),
            label.prop_map(String::into_bytes),
            odd.prop_map(|text: &str| text.as_bytes().to_vec()),
            bytes,
        ];
        prop::collection::vec(part, 0..60).prop_map(|parts| parts.concat())
    }

    proptest! {
        #[test]
        fn any_text_comes_back(text in text()) {
            prop_assert_eq!(decode(&encode(&text)), Some(text));
        }

        /// Damaged bytes give some text or none; nothing panics.
        #[test]
        fn hostile_bytes_are_refused_or_read(mut coded in text().prop_map(|text| encode(&text)), at in any::<prop::sample::Index>(), byte in 0u8..130) {
            if !coded.is_empty() {
                let at = at.index(coded.len());
                coded[at] = byte;
            }
            let _ = decode(&coded);
        }
    }
}

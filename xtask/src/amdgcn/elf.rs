//! Layer: xtask / amdgcn.
//! Takes: an ELF file of 64 bits, little endian.
//! Gives: the names of its dynamic symbols, which is what a loader of code objects sees.
//! Never: trusts an offset: a broken file is an error.

use anyhow::{Context, Result, ensure};
use std::collections::BTreeSet;

/// A section's type: the dynamic symbols.
const SHT_DYNSYM: u32 = 11;
const SYMBOL_BYTES: usize = 24;

/// Names of the dynamic symbols that are defined.
pub fn dynamic_symbols(file: &[u8]) -> Result<BTreeSet<String>> {
    ensure!(file.starts_with(b"\x7fELF\x02\x01"), "not an ELF file of 64 bits, little endian");
    let (table, size, count) = (word(file, 40)?, short(file, 58)?, short(file, 60)?);
    let section = |index: usize| -> Result<(u32, usize, usize, usize)> {
        let at = table + index * size;
        // Type, offset, length, and the section with the names.
        Ok((int(file, at + 4)?, word(file, at + 24)?, word(file, at + 32)?, int(file, at + 40)? as usize))
    };
    let mut names = BTreeSet::new();
    for index in 0..count {
        let (kind, offset, bytes, linked) = section(index)?;
        if kind != SHT_DYNSYM {
            continue;
        }
        let (_, strings, ..) = section(linked)?;
        for at in (offset..offset + bytes).step_by(SYMBOL_BYTES) {
            let (name, defined_in) = (int(file, at)? as usize, short(file, at + 6)?);
            if defined_in != 0 {
                names.insert(text(file, strings + name)?);
            }
        }
    }
    Ok(names)
}

fn bytes<const N: usize>(file: &[u8], at: usize) -> Result<[u8; N]> {
    let found = file.get(at..).and_then(|rest| rest.first_chunk::<N>());
    found.copied().with_context(|| format!("it ends before byte {at}"))
}

fn short(file: &[u8], at: usize) -> Result<usize> {
    Ok(u16::from_le_bytes(bytes(file, at)?).into())
}

fn int(file: &[u8], at: usize) -> Result<u32> {
    Ok(u32::from_le_bytes(bytes(file, at)?))
}

fn word(file: &[u8], at: usize) -> Result<usize> {
    // An offset in a file that is in memory.
    let value = usize::try_from(u64::from_le_bytes(bytes(file, at)?))?;
    ensure!(value <= file.len(), "offset {value} is behind its end");
    Ok(value)
}

fn text(file: &[u8], at: usize) -> Result<String> {
    let rest = file.get(at..).with_context(|| format!("it ends before byte {at}"))?;
    let end = rest.iter().position(|byte| *byte == 0).context("a name has no end")?;
    Ok(String::from_utf8_lossy(&rest[..end]).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The running program, which has dynamic symbols only if it exports some; its structure is what is read.
    #[test]
    fn a_real_file_is_read_and_a_broken_one_refused() {
        let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        dynamic_symbols(&program).unwrap();
        assert!(dynamic_symbols(&program[..64]).is_err());
        assert!(dynamic_symbols(b"MZ").is_err());
    }

    /// A header, two sections (symbols, names) and two symbols, of which one is defined elsewhere.
    #[test]
    fn defined_symbols_are_listed() {
        let mut file = vec![0; 64 + 2 * 64];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[40] = 64;
        file[58] = 64;
        file[60] = 2;
        let symbols = file.len();
        for (name, section) in [(1u8, 1u8), (6, 0)] {
            file.extend([name, 0, 0, 0, 0, 0, section, 0]);
            file.extend([0; 16]);
        }
        let strings = file.len();
        file.extend(b"\0a.kd\0b\0");
        let mut put = |section: usize, kind: u8, offset: usize, bytes: u8, linked: u8| {
            let at = 64 + section * 64;
            file[at + 4] = kind;
            file[at + 24..at + 26].copy_from_slice(&(offset as u16).to_le_bytes());
            file[at + 32] = bytes;
            file[at + 40] = linked;
        };
        put(0, 11, symbols, 48, 1);
        put(1, 3, strings, 8, 0);
        assert_eq!(dynamic_symbols(&file).unwrap(), BTreeSet::from(["a.kd".to_string()]));
    }
}

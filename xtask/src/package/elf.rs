//! What the loader will ask of a library or program.

use anyhow::{Context, Result, bail};
use object::elf::{DT_SONAME, FileHeader64};
use object::read::elf::{Dyn, ElfFile64, FileHeader};
use object::{Endianness, Object};

/// As in 2.34.
pub type Version = (u32, u32);

/// Of one file.
#[derive(Debug)]
pub struct Facts {
    /// The newest version of glibc that a symbol is asked of.
    pub glibc: Version,
    /// The linker's number for this very build, in hexadecimal digits.
    pub build_id: String,
    pub soname: Option<String>,
}

pub fn facts(file: &[u8]) -> Result<Facts> {
    let elf = ElfFile64::<Endianness>::parse(file)?;
    let Some(id) = elf.build_id()? else {
        bail!("it has no build id; the linker makes one if it is told --build-id");
    };
    let header = FileHeader64::<Endianness>::parse(file)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, file)?;
    let mut glibc = (2, 0);
    if let Some((mut files, link)) = sections.gnu_verneed(endian, file)? {
        let strings = sections.strings(endian, file, link)?;
        while let Some((_, mut versions)) = files.next()? {
            while let Some(version) = versions.next()? {
                glibc = glibc.max(glibc_version(version.name(endian, strings)?).unwrap_or_default());
            }
        }
    }
    let mut soname = None;
    if let Some((entries, link)) = sections.dynamic(endian, file)? {
        let strings = sections.strings(endian, file, link)?;
        if let Some(entry) = entries.iter().find(|entry| entry.tag(endian) == DT_SONAME) {
            let offset = u32::try_from(entry.val(endian)).context("an offset into a string table")?;
            let name = strings.get(offset).map_err(|()| anyhow::anyhow!("a soname outside its table"))?;
            soname = Some(String::from_utf8_lossy(name).into_owned());
        }
    }
    Ok(Facts { glibc, build_id: crate::ptx::hex(id), soname })
}

/// `GLIBC_2.34`; not `GLIBC_PRIVATE` or `GCC_3.0`. A third number says no more: there is none since 2.3.4.
fn glibc_version(name: &[u8]) -> Option<Version> {
    let text = std::str::from_utf8(name).ok()?.strip_prefix("GLIBC_")?;
    let mut numbers = text.split('.').map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => Some((major, minor)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_glibc_are_numbers_and_not_texts() {
        let read = |text: &str| glibc_version(text.as_bytes());
        assert_eq!((read("GLIBC_2.2.5"), read("GLIBC_2.34")), (Some((2, 2)), Some((2, 34))));
        assert_eq!((read("GLIBC_PRIVATE"), read("GCC_3.0")), (None, None));
        assert!((2, 9) < (2, 34));
    }

    #[test]
    fn this_program_needs_a_glibc_and_has_no_soname() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let facts = facts(&own).unwrap();
        assert!(facts.glibc >= (2, 17) && facts.build_id.len() >= 16 && facts.soname.is_none(), "{facts:?}");
    }
}

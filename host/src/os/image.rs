//! The program or shared library that this code is in.

use std::ffi::{c_int, c_void};
use std::fmt::Write;
use std::mem::size_of;
use std::slice;

/// The linker's number for it, a hash of its contents in hexadecimal digits: what debuggers and `file` call the build id. None where the linker
/// was not asked for one.
pub fn build_id() -> Option<String> {
    let mut search = Search { address: build_id as *const c_void as usize, found: None };
    // SAFETY: `visit` takes what `dl_iterate_phdr` gives it, and the pointer to the search, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    search.found
}

struct Search {
    /// Of a function in the image.
    address: usize,
    found: Option<String>,
}

/// Stops at the image that has the address.
///
/// # Safety
/// 1. `info` is what the loader gives its visitors: an image that is loaded, with its program headers.
/// 2. `search` is a [`Search`] that nothing else uses.
unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _size: usize, search: *mut c_void) -> c_int {
    // SAFETY: obligation 1; the loader holds its lock as long as this runs.
    let info = unsafe { &*info };
    // SAFETY: obligation 2.
    let search = unsafe { &mut *search.cast::<Search>() };
    // SAFETY: obligation 1: the headers are an array of this length.
    let headers = unsafe { slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let start_of =
        |header: &libc::Elf64_Phdr| (info.dlpi_addr as usize).wrapping_add(header.p_vaddr as usize);
    let is_here = |header: &libc::Elf64_Phdr| {
        header.p_type == libc::PT_LOAD
            && search.address.wrapping_sub(start_of(header)) < header.p_memsz as usize
    };
    if !headers.iter().any(is_here) {
        return 0;
    }
    for header in headers.iter().filter(|header| header.p_type == libc::PT_NOTE) {
        // SAFETY: obligation 1: a segment of notes lies in memory, read-only, as long as the image does.
        let notes = unsafe { slice::from_raw_parts(start_of(header) as *const u8, header.p_memsz as usize) };
        search.found = id_in(notes, (header.p_align as usize).clamp(4, 8));
        if search.found.is_some() {
            break;
        }
    }
    1
}

/// The build id among ELF notes: lengths of name and contents, a type, then both, padded.
fn id_in(mut notes: &[u8], align: usize) -> Option<String> {
    const GNU_BUILD_ID: u32 = 3;
    const HEAD: usize = 3 * size_of::<u32>();
    while let Some((head, rest)) = notes.split_at_checked(HEAD) {
        let word = |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (name_bytes, bytes, kind) = (word(0) as usize, word(4) as usize, word(8));
        let start = (HEAD + name_bytes).next_multiple_of(align) - HEAD;
        let contents = rest.get(start..start.checked_add(bytes)?)?;
        if kind == GNU_BUILD_ID && rest.get(..name_bytes)? == b"GNU\0" {
            let mut text = String::new();
            contents.iter().for_each(|byte| _ = write!(text, "{byte:02x}"));
            return Some(text);
        }
        notes = rest.get((HEAD + start + bytes).next_multiple_of(align) - HEAD..).unwrap_or_default();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(name: &[u8], kind: u32, contents: &[u8]) -> Vec<u8> {
        let mut note = Vec::new();
        for word in [name.len() as u32, contents.len() as u32, kind] {
            note.extend_from_slice(&word.to_ne_bytes());
        }
        for part in [name, contents] {
            note.extend_from_slice(part);
            note.resize(note.len().next_multiple_of(4), 0);
        }
        note
    }

    #[test]
    fn the_id_is_found_among_other_notes() {
        let notes = [note(b"GNU\0", 1, &[9; 7]), note(b"Go\0", 3, &[1; 4]), note(b"GNU\0", 3, &[0xab, 0x01])]
            .concat();
        assert_eq!(id_in(&notes, 4).as_deref(), Some("ab01"));
        assert_eq!(id_in(&notes[..40], 4), None);
        assert_eq!((id_in(&[], 4), id_in(&[0xff; 64], 4)), (None, None));
    }

    #[test]
    fn it_is_what_readelf_says() {
        let program = std::env::current_exe().unwrap();
        let Ok(output) = std::process::Command::new("readelf").arg("-n").arg(program).output() else {
            return;
        };
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let said = text.lines().find_map(|line| line.trim().strip_prefix("Build ID: "));
        assert_eq!(build_id().as_deref(), said);
    }
}

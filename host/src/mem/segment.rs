//! Mapped memory.

use super::error::{MemError, ShmProperty};
use super::file::ShmFile;
use super::header::{ShmHeader, expect};
use super::name::ShmName;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

/// Page-aligned memory, zeroed at first, unmapped when dropped. It provides an address only; the layers that place
/// connections in it define who accesses what, and when.
#[derive(Debug)]
pub struct Segment {
    map: NonNull<u8>,
    map_bytes: usize,
    /// Bytes of the header page before the usable part: one page for shared segments, none for private ones.
    skip_bytes: usize,
    len: usize,
}

// SAFETY: a segment is an address range that stays mapped until drop, whatever thread owns it.
unsafe impl Send for Segment {}
// SAFETY: as above; its methods read only fields that never change.
unsafe impl Sync for Segment {}

impl Segment {
    /// Maps `len` bytes for the threads of this process. Pages are allocated at first access.
    ///
    /// # Errors
    /// [`MemError::Map`].
    pub fn private(len: usize) -> Result<Segment, MemError> {
        // SAFETY: a fresh mapping at an address that the kernel chooses touches no existing memory.
        let map = unsafe {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags)
        };
        Self::from_map(map, len, 0, len)
    }

    /// Maps `len` bytes of a new file, for all processes of this user on this host. The space is reserved here, so
    /// that a full file system fails this call instead of raising SIGBUS in the middle of a collective. Peers may
    /// open it until the [`ShmFile`] is dropped; the mapping outlives the file. A file of the same name whose creator
    /// died is replaced.
    ///
    /// # Errors
    /// [`MemError::ShmFull`], [`MemError::ShmLimit`], [`MemError::ShmInUse`], [`MemError::ShmTaken`], [`MemError::Shm`], [`MemError::Map`]. No file is left behind.
    pub fn shm_create(name: &ShmName, len: usize) -> Result<(Segment, ShmFile), MemError> {
        let header_bytes = rustix::param::page_size();
        let file = ShmFile::create(name, with_header(header_bytes, len)?)?;
        let segment = Self::map_shared(file.as_fd(), header_bytes, len)?;
        // SAFETY: the mapping is page aligned, at least a page long, writable, and not shared yet.
        unsafe { segment.map.cast::<ShmHeader>().write(ShmHeader::new(name, len)) };
        Ok((segment, file))
    }

    /// Maps the segment that the rank in `name` has created with the same `expected_len`. Call after the bootstrap
    /// has announced that rank's segment.
    ///
    /// # Errors
    /// [`MemError::ShmForeign`] if owner, mode, length or header differ from what that rank writes, [`MemError::Shm`]
    /// (`ENOENT`: its creator failed or cleaned up), [`MemError::Map`].
    pub fn shm_open(name: &ShmName, expected_len: usize) -> Result<Segment, MemError> {
        let fail = |call, errno| MemError::of_file(call, name.path(), errno);
        // NONBLOCK: opening a FIFO planted under this name must not block.
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let open = || rustix::fs::open(name.path(), flags, Mode::empty());
        let fd = crate::os::with_room(open).map_err(|e| fail("open", e))?;
        let stat = rustix::fs::fstat(&fd).map_err(|e| fail("fstat", e))?;
        let header_bytes = rustix::param::page_size();
        let file_bytes = with_header(header_bytes, expected_len)? as u64;
        let mode = FileType::RegularFile.as_raw_mode() | (Mode::RUSR | Mode::WUSR).as_raw_mode();
        expect(name, ShmProperty::Owner, rustix::process::geteuid().as_raw().into(), stat.st_uid.into())?;
        expect(name, ShmProperty::Mode, mode.into(), stat.st_mode.into())?;
        expect(name, ShmProperty::Links, 1, stat.st_nlink as u64)?;
        expect(name, ShmProperty::FileLength, file_bytes, stat.st_size as u64)?;
        let segment = Self::map_shared(std::os::fd::AsFd::as_fd(&fd), header_bytes, expected_len)?;
        // SAFETY: the mapping is page aligned and longer than a header, whose every bit pattern is valid; its creator
        // wrote it before it announced the file, and never writes it again.
        unsafe { segment.map.cast::<ShmHeader>().read() }.verify(name, expected_len)?;
        Ok(segment)
    }

    /// The first usable byte; page aligned.
    pub fn base(&self) -> *mut u8 {
        // SAFETY: the mapping is skip_bytes + len bytes long.
        unsafe { self.map.as_ptr().add(self.skip_bytes) }
    }

    /// Usable bytes.
    #[allow(clippy::len_without_is_empty, reason = "an empty segment cannot be made: mmap refuses it")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Maps a file that has been found to be so long.
    fn map_shared(fd: BorrowedFd<'_>, skip: usize, len: usize) -> Result<Segment, MemError> {
        // SAFETY: a fresh mapping at an address that the kernel chooses touches no existing memory.
        let map = unsafe {
            let prot = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap(std::ptr::null_mut(), skip + len, prot, MapFlags::SHARED, fd, 0)
        };
        Self::from_map(map, skip + len, skip, len)
    }

    fn from_map(
        map: rustix::io::Result<*mut std::ffi::c_void>,
        map_bytes: usize,
        skip_bytes: usize,
        len: usize,
    ) -> Result<Segment, MemError> {
        let map = map.map_err(|errno| MemError::Map { wanted_bytes: map_bytes, errno })?;
        let map = NonNull::new(map.cast()).expect("mmap without MAP_FIXED never maps address 0");
        Ok(Segment { map, map_bytes, skip_bytes, len })
    }
}

/// Bytes of a file for `len` usable bytes.
fn with_header(header_bytes: usize, len: usize) -> Result<usize, MemError> {
    header_bytes.checked_add(len).ok_or(MemError::Map { wanted_bytes: len, errno: Errno::NOMEM })
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and users of `base` promised not to outlive it.
        let unmapped = unsafe { rustix::mm::munmap(self.map.as_ptr().cast(), self.map_bytes) };
        debug_assert!(unmapped.is_ok(), "munmap of an own mapping: {unmapped:?}");
    }
}

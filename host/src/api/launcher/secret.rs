//! Where the secret of a launched job comes from. The first that applies wins:
//!
//! | source | when | who can know it |
//! |---|---|---|
//! | `OXCCL_COMM_SECRET` | it is set; a text that a person may have thought of is stretched by Argon2 | whoever reads the ranks' environment |
//! | `OXCCL_COMM_SECRET_FILE` | it is set, and the file is this user's and nobody else may read it; `/dev/fd/N` is an inherited memfd | this user |
//! | the launcher's key-value space | PMI-1 (`super::pmi`) | the job's processes |
//! | this user's key on this host | all ranks are on one host | this user |
//! | the job's name and address | otherwise, unless `OXCCL_REQUIRE_SECRET=1` refuses; rank 0 warns | everybody |
//!
//! torchrun's store is not among them: it answers whoever connects to it. The key of a user lies in /dev/shm, which is what makes two
//! processes be on one host elsewhere in the library, with mode 0600; the first process that needs it makes it, and a reboot ends it.

use super::error::LaunchError;
use super::vars::Vars;
use crate::bootstrap::secret::Secret;
use crate::os::open_regular;
use argon2::{Algorithm, Argon2, Params, Version};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, Read, Write};

use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, Once, PoisonError};

const KEY_BYTES: usize = 32;
/// What a guess costs at least: the smallest memory and passes that OWASP recommends for Argon2id, some 30 to 50 ms.
const STRETCH_KIB: u32 = 19 * 1024;
const STRETCH_PASSES: u32 = 2;
/// Longest file with a secret.
const FILE_BYTES_MAX: u64 = 4096;

/// What the user says of the secret.
#[derive(Clone, PartialEq, Eq, Default)]
pub(in crate::api) struct SecretSettings {
    /// `OXCCL_COMM_SECRET`.
    text: Option<String>,
    /// `OXCCL_COMM_SECRET_FILE`.
    file: Option<PathBuf>,
    /// `OXCCL_REQUIRE_SECRET`.
    is_required: bool,
}

impl std::fmt::Debug for SecretSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SecretSettings(..)")
    }
}

impl SecretSettings {
    pub(super) fn read(vars: &Vars<'_>) -> Result<SecretSettings, LaunchError> {
        let variable = "OXCCL_REQUIRE_SECRET";
        let is_required = match vars.get(variable) {
            None => false,
            Some(value) => match value.trim() {
                "0" => false,
                "1" => true,
                _ => return Err(LaunchError::Bad { variable, value, expected: "0 or 1" }),
            },
        };
        Ok(SecretSettings { is_required, ..SecretSettings::at_hand(vars) })
    }

    /// The secret that there is, if any; none is required.
    pub(super) fn at_hand(vars: &Vars<'_>) -> SecretSettings {
        let file = vars.get("OXCCL_COMM_SECRET_FILE").map(PathBuf::from);
        SecretSettings { text: vars.get("OXCCL_COMM_SECRET"), file, is_required: false }
    }

    /// What the secret is derived from, for ranks that all know the text `job`: the same on all ranks. `is_first`: this is the rank that warns.
    pub(super) fn seed(
        &self,
        job: &[u8],
        is_on_one_host: bool,
        is_first: bool,
    ) -> Result<Vec<u8>, LaunchError> {
        let with = |key: &[u8]| [job, &b";key="[..], key].concat();
        if let Some(text) = &self.text {
            return Ok(with(&material(text, job)));
        }
        if let Some(path) = &self.file {
            let text =
                read_secret(path).map_err(|why| LaunchError::SecretFile { path: path.clone(), why })?;
            return Ok(with(&material(&text, job)));
        }
        let why = match is_on_one_host {
            true => match host_key(Path::new("/dev/shm"), &own_dirs()) {
                Ok(key) => return Ok(with(&key)),
                Err(KeyError::Taken(why)) => return Err(LaunchError::KeyTaken { why }),
                Err(KeyError::Unavailable(why)) => why,
            },
            false => "its ranks may be on several hosts".to_owned(),
        };
        if self.is_required {
            return Err(LaunchError::NoSecret { why });
        }
        static WARNED: Once = Once::new();
        if is_first {
            WARNED.call_once(|| {
                crate::log::warn(format!(
                    "this job has no secret ({why}): whoever knows its name and reaches its port can join it; set OXCCL_COMM_SECRET to a random \
                     text on all ranks (openssl rand -hex 32)"
                ));
            });
        }
        Ok(job.to_vec())
    }
}

/// What aggregators and the ranks that use them share. Unlike a job's secret it depends on no job's name.
pub(in crate::api) fn aggregator_secret(lookup: &dyn Fn(&str) -> Option<String>) -> Result<Secret, String> {
    const SALT: &[u8] = b"oxccl aggregator";
    let settings = SecretSettings::read(&Vars(lookup)).map_err(|error| error.to_string())?;
    let text = match (settings.text, settings.file) {
        (Some(text), _) => text,
        (None, Some(path)) => read_secret(&path)
            .map_err(|why| format!("OXCCL_COMM_SECRET_FILE is {}: {why}", path.display()))?,
        (None, None) => {
            return Err("an aggregator and its users share a secret, and there is none; set OXCCL_COMM_SECRET to a random text for both \
                        (openssl rand -hex 32), or OXCCL_COMM_SECRET_FILE to a file with one"
                .to_owned());
        }
    };
    Ok(Secret::from_seed(&[SALT, b";key=", &material(&text, SALT)].concat()))
}

/// A text as key material: stretched, if a person may have thought of it.
fn material(text: &str, salt: &[u8]) -> Vec<u8> {
    /// What was asked for, and its key.
    type Stretched = Option<([u8; 32], [u8; KEY_BYTES])>;
    /// The latest two, so that each communicator of a process does not cost it anew: the job's and the aggregators'.
    static STRETCHED: Mutex<[Stretched; 2]> = Mutex::new([None; 2]);
    let text = text.trim();
    if is_random(text) {
        return text.as_bytes().to_vec();
    }
    let digest = |parts: [&[u8]; 2]| -> [u8; 32] {
        let mut hash = Sha256::new();
        parts.iter().for_each(|part| {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        });
        hash.finalize().into()
    };
    let asked = digest([text.as_bytes(), salt]);
    let mut latest = STRETCHED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, key)) = latest.iter().flatten().find(|(of, _)| *of == asked) {
        return key.to_vec();
    }
    let params =
        Params::new(STRETCH_KIB, STRETCH_PASSES, 1, Some(KEY_BYTES)).expect("constants in Argon2's range");
    let mut key = [0; KEY_BYTES];
    Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
        .hash_password_into(text.as_bytes(), &digest([b"oxccl job", salt]), &mut key)
        .expect("a salt of 32 bytes, and a text that fits into memory");
    *latest = [Some((asked, key)), latest[0]];
    key.to_vec()
}

/// Whether a text is as good as 128 random bits: long hexadecimal or base64, and not words written in those letters. A mistake costs
/// some milliseconds, or the stretching of words that are long.
fn is_random(text: &str) -> bool {
    let bytes = text.as_bytes();
    let mut seen = bytes.to_vec();
    seen.sort_unstable();
    seen.dedup();
    if bytes.len() >= 32 && bytes.iter().all(u8::is_ascii_hexdigit) {
        return seen.len() >= 8;
    }
    let is_base64 = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/-_=".contains(byte);
    // Random letters change between upper and lower case and digits all the time; words do not.
    let class = |byte: u8| (byte.is_ascii_lowercase(), byte.is_ascii_uppercase(), byte.is_ascii_digit());
    let changes = bytes.windows(2).filter(|pair| class(pair[0]) != class(pair[1])).count();
    let has_all = bytes.iter().any(u8::is_ascii_lowercase)
        && bytes.iter().any(u8::is_ascii_uppercase)
        && bytes.iter().any(u8::is_ascii_digit);
    bytes.len() >= 22
        && bytes.iter().all(is_base64)
        && has_all
        && seen.len() >= 12
        && 20 * changes >= 9 * bytes.len()
}

/// The text of a file that nobody else may read.
fn read_secret(path: &Path) -> Result<String, String> {
    let said = |error: io::Error| crate::os::describe(&error);
    let file = open_regular(path).map_err(said)?;
    let meta = file.metadata().map_err(said)?;
    let me = rustix::process::geteuid().as_raw();
    if meta.uid() != me && meta.uid() != 0 {
        return Err(format!("it belongs to user {}, not to {me}", meta.uid()));
    }
    if meta.mode() & 0o077 != 0 && !has_never_had_a_name(&file) {
        return Err(format!("others may read or write it (mode {:o}); chmod 600", meta.mode() & 0o777));
    }
    let mut text = String::new();
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(said)?;
    match text.trim() {
        "" => Err("it is empty".to_owned()),
        _ if text.len() as u64 > FILE_BYTES_MAX => Err(format!("it has more than {FILE_BYTES_MAX} bytes")),
        text => Ok(text.to_owned()),
    }
}

/// Whether it is a memfd, whatever its mode says: only processes that were given it, and their user's, can open it.
fn has_never_had_a_name(file: &File) -> bool {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
    link.is_ok_and(|link| link.as_os_str().as_bytes().starts_with(b"/memfd:"))
}

/// This user's key on this host: in the directory that all of the host share, and where another user has taken its name there, in the first of
/// the user's own. All ranks find the same, since what has a name in the first stays there.
fn host_key(shared: &Path, own: &[PathBuf]) -> Result<[u8; KEY_BYTES], KeyError> {
    match user_key(shared) {
        Err(KeyError::Taken(why)) => {
            let dir = own.iter().find(|dir| is_own(dir));
            dir.and_then(|dir| user_key(dir).ok()).ok_or(KeyError::Taken(why))
        }
        found => found,
    }
}

/// Directories in which nobody else can make a file, on most hosts: that of the user's sessions, and root's.
fn own_dirs() -> [PathBuf; 2] {
    let sessions = format!("/run/user/{}", rustix::process::geteuid().as_raw());
    [PathBuf::from(sessions), PathBuf::from("/run")]
}

fn is_own(dir: &Path) -> bool {
    let me = rustix::process::geteuid().as_raw();
    std::fs::metadata(dir).is_ok_and(|meta| meta.is_dir() && meta.uid() == me && meta.mode() & 0o022 == 0)
}

/// Why this user has no key on this host.
#[derive(Debug)]
enum KeyError {
    /// Something else has its name. To go on without a secret would let who put it there into the job.
    Taken(String),
    /// It cannot be made.
    Unavailable(String),
}

/// This user's key on this host, in a directory that all of the host share; made if there is none yet.
fn user_key(dir: &Path) -> Result<[u8; KEY_BYTES], KeyError> {
    let path = dir.join(format!(".oxccl-{}.key", rustix::process::geteuid().as_raw()));
    loop {
        match read_key(&path) {
            Ok(Some(key)) => return Ok(key),
            Ok(None) => {
                let failed =
                    |errno| KeyError::Unavailable(format!("cannot make {}: {errno}", path.display()));
                make_key(&path).map_err(failed)?
            }
            Err(why) => return Err(KeyError::Taken(format!("{} {why}", path.display()))),
        }
    }
}

/// The key in a file; `None` if there is no such file.
fn read_key(path: &Path) -> Result<Option<[u8; KEY_BYTES]>, String> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let fd = match crate::os::with_room(|| rustix::fs::open(path, flags, Mode::empty())) {
        Ok(fd) => fd,
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => {
            let owner = rustix::fs::lstat(path).map(|stat| format!(" (it belongs to user {})", stat.st_uid));
            return Err(format!("cannot be opened: {errno}{}", owner.unwrap_or_default()));
        }
    };
    let stat = rustix::fs::fstat(&fd).map_err(|errno| format!("cannot be looked at: {errno}"))?;
    let mode = FileType::RegularFile.as_raw_mode() | (Mode::RUSR | Mode::WUSR).as_raw_mode();
    if (stat.st_uid, stat.st_mode) != (rustix::process::geteuid().as_raw(), mode) {
        return Err(format!("belongs to user {} and has mode {:o}", stat.st_uid, stat.st_mode & 0o7777));
    }
    let mut key = [0; KEY_BYTES];
    let read = File::from(fd).read_exact(&mut key);
    read.map(|()| Some(key)).map_err(|error| format!("cannot be read: {error}"))
}

/// Makes the file, whole from the moment it has its name, unless another process is faster.
fn make_key(path: &Path) -> rustix::io::Result<()> {
    let mut key = [0; KEY_BYTES];
    getrandom::fill(&mut key).map_err(|_| Errno::IO)?;
    let draft = path.with_extension(format!("{:016x}", getrandom::u64().map_err(|_| Errno::IO)?));
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let open = || rustix::fs::open(&draft, flags, Mode::RUSR | Mode::WUSR);
    let written = crate::os::with_room(open).and_then(|fd| {
        File::from(fd).write_all(&key).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    });
    let named = written.and_then(|()| match rustix::fs::link(&draft, path) {
        Err(Errno::EXIST) => Ok(()),
        done => done,
    });
    // Also after a failure; there is nothing to do about another one.
    let _ = rustix::fs::unlink(&draft);
    named
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::time::Instant;

    #[test]
    fn random_texts_are_told_from_words() {
        for text in [
            "9f86d081884c7d659a2feaa0c55ad015",
            "9F86D081884C7D659A2FEAA0C55AD015A3BF4F1B2B0B822CD15D6C15B0F00A08",
            "kq3Yt0vN8uTzX1mJf7Rb2g==",
            "Zr8-pQ2_wLx5Kd9aVt3MnB",
        ] {
            assert!(is_random(text), "{text}");
        }
        for text in [
            "hunter2",
            "00000000000000000000000000000000",
            "abababababababababababababababab",
            "correcthorsebatterystaple",
            "CorrectHorseBattery12StapleAndMore",
            "a phrase of several words that is long enough",
            "9f86d081884c7d659a2feaa0c55ad0",
        ] {
            assert!(!is_random(text), "{text}");
        }
    }

    #[test]
    fn words_are_stretched_once_and_by_the_job() {
        let random = "9f86d081884c7d659a2feaa0c55ad015";
        assert_eq!(material(random, b"job"), random.as_bytes());
        let one = material("hunter2", b"job");
        assert_eq!(one.len(), KEY_BYTES);
        // The quickest of some: a busy machine may keep the thread waiting.
        let again = (0..20).map(|_| {
            let start = Instant::now();
            assert_eq!(material(" hunter2\n", b"job"), one);
            start.elapsed()
        });
        let quickest = again.min().unwrap();
        assert!(quickest.as_millis() < 5, "{quickest:?}");
        assert_ne!(material("hunter2", b"another job"), one);
        assert_ne!(material("hunter3", b"job"), one);
    }

    #[test]
    fn a_users_key_is_made_once_and_nobody_elses_is_used() {
        let dir = tempfile::tempdir().unwrap();
        let keys: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| user_key(dir.path()).unwrap())).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(keys.iter().all(|key| *key == keys[0]) && keys[0] != [0; KEY_BYTES]);
        let files: Vec<_> =
            std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(files.len(), 1, "{files:?}");
        let set = |mode| std::fs::set_permissions(&files[0], std::fs::Permissions::from_mode(mode)).unwrap();
        let taken = || match user_key(dir.path()).unwrap_err() {
            KeyError::Taken(why) => why,
            KeyError::Unavailable(why) => panic!("{why}"),
        };
        set(0o644);
        assert!(taken().contains("mode 644"));
        set(0o600);
        if std::os::unix::fs::chown(&files[0], Some(65_534), None).is_ok() {
            assert!(taken().contains("user 65534"));
        }
        std::fs::remove_file(&files[0]).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &files[0]).unwrap();
        assert!(taken().contains("cannot be opened"));
        // Another user cannot stop the jobs of this one so, where it has a directory of its own.
        let (own, open) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::set_permissions(own.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        std::fs::set_permissions(open.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        let [own, open] = [own.path(), open.path()].map(Path::to_owned);
        let key = host_key(dir.path(), &[open.clone(), own.clone()]).unwrap();
        assert_eq!(key, host_key(dir.path(), &[open.clone(), own]).unwrap());
        assert!(matches!(host_key(dir.path(), &[open]), Err(KeyError::Taken(_))));
    }

    /// Every rank that was started with the descriptor reads it from its beginning.
    #[test]
    fn a_secret_in_an_inherited_descriptor_needs_no_name() {
        let fd = rustix::fs::memfd_create("secret", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        assert_eq!(rustix::io::write(&fd, b"from who started us\n"), Ok(20));
        let path = PathBuf::from(format!("/dev/fd/{}", fd.as_raw_fd()));
        for _ in 0..2 {
            assert_eq!(read_secret(&path).as_deref(), Ok("from who started us"));
        }
        // A file that others could read before its name went may have been read.
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::set_permissions(file.path(), std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
        let (file, name) = file.into_parts();
        drop(name);
        let path = PathBuf::from(format!("/dev/fd/{}", file.as_raw_fd()));
        assert!(read_secret(&path).unwrap_err().contains("chmod 600"));
    }

    #[test]
    fn a_file_with_a_secret_is_the_users_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        std::fs::write(&path, "9f86d081884c7d659a2feaa0c55ad015\n").unwrap();
        let set = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        set(0o640);
        assert!(read_secret(&path).unwrap_err().contains("chmod 600"));
        set(0o600);
        assert_eq!(read_secret(&path).unwrap(), "9f86d081884c7d659a2feaa0c55ad015");
        std::fs::write(&path, " \n").unwrap();
        assert!(read_secret(&path).unwrap_err().contains("empty"));
        assert!(read_secret(&dir.path().join("none")).is_err());
    }
}

//! Layer: out.
//! Takes: where a file is to be, and its text.
//! Gives: the file, whole: until the new one is complete the old one stays. What is no regular file is written to as it is.
//! Never: makes a folder, or waits for the end of a run to find out that nothing can be written there.

use oxccl::os::describe;
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long a pipe waits for its reader, which a shell may start a moment later.
const READER_COMES: Duration = Duration::from_secs(10);
/// How often it is looked for.
const LOOKS_EVERY: Duration = Duration::from_millis(10);

/// Why there is no such file.
#[derive(Debug, thiserror::Error)]
pub enum OutError {
    #[error("there is no folder {}; make it first, or name another", .0.display())]
    NoFolder(PathBuf),
    #[error("{first} and {second} name one file, {}: each output needs its own", path.display())]
    Same { first: &'static str, second: &'static str, path: PathBuf },
    #[error("{} is a pipe that nobody reads; start its reader first", .0.display())]
    NoReader(PathBuf),
    #[error("{}", describe(.0))]
    Io(#[from] io::Error),
}

/// Whether the outputs of one run, each with its option, go to different files. What is printed, and devices and pipes, take several.
pub fn distinct<'a>(
    outputs: impl IntoIterator<Item = (&'static str, Option<&'a Path>)>,
) -> Result<(), OutError> {
    let mut known: Vec<(&'static str, PathBuf)> = Vec::new();
    let named = outputs.into_iter().filter_map(|(option, path)| Some((option, path?)));
    for (second, path) in named.filter(|(_, path)| *path != Path::new("-") && !is_special(path)) {
        let place = absolute(path);
        if let Some((first, _)) = known.iter().find(|(_, other)| *other == place) {
            return Err(OutError::Same { first, second, path: path.to_owned() });
        }
        known.push((second, place));
    }
    Ok(())
}

/// Where a path leads, whether something is there or not.
fn absolute(path: &Path) -> PathBuf {
    let target = target(path);
    let (Some(folder), Some(name)) = (target.parent(), target.file_name()) else { return target };
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    folder.canonicalize().map_or_else(|_| target.clone(), |folder| folder.join(name))
}

/// Outputs that are tried before a run, and written when it has found something.
#[derive(Debug, Default)]
pub struct Outputs {
    /// Devices and pipes, opened once: who reads a pipe takes it for ended when it is closed.
    special: Vec<Special>,
}

#[derive(Debug)]
struct Special {
    path: PathBuf,
    file: File,
    /// What was written last.
    text: String,
}

impl Outputs {
    /// Whether a file can be put there. One that is there keeps what it holds; a device or a pipe stays open. A pipe that nobody reads
    /// is an error, after a while.
    pub fn probe(&mut self, path: &Path) -> Result<(), OutError> {
        if !is_special(path) {
            return probe(path);
        }
        if self.special_at(path).is_none() {
            let file = open_special(path)?;
            self.special.push(Special { path: path.to_owned(), file, text: String::new() });
        }
        Ok(())
    }

    /// Writes a file, replacing an older one at once. A device or a pipe gets what the text has more than the one before.
    pub fn replace(&mut self, path: &Path, text: &str) -> Result<(), OutError> {
        let Some(special) = self.special_at(path) else { return replace(path, text) };
        let new = text.strip_prefix(&special.text).unwrap_or(text);
        special.file.write_all(new.as_bytes())?;
        special.text = text.to_owned();
        Ok(())
    }

    fn special_at(&mut self, path: &Path) -> Option<&mut Special> {
        self.special.iter_mut().find(|special| special.path == path)
    }
}

/// Whether a file can be put there. One that is there keeps what it holds.
fn probe(path: &Path) -> Result<(), OutError> {
    let (_, beside) = open_beside(path)?;
    Ok(std::fs::remove_file(beside)?)
}

/// Whether files can be put into a folder.
pub fn probe_folder(folder: &Path) -> Result<(), OutError> {
    probe(&folder.join("oxccl"))
}

/// Writes a file, replacing an older one at once.
pub fn replace(path: &Path, text: &str) -> Result<(), OutError> {
    if is_special(path) {
        return Ok(open_special(path)?.write_all(text.as_bytes())?);
    }
    let beside = prepare(path, text)?;
    Ok(take_place(&beside, &target(path))?)
}

/// Writes some files: all of them lie complete beside their places before the first takes one, so that what cannot be written leaves every older
/// file as it is. Devices and pipes are written to at the end.
///
/// # Errors
/// With the index of the file at fault.
pub fn replace_all(files: &[(&Path, &str)]) -> Result<(), (usize, OutError)> {
    let mut ready: Vec<(usize, PathBuf)> = Vec::new();
    let undo = |ready: &[(usize, PathBuf)]| {
        for (_, beside) in ready {
            // Half of what was asked for is of no use; the error says what happened.
            let _ = std::fs::remove_file(beside);
        }
    };
    // Opened once: who reads a pipe takes it for ended when it is closed.
    let mut special: Vec<(usize, File)> = Vec::new();
    for (at, (path, text)) in files.iter().enumerate() {
        let prepared = match is_special(path) {
            true => open_special(path).map(|file| special.push((at, file))),
            false => prepare(path, text).map(|beside| ready.push((at, beside))),
        };
        if let Err(error) = prepared {
            undo(&ready);
            return Err((at, error));
        }
    }
    for (done, (at, beside)) in ready.iter().enumerate() {
        if let Err(error) = std::fs::rename(beside, target(files[*at].0)) {
            undo(&ready[done..]);
            return Err((*at, error.into()));
        }
    }
    for (at, mut file) in special {
        file.write_all(files[at].1.as_bytes()).map_err(|error| (at, error.into()))?;
    }
    Ok(())
}

/// A complete file beside its place.
fn prepare(path: &Path, text: &str) -> Result<PathBuf, OutError> {
    let (file, beside) = open_beside(path)?;
    fill(file, &beside, text)?;
    Ok(beside)
}

/// The same for a file that only this user may read, in a folder where others may write too: no link is followed, one that is there is replaced.
pub fn replace_private(path: &Path, text: &str) -> io::Result<()> {
    let name = path.file_name().ok_or_else(|| io::Error::other("it has no file name"))?;
    let unique = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    let beside = path.with_file_name(format!(".{}.{}.{unique}", name.to_string_lossy(), std::process::id()));
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
    fill(file, &beside, text)?;
    take_place(&beside, path)
}

/// Gives a complete file its name.
fn take_place(beside: &Path, path: &Path) -> io::Result<()> {
    whole_or_gone(beside, std::fs::rename(beside, path))
}

/// Fills a new file.
fn fill(mut file: File, beside: &Path, text: &str) -> io::Result<()> {
    whole_or_gone(beside, file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
}

fn whole_or_gone(beside: &Path, done: io::Result<()>) -> io::Result<()> {
    if done.is_err() {
        // Half a file is of no use; the error says what happened.
        let _ = std::fs::remove_file(beside);
    }
    done
}

fn open_special(path: &Path) -> Result<File, OutError> {
    open_special_within(path, READER_COMES)
}

/// Without the flag a pipe would wait for its reader for ever, and say nothing.
fn open_special_within(path: &Path, patience: Duration) -> Result<File, OutError> {
    let began = Instant::now();
    let file = loop {
        let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
        match OpenOptions::new().append(true).custom_flags(flags).open(path) {
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) && is_pipe(path) => {
                if began.elapsed() >= patience {
                    return Err(OutError::NoReader(path.to_owned()));
                }
                std::thread::sleep(LOOKS_EVERY);
            }
            opened => break opened?,
        }
    };
    // Writing waits as usual.
    let flags = rustix::fs::fcntl_getfl(&file).map_err(io::Error::from)?;
    rustix::fs::fcntl_setfl(&file, flags - OFlags::NONBLOCK).map_err(io::Error::from)?;
    Ok(file)
}

fn is_pipe(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.file_type().is_fifo())
}

/// A device, a pipe, a folder: nothing can take its place.
pub fn is_special(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| !metadata.is_file())
}

/// Where a link leads.
fn target(path: &Path) -> PathBuf {
    if let Ok(target) = path.canonicalize() {
        return target;
    }
    // A link to what is not there yet.
    match path.read_link() {
        Ok(target) => path.parent().unwrap_or(Path::new("")).join(target),
        Err(_) => path.to_owned(),
    }
}

/// A new file in the same directory, and its name.
fn open_beside(path: &Path) -> Result<(File, PathBuf), OutError> {
    let target = target(path);
    let name = target.file_name().ok_or_else(|| io::Error::other("it has no file name"))?;
    let name = format!(".{}.{}", name.to_string_lossy(), std::process::id());
    let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
        return Err(OutError::NoFolder(folder.to_owned()));
    }
    let beside = target.with_file_name(name);
    let file = OpenOptions::new().write(true).create(true).truncate(true).open(&beside)?;
    Ok((file, beside))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn names(directory: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<String> = entries.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_replaced_whole_and_nothing_else_stays() {
        let directory = tempfile::tempdir().unwrap();
        let (file, link) = (directory.path().join("a.toml"), directory.path().join("link.toml"));
        std::os::unix::fs::symlink(&file, &link).unwrap();
        probe(&link).unwrap();
        assert_eq!(names(directory.path()), ["link.toml"]);
        replace(&link, "one").unwrap();
        probe(&file).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "one");
        replace(&link, "two").unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "two");
        assert!(link.is_symlink());
        // A folder: no file can replace it.
        let taken = directory.path().join("taken");
        std::fs::create_dir_all(taken.join("inside")).unwrap();
        assert!(Outputs::default().probe(&taken).is_err() && replace(&taken, "three").is_err());
        assert_eq!(names(directory.path()), ["a.toml", "link.toml", "taken"]);
    }

    /// The first was written, and the second could not be.
    #[test]
    fn all_files_are_written_or_none() {
        let directory = tempfile::tempdir().unwrap();
        let [one, two, folder] = ["a.xml", "b.svg", "folder"].map(|name| directory.path().join(name));
        std::fs::write(&one, "old").unwrap();
        std::fs::create_dir_all(&folder).unwrap();
        for wrong in [&folder, &folder.join("none/c.svg")] {
            let (at, _) = replace_all(&[(&one, "new"), (&two, "new"), (wrong, "new")]).unwrap_err();
            assert_eq!((at, names(directory.path())), (2, vec!["a.xml".to_owned(), "folder".to_owned()]));
            assert_eq!(std::fs::read_to_string(&one).unwrap(), "old");
        }
        replace_all(&[(&one, "1"), (Path::new("/dev/null"), "gone"), (&two, "2")]).unwrap();
        assert_eq!([&one, &two].map(|path| std::fs::read_to_string(path).unwrap()), ["1", "2"]);
        assert_eq!(names(directory.path()), ["a.xml", "b.svg", "folder"]);
    }

    /// Its reader saw the end of the pipe while it was only looked at, and went; the write waited for another for ever.
    #[test]
    fn a_pipe_beside_other_outputs_is_opened_once() {
        let directory = tempfile::tempdir().unwrap();
        let [pipe, file] = ["pipe", "a.xml"].map(|name| directory.path().join(name));
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        let read = std::thread::spawn({
            let pipe = pipe.clone();
            move || std::fs::read_to_string(pipe).unwrap()
        });
        replace_all(&[(&pipe, "piped"), (&file, "text")]).unwrap();
        assert_eq!(
            (read.join().unwrap(), std::fs::read_to_string(&file).unwrap()),
            ("piped".into(), "text".into())
        );
    }

    /// The run waited for ever, and said nothing.
    #[test]
    fn a_pipe_that_nobody_reads_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let error = open_special_within(&pipe, LOOKS_EVERY * 3).unwrap_err();
        assert!(error.to_string().contains("pipe is a pipe that nobody reads"), "{error}");
    }

    /// A pipe that is full is waited for. What it does not hold was an error while it was opened as one that nobody waits for.
    #[test]
    fn more_than_a_pipe_holds_is_written_to_a_reader_that_is_slow() {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let read = std::thread::spawn({
            let pipe = pipe.clone();
            move || {
                let mut file = File::open(pipe).unwrap();
                std::thread::sleep(LOOKS_EVERY * 20);
                let mut text = String::new();
                std::io::Read::read_to_string(&mut file, &mut text).unwrap();
                text
            }
        });
        // A pipe holds 64 KiB.
        let text = "0123456789abcdef".repeat(1 << 14);
        replace(&pipe, &text).unwrap();
        assert!(read.join().unwrap() == text);
    }

    /// The same where what is written is not known yet: the pipe was opened to see whether it can be.
    #[test]
    fn a_pipe_that_was_tried_stays_open_and_a_page_that_grows_is_written_once() {
        let directory = tempfile::tempdir().unwrap();
        let [pipe, file] = ["pipe", "a.md"].map(|name| directory.path().join(name));
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let read = std::thread::spawn({
            let pipe = pipe.clone();
            move || std::fs::read_to_string(pipe).unwrap()
        });
        let mut outputs = Outputs::default();
        for path in [&pipe, &file, &pipe] {
            outputs.probe(path).unwrap();
        }
        // A reader that had seen the end would go meanwhile.
        std::thread::sleep(std::time::Duration::from_millis(50));
        for text in ["page", "page, next", "other"] {
            outputs.replace(&pipe, text).unwrap();
            outputs.replace(&file, text).unwrap();
        }
        drop(outputs);
        assert_eq!(read.join().unwrap(), "page, nextother");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "other");
    }

    #[test]
    fn two_outputs_in_one_file_are_found_by_whatever_names() {
        let directory = tempfile::tempdir().unwrap();
        let [file, link, other] = ["b.xml", "link.xml", "c.xml"].map(|name| directory.path().join(name));
        symlink("b.xml", &link).unwrap();
        let dotted = directory.path().join(".").join("b.xml");
        let check = |first: &Path, second: &Path| {
            distinct([("--svg", Some(first)), ("--log", None), ("--xml", Some(second))])
        };
        for is_there in [false, true] {
            for second in [&file, &dotted, &link] {
                let said = check(&file, second).unwrap_err().to_string();
                assert!(said.contains("--svg and --xml name one file"), "{said} ({is_there})");
            }
            check(&file, &other).unwrap();
            std::fs::write(&file, "").unwrap();
        }
        check(Path::new("b.xml"), Path::new("c.xml")).unwrap();
        check(Path::new("b.xml"), Path::new("./b.xml")).unwrap_err();
        check(Path::new("-"), Path::new("-")).unwrap();
        check(Path::new("/dev/null"), Path::new("/dev/null")).unwrap();
    }

    #[test]
    fn devices_are_written_to_and_folders_are_not_made() {
        let mut outputs = Outputs::default();
        outputs.probe(Path::new("/dev/null")).unwrap();
        outputs.replace(Path::new("/dev/null"), "gone").unwrap();
        outputs.replace(Path::new("/dev/zero"), "gone").unwrap();
        let directory = tempfile::tempdir().unwrap();
        let (missing, file) = (directory.path().join("none"), directory.path().join("none/c.json"));
        for refused in [probe(&file), replace(&file, ""), probe_folder(&missing)] {
            let said = refused.unwrap_err().to_string();
            assert!(said.contains(&format!("no folder {}; make it", missing.display())), "{said}");
        }
        probe_folder(directory.path()).unwrap();
        assert!(names(directory.path()).is_empty());
    }

    #[test]
    fn a_private_file_takes_the_place_of_a_link_and_leaves_what_it_led_to() {
        let dir = tempfile::tempdir().unwrap();
        let [path, other] = ["record", "other"].map(|name| dir.path().join(name));
        std::fs::write(&other, "kept").unwrap();
        symlink(&other, &path).unwrap();
        replace_private(&path, "text").unwrap();
        let read = |path: &Path| std::fs::read_to_string(path).unwrap();
        assert_eq!((read(&path), read(&other)), ("text".to_owned(), "kept".to_owned()));
        let meta = path.symlink_metadata().unwrap();
        assert_eq!((meta.is_file(), meta.permissions().mode() & 0o777), (true, 0o600));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "nothing else is left");
    }
}

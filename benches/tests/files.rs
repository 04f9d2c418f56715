//! Files and outputs that the tool cannot write: an error that names them, in time.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Output, Stdio};

const OXCCL: &str = env!("CARGO_BIN_EXE_oxccl");

/// Runs the tool with files of at most so many blocks of the shell's.
fn limited(blocks: u32, arguments: &str, stdout: Stdio) -> (Output, String) {
    let script = format!("ulimit -f {blocks}; exec \"$0\" {arguments}");
    let output = Command::new("sh").args(["-c", &script, OXCCL]).stdout(stdout).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, said)
}

/// It was a panic of every rank.
#[test]
fn names_of_files_need_not_be_utf8() {
    let folder = tempfile::tempdir().unwrap();
    for option in ["--json", "--markdown"] {
        let path = folder.path().join(OsStr::from_bytes(b"a\xff.out"));
        let words = "perf all-reduce --ranks 2 -n 1 -w 0 -b 8 -e 8".split(' ').map(OsStr::new);
        let words = words.chain([OsStr::new(option), path.as_os_str()]);
        let output = Command::new(OXCCL).args(words).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(std::fs::read_to_string(&path).unwrap().contains("a\u{fffd}.out"));
    }
}

/// They died by SIGXFSZ.
#[test]
fn a_limit_on_files_is_an_error_that_names_the_file() {
    let folder = tempfile::tempdir().unwrap();
    // Rows enough for more than the limit, which is that of the shell's own blocks.
    let sizes: Vec<String> = (1..48).map(|at| (at * 4).to_string()).collect();
    let perf = format!("perf all-reduce --threads 2 -n 1 -w 0 --sizes {}", sizes.join(","));
    for (arguments, name) in [
        (format!("{perf} --json"), "a.json"),
        (format!("{perf} --plot"), "a.svg"),
        (format!("{perf} --markdown"), "a.md"),
    ] {
        let path = folder.path().join(name);
        let (output, said) = limited(8, &format!("{arguments} {}", path.display()), Stdio::piped());
        assert_eq!(output.status.code(), Some(1), "{name}: {said}");
        for part in [name, "RLIMIT_FSIZE", "ulimit -f"] {
            assert!(said.contains(part), "{said}");
        }
    }
    // Neither half a file nor the draft of one.
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    let (output, said) = limited(0, "--help", File::create(folder.path().join("help")).unwrap().into());
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("standard output") && said.contains("ulimit -f"), "{said}");
}

/// `--json` made folders, `--plot` and `--out` did not, and `--plot` said so at the end.
#[test]
fn a_folder_that_is_not_there_is_refused_before_anything_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    let none = folder.path().join("none");
    for arguments in [
        "perf all-reduce --threads 2 --sizes 8 --json none/a.json",
        "perf all-reduce --threads 2 --sizes 8 --markdown none/a.md",
        "perf all-reduce --threads 2 --sizes 8 --plot none/a.svg",
        "perf suite --threads 2 --sizes 8 --json none",
        "tune --ranks 2 --sizes 8 --out none/a.toml",
        "topo --xml=none/a.xml",
    ] {
        let mut command = Command::new(OXCCL);
        let output = command.args(arguments.split(' ')).current_dir(folder.path()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments}: {said}");
        assert!(said.contains("there is no folder none; make it first"), "{arguments}: {said}");
        assert!(output.stdout.is_empty(), "{arguments}: {}", String::from_utf8_lossy(&output.stdout));
        assert!(!none.exists(), "{arguments}");
    }
}

/// `topo --svg b.xml --graph-xml=b.xml` wrote one over the other.
#[test]
fn two_outputs_in_one_file_are_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, options) in [
        ("topo --svg b.svg --xml=./b.svg", "--xml and --svg"),
        ("topo --log=b.svg --graph-xml=b.svg", "--graph-xml and --log"),
        ("perf all-reduce --threads 2 --sizes 8 --json b.svg --plot b.svg", "--json and --plot"),
        ("perf all-reduce --ranks 2 --sizes 8 --json b.md --markdown b.md", "--json and --markdown"),
    ] {
        let mut command = Command::new(OXCCL);
        let output = command.args(arguments.split(' ')).current_dir(folder.path()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments}: {said}");
        assert!(said.contains(&format!("{options} name one file")), "{arguments}: {said}");
        assert!(output.stdout.is_empty(), "{arguments}: {}", String::from_utf8_lossy(&output.stdout));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "{arguments}");
    }
}

/// `--xml` was written although `--svg` could not be, or although there were no channels for `--graph-xml`.
#[test]
fn all_outputs_of_a_call_are_written_or_none() {
    let folder = tempfile::tempdir().unwrap();
    let machine = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/tests/fixtures/topology/h200x8.xml");
    std::fs::write(folder.path().join("old.xml"), "<system version=\"1\"><cpu numaid=\"0\"></cpu></system>")
        .unwrap();
    for (file, outputs) in [
        (machine, "--xml=a.xml --graph-xml=b.xml --svg none/c.svg"),
        (machine, "--xml=a.xml --graph-file=old.xml --svg c.svg"),
        ("old.xml", "--xml=a.xml --graph-xml=b.xml"),
    ] {
        let mut command = Command::new(OXCCL);
        let command = command.args(["topo", "--file", file]).args(outputs.split(' '));
        let output = command.current_dir(folder.path()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{outputs}: {said}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "{outputs}: {said}");
    }
}

/// The pipe was opened to see whether it can be, closed, and opened again at the end: its reader saw the end of it meanwhile and went, and the
/// measurements had nobody to go to.
#[test]
fn a_pipe_takes_what_was_measured() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, begin) in [
        ("perf all-reduce --threads 2 --sizes 8 -n 1 -w 0 --json", "{"),
        ("perf all-reduce --ranks 2 --sizes 8 -n 1 -w 0 --plot", "<svg"),
        ("perf suite --threads 2 --sizes 8 -n 1 -w 0 --markdown", "# 2 ranks on"),
        ("tune --ranks 2 --rounds 1 --min-time 1 --sizes 8 --collectives all-reduce --out", "#"),
    ] {
        let pipe = folder.path().join("pipe.svg");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let read = std::thread::spawn({
            let pipe = pipe.clone();
            move || std::fs::read_to_string(pipe).unwrap()
        });
        let output = Command::new(OXCCL).args(arguments.split(' ')).arg(&pipe).output().unwrap();
        assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
        let text = read.join().unwrap();
        assert!(text.starts_with(begin), "{arguments}: {text:?}");
        if begin.starts_with("# 2") {
            assert_eq!(text.matches(begin).count(), 1, "{arguments}: {text:?}");
            assert!(text.contains("all_gather") && text.contains("broadcast"), "{arguments}: {text:?}");
        }
        std::fs::remove_file(pipe).unwrap();
    }
}

/// Graph files name a GPU by its number: two GPUs with one made a file that nobody could read. And limits did not name the file.
#[test]
fn a_topology_file_that_cannot_be_used_so_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let gpu = |at: usize, dev: usize| {
        format!(
            "<pci busid=\"{at:04x}:01:00.0\" class=\"0x030200\" link_speed=\"16 GT/s\" link_width=\"16\">\
             <gpu dev=\"{dev}\" sm=\"90\" rank=\"{at}\" gdr=\"1\"/></pci>"
        )
    };
    let write = |name: &str, gpus: String| {
        let cpu = "<cpu numaid=\"0\" arch=\"x86_64\" vendor=\"GenuineIntel\" familyid=\"6\" modelid=\"143\">";
        let text = format!("<system version=\"1\">{cpu}{gpus}</cpu></system>");
        std::fs::write(folder.path().join(name), text).unwrap();
    };
    write("one.xml", (0..3).map(|at| gpu(at, at.min(1))).collect());
    write("many.xml", (0..200).map(|at| gpu(at, at)).collect());
    let topo = |arguments: &str| {
        let mut command = Command::new(OXCCL);
        let output = command.args(["topo", "--file"]).args(arguments.split(' ')).current_dir(folder.path());
        let output = output.output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    assert_eq!(topo("one.xml").0, Some(0), "only a graph file needs the numbers");
    let (code, said) = topo("one.xml --graph-xml=graph.xml");
    assert!(code == Some(1) && said.contains("ranks 1 and 2 have one number (dev)"), "{said}");
    assert!(!folder.path().join("graph.xml").exists());
    let (code, said) = topo("many.xml");
    assert!(code == Some(1) && said.contains("many.xml: ") && said.contains("144"), "{said}");
}

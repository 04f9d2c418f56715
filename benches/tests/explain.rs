//! `oxccl topo --explain` on machines whose topology NCCL wrote: what is printed is compared whole.
//! `OXCCL_BLESS=1` writes the expected texts anew.

use std::path::Path;
use std::process::{Command, Output};

fn topo(words: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oxccl"));
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/tests/fixtures/topology");
    command.current_dir(fixtures).arg("topo").args(words.split_whitespace()).output().unwrap()
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn golden(name: &str, words: &str) {
    let output = topo(words);
    assert!(output.status.success(), "{}", said(&output));
    let found = String::from_utf8(output.stdout).unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("OXCCL_BLESS").is_some() {
        std::fs::write(&path, &found).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(found, expected, "{words}: {} differs", path.display());
}

#[test]
fn h200x8() {
    golden("h200x8-all-reduce-4m.txt", "--file h200x8.xml --explain all-reduce 4M");
    golden(
        "h200x8-all-gather-64k-no-direct.txt",
        "--file h200x8.xml --explain all-gather 64K --algo ^direct --datatype half",
    );
}

#[test]
fn dgx1v() {
    golden("dgx1v-all-reduce-64k.txt", "--file dgx1v.xml --nccl 2.13 --explain all-reduce 64K");
    golden(
        "dgx1v-broadcast-1m-ll.txt",
        "--file dgx1v.xml --nccl 2.13 --explain broadcast 1M --proto Simple;broadcast:LL,LL128",
    );
}

/// Between GPUs that NVLink joins, the fastest all-reduces up to some megabytes reduce by rank anyway: one order costs nothing there.
#[test]
fn one_order_is_the_default_where_nvlink_reaches() {
    let chosen = |size: &str, how: &str| {
        let text = said(&topo(&format!("--file h200x4.xml --explain all-reduce {size} {how}")));
        let line = text.lines().find(|line| line.starts_with("chosen: "));
        line.unwrap_or_else(|| panic!("{text}")).to_owned()
    };
    for size in ["8", "1K", "16K", "64K", "128K", "192K", "256K", "512K", "1M", "4M"] {
        assert_eq!(chosen(size, "--deterministic"), chosen(size, ""), "{size}");
    }
    let (ordered, fastest) = (chosen("1G", "--deterministic"), chosen("1G", ""));
    assert!(ordered.contains("twoshot") && fastest.contains("ring"), "{ordered}, {fastest}");
}

/// Two of eight GPUs have the links between them, and not those of all.
#[test]
fn some_of_the_ranks() {
    let pair = topo("--file dgx1v.xml --explain all-reduce 64M --ranks 2");
    let (pair, all) = (said(&pair), said(&topo("--file dgx1v.xml --explain all-reduce 64M")));
    assert!(pair.contains("2 ranks on 1 host") && pair.contains("2 GPUs"), "{pair}");
    let rings = |text: &str| text.lines().find(|line| line.starts_with("  rings")).map(str::to_owned);
    assert_ne!(rings(&pair), rings(&all));
    let hosts = said(&topo("--file dgx1v.xml --explain all-reduce 64M --ranks 4 --hosts 2"));
    assert!(hosts.contains("4 ranks on 2 hosts") && hosts.contains(": 2 GPUs"), "{hosts}");
    // Between hosts the network's speed counts, and communicators have few channels.
    assert!(hosts.contains("a network device of "), "{hosts}");
    assert_ne!(rings(&hosts), rings(&pair));
}

/// Where there is no GPU, ranks are threads of processors.
#[test]
fn this_machine() {
    if Path::new("/dev/nvidia0").exists() {
        return println!("skipped: this machine has GPUs, whose number is not known here");
    }
    let output = topo("--explain all-reduce 4M --ranks 2");
    assert!(output.status.success(), "{}", said(&output));
    let text = said(&output);
    assert!(text.contains("2 ranks on 1 host") && text.contains("chosen: "), "{text}");
}

/// Without a GPU there are processors and networks to see; nothing that only GPUs have.
#[test]
fn a_machine_without_gpus_is_shown_as_it_is() {
    if Path::new("/dev/nvidia0").exists() {
        return println!("skipped: this machine has GPUs");
    }
    let page = topo("");
    assert!(page.status.success(), "{}", said(&page));
    let page = said(&page);
    assert!(
        page.contains("no GPU, ") && page.contains("NUMA node") && page.contains("NVIDIA library"),
        "{page}"
    );
    let xml = topo("--xml");
    assert!(xml.status.success() && said(&xml).contains("<cpu "), "{}", said(&xml));
    for option in ["--log", "--graph-xml", "--graph-file g.xml"] {
        let output = topo(option);
        assert!(!output.status.success(), "{option}");
        assert!(said(&output).contains("no channels without GPUs"), "{option}: {}", said(&output));
    }
}

/// A page shows what the file of a cloud has; channels and choices need what only the machine itself knows.
#[test]
fn a_skeleton_is_shown_and_not_taken_for_this_machine() {
    let page = topo("--file azure-ndv4.xml");
    assert!(page.status.success(), "{}", said(&page));
    let page = said(&page);
    for expected in [
        "azure-ndv4: 8 GPUs, 4 NUMA nodes, 0 network devices",
        "├─ PCI 0003:00:00.0  GPU",
        "├─ PCI 0103:00:00.0  NIC",
        "the file is a skeleton, whose 8 GPUs the machine itself must describe: --skeleton takes it there",
    ] {
        assert!(page.contains(expected), "{expected}: {page}");
    }
    for option in ["--explain all-reduce 4M", "--log", "--graph-xml", "--graph-file g.xml"] {
        let output = topo(&format!("--file azure-ndv4.xml {option}"));
        assert!(!output.status.success(), "{option}: {}", said(&output));
        assert!(said(&output).contains("azure-ndv4.xml has no channels"), "{option}: {}", said(&output));
    }
}

/// What `oxccl topo --xml` printed on a machine without GPUs was refused as a skeleton.
#[test]
fn a_dump_without_gpus_is_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("host.xml");
    let xml = r#"<system version="1"><cpu numaid="0" affinity="0000003f" arch="x86_64" vendor="AuthenticAMD"/></system>"#;
    std::fs::write(&file, xml).unwrap();
    let page = topo(&format!("--file {}", file.display()));
    assert!(page.status.success() && said(&page).contains("host: no GPU, 1 NUMA node"), "{}", said(&page));
    let explained = topo(&format!("--file {} --explain all-reduce 1K", file.display()));
    assert!(said(&explained).contains("6 ranks on 1 host (CPUs"), "{}", said(&explained));
    // It was told to use --file.
    let refused = said(&topo(&format!("--file {} --log", file.display())));
    assert!(refused.contains("host.xml names no GPU") && !refused.contains("--file"), "{refused}");
}

/// `--hosts` was ignored where there are no GPUs.
#[test]
fn hosts_without_gpus_are_explained() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("host.xml");
    let xml = r#"<system version="1"><cpu numaid="0" affinity="0000003f" arch="x86_64" vendor="AuthenticAMD"/></system>"#;
    std::fs::write(&file, xml).unwrap();
    let explain = |more: &str| topo(&format!("--file {} --explain all-reduce 4M {more}", file.display()));
    let two = said(&explain("--hosts 2"));
    assert!(two.contains("12 ranks on 2 hosts (CPUs"), "{two}");
    let one_each = said(&explain("--hosts 4 --ranks 4"));
    assert!(one_each.contains("4 hosts, a rank on each: all by streams"), "{one_each}");
    let uneven = explain("--hosts 4 --ranks 6");
    assert!(!uneven.status.success() && said(&uneven).contains("equally many ranks"), "{}", said(&uneven));
}

/// It was refused, though the planner chooses between messages and one kernel.
#[test]
fn an_all_to_all_is_explained() {
    let short = said(&topo("--file h200x8.xml --explain all-to-all 8K"));
    assert!(
        short.contains("of 1024 bytes from each rank to each") && short.contains("one kernel"),
        "{short}"
    );
    let long = said(&topo("--file h200x8.xml --explain all-to-all 64M"));
    assert!(long.contains("chosen: 7 messages of each rank"), "{long}");
    let hosts = said(&topo("--file h200x8.xml --hosts 2 --explain all-to-all 8K"));
    assert!(hosts.contains("chosen: 15 messages of each rank"), "{hosts}");
}

/// GPUs are named by their bus since 2.27.7, by their rank before; NICs by hexadecimal numbers; NVLS by its heads. All were by NVML's
/// number, and NVLS by all GPUs.
#[test]
fn logs_are_those_of_the_release() {
    let log = |words: &str| said(&topo(&format!("{words} --log")));
    let today = log("--file h200x8.xml");
    assert!(today.contains("\n 0 : GPU/0-60 GPU/0-70"), "{today}");
    let nvls = today.split("Pattern 5").nth(1).expect("NVLS").lines().nth(1).unwrap().to_owned();
    assert_eq!(nvls.matches("GPU/").count(), 1, "{nvls}");
    let before = log("--file h200x8.xml --nccl 2.27");
    assert!(before.contains("\n 0 : GPU/0 GPU/1 GPU/2"), "{before}");
    let old = log("--file dgx1v.xml --nccl 2.13");
    assert!(old.contains("speed 22.000000/22.000000") && old.contains(" : GPU/0 GPU/"), "{old}");
    let nets = log("--file oci-h100.xml --hosts 2");
    assert!(nets.contains(" NET/0-a "), "the eleventh network device: {nets}");
}

/// A file from a pipe; several outputs of one call, of which the first but one was left out; a name in the environment.
#[test]
fn files_come_and_go_as_they_are_asked_for() {
    use std::io::Write;
    use std::process::Stdio;
    let dir = tempfile::tempdir().unwrap();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/tests/fixtures/topology");
    let piped = |text: &[u8]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_oxccl"));
        command.args(["topo", "--file", "-", "--log"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(text).unwrap();
        said(&child.wait_with_output().unwrap())
    };
    let text = std::fs::read(fixtures.join("h200x8.xml")).unwrap();
    assert_eq!(piped(&text), said(&topo("--file h200x8.xml --log")));
    assert!(piped(b"").contains("-: line 1: the file is empty"), "{}", piped(b""));
    assert!(
        piped(b"<system>\n\xff").contains("line 2: the byte 0xff is no UTF-8"),
        "{}",
        piped(b"<system>\n\xff")
    );

    let at = |name: &str| dir.path().join(name).display().to_string();
    let words = format!(
        "--file h200x8.xml --xml={} --graph-xml={} --log={} --svg {} --explain all-reduce 4M",
        at("a.xml"),
        at("b.xml"),
        at("c.log"),
        at("d.svg")
    );
    let output = topo(&words);
    assert!(output.status.success() && said(&output).contains("chosen: "), "{}", said(&output));
    for (name, begin) in
        [("a.xml", "<system"), ("b.xml", "<graphs"), ("c.log", "Pattern 4"), ("d.svg", "<svg")]
    {
        let written = std::fs::read_to_string(dir.path().join(name)).unwrap();
        assert!(written.starts_with(begin), "{name}: {written}");
    }
    let both = said(&topo("--file h200x8.xml --xml --log"));
    assert!(both.contains("<system") && both.contains("Pattern 4"), "{both}");

    if Path::new("/dev/nvidia0").exists() {
        return println!("skipped the rest: this machine has GPUs");
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_oxccl"));
    let named = command.arg("topo").env("NCCL_TOPO_FILE", fixtures.join("azure-ndv4.xml")).output().unwrap();
    assert!(said(&named).contains("with NCCL_TOPO_FILE=") && named.status.success(), "{}", said(&named));
    let mut command = Command::new(env!("CARGO_BIN_EXE_oxccl"));
    let missing = command.arg("topo").env("NCCL_TOPO_FILE", "absent.xml").output().unwrap();
    assert!(!missing.status.success() && said(&missing).contains("absent.xml"), "{}", said(&missing));
}

/// What the library connects is told from NCCL's plan, two hosts from one, and boards have names.
#[test]
fn a_page_says_what_runs() {
    let page = said(&topo("--file h200x8.xml"));
    for expected in [
        "h200x8: 8 GPUs (H200 SXM, sm 90), NVSwitch",
        "GPU 0 0000:00:06.0 H200 SXM sm 90",
        "Channels of OxCCL\n  ring: 64\n       0-63 : 0 1 2 3 4 5 6 7\n  pairs: ",
        "Channels of NCCL's plan, with its speeds\n  ring: 12 at 30/30 GB/s",
    ] {
        assert!(page.contains(expected), "{expected}: {page}");
    }
    let two = said(&topo("--file h200x8.xml --hosts 2"));
    assert!(two.contains("2 hosts like this: host 0: ranks 0 to 7; host 1: ranks 8 to 15"), "{two}");
    assert!(two.contains(" : 0 7 6 5 4 3 2 1 8 15 14 13 12 11 10 9\n"), "{two}");
}

#[test]
fn what_cannot_be_explained_says_what_can() {
    for (words, expected) in [
        (
            "--file h200x8.xml --explain send-recv 1M",
            "all-reduce, all-gather, reduce-scatter, broadcast, reduce or all-to-all",
        ),
        ("--file h200x8.xml --explain all-reduce many", "expected a number of bytes"),
        ("--file h200x8.xml --explain all-reduce 1M --ranks 9", "have 8 GPUs"),
        (
            "--file h200x8.xml --explain all-reduce 1M --algo rings",
            "--algo rings: some of tree, ring, oneshot, twoshot, collnetchain, collnetdirect, twolevel and doubling were expected",
        ),
        (
            "--file h200x8.xml --explain all-reduce 1M --algo collnetchain",
            "(collnetchain: all ranks are on one host)",
        ),
        (
            "--file h200x8.xml --explain broadcast 1M --algo broadcast:tree",
            "NCCL_ALGO: broadcast has none of what they leave",
        ),
        ("--file h200x8.xml --explain all-reduce 1M --tune absent.toml", "absent.toml: No such file"),
    ] {
        let output = topo(words);
        assert!(!output.status.success(), "{words}");
        assert!(said(&output).contains(expected), "{words}: {}", said(&output));
    }
}

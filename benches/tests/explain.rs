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
    for option in ["--log", "--graph-xml", "--svg /dev/null"] {
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
    for option in ["--explain all-reduce 4M", "--log", "--graph-xml", "--svg /dev/null"] {
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
}

#[test]
fn what_cannot_be_explained_says_what_can() {
    for (words, expected) in [
        (
            "--file h200x8.xml --explain all-to-all 1M",
            "all-reduce, all-gather, reduce-scatter, broadcast or reduce",
        ),
        ("--file h200x8.xml --explain all-reduce many", "expected a number of bytes"),
        ("--file h200x8.xml --explain all-reduce 1M --ranks 9", "have 8 GPUs"),
        (
            "--file h200x8.xml --explain all-reduce 1M --algo rings",
            "--algo rings: some of tree, ring, oneshot, twoshot, collnetchain and twolevel were expected",
        ),
        (
            "--file h200x8.xml --explain all-reduce 1M --algo collnetchain",
            "collnetchain is for ranks on CPUs so far",
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

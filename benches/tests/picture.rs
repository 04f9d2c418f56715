//! `oxccl topo --svg`: what is written in the picture, and that labels of links do not lie on each other.

use std::fmt::Write;
use std::path::Path;
use std::process::Command;

/// A link's label and its rectangle: left, upper edge, width, height.
#[derive(Clone, Debug)]
struct Tag {
    text: String,
    place: [f64; 4],
}

impl Tag {
    fn overlaps(&self, other: &Tag) -> bool {
        let ([x, y, width, height], [other_x, other_y, other_width, other_height]) =
            (self.place, other.place);
        x < other_x + other_width && other_x < x + width && y < other_y + other_height && other_y < y + height
    }
}

/// Draws a topology file.
fn draw(file: &Path) -> String {
    draw_with(file, &[])
}

fn draw_with(file: &Path, words: &[&str]) -> String {
    let out = tempfile::tempdir().unwrap();
    let svg = out.path().join("machine.svg");
    let mut command = Command::new(env!("CARGO_BIN_EXE_oxccl"));
    let output =
        command.args(["topo", "--file"]).arg(file).arg("--svg").arg(&svg).args(words).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::read_to_string(&svg).unwrap()
}

fn number(element: &str, name: &str) -> f64 {
    let start = element.find(&format!(" {name}=\"")).unwrap() + name.len() + 3;
    element[start..].split('"').next().unwrap().parse().unwrap()
}

/// The labels of links: rectangles of their height, each with its text behind.
fn tags(svg: &str) -> Vec<Tag> {
    let elements: Vec<&str> = svg.split('<').collect();
    let is_tag = |element: &str| element.starts_with("rect ") && element.contains(" height=\"17\"");
    let tag = |i: usize| {
        let place = ["x", "y", "width", "height"].map(|name| number(elements[i], name));
        let text = elements[i + 1..].iter().find(|element| element.starts_with("text ")).unwrap();
        Tag { text: text.split_once('>').unwrap().1.trim().to_owned(), place }
    };
    (0..elements.len()).filter(|i| is_tag(elements[*i])).map(tag).collect()
}

fn overlapping(tags: &[Tag]) -> Option<(&Tag, &Tag)> {
    let pairs = tags.iter().enumerate().flat_map(|(i, a)| tags[i + 1..].iter().map(move |b| (a, b)));
    pairs.into_iter().find(|(a, b)| a.overlaps(b))
}

#[test]
fn labels_of_real_machines_can_be_read() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/tests/fixtures/topology");
    for name in ["dgx1v", "h200x4", "h200x8", "oci-h100", "rtx3090x8", "made-up-11", "made-up-22"] {
        let tags = tags(&draw(&fixtures.join(name).with_extension("xml")));
        assert!(tags.len() >= 4, "{name}: {tags:?}");
        assert!(overlapping(&tags).is_none(), "{name}: {:?}", overlapping(&tags));
    }
}

/// Two hosts of two sockets, each with a GPU that has a link of its own into its processor.
fn two_hosts(arch: &str, into_cpu: &str) -> String {
    let mut xml = String::from("<system version=\"1\">\n");
    for socket in 0..4 {
        let (host, numa) = (socket / 2 + 1, socket % 2);
        write!(
            xml,
            "<cpu host_hash=\"0x{host}\" numaid=\"{numa}\" arch=\"{arch}\">
               <pci busid=\"000{numa}:01:00.0\" class=\"0x030200\" link_speed=\"32.0 GT/s PCIe\" link_width=\"16\">
                 <gpu dev=\"{numa}\" sm=\"90\" rank=\"{socket}\" gdr=\"1\">
                   <nvlink target=\"ffff:ff:ff.0\" count=\"18\" tclass=\"0x068000\"/>{into_cpu}
                 </gpu></pci></cpu>\n"
        )
        .unwrap();
    }
    xml + "</system>\n"
}

/// GPUs with two ways into their processor were drawn with the bandwidth of the faster one at both; and all processors were joined,
/// those of other hosts too.
#[test]
fn links_of_gpus_into_their_processors_are_told_apart() {
    for (arch, into_cpu, label) in [
        ("arm64", "<c2c bw=\"450000\" count=\"1\"/>", "C2C 450"),
        ("ppc64", "<nvlink target=\"0004:00:00.0\" count=\"3\" tclass=\"0x068001\"/>", "NVL 61.8"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("hosts.xml");
        std::fs::write(&file, two_hosts(arch, into_cpu)).unwrap();
        let svg = draw(&file);
        let tags = tags(&svg);
        let count = |begin: &str| tags.iter().filter(|tag| tag.text.starts_with(begin)).count();
        assert_eq!((count("PCI 48"), count("PCI"), count(label)), (4, 4, 4), "{arch}: {tags:?}");
        assert_eq!((count("NVL 371"), count("SYS")), (4, 2), "{arch}: {tags:?}");
        assert!(overlapping(&tags).is_none(), "{arch}: {:?}", overlapping(&tags));
        assert!(svg.contains("host 0 CPU 1") && svg.contains("host 1 CPU 1"), "{arch}");
    }
}

/// NICs in the rows of channels were all called NIC; the library's channels were not told from NCCL's plan; GPUs had no model.
#[test]
fn a_picture_says_what_is_what() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/tests/fixtures/topology");
    let svg = draw_with(&fixtures.join("oci-h100.xml"), &["--hosts", "2"]);
    for expected in
        ["mlx5_0", "H100 SXM5", "OxCCL has ", "NCCL's plan: ", "not run by OxCCL", "host 1: ranks 8 to 15"]
    {
        assert!(svg.contains(expected), "{expected}");
    }
}

/// Channels went out by a NIC and came back by it, as if there were one host.
#[test]
fn channels_over_hosts_say_where_they_lead() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/tests/fixtures/topology");
    for (hosts, from) in [("2", "from host 1"), ("3", "from host 2")] {
        let tags = tags(&draw_with(&fixtures.join("dgx1v.xml"), &["--hosts", hosts]));
        for expected in ["to host 1", from, "other hosts"] {
            assert!(tags.iter().any(|tag| tag.text == expected), "{expected}: {tags:?}");
        }
        assert!(overlapping(&tags).is_none(), "{:?}", overlapping(&tags));
    }
}

/// Two hosts looked like one.
#[test]
fn each_host_has_a_box_and_its_ranks() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/tests/fixtures/topology");
    for (hosts, shown, last_rank) in
        [("2", vec![0, 1], "15"), ("4", vec![0, 1, 2, 3], "31"), ("8", vec![0, 1, 7], "63")]
    {
        let svg = draw_with(&fixtures.join("dgx1v.xml"), &["--hosts", hosts]);
        let tags = tags(&svg);
        let named: Vec<u32> = (0..8)
            .filter(|host| {
                let name = format!("host {host}: ranks {} to {}", 8 * host, 8 * host + 7);
                tags.iter().any(|tag| tag.text == name)
            })
            .collect();
        assert_eq!(named, shown, "{hosts} hosts: {tags:?}");
        assert!(svg.contains(&format!(">\n{last_rank}\n<")), "{hosts} hosts: the last one's ranks have dots");
        assert!(overlapping(&tags).is_none(), "{:?}", overlapping(&tags));
    }
    let alone = draw_with(&fixtures.join("dgx1v.xml"), &[]);
    assert!(!alone.contains("Between hosts"));
}

/// Both were refused.
#[test]
fn skeletons_and_machines_without_gpus_have_pictures() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/tests/fixtures/topology");
    let azure = draw(&fixtures.join("azure-ndv4.xml"));
    assert!(azure.contains("8 GPUs, 4 NUMA nodes") && azure.contains("0103:00:00.0"), "{azure}");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("plain.xml");
    let xml = r#"<system version="1"><cpu numaid="0" affinity="0000003f" arch="x86_64" vendor="AuthenticAMD">
        <pci busid="0000:00:03.0" class="0x020000"><nic><net name="eth7" dev="0" speed="10000"/></nic></pci>
        <nic><net name="docker0" dev="1" speed="10000"/></nic></cpu></system>"#;
    std::fs::write(&file, xml).unwrap();
    let plain = draw(&file);
    for expected in ["no ranks, so no channels", "6 processors", "eth7", "docker0", "(bridge)"] {
        assert!(plain.contains(expected), "{expected}: {plain}");
    }
}

/// `OXCCL_BLESS=1` draws it anew.
#[test]
fn the_picture_in_the_documentation_is_todays() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let drawn = draw(&root.join("tests/tests/fixtures/topology/dgx1v.xml"));
    let path = root.join("docs/topology-dgx1v.svg");
    if std::env::var_os("OXCCL_BLESS").is_some() {
        std::fs::write(&path, &drawn).unwrap();
    }
    assert!(std::fs::read_to_string(&path).unwrap() == drawn, "{} is not what is drawn", path.display());
}

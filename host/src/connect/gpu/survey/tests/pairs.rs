//! Which pairs of GPUs a survey finds near enough to use each other's memory.

use super::*;
use crate::transport::p2p::{Domain, Domains};

/// A machine with two sockets, two GPUs below a switch and one without on each.
const TWO_SOCKETS: &str = r#"<system version="1">
  <cpu numaid="0" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="106">
    <pci busid="0000:10:00.0" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16">
      <pci busid="0000:11:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16"><gpu dev="0" sm="80" rank="0"/></pci>
      <pci busid="0000:12:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16"><gpu dev="1" sm="80" rank="1"/></pci>
    </pci>
    <pci busid="0000:20:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16"><gpu dev="2" sm="80" rank="2"/></pci>
  </cpu>
  <cpu numaid="1" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="106">
    <pci busid="0000:80:00.0" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16">
      <pci busid="0000:81:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16"><gpu dev="3" sm="80" rank="3"/></pci>
      <pci busid="0000:82:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16"><gpu dev="4" sm="80" rank="4"/></pci>
    </pci>
  </cpu>
</system>
"#;

/// Pairs of ranks that meet in memory of the host, as every rank's refusals say.
fn apart(found: &[Result<Survey, ConnectError>]) -> Vec<(Rank, Rank)> {
    let refused = |rank: usize| found[rank].as_ref().unwrap().refused.iter();
    let pairs: Vec<_> =
        (0..found.len()).flat_map(|rank| refused(rank).map(move |peer| (Rank(rank as u32), *peer))).collect();
    let domains = Domains::new(pairs.iter().copied());
    assert_eq!(pairs.len(), 2 * domains.on_host().len(), "both ends refuse: {pairs:?}");
    domains.on_host().to_vec()
}

/// NCCL's rule for each pair: up to PXB unless the user says otherwise.
#[test]
fn levels_say_who_uses_whose_memory() {
    let directory = tempfile::tempdir().unwrap();
    let file = written(&directory, "sockets.xml", TWO_SOCKETS);
    let gpus = || read_topology(TWO_SOCKETS).unwrap().gpus().iter().map(|(pci, _)| pci.bus_id).collect();
    let on_sockets = |level: Option<&str>| {
        let scene = Scene { gpus: Some(gpus()), ..Scene::new("", vec![1; 5]) };
        apart(&scene.survey(|_, settings| {
            settings.file = Some(file.clone());
            settings.p2p_level = level.map(|level| level.parse().unwrap());
        }))
    };
    let ranks = |(a, b)| (Rank(a), Rank(b));
    let across = [(0, 3), (0, 4), (1, 3), (1, 4), (2, 3), (2, 4)].map(ranks);
    let in_socket = [(0, 2), (1, 2)].map(ranks);
    let both = || Domains::new(across.into_iter().chain(in_socket)).on_host().to_vec();
    assert_eq!(on_sockets(None), both());
    assert_eq!(on_sockets(Some("PIX")), both());
    assert_eq!(on_sockets(Some("PHB")), across);
    assert_eq!(on_sockets(Some("SYS")), []);
    assert_eq!(on_sockets(Some("LOC")).len(), 10);
    assert_eq!(apart(&Scene::new("h200x4", vec![1; 4]).survey(|_, _| {})), []);
    // Of a DGX-1V's pairs, those that no NVLink joins reach each other through a third GPU only. No ring needs them.
    let found = Scene::new("dgx1v", vec![1; 8]).survey(|_, _| {});
    let domains = Domains::new(apart(&found));
    assert_eq!(domains.on_host().len(), 28 - 16, "{domains:?}");
    let rings = &found[0].as_ref().unwrap().channels.rings;
    let mut hops = rings.iter().flat_map(|ring| (0..8).map(move |i| (ring[i], ring[(i + 1) % 8])));
    assert!(hops.all(|(a, b)| domains.of(a, b) == Domain::Device), "{rings:?}");
}

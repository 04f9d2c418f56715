//! Layer: topo.
//! Takes: the PCI device id of one of NVIDIA's chips.
//! Gives: the name that people know its board by.
//! Never: decides anything: a board that is not listed is named by its id.

/// Sorted; from the PCI ID repository (<https://pci-ids.ucw.cz>, vendor 10de).
const MODELS: [(u16, &str); 44] = [
    (0x15f7, "P100 PCIe"),
    (0x15f8, "P100 PCIe"),
    (0x15f9, "P100 SXM2"),
    (0x1db1, "V100 SXM2"),
    (0x1db4, "V100 PCIe"),
    (0x1db5, "V100 SXM2"),
    (0x1db6, "V100 PCIe"),
    (0x1db8, "V100 SXM3"),
    (0x1eb8, "T4"),
    (0x20b0, "A100 SXM4"),
    (0x20b2, "A100 SXM4"),
    (0x20b5, "A100 PCIe"),
    (0x20b7, "A30"),
    (0x20f1, "A100 PCIe"),
    (0x20f3, "A800 SXM4"),
    (0x2203, "RTX 3090 Ti"),
    (0x2204, "RTX 3090"),
    (0x2206, "RTX 3080"),
    (0x2230, "RTX A6000"),
    (0x2231, "RTX A5000"),
    (0x2235, "A40"),
    (0x2236, "A10"),
    (0x2237, "A10G"),
    (0x2321, "H100 NVL"),
    (0x2322, "H800 PCIe"),
    (0x2324, "H800"),
    (0x2329, "H20"),
    (0x2330, "H100 SXM5"),
    (0x2331, "H100 PCIe"),
    (0x2335, "H200 SXM"),
    (0x233b, "H200 NVL"),
    (0x2342, "GH200"),
    (0x2348, "GH200"),
    (0x2684, "RTX 4090"),
    (0x26b1, "RTX 6000 Ada"),
    (0x26b5, "L40"),
    (0x26b9, "L40S"),
    (0x27b8, "L4"),
    (0x2901, "B200"),
    (0x2941, "GB200"),
    (0x2b85, "RTX 5090"),
    (0x2bb1, "RTX PRO 6000"),
    (0x2bb5, "RTX PRO 6000"),
    (0x3182, "B300 SXM6"),
];

/// The name of a board, or its id.
pub fn name(device: u16) -> String {
    match MODELS.binary_search_by_key(&device, |model| model.0) {
        Ok(at) => MODELS[at].1.to_owned(),
        Err(_) => format!("10de:{device:04x}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_in_order_and_strangers_keep_theirs() {
        assert!(MODELS.is_sorted_by(|a, b| a.0 < b.0));
        assert_eq!(
            [0x2335, 0x1db1, 0x2204, 0xabcd].map(name),
            ["H200 SXM", "V100 SXM2", "RTX 3090", "10de:abcd"]
        );
    }
}

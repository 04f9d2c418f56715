//! The user's filter of devices and ports (`NCCL_IB_HCA`).

/// `mlx5` (all names with this prefix), `=mlx5_0:1,mlx5_1` (these names; of the first only port 1), `^mlx5_2` (all
/// but).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HcaFilter {
    entries: Vec<Entry>,
    exclude: bool,
    exact: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Entry {
    name: String,
    port: Option<u8>,
}

impl HcaFilter {
    /// Parses the text; `None` if it names nothing or an impossible port.
    pub fn parse(text: &str) -> Option<HcaFilter> {
        let (exclude, text) = text.strip_prefix('^').map_or((false, text), |rest| (true, rest));
        let (exact, text) = text.strip_prefix('=').map_or((false, text), |rest| (true, rest));
        let entries: Vec<Entry> = text
            .split(',')
            .map(str::trim)
            .filter(|entry| !entry.is_empty())
            .map(Entry::parse)
            .collect::<Option<_>>()?;
        (!entries.is_empty()).then_some(HcaFilter { entries, exclude, exact })
    }

    /// Whether this port may be used.
    pub fn admits(&self, device: &str, port: u8) -> bool {
        let named = self.entries.iter().any(|entry| {
            let name = if self.exact { device == entry.name } else { device.starts_with(&entry.name) };
            name && entry.port.is_none_or(|wanted| wanted == port)
        });
        named != self.exclude
    }
}

impl Entry {
    fn parse(text: &str) -> Option<Entry> {
        let (name, port) = match text.split_once(':') {
            None => (text, None),
            Some((name, port)) => (name, Some(port.parse().ok().filter(|port| *port > 0)?)),
        };
        (!name.is_empty()).then(|| Entry { name: name.to_owned(), port })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: [(&str, u8); 5] =
        [("mlx5_0", 1), ("mlx5_0", 2), ("mlx5_1", 1), ("mlx5_10", 1), ("irdma0", 1)];

    fn admitted(text: &str) -> Vec<String> {
        let filter = HcaFilter::parse(text).expect("a filter");
        let ports = HOST.iter().filter(|(device, port)| filter.admits(device, *port));
        ports.map(|(device, port)| format!("{device}:{port}")).collect()
    }

    #[test]
    fn the_syntax_is_nccl_s() {
        let table: [(&str, &[&str]); 7] = [
            ("mlx5", &["mlx5_0:1", "mlx5_0:2", "mlx5_1:1", "mlx5_10:1"]),
            ("mlx5_1", &["mlx5_1:1", "mlx5_10:1"]),
            ("=mlx5_1", &["mlx5_1:1"]),
            ("=mlx5_0:2,irdma0", &["mlx5_0:2", "irdma0:1"]),
            ("^mlx5_1", &["mlx5_0:1", "mlx5_0:2", "irdma0:1"]),
            ("^=mlx5_1,mlx5_0:1", &["mlx5_0:2", "mlx5_10:1", "irdma0:1"]),
            ("=nothing", &[]),
        ];
        for (text, wanted) in table {
            assert_eq!(admitted(text), wanted, "{text}");
        }
    }

    #[test]
    fn what_names_nothing_is_refused() {
        for text in ["", "^", "=", "^=", " , ", "mlx5_0:", "mlx5_0:0", "mlx5_0:x", ":1", "mlx5_0:256"] {
            assert_eq!(HcaFilter::parse(text), None, "{text}");
        }
    }
}

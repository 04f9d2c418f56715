//! Layer: host / api / launcher.
//! Takes: Slurm's compressed list of nodes.
//! Gives: the first node in it.
//! Never: expands the list.

/// The first host of a list such as `gpu[003-010,12]-ib,login1`; `None` if the brackets make no sense.
pub(super) fn first_host(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list.trim();
    loop {
        let end = rest.find(['[', ']', ',']).unwrap_or(rest.len());
        host.push_str(&rest[..end]);
        match rest[end..].chars().next() {
            Some('[') => {
                let (inside, after) = rest[end + 1..].split_once(']')?;
                let first = inside.split([',', '-']).next().filter(|first| is_number(first))?;
                host.push_str(first);
                rest = after;
            }
            Some(']') => return None,
            Some(_) | None => break,
        }
    }
    (!host.is_empty()).then_some(host)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::first_host;

    #[test]
    fn the_first_host_of_any_list() {
        for (list, want) in [
            ("node1", Some("node1")),
            ("node1,node2", Some("node1")),
            ("gpu[003-010,12],login1", Some("gpu003")),
            ("gpu[7,9]", Some("gpu7")),
            ("rack[1-2]node[08-09]-ib", Some("rack1node08-ib")),
            ("a-b-3,c", Some("a-b-3")),
            (" x ", Some("x")),
            ("", None),
            (",a", None),
            ("gpu[1-2", None),
            ("gpu]1", None),
            ("gpu[]", None),
            ("gpu[a-b]", None),
        ] {
            assert_eq!(first_host(list).as_deref(), want, "{list}");
        }
    }
}

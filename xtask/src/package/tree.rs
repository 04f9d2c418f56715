//! Files before they are packed.

use std::borrow::Cow;
use std::collections::BTreeMap;

/// The name that programs ask the loader for.
pub const SONAME: &str = "libnccl.so.2";
/// The name by which `NCCL_NET_PLUGIN=oxccl` finds the plugin.
pub const PLUGIN: &str = "libnccl-net-oxccl.so";
/// The name of the kernels, where library and tool look for it.
pub const BUNDLE: &str = "oxccl.oxptx";

/// Paths in order, without a slash before them.
#[derive(Default)]
pub struct Tree<'a>(pub BTreeMap<String, Node<'a>>);

/// What lies at a path.
pub enum Node<'a> {
    File { contents: Cow<'a, [u8]>, is_program: bool },
    Link(String),
}

impl<'a> Tree<'a> {
    pub fn file(&mut self, path: impl Into<String>, contents: impl Into<Cow<'a, [u8]>>) {
        self.0.insert(path.into(), Node::File { contents: contents.into(), is_program: false });
    }

    pub fn text(&mut self, path: impl Into<String>, contents: &'a str) {
        self.file(path, contents.as_bytes());
    }

    pub fn program(&mut self, path: impl Into<String>, contents: &'a [u8]) {
        self.0.insert(path.into(), Node::File { contents: contents.into(), is_program: true });
    }

    pub fn link(&mut self, path: impl Into<String>, target: impl Into<String>) {
        self.0.insert(path.into(), Node::Link(target.into()));
    }

    /// The library under its full name, and the names by which loader and linker look for it.
    pub fn library(&mut self, folder: &str, version: &str, contents: &'a [u8]) {
        let full = format!("libnccl.so.{version}");
        self.file(format!("{folder}/{full}"), contents);
        self.link(format!("{folder}/{SONAME}"), full);
        self.link(format!("{folder}/libnccl.so"), SONAME);
    }

    /// Every folder above a path, each before what is in it.
    pub fn folders(&self) -> Vec<&str> {
        let mut folders: Vec<&str> =
            self.0.keys().flat_map(|path| path.match_indices('/').map(|(end, _)| &path[..end])).collect();
        folders.sort_unstable();
        folders.dedup();
        folders
    }

    /// What the files take, in KiB.
    pub fn kib(&self) -> u64 {
        let bytes = |node: &Node| match node {
            Node::File { contents, .. } => (contents.len() as u64).div_ceil(1024),
            Node::Link(_) => 1,
        };
        self.0.values().map(bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_come_before_what_is_in_them_and_once() {
        let mut tree = Tree::default();
        tree.library("usr/lib/oxccl", "2.32.3", b"code");
        tree.text("usr/a", "x");
        assert_eq!(tree.folders(), ["usr", "usr/lib", "usr/lib/oxccl"]);
        assert_eq!(tree.kib(), 4);
        let Some(Node::Link(target)) = tree.0.get("usr/lib/oxccl/libnccl.so.2") else { panic!("no link") };
        assert_eq!(target, "libnccl.so.2.32.3");
    }
}

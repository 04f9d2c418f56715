//! Compiles the one function of the library that has to be C.

fn main() {
    let source = "src/net/plugin/log.c";
    println!("cargo::rerun-if-changed={source}");
    cc::Build::new().file(source).warnings(true).compile("oxccl_plugin_log");
}

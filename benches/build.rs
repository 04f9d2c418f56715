//! Asks the linker for the number that `oxccl --version` shows.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-bins=-Wl,--build-id");
}

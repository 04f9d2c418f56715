//! How the shared library presents itself to the loader.

/// The name that programs built against NCCL 2 ask the loader for.
const SONAME: &str = "libnccl.so.2";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Threads of the library run its code as long as the process lives: `dlclose` must not unmap it.
    // The log says which build runs; not every compiler asks for the number by itself.
    for argument in [&format!("-soname,{SONAME}"), "-z,nodelete", "-z,now", "--build-id"] {
        println!("cargo::rustc-cdylib-link-arg=-Wl,{argument}");
    }
}

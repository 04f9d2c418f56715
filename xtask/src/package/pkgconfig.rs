//! `oxccl.pc`: how a C compiler uses an installed library.

/// The file's text. The run path is part of it: another `libnccl.so.2` may be installed, and a program that was linked by this
/// file runs on this library.
pub fn text(prefix: &str, library: &str, include: &str, version: &str) -> String {
    format!(
        "prefix={prefix}\nlibdir={library}\nincludedir={include}\n\n\
         Name: oxccl\nDescription: Collective communication, with the C interface of NCCL\nVersion: {version}\n\
         Cflags: -I${{includedir}}\nLibs: -L${{libdir}} -Wl,-rpath,${{libdir}} -lnccl\n"
    )
}

#[cfg(test)]
mod tests {
    #[test]
    fn variables_of_pkg_config_stay() {
        let text = super::text("/opt/x", "${prefix}/lib", "${prefix}/include", "1.2");
        assert!(text.starts_with("prefix=/opt/x\nlibdir=${prefix}/lib\n"), "{text}");
        assert!(text.ends_with("Libs: -L${libdir} -Wl,-rpath,${libdir} -lnccl\n"), "{text}");
    }
}

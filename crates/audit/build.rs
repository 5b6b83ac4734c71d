//! Linker flags of the library. Rust's own version script exports the functions that the loader calls, nothing else.

fn main() {
    for argument in [
        // No libc: the loader would load a second one for this library alone.
        "-nostartfiles",
        "-nostdlib",
        "-Wl,-soname,libforebay_audit.so",
        // What is missing (a panic path, a function of libc) fails the link.
        "-Wl,-z,defs",
        "-Wl,-z,now",
        "-Wl,-z,relro",
        "-Wl,-z,noexecstack",
        "-Wl,--hash-style=gnu",
    ] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
    println!("cargo::rerun-if-changed=build.rs");
}
